/* Words in memory that streams write, and for which they wait. */
#include "races.h"

#include <sched.h>

static CUresult submit_value(CUstream stream, CUdeviceptr address, unsigned bytes, uint64_t value, bool waits,
                             unsigned how) {
  CUstream s;
  TRY(stream_get(stream, &s));
  TRY(capture_forbids(s));
  REQUIRE(address % bytes == 0, CUDA_ERROR_INVALID_VALUE, "0x%llx is not aligned to %u bytes", address, bytes);
  REQUIRE(waits ? how <= CU_STREAM_WAIT_VALUE_NOR : how <= 1, CUDA_ERROR_INVALID_VALUE, "flags %#x", how);
  TRY((waits ? memory_check : memory_check_writable)(address, bytes, true));
  word w = {.at = (void *)(uintptr_t)address, .value = value, .bytes = bytes, .how = how};
  return submit(s, &(op){.kind = waits ? OP_WAIT_WORD : OP_WRITE_WORD, .word = w}, false);
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return submit_value(stream, address, 4, value, true, flags);
}
CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return submit_value(stream, address, 8, value, true, flags);
}
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return submit_value(stream, address, 4, value, false, flags);
}
CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return submit_value(stream, address, 8, value, false, flags);
}

static CUresult submit_one(CUstream stream, const CUstreamBatchMemOpParams *p) {
  switch (p->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      return cuStreamWaitValue32(stream, p->waitValue.address, p->waitValue.value, p->waitValue.flags);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      return cuStreamWaitValue64(stream, p->waitValue.address, p->waitValue.value64, p->waitValue.flags);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      return cuStreamWriteValue32(stream, p->writeValue.address, p->writeValue.value, p->writeValue.flags);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      return cuStreamWriteValue64(stream, p->writeValue.address, p->writeValue.value64, p->writeValue.flags);
    case CU_STREAM_MEM_OP_BARRIER: return CUDA_SUCCESS; /* a stream's work runs in order */
    default: return fail(CUDA_ERROR_NOT_SUPPORTED, "cuStreamBatchMemOp: operation %d", (int)p->operation);
  }
}

CUresult cuStreamBatchMemOp(CUstream stream, unsigned count, CUstreamBatchMemOpParams *list, unsigned flags) {
  REQUIRE(count <= 256 && (count == 0 || list != NULL) && flags == 0, CUDA_ERROR_INVALID_VALUE,
          "%s: %u operations, flags %#x", __func__, count, flags);
  for (unsigned i = 0; i < count; i++) TRY(submit_one(stream, &list[i]));
  return CUDA_SUCCESS;
}

static bool holds(const word *w, uint64_t seen) {
  bool wide = w->bytes == 8;
  switch (w->how) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return wide ? (int64_t)(seen - w->value) >= 0 : (int32_t)((uint32_t)seen - (uint32_t)w->value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ: return seen == w->value;
    case CU_STREAM_WAIT_VALUE_AND: return (seen & w->value) != 0;
    default: return wide ? ~(seen | w->value) != 0 : (uint32_t) ~(seen | w->value) != 0;
  }
}

static uint64_t look(const word *w) {
  return w->bytes == 8 ? __atomic_load_n((uint64_t *)w->at, __ATOMIC_ACQUIRE)
                       : __atomic_load_n((uint32_t *)w->at, __ATOMIC_ACQUIRE);
}

/* The wait keeps its thread: another thread, or a stream that other threads run, writes the word. */
CUresult word_wait(const word *w, CUcontext ctx) {
  while (!holds(w, look(w))) {
    bool ends = atomic_load_explicit(&ctx->dev->stop, memory_order_relaxed) != 0 || atomic_load(&ctx->dying);
    if (ends) return context_fail(ctx, fail(CUDA_ERROR_LAUNCH_TIMEOUT, "a wait for a value was cancelled"));
    sched_yield();
  }
  return CUDA_SUCCESS;
}

CUresult word_write(const word *w) {
  if (w->bytes == 8) __atomic_store_n((uint64_t *)w->at, w->value, __ATOMIC_RELEASE);
  else __atomic_store_n((uint32_t *)w->at, (uint32_t)w->value, __ATOMIC_RELEASE);
  return CUDA_SUCCESS;
}

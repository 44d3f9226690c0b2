/* Operations: this file runs all work. */
#include "races.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

enum { STREAMED_BYTES = 4 << 20 /* more than a core's own caches hold: below it, memmove is as fast or faster */ };

/* Copies bytes. Both ends may lie in one allocation, and overlap.

   Large copies go past the caches, as a device's copy engine does: a normal store first reads the line that it will
   overwrite, so memmove moves three bytes for each byte of a large copy, and drives out what other kernels use. */
static void move_bytes(uint8_t *dst, const uint8_t *src, size_t bytes) {
#if defined(__x86_64__)
  bool apart = dst + bytes <= src || src + bytes <= dst;
  if (bytes >= STREAMED_BYTES && apart) {
    size_t head = -(uintptr_t)dst & 63, lines = (bytes - head) / 64;
    memcpy(dst, src, head);
    __m128i *to = (__m128i *)(dst + head);
    const __m128i *from = (const __m128i *)(src + head);
    for (size_t i = 0; i < lines; i++, to += 4, from += 4) {
      __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
      __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
      _mm_stream_si128(to, a);
      _mm_stream_si128(to + 1, b);
      _mm_stream_si128(to + 2, c);
      _mm_stream_si128(to + 3, d);
    }
    _mm_sfence(); /* other threads see the copy before its stream goes on */
    memcpy(to, from, bytes - head - lines * 64);
    return;
  }
#endif
  memmove(dst, src, bytes);
}

static void run_copy(const copy *c) {
  for (size_t z = 0; z < c->depth; z++)
    for (size_t y = 0; y < c->height; y++)
      move_bytes(c->dst + z * c->dst_slice + y * c->dst_pitch, c->src + z * c->src_slice + y * c->src_pitch, c->width);
}

static void fill_row(uint8_t *row, size_t count, uint32_t value, uint32_t element_bytes) {
  bool even = value == (value & 0xff) * 0x01010101u; /* all bytes alike, as for 0 */
  if (element_bytes == 1 || even) memset(row, (int)(value & 0xff), count * element_bytes);
  else if (element_bytes == 2)
    for (size_t i = 0; i < count; i++) ((uint16_t *)row)[i] = (uint16_t)value;
  else
    for (size_t i = 0; i < count; i++) ((uint32_t *)row)[i] = value;
}

static void run_fill(const fill *f) {
  for (size_t y = 0; y < f->height; y++) fill_row(f->dst + y * f->pitch, f->width, f->value, f->element_bytes);
}

/* Keeps the first failure. Two streams may fail at once: without the lock one would overwrite half of the other's text. */
CUresult context_fail(CUcontext ctx, CUresult status) {
  static pthread_mutex_t first_only = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&first_only);
  if (atomic_load(&ctx->sticky) == 0) {
    snprintf(ctx->failure, sizeof ctx->failure, "%s", softgpu_last_error());
    atomic_store(&ctx->sticky, (int)status); /* after the text, which readers then read */
  }
  pthread_mutex_unlock(&first_only);
  return status;
}

/* In strict mode: runs code that reports the bytes it touches. */
static CUresult run_touching(const kernel_call *call, CUcontext ctx, char *message, size_t bytes) {
  sg_launch launch = call->launch;
  launch.touched = touching;
  CUresult status = kernel_checked(call->kern, ctx->dev, launch.block, &launch.fn);
  if (status == CUDA_SUCCESS) return (CUresult)sg_run(&launch, message, bytes);
  snprintf(message, bytes, "%s", softgpu_last_error());
  return status;
}

/* After fail: adds the other kernels that ran when the device's kernels were ended: one of them may be the cause. */
static CUresult fail_kernel(const kernel_call *call, CUcontext ctx, CUresult status) {
  const char *all = ctx->dev->stopped;
  bool ended = status == CUDA_ERROR_LAUNCH_TIMEOUT && atomic_load(&ctx->dev->stop) != 0;
  if (ended && *all != 0 && strcmp(all, call->kern->info->name) != 0) {
    char reason[600];
    snprintf(reason, sizeof reason, "%s", softgpu_last_error());
    explain("%s; there ran: %s", reason, all);
  }
  return context_fail(ctx, status);
}

static CUresult run_kernel(const kernel_call *call, CUcontext ctx) {
  char message[400]; /* sg_run begins it: filling it all would cost more than a small kernel */
  CUresult status;
  running_begin(ctx->dev, call->kern);
  if (__builtin_expect(atomic_load_explicit(&ctx->dev->faulty, memory_order_relaxed), 0)) {
    status = fault_at(FAULT_AT_KERNEL, ctx->dev, ctx, call->kern->info->name);
    if (status != CUDA_SUCCESS) {
      running_end();
      return fail_kernel(call, ctx, status);
    }
  }
  if (__builtin_expect(touching != NULL, 0)) status = run_touching(call, ctx, message, sizeof message);
  else status = (CUresult)sg_run(&call->launch, message, sizeof message);
  running_end();
  if (__builtin_expect(status == CUDA_SUCCESS, 1)) return CUDA_SUCCESS;
  return fail_kernel(call, ctx, fail(status, "kernel %s: %s", call->kern->info->name, message));
}

/* A host function may use the results of all earlier work. */
static void run_host(const op *o) {
  if (__builtin_expect(touching != NULL, 0)) {
    pthread_mutex_lock(&work_lock);
    host_learns_locked(work_running->moment);
    pthread_mutex_unlock(&work_lock);
  }
  o->host.fn(o->host.data);
}

static CUresult run_free(const op *o) {
  allocation gone;
  memory_remove(o->freed.base, &gone);
  memory_give_back(&o->freed);
  return CUDA_SUCCESS;
}

typedef struct memory_access {
  const op *o;
  CUcontext ctx;
  CUresult status;
} memory_access;

static void run_access(void *made) {
  memory_access *a = made;
  switch (a->o->kind) {
    case OP_COPY: run_copy(&a->o->copy); break;
    case OP_FILL: run_fill(&a->o->fill); break;
    case OP_WAIT_WORD: a->status = word_wait(&a->o->word, a->ctx); break;
    default: a->status = word_write(&a->o->word);
  }
}

/* Memory may have gone since the submission: the program can unmap it at any time. */
static CUresult access_memory(const op *o, CUcontext ctx) {
  memory_access made = {o, ctx, CUDA_SUCCESS};
  uint64_t address;
  char near[160];
  if (__builtin_expect(sg_guarded(run_access, &made, &address), 1)) return made.status;
  sg_describe_access(address, 1, near, sizeof near);
  return context_fail(ctx, fail(CUDA_ERROR_ILLEGAL_ADDRESS, "%s: illegal access: 0x%" PRIx64 ", %s", op_name(o->kind),
                                address, near));
}

static CUresult run(const op *o, CUcontext ctx) {
  if (__builtin_expect(touching != NULL, 0)) race_note(o);
  switch (o->kind) {
    case OP_KERNEL: return run_kernel(&o->kernel, ctx);
    case OP_COPY:
      TRY(access_memory(o, ctx));
      return ctx->dev->faulty ? fault_at(FAULT_AT_COPY, ctx->dev, ctx, "") : CUDA_SUCCESS;
    case OP_FILL:
    case OP_WAIT_WORD:
    case OP_WRITE_WORD: return access_memory(o, ctx);
    case OP_HOST: run_host(o); return CUDA_SUCCESS;
    case OP_RECORD: event_record_now(o->event); return CUDA_SUCCESS;
    case OP_EXEC: return exec_run(o->exec, ctx);
    case OP_BRANCH: return branch_run(o->branch, ctx);
    case OP_WAIT: event_wait_now(o->event); return CUDA_SUCCESS;
    case OP_FREE: return run_free(o);
    case OP_GRAPH_ALLOC:
    case OP_GRAPH_FREE: strict_poison(o->block->base, o->block->reserved); return CUDA_SUCCESS;
    case OP_AWAIT:
    case OP_EMPTY: return CUDA_SUCCESS;
    case OP_CHILD:
    case OP_CONDITIONAL: break; /* only in graphs; an instance holds OP_EXEC or OP_BRANCH in its place */
  }
  return fail(CUDA_ERROR_INVALID_VALUE, "operation %d cannot run", (int)o->kind);
}

CUresult op_run(const op *o, CUcontext ctx) {
  struct model *m = ctx->dev->model;
  if (__builtin_expect(m == NULL || o->kind == OP_EXEC || o->kind == OP_BRANCH, 1)) return run(o, ctx);
  int64_t began = now_ns();
  CUresult status = run(o, ctx);
  model_account(m, o, began);
  return status;
}

/* The bytes from the first to the last that rows of width bytes touch. */
static size_t extent(size_t width, size_t height, size_t depth, size_t pitch, size_t slice) {
  return (depth - 1) * slice + (height - 1) * pitch + width;
}

CUresult copy_check(const copy *c, bool src_known, bool dst_known) {
  if (c->width == 0 || c->height == 0 || c->depth == 0) return CUDA_SUCCESS;
  REQUIRE(c->height == 1 || (c->dst_pitch >= c->width && c->src_pitch >= c->width), CUDA_ERROR_INVALID_VALUE,
          "a pitch is smaller than the row of %zu bytes", c->width);
  TRY(memory_check((uintptr_t)c->src, extent(c->width, c->height, c->depth, c->src_pitch, c->src_slice), src_known));
  return memory_check_writable((uintptr_t)c->dst,
                               extent(c->width, c->height, c->depth, c->dst_pitch, c->dst_slice), dst_known);
}

CUresult fill_check(const fill *f) {
  uint32_t e = f->element_bytes;
  REQUIRE(e == 1 || e == 2 || e == 4, CUDA_ERROR_INVALID_VALUE, "elements of %u bytes cannot be set", e);
  REQUIRE((uintptr_t)f->dst % e == 0, CUDA_ERROR_INVALID_VALUE, "%p is not aligned to %u bytes", (void *)f->dst, e);
  if (f->width == 0 || f->height == 0) return CUDA_SUCCESS;
  REQUIRE(f->width <= SIZE_MAX / 8, CUDA_ERROR_INVALID_VALUE, "%zu elements", f->width);
  REQUIRE(f->height == 1 || (f->pitch >= f->width * e && f->pitch % e == 0), CUDA_ERROR_INVALID_VALUE,
          "a pitch of %zu bytes for rows of %zu", f->pitch, f->width * e);
  return memory_check_writable((uintptr_t)f->dst, extent(f->width * e, f->height, 1, f->pitch, 0), true);
}

/* The first byte of one side of a 3D copy. The memory layout of arrays is not known. */
static CUresult side(CUmemorytype type, const void *host, CUdeviceptr address, size_t offset, uint8_t **first) {
  switch (type) {
    case CU_MEMORYTYPE_HOST: *first = (uint8_t *)(uintptr_t)host + offset; return CUDA_SUCCESS;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED: *first = (uint8_t *)(uintptr_t)address + offset; return CUDA_SUCCESS;
    case CU_MEMORYTYPE_ARRAY: return fail(CUDA_ERROR_NOT_SUPPORTED, "copies of arrays are not supported");
  }
  return fail(CUDA_ERROR_INVALID_VALUE, "there is no memory type %d", (int)type);
}

CUresult copy_from_3d(const CUDA_MEMCPY3D *p, copy *c) {
  uint8_t *src = NULL, *dst = NULL;
  /* A pitch or height of 0 means packed rows, as in 1D nodes. */
  size_t src_pitch = p->srcPitch ? p->srcPitch : p->WidthInBytes,
         dst_pitch = p->dstPitch ? p->dstPitch : p->WidthInBytes;
  size_t src_slice = src_pitch * (p->srcHeight ? p->srcHeight : p->Height);
  size_t dst_slice = dst_pitch * (p->dstHeight ? p->dstHeight : p->Height);
  TRY(side(p->srcMemoryType, p->srcHost, p->srcDevice, p->srcZ * src_slice + p->srcY * src_pitch + p->srcXInBytes,
           &src));
  TRY(side(p->dstMemoryType, p->dstHost, p->dstDevice, p->dstZ * dst_slice + p->dstY * dst_pitch + p->dstXInBytes,
           &dst));
  *c = (copy){.dst = dst,
              .src = src,
              .width = p->WidthInBytes,
              .height = p->Height,
              .depth = p->Depth,
              .dst_pitch = dst_pitch,
              .dst_slice = dst_slice,
              .src_pitch = src_pitch,
              .src_slice = src_slice};
  return copy_check(c, p->srcMemoryType == CU_MEMORYTYPE_DEVICE, p->dstMemoryType == CU_MEMORYTYPE_DEVICE);
}

/* Events: a time, or the place in a stream capture where they were recorded. */
#include "driver.h"

#include <time.h>

void event_record_now(CUevent e) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  atomic_store(&e->time_ns, (int64_t)now.tv_sec * 1000000000 + now.tv_nsec);
}

CUresult cuEventCreate(CUevent *event, unsigned flags) {
  CUcontext ctx;
  TRY(current_context(&ctx));
  REQUIRE_POINTER(event);
  REQUIRE((flags & ~(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)) == 0,
          CUDA_ERROR_INVALID_VALUE, "%s: flags %#x", __func__, flags);
  REQUIRE(!(flags & CU_EVENT_INTERPROCESS), CUDA_ERROR_NOT_SUPPORTED,
          "events shared between processes are not supported");
  CUevent e = handle_new(HANDLE_EVENT, sizeof *e);
  REQUIRE(e != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for an event");
  e->ctx = ctx;
  e->flags = flags;
  *event = e;
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
  TRY(require_init());
  REQUIRE_HANDLE(event, HANDLE_EVENT);
  nodes_clear(&event->nodes);
  handle_delete(event);
  return CUDA_SUCCESS;
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  CUstream s;
  TRY(stream_get(stream, &s));
  REQUIRE_HANDLE(event, HANDLE_EVENT);
  REQUIRE((flags & ~CU_EVENT_RECORD_EXTERNAL) == 0, CUDA_ERROR_INVALID_VALUE, "%s: flags %#x", __func__, flags);
  bool capturing = atomic_load(&s->capture) != NULL;
  REQUIRE(capturing || !(flags & CU_EVENT_RECORD_EXTERNAL), CUDA_ERROR_INVALID_VALUE,
          "an external record belongs into a capture");
  REQUIRE(event->ctx == s->ctx, CUDA_ERROR_INVALID_HANDLE, "the event and the stream belong to different contexts");
  if (capturing && !(flags & CU_EVENT_RECORD_EXTERNAL)) return capture_record(event, s);
  if (!capturing) {
    pthread_mutex_lock(&capture_lock);
    event->capture_id = 0;
    nodes_clear(&event->nodes);
    pthread_mutex_unlock(&capture_lock);
  }
  return submit(s, &(op){.kind = OP_RECORD, .event = event});
}

CUresult cuEventRecord(CUevent event, CUstream stream) { return cuEventRecordWithFlags(event, stream, 0); }

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  CUstream s;
  TRY(stream_get(stream, &s));
  REQUIRE_HANDLE(event, HANDLE_EVENT);
  REQUIRE((flags & ~CU_EVENT_WAIT_EXTERNAL) == 0, CUDA_ERROR_INVALID_VALUE, "%s: flags %#x", __func__, flags);
  bool handled = false;
  if (!(flags & CU_EVENT_WAIT_EXTERNAL)) TRY(capture_wait(s, event, &handled));
  return handled ? CUDA_SUCCESS : submit(s, &(op){.kind = OP_WAIT, .event = event});
}

static CUresult complete(CUevent event) {
  TRY(require_init());
  REQUIRE_HANDLE(event, HANDLE_EVENT);
  REQUIRE(!event_captured(event), CUDA_ERROR_CAPTURED_EVENT, "the event was last recorded in a capturing stream");
  int sticky = atomic_load(&event->ctx->sticky);
  REQUIRE(sticky == 0, (CUresult)sticky, "%s", event->ctx->failure);
  return CUDA_SUCCESS; /* recording is done when the call returns, and an event never recorded counts as complete */
}

CUresult cuEventQuery(CUevent event) { return complete(event); }
CUresult cuEventSynchronize(CUevent event) { return complete(event); }

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
  REQUIRE_POINTER(milliseconds);
  TRY(complete(start));
  TRY(complete(end));
  REQUIRE(!((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING), CUDA_ERROR_INVALID_HANDLE,
          "an event was created without timing");
  int64_t from = atomic_load(&start->time_ns), to = atomic_load(&end->time_ns);
  REQUIRE(from != 0 && to != 0, CUDA_ERROR_INVALID_HANDLE, "an event was never recorded");
  REQUIRE(start->ctx->dev == end->ctx->dev, CUDA_ERROR_INVALID_HANDLE, "the events belong to different devices");
  *milliseconds = (float)((double)(to - from) * 1e-6);
  return CUDA_SUCCESS;
}

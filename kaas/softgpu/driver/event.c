/* Events: a fence in a stream, or the place in a stream capture where they were recorded. */
#include "driver.h"

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
  event_forget(event);
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
  if (capturing) return submit(s, &(op){.kind = OP_RECORD, .event = event}, false);
  TRY(capture_legacy_gate(s));
  pthread_mutex_lock(&capture_lock);
  event->capture_id = 0;
  nodes_clear(&event->nodes);
  pthread_mutex_unlock(&capture_lock);
  return event_record(event, s);
}

CUresult cuEventRecord(CUevent event, CUstream stream) { return cuEventRecordWithFlags(event, stream, 0); }

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  CUstream s;
  TRY(stream_get(stream, &s));
  REQUIRE_HANDLE(event, HANDLE_EVENT);
  REQUIRE((flags & ~CU_EVENT_WAIT_EXTERNAL) == 0, CUDA_ERROR_INVALID_VALUE, "%s: flags %#x", __func__, flags);
  bool handled = false;
  if (!(flags & CU_EVENT_WAIT_EXTERNAL)) TRY(capture_wait(s, event, &handled));
  if (handled) return CUDA_SUCCESS;
  if (atomic_load(&s->capture) != NULL) return submit(s, &(op){.kind = OP_WAIT, .event = event}, false);
  return event_await(s, event);
}

static CUresult complete(CUevent event, bool wait) {
  TRY(require_init());
  REQUIRE_HANDLE(event, HANDLE_EVENT);
  REQUIRE(!event_captured(event), CUDA_ERROR_CAPTURED_EVENT, "the event was last recorded in a capturing stream");
  if (wait) TRY(event_wait(event));
  if (!event_done(event)) return CUDA_ERROR_NOT_READY;
  return context_status(event->ctx);
}

CUresult cuEventQuery(CUevent event) { return complete(event, false); }
CUresult cuEventSynchronize(CUevent event) { return complete(event, true); }

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
  REQUIRE_POINTER(milliseconds);
  TRY(complete(start, false));
  TRY(complete(end, false));
  REQUIRE(!((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING), CUDA_ERROR_INVALID_HANDLE,
          "an event was created without timing");
  int64_t from = event_time_ns(start), to = event_time_ns(end);
  REQUIRE(from != 0 && to != 0, CUDA_ERROR_INVALID_HANDLE, "an event was never recorded");
  REQUIRE(start->ctx->dev == end->ctx->dev, CUDA_ERROR_INVALID_HANDLE, "the events belong to different devices");
  *milliseconds = (float)((double)(to - from) * 1e-6);
  return CUDA_SUCCESS;
}

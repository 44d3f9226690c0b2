/* Events: a fence in a stream, or the place of their record in a stream capture. */
#include "races.h"

CUresult event_record(CUevent e, CUstream s) {
  work *w;
  pthread_mutex_lock(&work_lock);
  CUresult status = work_queue_locked(s, &(op){.kind = OP_EMPTY}, &w);
  fence *f = status == CUDA_SUCCESS ? work_signal_locked(s, w) : NULL;
  if (f != NULL) {
    fence_drop_locked(e->fence);
    e->fence = fence_keep_locked(f);
  }
  workers_notice_locked();
  pthread_mutex_unlock(&work_lock);
  TRY(status);
  REQUIRE(f != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for an event");
  return CUDA_SUCCESS;
}

/* Records an event inside a graph that runs now. */
void event_record_now(CUevent e) {
  pthread_mutex_lock(&work_lock);
  fence *f = fence_new_locked(NULL);
  if (f != NULL) {
    f->done = true;
    f->time_ns = e->ctx->dev->model != NULL ? model_clock() : now_ns();
    if (work_running != NULL && work_running->moment != NULL) f->moment = moment_copy(work_running->moment);
    fence_drop_locked(e->fence);
    e->fence = f;
  }
  pthread_mutex_unlock(&work_lock);
}

/* A launch under way will record e: until then, the event's fence is that of the launch. */
void event_expect_locked(CUevent e, fence *launch) {
  fence_drop_locked(e->fence);
  e->fence = fence_keep_locked(launch);
}

CUresult event_await(CUstream s, CUevent e) {
  pthread_mutex_lock(&work_lock);
  CUresult status = e->fence != NULL ? work_await_locked(s, e->fence) : CUDA_SUCCESS;
  workers_notice_locked();
  pthread_mutex_unlock(&work_lock);
  return status;
}

/* Waits inside a graph that runs now, but never for this launch itself or for later work. */
void event_wait_now(CUevent e) {
  pthread_mutex_lock(&work_lock);
  fence *f = e->fence;
  const work *launch = work_running;
  if (f != NULL && !f->done && launch != NULL && launch->signals != NULL && f->stream != launch->signals->stream) {
    fence_keep_locked(f);
    work_wait_locked(f);
    model_set_clock(later(model_clock(), f->time_ns));
    fence_drop_locked(f);
  }
  pthread_mutex_unlock(&work_lock);
}

CUresult event_wait(CUevent e) {
  TRY(work_may_wait());
  pthread_mutex_lock(&work_lock);
  fence *f = e->fence;
  if (f != NULL) {
    fence_keep_locked(f);
    work_wait_locked(f);
    host_learns_locked(f->moment);
    fence_drop_locked(f);
  }
  pthread_mutex_unlock(&work_lock);
  return CUDA_SUCCESS;
}

bool event_done(CUevent e) {
  pthread_mutex_lock(&work_lock);
  bool done = e->fence == NULL || e->fence->done;
  if (!done) work_ask_locked(e->fence->stream);
  else if (e->fence != NULL) host_learns_locked(e->fence->moment);
  pthread_mutex_unlock(&work_lock);
  return done;
}

int64_t event_time_ns(CUevent e) {
  pthread_mutex_lock(&work_lock);
  int64_t time = e->fence != NULL ? e->fence->time_ns : 0;
  pthread_mutex_unlock(&work_lock);
  return time;
}

void event_forget(CUevent e) {
  pthread_mutex_lock(&work_lock);
  fence_drop_locked(e->fence);
  e->fence = NULL;
  pthread_mutex_unlock(&work_lock);
}

void event_leave_capture(CUevent e) {
  pthread_mutex_lock(&capture_lock);
  e->capture_id = 0;
  nodes_clear(&e->nodes);
  pthread_mutex_unlock(&capture_lock);
}

/* --- calls */

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
  event_leave_capture(event);
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

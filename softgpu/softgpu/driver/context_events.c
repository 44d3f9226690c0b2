/* Events of whole contexts: for all work that a context has so far, and waits of all its work from now on.
 *
 * Each context has two streams for them. For a record its `gather` waits for all streams. For a wait all streams wait,
 * and `gate` too, so that streams which are made later can wait for it.
 */
#include "races.h"

void context_events_begin(CUcontext home) {
  stream_init(&home->gather, home, CU_STREAM_NON_BLOCKING, 0);
  stream_init(&home->gate, home, CU_STREAM_NON_BLOCKING, 0);
  home->gather.internal = home->gate.internal = true;
}

void context_events_end(CUcontext home) {
  stream_forget(&home->gather);
  stream_forget(&home->gate);
}

static CUresult record_locked(CUcontext ctx, CUevent e) {
  CUstream gather = &ctx->gather;
  work *w;
  for (CUstream s = work_busy; s != NULL; s = s->next_busy)
    if (!s->internal && stream_within(s, ctx)) TRY(work_await_tail_locked(gather, s));
  if (atomic_load_explicit(&strict, memory_order_relaxed)) moment_join(&gather->order, &ctx->all);
  TRY(work_queue_locked(gather, &(op){.kind = OP_EMPTY}, &w));
  fence *f = work_signal_locked(gather, w);
  REQUIRE(f != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for an event");
  fence_drop_locked(e->fence);
  e->fence = fence_keep_locked(f);
  return CUDA_SUCCESS;
}

CUresult cuCtxRecordEvent(CUcontext given, CUevent event) {
  CUcontext ctx;
  TRY(context_or_current(given, &ctx));
  TRY(context_status(ctx));
  REQUIRE_HANDLE(event, HANDLE_EVENT);
  REQUIRE(event->ctx == ctx->base, CUDA_ERROR_INVALID_HANDLE, "the event belongs to another context");
  TRY(capture_forbids_in(ctx, event));
  event_leave_capture(event);
  pthread_mutex_lock(&work_lock);
  CUresult status = record_locked(ctx, event);
  workers_notice_locked();
  pthread_mutex_unlock(&work_lock);
  return status;
}

/* The streams of one context, without those of its green ones. */
static CUresult await_locked(CUcontext ctx, fence *f) {
  TRY(work_await_locked(&ctx->legacy, f));
  TRY(work_await_locked(&ctx->gate, f));
  if (ctx->green == NULL) TRY(work_await_locked(&ctx->per_thread, f));
  for (CUstream s = ctx->streams; s != NULL; s = s->next) TRY(work_await_locked(s, f));
  return CUDA_SUCCESS;
}

static CUresult await_all_locked(CUcontext ctx, fence *f) {
  TRY(await_locked(ctx, f));
  for (CUgreenCtx green = ctx->greens; green != NULL; green = green->next) TRY(await_locked(green->ctx, f));
  return CUDA_SUCCESS;
}

CUresult cuCtxWaitEvent(CUcontext given, CUevent event) {
  CUcontext ctx;
  TRY(context_or_current(given, &ctx));
  TRY(context_status(ctx));
  REQUIRE_HANDLE(event, HANDLE_EVENT);
  TRY(capture_forbids_in(ctx, event));
  REQUIRE(!event_captured(event), CUDA_ERROR_CAPTURED_EVENT, "the event belongs to a capture that has ended");
  pthread_mutex_lock(&state_lock);
  pthread_mutex_lock(&work_lock);
  CUresult status = event->fence != NULL ? await_all_locked(ctx, event->fence) : CUDA_SUCCESS;
  workers_notice_locked();
  pthread_mutex_unlock(&work_lock);
  pthread_mutex_unlock(&state_lock);
  return status;
}

void gate_follow(CUstream s) {
  CUstream gate = s == &s->home->gate ? &s->ctx->gate : &s->home->gate; /* of a green context: the primary one's */
  pthread_mutex_lock(&work_lock);
  if (atomic_load_explicit(&strict, memory_order_relaxed)) moment_join(&s->order, &gate->order);
  (void)work_await_tail_locked(s, gate); /* without memory for work, nothing will run in s */
  pthread_mutex_unlock(&work_lock);
}

CUresult cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event) {
  TRY(green_get(green));
  return cuCtxRecordEvent(green->ctx, event);
}

CUresult cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event) {
  TRY(green_get(green));
  return cuCtxWaitEvent(green->ctx, event);
}

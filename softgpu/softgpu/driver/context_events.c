/* Events of whole contexts: for all work that a context has so far, and waits of all its work from now on.
 *
 * Each context has a stream of the driver's own, `common`. For a record it waits for all other streams; in a wait they
 * all wait for the event, and it too, so that streams which are made later can wait for it.
 */
#include "races.h"

static CUresult record_locked(CUcontext ctx, CUevent e) {
  CUstream common = &ctx->common;
  work *w;
  for (CUstream s = work_busy; s != NULL; s = s->next_busy)
    if (s != common && stream_within(s, ctx)) TRY(work_await_tail_locked(common, s));
  if (atomic_load_explicit(&strict, memory_order_relaxed)) moment_join(&common->order, &ctx->all);
  TRY(work_queue_locked(common, &(op){.kind = OP_EMPTY}, &w));
  fence *f = work_signal_locked(common, w);
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
  TRY(work_await_locked(&ctx->common, f));
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

void common_follow(CUstream s) {
  CUstream common = s == &s->home->common ? &s->ctx->common : &s->home->common;
  pthread_mutex_lock(&work_lock);
  (void)work_await_tail_locked(s, common); /* without memory for work, nothing will run in s */
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

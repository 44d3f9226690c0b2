/* Submission to the work queues, and the program's queries and waits. */
#include "races.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_WAITING = 1024 /* in a stream: a submission beyond that runs work, as in CUDA */, LARGE_BYTES = 1 << 20 };

/* Copies data of an operation that the caller may change after the submission has returned. */
static CUresult keep_bytes(work *w, const void *from, size_t bytes, const uint8_t **kept) {
  uint8_t *to = w->bytes;
  if (bytes > INLINE_BYTES) {
    REQUIRE(posix_memalign(&w->storage, PARAM_ALIGNMENT, bytes) == 0, CUDA_ERROR_OUT_OF_MEMORY,
            "no host memory for %zu bytes", bytes);
    to = w->storage;
  }
  memcpy(to, from, bytes);
  *kept = to;
  return CUDA_SUCCESS;
}

static CUresult keep_arguments(work *w, const op *o) {
  if (o->kind == OP_KERNEL)
    return keep_bytes(w, o->kernel.launch.params, param_storage_bytes(o->kernel.kern), &w->op.kernel.launch.params);
  if (o->kind == OP_COPY && o->copy.staged) return keep_bytes(w, o->copy.src, o->copy.width, &w->op.copy.src);
  return CUDA_SUCCESS;
}

/* Queues a launch of an instance after its earlier launches: two launches of an instance never overlap. */
static CUresult queue_exec_locked(CUstream s, CUgraphExec exec, const op *o, work **made) {
  if (exec->last != NULL) TRY(work_await_locked(s, exec->last));
  if (atomic_load_explicit(&strict, memory_order_relaxed)) exec_follow_locked(exec, &s->order);
  work *w = work_append_locked(s, o);
  fence *f = w != NULL ? work_signal_locked(s, w) : NULL;
  *made = w;
  if (f == NULL) {
    if (w != NULL) w->op.kind = OP_EMPTY;
    return fail(CUDA_ERROR_OUT_OF_MEMORY, "no host memory for work");
  }
  fence_drop_locked(exec->last);
  exec->last = fence_keep_locked(f);
  exec_launched_locked(exec, f);
  return CUDA_SUCCESS;
}

CUresult work_queue_locked(CUstream s, const op *o, work **made) {
  while (s->waiting >= MOST_WAITING && work_running == NULL)
    if (!work_help_locked(s)) pthread_cond_wait(&work_progress, &work_lock);
  TRY(work_await_legacy_locked(s));
  if (o->kind == OP_EXEC) return queue_exec_locked(s, o->exec, o, made);
  work *w = work_append_locked(s, o);
  REQUIRE(w != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for work");
  if (o->kind == OP_FREE) atomic_fetch_add(&work_pending_frees, 1);
  CUresult status = keep_arguments(w, o);
  if (status != CUDA_SUCCESS) w->op.kind = OP_EMPTY;
  *made = w;
  return status;
}

static CUresult queue_and_wait_locked(CUstream s, const op *o) {
  work *w;
  TRY(work_queue_locked(s, o, &w));
  fence *f = work_signal_locked(s, w);
  REQUIRE(f != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for work");
  fence_keep_locked(f);
  work_wait_locked(f);
  host_learns_locked(f->moment);
  fence_drop_locked(f);
  return CUDA_SUCCESS;
}

/* Lets a worker begin long work now. */
static void notice_locked(CUstream s, const op *o) {
  bool large = o->kind == OP_COPY && o->copy.width * o->copy.height * o->copy.depth >= LARGE_BYTES;
  bool hurry = !atomic_load_explicit(&strict, memory_order_relaxed) && (large || s->ctx->dev->model != NULL) &&
               work_is_ready_locked(s) && !s->first->urgent;
  workers_notice_locked();
  if (!hurry) return;
  s->first->urgent = true;
  workers_wake_locked();
}

CUresult submit(CUstream s, const op *o, bool wait) {
  work *w;
  if (atomic_load_explicit(&s->capture, memory_order_acquire) != NULL) return capture_op(s, o);
  TRY(capture_legacy_gate(s));
  if (wait) TRY(work_may_wait());
  pthread_mutex_lock(&work_lock);
  CUresult status = wait ? queue_and_wait_locked(s, o) : work_queue_locked(s, o, &w);
  if (!wait) notice_locked(s, o);
  pthread_mutex_unlock(&work_lock);
  TRY(status);
  return wait ? context_status(s->ctx) : CUDA_SUCCESS;
}

/* --- waits and queries */

/* Starts the work after a query, since the program will ask again. */
void work_ask_locked(CUstream s) {
  if (atomic_load(&strict) && work_running == NULL) {
    (void)work_help_locked(s);
    return;
  }
  while (!s->running && s->first->op.kind == OP_AWAIT && !s->first->awaits->done) s = s->first->awaits->stream;
  if (s->running) return;
  s->first->urgent = true;
  workers_wake_locked();
}

bool stream_idle(CUstream s) {
  pthread_mutex_lock(&work_lock);
  bool idle = s->first == NULL;
  if (!idle) work_ask_locked(s);
  else host_learns_locked(&s->order);
  pthread_mutex_unlock(&work_lock);
  return idle;
}

/* True if work that is submitted now would wait for nothing. */
bool stream_settled(CUstream s) {
  pthread_mutex_lock(&work_lock);
  bool settled = s->first == NULL && (work_busy == NULL || !stream_blocks(s));
  pthread_mutex_unlock(&work_lock);
  return settled;
}

CUresult stream_wait(CUstream s) {
  TRY(work_may_wait());
  pthread_mutex_lock(&work_lock);
  uint64_t last = s->last != NULL ? s->last->ticket : 0;
  moment before;
  bool learns = atomic_load_explicit(&strict, memory_order_relaxed);
  if (learns) before = s->order;
  while (s->first != NULL && s->first->ticket <= last) /* without a fence, which would read the clock */
    if (!work_help_locked(s)) pthread_cond_wait(&work_progress, &work_lock);
  if (learns) host_learns_locked(&before);
  pthread_mutex_unlock(&work_lock);
  return CUDA_SUCCESS;
}

/* Waits for all work submitted so far to a context; NULL: to all contexts. */
static void wait_for_all_locked(CUcontext ctx) {
  uint64_t latest = work_last_ticket;
  bool shuffled = atomic_load_explicit(&strict, memory_order_relaxed);
  for (;;) {
    CUstream s = work_busy;
    while (s != NULL && ((ctx != NULL && !stream_within(s, ctx)) || s->first->ticket > latest)) s = s->next_busy;
    if (s == NULL) break;
    if (!(shuffled ? work_help_any_locked() : work_help_locked(s))) pthread_cond_wait(&work_progress, &work_lock);
  }
}

CUresult context_wait(CUcontext ctx) {
  TRY(work_may_wait());
  pthread_mutex_lock(&work_lock);
  moment before = {0};
  bool learns = ctx != NULL && atomic_load_explicit(&strict, memory_order_relaxed);
  if (learns) before = ctx->all;
  wait_for_all_locked(ctx);
  if (learns) host_learns_locked(&before);
  else if (ctx == NULL) host_learns_all_locked();
  pthread_mutex_unlock(&work_lock);
  return CUDA_SUCCESS;
}

/* The program has not waited, so this changes no order on which it may rely. */
bool frees_awaited(CUcontext ctx) {
  if (atomic_load(&work_pending_frees) == 0 || work_may_wait() != CUDA_SUCCESS) return false;
  pthread_mutex_lock(&work_lock);
  wait_for_all_locked(ctx);
  pthread_mutex_unlock(&work_lock);
  return true;
}

void stream_let_go(CUstream s) {
  pthread_mutex_lock(&work_lock);
  handle_kill(s);
  s->dying = s->first != NULL;
  if (!s->dying) handle_bury(s, HANDLE_STREAM);
  pthread_mutex_unlock(&work_lock);
}

/* Called before an instance is changed: its launches so far use it unchanged. */
CUresult exec_wait(CUgraphExec exec) {
  pthread_mutex_lock(&work_lock);
  fence *f = exec->last;
  bool pending = f != NULL && !f->done;
  CUresult status = pending ? work_may_wait() : CUDA_SUCCESS;
  if (pending && status == CUDA_SUCCESS) {
    fence_keep_locked(f);
    work_wait_locked(f);
    fence_drop_locked(f);
  }
  pthread_mutex_unlock(&work_lock);
  return status;
}

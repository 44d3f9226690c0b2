/* Work queues: submitted work waits in its stream until a thread runs it.
 *
 * A thread that waits for work runs it, with all its dependencies; workers (workers.c) run work for which no thread
 * waits soon. So a program that submits and waits pays for no switch between threads, and the work of a program that
 * goes on runs meanwhile. Every dependency is a fence: events, waits between streams, the default stream, launches of
 * one graph instance. The work that signals a fence was submitted before all work that awaits it: some work can always run.
 */
#include "races.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_AT_ONCE = 16, MOST_AHEAD_NS = 1000000 };

pthread_mutex_t work_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t work_progress = PTHREAD_COND_INITIALIZER;
CUstream work_busy;
static work *spare_work;
static fence *spare_fences;
uint64_t work_last_ticket;
static uint64_t looked_ticket, aged_ticket; /* the last at the clock's last check, and at the check before */
_Atomic uint64_t work_pending_frees;
_Thread_local work *work_running INITIAL_EXEC;

/* --- fences */

fence *fence_new_locked(CUstream s) {
  fence *f = spare_fences;
  if (f != NULL) spare_fences = f->next;
  else f = malloc(sizeof *f);
  if (f != NULL) *f = (fence){.references = 1, .stream = s};
  return f;
}

void fence_drop_locked(fence *f) {
  if (f == NULL || --f->references > 0) return;
  free(f->moment);
  f->next = spare_fences;
  spare_fences = f;
}

fence *fence_keep_locked(fence *f) {
  f->references++;
  return f;
}

fence *work_signal_locked(CUstream s, work *w) {
  if (w->signals != NULL) return w->signals;
  fence *f = fence_new_locked(s);
  bool ordered = atomic_load_explicit(&strict, memory_order_relaxed);
  if (f != NULL && ordered && (f->moment = moment_copy(&s->order)) == NULL) { /* w is the latest of s */
    fence_drop_locked(f);
    return NULL;
  }
  return w->signals = f;
}

int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* --- queues */

work *work_append_locked(CUstream s, const op *o) {
  work *w = spare_work;
  if (w != NULL) spare_work = w->next;
  else if (posix_memalign((void **)&w, PARAM_ALIGNMENT, sizeof *w) != 0) return NULL;
  w->moment = NULL;
  if (atomic_load_explicit(&strict, memory_order_relaxed) && (w->moment = moment_next_locked(s)) == NULL) {
    w->next = spare_work;
    spare_work = w;
    return NULL;
  }
  w->next = NULL;
  w->op = *o;
  w->ticket = ++work_last_ticket;
  w->awaits = w->signals = NULL;
  w->urgent = false;
  w->storage = NULL;
  w->submitted_ns = s->ctx->dev->model != NULL ? now_ns() : 0;
  s->waiting++;
  if (s->last != NULL) {
    s->last->next = w;
  } else {
    s->first = w;
    s->next_busy = work_busy;
    work_busy = s;
  }
  s->last = w;
  return w;
}

CUresult work_await_locked(CUstream s, fence *f) {
  if (f->moment != NULL) moment_join(&s->order, f->moment);
  if (f->done || f->stream == s) return CUDA_SUCCESS;
  work *w = work_append_locked(s, &(op){.kind = OP_AWAIT});
  REQUIRE(w != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for work");
  w->awaits = fence_keep_locked(f);
  return CUDA_SUCCESS;
}

CUresult work_await_tail_locked(CUstream s, CUstream of) {
  if (of->last == NULL) return CUDA_SUCCESS;
  fence *f = work_signal_locked(of, of->last);
  REQUIRE(f != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for work");
  return work_await_locked(s, f);
}

/* The default stream waits for every blocking stream of its context, and each of these waits for it. */
CUresult work_await_legacy_locked(CUstream s) {
  CUstream legacy = &s->home->legacy;
  if (!stream_blocks(s)) return CUDA_SUCCESS;
  if (atomic_load_explicit(&strict, memory_order_relaxed))
    moment_join(&s->order, s == legacy ? &s->home->blocking : &legacy->order);
  if (work_busy == NULL) return CUDA_SUCCESS;
  if (s == legacy) {
    for (CUstream other = work_busy; other != NULL; other = other->next_busy)
      if (other != s && other->home == s->home && stream_blocks(other)) TRY(work_await_tail_locked(s, other));
    return CUDA_SUCCESS;
  }
  if (legacy->last == NULL || legacy->last->ticket == s->legacy_seen) return CUDA_SUCCESS;
  s->legacy_seen = legacy->last->ticket;
  return work_await_tail_locked(s, legacy);
}

bool work_is_ready_locked(const struct CUstream_st *s) {
  return s->first != NULL && !s->running && (s->first->op.kind != OP_AWAIT || s->first->awaits->done);
}

/* Workers leave work that is newer than the last check but one to a thread that may wait for it. */
bool work_is_due_locked(const struct CUstream_st *s) {
  if (!work_is_ready_locked(s)) return false;
  return s->first->urgent || s->first->ticket <= aged_ticket || s->ctx->dev->model != NULL;
}

CUstream work_find_due_locked(void) {
  CUstream s = work_busy;
  while (s != NULL && !work_is_due_locked(s)) s = s->next_busy;
  return s;
}

void work_look_locked(void) {
  aged_ticket = looked_ticket;
  looked_ticket = work_last_ticket;
}

bool work_any_locked(void) { return work_busy != NULL; }

/* --- running */

static void recycle_locked(work *w) {
  free(w->storage);
  free(w->moment);
  fence_drop_locked(w->awaits);
  fence_drop_locked(w->signals);
  w->next = spare_work;
  spare_work = w;
}

static void unlink_locked(CUstream s) {
  CUstream *at = &work_busy;
  while (*at != s) at = &(*at)->next_busy;
  *at = s->next_busy;
}

/* After an error only work that frees memory runs. */
static void perform(work *w, CUstream s) {
  const op *o = &w->op;
  CUcontext ctx = s->ctx;
  bool failed = atomic_load_explicit(&ctx->sticky, memory_order_acquire) != 0 || atomic_load(&ctx->dev->lost);
  bool runs = !failed || o->kind == OP_FREE;
  if (runs && __builtin_expect(w->moment != NULL, 0)) race_run(w, s);
  else if (runs) (void)op_run(o, ctx);
  if (o->kind == OP_EXEC) exec_delete(o->exec);
  if (o->kind == OP_FREE) atomic_fetch_sub(&work_pending_frees, 1);
}

static pthread_cond_t stop_called; /* for threads that sleep */

/* Releases the lock until this time, or until the device must end its kernels. */
static void sleep_until_locked(int64_t time_ns, const device *dev) {
  static bool made;
  if (!made) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&stop_called, &monotonic);
    made = true;
  }
  struct timespec until = {time_ns / 1000000000, time_ns % 1000000000};
  while (now_ns() < time_ns && atomic_load(&dev->stop) == 0) pthread_cond_timedwait(&stop_called, &work_lock, &until);
}

void work_end_sleeps(void) {
  pthread_mutex_lock(&work_lock);
  pthread_cond_broadcast(&stop_called);
  pthread_mutex_unlock(&work_lock);
}

void work_keep_pace(const device *dev) {
  if (model_clock() - now_ns() < MOST_AHEAD_NS) return;
  pthread_mutex_lock(&work_lock);
  sleep_until_locked(model_clock(), dev);
  pthread_mutex_unlock(&work_lock);
}

static bool performs(const work *w) { return w->op.kind != OP_AWAIT && w->op.kind != OP_EMPTY; }

/* Runs w in modelled time. */
static void perform_modelled_locked(CUstream s, work *w) {
  s->clock_ns = later(s->clock_ns, w->op.kind == OP_AWAIT ? w->awaits->time_ns : w->submitted_ns);
  if (!performs(w)) return;
  pthread_mutex_unlock(&work_lock);
  work *outer = work_running;
  int64_t outer_clock = model_clock();
  work_running = w;
  model_set_clock(s->clock_ns);
  perform(w, s);
  work_running = outer;
  pthread_mutex_lock(&work_lock);
  s->clock_ns = model_clock();
  model_set_clock(outer_clock);
  sleep_until_locked(s->clock_ns, s->ctx->dev);
}

/* Runs work from s's first to last without the lock, which costs about as much as a small kernel. */
static void perform_run_locked(CUstream s, const work *last) {
  work *w = s->first, *outer = work_running;
  pthread_mutex_unlock(&work_lock);
  for (;; w = w->next) {
    work_running = w;
    perform(w, s);
    if (w == last) break;
  }
  work_running = outer;
  pthread_mutex_lock(&work_lock);
}

/* The last work that can run in one go with w: no thread may wait, now or later, for any of it except the last. */
static work *run_of_locked(const struct CUstream_st *s, work *w) {
  for (int i = 1; i < MOST_AT_ONCE && w != s->last && w->signals == NULL && performs(w->next); i++) w = w->next;
  return w;
}

void work_run_first_locked(CUstream s) {
  work *last = s->first;
  bool modelled = s->ctx->dev->model != NULL;
  s->running = true;
  if (modelled) {
    perform_modelled_locked(s, last);
  } else if (performs(last)) {
    last = run_of_locked(s, last);
    perform_run_locked(s, last);
  }
  if (last->signals != NULL) {
    last->signals->time_ns = modelled ? s->clock_ns : now_ns();
    last->signals->done = true;
  }
  s->running = false;
  for (work *w = NULL; w != last;) {
    w = s->first;
    s->first = w->next;
    s->waiting--;
    recycle_locked(w);
  }
  if (s->first == NULL) {
    s->last = NULL;
    unlink_locked(s);
    if (s->dying) handle_bury(s, HANDLE_STREAM);
  }
  pthread_cond_broadcast(&work_progress);
}

/* Runs one piece of work that s needs, in s or in a stream for which it waits. False if other threads run it. */
bool work_help_locked(CUstream s) {
  while (!s->running) {
    fence *f = s->first->awaits;
    if (s->first->op.kind != OP_AWAIT || f->done) {
      work_run_first_locked(s);
      return true;
    }
    s = f->stream; /* alive: it has not signalled yet */
  }
  return false;
}

/* Runs any piece of work that can run. False if other threads run all of it. */
bool work_help_any_locked(void) {
  CUstream found = NULL;
  uint32_t choices = 0;
  for (CUstream s = work_busy; s != NULL; s = s->next_busy)
    if (work_is_ready_locked(s) && strict_draw(++choices) == 0) found = s;
  if (found != NULL) work_run_first_locked(found);
  return found != NULL;
}

void work_wait_locked(fence *f) {
  while (!f->done)
    if (!work_help_locked(f->stream)) pthread_cond_wait(&work_progress, &work_lock);
}

CUresult work_may_wait(void) {
  REQUIRE(work_running == NULL, CUDA_ERROR_NOT_PERMITTED, "a host function may not wait for work");
  return CUDA_SUCCESS;
}

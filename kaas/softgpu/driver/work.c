/* Work queues: what was submitted to a stream waits there until somebody runs it.
 *
 * Whoever waits for work runs it, with all that it depends on; what nobody waits for soon is run by workers
 * (workers.c). So a program that submits and waits pays for no switch between threads, and one that submits and goes on
 * has its work done meanwhile. Every dependency is a fence: events, waits between streams, the default stream, launches
 * of one graph instance. A fence is signalled by work that was submitted before any that awaits it: there is always
 * something that can run.
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { INLINE_BYTES = 256, MOST_WAITING = 1024 /* in a stream: who submits more lends a hand, as CUDA has it */, LARGE_BYTES = 1 << 20 };

typedef struct work {
  struct work *next;
  op op;
  uint64_t ticket;  /* counts all work, in order of submission */
  fence *awaits;    /* OP_AWAIT */
  fence *signals;   /* or NULL */
  bool seen;        /* by a look of the workers' clock */
  int64_t submitted_ns; /* where time is modelled */
  void *storage;    /* of what does not fit into bytes */
  _Alignas(PARAM_ALIGNMENT) uint8_t bytes[INLINE_BYTES];
} work;

pthread_mutex_t work_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;
static CUstream busy; /* streams with work */
static work *spare_work;
static fence *spare_fences;
static uint64_t last_ticket;
static _Atomic uint64_t pending_frees;
static _Thread_local work *running; /* what this thread is in the middle of */

/* --- fences */

static fence *fence_new_locked(CUstream s) {
  fence *f = spare_fences;
  if (f != NULL) spare_fences = f->next;
  else f = malloc(sizeof *f);
  if (f != NULL) *f = (fence){.references = 1, .stream = s};
  return f;
}

void fence_drop_locked(fence *f) {
  if (f == NULL || --f->references > 0) return;
  f->next = spare_fences;
  spare_fences = f;
}

static fence *fence_keep_locked(fence *f) {
  f->references++;
  return f;
}

/* The fence that w signals; NULL without memory. */
static fence *signal_of_locked(CUstream s, work *w) {
  if (w->signals == NULL) w->signals = fence_new_locked(s);
  return w->signals;
}

int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* --- queues */

static work *append_locked(CUstream s, const op *o) {
  work *w = spare_work;
  if (w != NULL) spare_work = w->next;
  else if (posix_memalign((void **)&w, PARAM_ALIGNMENT, sizeof *w) != 0) return NULL;
  w->next = NULL;
  w->op = *o;
  w->ticket = ++last_ticket;
  w->awaits = w->signals = NULL;
  w->seen = false;
  w->storage = NULL;
  w->submitted_ns = s->ctx->dev->model != NULL ? now_ns() : 0;
  s->waiting++;
  if (s->last != NULL) {
    s->last->next = w;
  } else {
    s->first = w;
    s->next_busy = busy;
    busy = s;
  }
  s->last = w;
  return w;
}

static CUresult await_locked(CUstream s, fence *f) {
  if (f->done || f->stream == s) return CUDA_SUCCESS;
  work *w = append_locked(s, &(op){.kind = OP_AWAIT});
  REQUIRE(w != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for work");
  w->awaits = fence_keep_locked(f);
  return CUDA_SUCCESS;
}

static CUresult await_tail_locked(CUstream s, CUstream of) {
  if (of->last == NULL) return CUDA_SUCCESS;
  fence *f = signal_of_locked(of, of->last);
  REQUIRE(f != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for work");
  return await_locked(s, f);
}

static bool blocking(const struct CUstream_st *s) { return !(s->flags & CU_STREAM_NON_BLOCKING); }

/* The default stream waits for every blocking stream of its context, and they wait for it. */
static CUresult await_legacy_locked(CUstream s) {
  CUstream legacy = &s->ctx->legacy;
  if (!blocking(s) || busy == NULL) return CUDA_SUCCESS;
  if (s == legacy) {
    for (CUstream other = busy; other != NULL; other = other->next_busy)
      if (other != s && other->ctx == s->ctx && blocking(other)) TRY(await_tail_locked(s, other));
    return CUDA_SUCCESS;
  }
  if (legacy->last == NULL || legacy->last->ticket == s->legacy_seen) return CUDA_SUCCESS;
  s->legacy_seen = legacy->last->ticket;
  return await_tail_locked(s, legacy);
}

static bool ready_locked(const struct CUstream_st *s) {
  return s->first != NULL && !s->running && (s->first->op.kind != OP_AWAIT || s->first->awaits->done);
}

bool work_is_ready_locked(const struct CUstream_st *s) { return ready_locked(s); }

/* A stream whose first work could run; aged: and could have run at the last look already. */
CUstream work_find_locked(bool aged) {
  CUstream found = NULL;
  for (CUstream s = busy; s != NULL; s = s->next_busy) {
    if (!ready_locked(s)) continue;
    if (found == NULL && (!aged || s->first->seen)) found = s;
    if (aged) s->first->seen = true;
  }
  return found;
}

bool work_any_locked(void) { return busy != NULL; }

/* --- running */

/* Copies what o points to and its caller may change once the submission has returned. */
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

static void recycle_locked(work *w) {
  free(w->storage);
  fence_drop_locked(w->awaits);
  fence_drop_locked(w->signals);
  w->next = spare_work;
  spare_work = w;
}

static void unlink_locked(CUstream s) {
  CUstream *at = &busy;
  while (*at != s) at = &(*at)->next_busy;
  *at = s->next_busy;
}

/* After an error nothing runs any more but what gives back. */
static void perform(const op *o, CUcontext ctx) {
  bool failed = atomic_load_explicit(&ctx->sticky, memory_order_acquire) != 0 || atomic_load(&ctx->dev->lost);
  if (!failed || o->kind == OP_FREE) (void)op_run(o, ctx);
  if (o->kind == OP_EXEC) exec_delete(o->exec);
  if (o->kind == OP_FREE) atomic_fetch_sub(&pending_frees, 1);
}

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

/* Lets go of the lock until then. */
static void sleep_until_locked(int64_t time_ns) {
  static pthread_cond_t never;
  static bool made;
  if (!made) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&never, &monotonic);
    made = true;
  }
  struct timespec until = {time_ns / 1000000000, time_ns % 1000000000};
  while (now_ns() < time_ns) pthread_cond_timedwait(&never, &work_lock, &until);
}

/* Runs w in modelled time. */
static void perform_modelled_locked(CUstream s, work *w) {
  s->clock_ns = later(s->clock_ns, w->op.kind == OP_AWAIT ? w->awaits->time_ns : w->submitted_ns);
  if (w->op.kind == OP_AWAIT || w->op.kind == OP_EMPTY) return;
  pthread_mutex_unlock(&work_lock);
  work *outer = running;
  int64_t outer_clock = model_clock();
  running = w;
  model_set_clock(s->clock_ns);
  perform(&w->op, s->ctx);
  running = outer;
  pthread_mutex_lock(&work_lock);
  s->clock_ns = model_clock();
  model_set_clock(outer_clock);
  sleep_until_locked(s->clock_ns);
}

void work_run_first_locked(CUstream s) {
  work *w = s->first;
  bool modelled = s->ctx->dev->model != NULL;
  s->running = true;
  if (modelled) {
    perform_modelled_locked(s, w);
  } else if (w->op.kind != OP_AWAIT && w->op.kind != OP_EMPTY) {
    pthread_mutex_unlock(&work_lock);
    work *outer = running;
    running = w;
    perform(&w->op, s->ctx);
    running = outer;
    pthread_mutex_lock(&work_lock);
  }
  if (w->signals != NULL) {
    w->signals->time_ns = modelled ? s->clock_ns : now_ns();
    w->signals->done = true;
  }
  s->running = false;
  s->waiting--;
  s->first = w->next;
  if (s->first == NULL) {
    s->last = NULL;
    unlink_locked(s);
    if (s->dying) handle_bury(s, HANDLE_STREAM);
  }
  recycle_locked(w);
  pthread_cond_broadcast(&progress);
}

/* Runs one piece of work that s needs, in s or in a stream that it waits for. False if other threads are at it. */
static bool help_locked(CUstream s) {
  while (!s->running) {
    fence *f = s->first->awaits;
    if (s->first->op.kind != OP_AWAIT || f->done) {
      work_run_first_locked(s);
      return true;
    }
    s = f->stream; /* alive: it has yet to signal */
  }
  return false;
}

static CUstream latest_ready_locked(void) {
  CUstream found = NULL;
  for (CUstream s = busy; s != NULL; s = s->next_busy)
    if (ready_locked(s) && (found == NULL || s->first->ticket > found->first->ticket)) found = s;
  return found;
}

static CUstream any_ready_locked(void) {
  CUstream found = NULL;
  uint32_t choices = 0;
  for (CUstream s = busy; s != NULL; s = s->next_busy)
    if (ready_locked(s) && strict_draw(++choices) == 0) found = s;
  return found;
}

/* As help_locked, but what runs need not be what is waited for. */
static bool help_somehow_locked(CUstream s, uint32_t how) {
  CUstream found = how == 0 ? NULL : how == 1 ? latest_ready_locked() : any_ready_locked();
  if (found == NULL) return help_locked(s);
  work_run_first_locked(found);
  return true;
}

static void wait_locked(fence *f) {
  uint32_t how = atomic_load_explicit(&strict, memory_order_relaxed) ? strict_draw(3) : 0;
  while (!f->done)
    if (!help_somehow_locked(f->stream, how)) pthread_cond_wait(&progress, &work_lock);
}

static CUresult may_wait(void) {
  REQUIRE(running == NULL, CUDA_ERROR_NOT_PERMITTED, "a host function may not wait for work");
  return CUDA_SUCCESS;
}

/* --- submitting */

static CUresult keep_arguments(work *w, const op *o) {
  if (o->kind == OP_KERNEL)
    return keep_bytes(w, o->kernel.launch.params, param_storage_bytes(o->kernel.kern), &w->op.kernel.launch.params);
  if (o->kind == OP_COPY && o->copy.staged) return keep_bytes(w, o->copy.src, o->copy.width, &w->op.copy.src);
  return CUDA_SUCCESS;
}

/* An instance never runs beside itself. */
static CUresult queue_exec_locked(CUstream s, CUgraphExec exec, const op *o, work **made) {
  if (exec->last != NULL) TRY(await_locked(s, exec->last));
  work *w = append_locked(s, o);
  fence *f = w != NULL ? signal_of_locked(s, w) : NULL;
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

static CUresult queue_locked(CUstream s, const op *o, work **made) {
  while (s->waiting >= MOST_WAITING && running == NULL)
    if (!help_locked(s)) pthread_cond_wait(&progress, &work_lock);
  TRY(await_legacy_locked(s));
  if (o->kind == OP_EXEC) return queue_exec_locked(s, o->exec, o, made);
  work *w = append_locked(s, o);
  REQUIRE(w != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for work");
  if (o->kind == OP_FREE) atomic_fetch_add(&pending_frees, 1);
  CUresult status = keep_arguments(w, o);
  if (status != CUDA_SUCCESS) w->op.kind = OP_EMPTY;
  *made = w;
  return status;
}

static CUresult queue_and_wait_locked(CUstream s, const op *o) {
  work *w;
  TRY(queue_locked(s, o, &w));
  fence *f = signal_of_locked(s, w);
  REQUIRE(f != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for work");
  fence_keep_locked(f);
  wait_locked(f);
  fence_drop_locked(f);
  return CUDA_SUCCESS;
}

/* Work that takes long whoever runs it begins now. */
static void notice_locked(CUstream s, const op *o) {
  bool large = o->kind == OP_COPY && o->copy.width * o->copy.height * o->copy.depth >= LARGE_BYTES;
  bool hurry = !atomic_load_explicit(&strict, memory_order_relaxed) && (large || s->ctx->dev->model != NULL) &&
               ready_locked(s) && !s->first->seen;
  workers_notice_locked();
  if (!hurry) return;
  s->first->seen = true;
  workers_wake_locked();
}

CUresult submit(CUstream s, const op *o, bool wait) {
  work *w;
  if (atomic_load_explicit(&s->capture, memory_order_acquire) != NULL) return capture_op(s, o);
  TRY(capture_legacy_gate(s));
  if (wait) TRY(may_wait());
  pthread_mutex_lock(&work_lock);
  CUresult status = wait ? queue_and_wait_locked(s, o) : queue_locked(s, o, &w);
  if (!wait) notice_locked(s, o);
  pthread_mutex_unlock(&work_lock);
  TRY(status);
  return wait ? context_status(s->ctx) : CUDA_SUCCESS;
}

/* --- waiting, asking */

/* Who asks goes on asking: the work begins. */
static void ask_locked(CUstream s) {
  if (atomic_load(&strict) && running == NULL) (void)help_locked(s);
  else if (!s->running) workers_wake_locked();
}

bool stream_idle(CUstream s) {
  pthread_mutex_lock(&work_lock);
  bool idle = s->first == NULL;
  if (!idle) ask_locked(s);
  pthread_mutex_unlock(&work_lock);
  return idle;
}

/* Whether work submitted to it now would have nothing to wait for. */
bool stream_settled(CUstream s) {
  pthread_mutex_lock(&work_lock);
  bool settled = s->first == NULL && (busy == NULL || !blocking(s));
  pthread_mutex_unlock(&work_lock);
  return settled;
}

CUresult stream_wait(CUstream s) {
  TRY(may_wait());
  pthread_mutex_lock(&work_lock);
  fence *f = s->last != NULL ? signal_of_locked(s, s->last) : NULL;
  if (f != NULL) {
    fence_keep_locked(f);
    wait_locked(f);
    fence_drop_locked(f);
  }
  pthread_mutex_unlock(&work_lock);
  return CUDA_SUCCESS;
}

CUresult context_wait(CUcontext ctx) {
  TRY(may_wait());
  pthread_mutex_lock(&work_lock);
  uint64_t latest = last_ticket;
  for (;;) {
    CUstream s = busy;
    while (s != NULL && ((ctx != NULL && s->ctx != ctx) || s->first->ticket > latest)) s = s->next_busy;
    if (s == NULL) break;
    if (!help_somehow_locked(s, atomic_load(&strict) ? 1 : 0)) pthread_cond_wait(&progress, &work_lock);
  }
  pthread_mutex_unlock(&work_lock);
  return CUDA_SUCCESS;
}

bool frees_awaited(CUcontext ctx) {
  return atomic_load(&pending_frees) > 0 && context_wait(ctx) == CUDA_SUCCESS;
}

void stream_let_go(CUstream s) {
  pthread_mutex_lock(&work_lock);
  handle_kill(s);
  s->dying = s->first != NULL;
  if (!s->dying) handle_bury(s, HANDLE_STREAM);
  pthread_mutex_unlock(&work_lock);
}

/* --- events */

CUresult event_record(CUevent e, CUstream s) {
  work *w;
  pthread_mutex_lock(&work_lock);
  CUresult status = queue_locked(s, &(op){.kind = OP_EMPTY}, &w);
  fence *f = status == CUDA_SUCCESS ? signal_of_locked(s, w) : NULL;
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

/* A record inside a graph that is running now. */
void event_record_now(CUevent e) {
  pthread_mutex_lock(&work_lock);
  fence *f = fence_new_locked(NULL);
  if (f != NULL) {
    f->done = true;
    f->time_ns = e->ctx->dev->model != NULL ? model_clock() : now_ns();
    fence_drop_locked(e->fence);
    e->fence = f;
  }
  pthread_mutex_unlock(&work_lock);
}

/* A launch that will record e is under way: until then, e stands for the launch. */
void event_expect_locked(CUevent e, fence *launch) {
  fence_drop_locked(e->fence);
  e->fence = fence_keep_locked(launch);
}

CUresult event_await(CUstream s, CUevent e) {
  pthread_mutex_lock(&work_lock);
  CUresult status = e->fence != NULL ? await_locked(s, e->fence) : CUDA_SUCCESS;
  workers_notice_locked();
  pthread_mutex_unlock(&work_lock);
  return status;
}

/* A wait inside a graph that is running now: not for this launch itself, nor for what comes behind it. */
void event_wait_now(CUevent e) {
  pthread_mutex_lock(&work_lock);
  fence *f = e->fence;
  if (f != NULL && !f->done && running != NULL && running->signals != NULL && f->stream != running->signals->stream) {
    fence_keep_locked(f);
    wait_locked(f);
    model_set_clock(later(model_clock(), f->time_ns));
    fence_drop_locked(f);
  }
  pthread_mutex_unlock(&work_lock);
}

CUresult event_wait(CUevent e) {
  TRY(may_wait());
  pthread_mutex_lock(&work_lock);
  fence *f = e->fence;
  if (f != NULL && !f->done) {
    fence_keep_locked(f);
    wait_locked(f);
    fence_drop_locked(f);
  }
  pthread_mutex_unlock(&work_lock);
  return CUDA_SUCCESS;
}

bool event_done(CUevent e) {
  pthread_mutex_lock(&work_lock);
  bool done = e->fence == NULL || e->fence->done;
  if (!done) ask_locked(e->fence->stream);
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

/* Before an instance is changed: its launches so far see it as it was. */
CUresult exec_wait(CUgraphExec exec) {
  pthread_mutex_lock(&work_lock);
  fence *f = exec->last;
  bool pending = f != NULL && !f->done;
  CUresult status = pending ? may_wait() : CUDA_SUCCESS;
  if (pending && status == CUDA_SUCCESS) wait_locked(f);
  pthread_mutex_unlock(&work_lock);
  return status;
}

/* Threads that run work for which no thread waits.
 *
 * A clock checks the queues while there is work, and wakes a worker for work that was there at its last check already.
 * So a submission costs no system call, a thread that waits at once runs its own work, and a thread that submits many
 * small kernels shares its queue with no other thread. Large work does not wait for the clock.
 */
#include "driver.h"

#include <time.h>

enum { MOST_WORKERS = 256, IDLE_LOOKS = 10 };
static const int64_t LOOK_NS = 2000000; /* every 0.4 ms took a tenth of the CPU time of small requests */
static const int64_t STRICT_LOOK_NS = 500000000; /* late enough for any bug, soon enough without a wait */

static struct {
  pthread_cond_t work, clock;
  unsigned threads, idle, called;
  bool clock_started, clock_asleep;
} workers = {.work = PTHREAD_COND_INITIALIZER, .clock = PTHREAD_COND_INITIALIZER};

static bool start(void *(*body)(void *)) {
  pthread_t thread;
  pthread_attr_t detached;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  bool started = pthread_create(&thread, &detached, body, NULL) == 0;
  pthread_attr_destroy(&detached);
  return started;
}

static void *worker_main(void *unused) {
  (void)unused;
  pthread_mutex_lock(&work_lock);
  for (;;) {
    CUstream s = work_find_due_locked();
    if (s != NULL) {
      do work_run_first_locked(s);
      while (work_is_due_locked(s));
      continue;
    }
    workers.idle++;
    while (workers.called == 0) pthread_cond_wait(&workers.work, &work_lock);
    workers.called--;
  }
  return NULL;
}

void workers_wake_locked(void) {
  if (workers.idle > 0) {
    workers.idle--;
    workers.called++;
    pthread_cond_signal(&workers.work);
  } else if (workers.threads < MOST_WORKERS && start(worker_main)) {
    workers.threads++;
  }
}

static void sleep_locked(int64_t nanoseconds) {
  pthread_mutex_unlock(&work_lock);
  nanosleep(&(struct timespec){.tv_nsec = nanoseconds}, NULL);
  pthread_mutex_lock(&work_lock);
}

static void *clock_main(void *unused) {
  (void)unused;
  unsigned idle = 0;
  pthread_mutex_lock(&work_lock);
  for (;;) {
    if (idle == IDLE_LOOKS) {
      workers.clock_asleep = true;
      while (!work_any_locked()) pthread_cond_wait(&workers.clock, &work_lock);
      workers.clock_asleep = false;
      idle = 0;
    }
    sleep_locked(atomic_load(&strict) ? STRICT_LOOK_NS : LOOK_NS);
    idle = work_any_locked() ? 0 : idle + 1;
    work_look_locked();
    if (work_find_due_locked() != NULL) workers_wake_locked();
  }
  return NULL;
}

/* A forked child has none of the threads, and does not need the work in the parent's streams. */
static void forget(void) {
  pthread_mutex_init(&work_lock, NULL);
  pthread_cond_init(&workers.work, NULL);
  pthread_cond_init(&workers.clock, NULL);
  workers.threads = workers.idle = workers.called = 0;
  workers.clock_started = workers.clock_asleep = false;
}

void workers_notice_locked(void) {
  if (!workers.clock_started) {
    static bool registered;
    if (!registered) pthread_atfork(NULL, NULL, forget);
    registered = true;
    workers.clock_started = start(clock_main);
  } else if (workers.clock_asleep) {
    pthread_cond_signal(&workers.clock);
  }
}

/* The kernels that run on a device now: for cancelling them, and for finding one that hangs. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct runner { /* a thread that has run kernels; never freed, but reused by another thread */
  _Atomic(const kernel *) kern;
  device *dev;
  struct runner *next;
  bool taken; /* under running_lock */
} runner;

static pthread_mutex_t running_lock = PTHREAD_MUTEX_INITIALIZER; /* no other lock is held when it is taken */
static runner *runners;
static pthread_key_t at_end;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local runner *mine INITIAL_EXEC;

static void leave(void *gone) {
  pthread_mutex_lock(&running_lock);
  ((runner *)gone)->taken = false;
  pthread_mutex_unlock(&running_lock);
}

static void start(void) { pthread_key_create(&at_end, leave); }

static runner *join(void) {
  pthread_once(&once, start);
  pthread_mutex_lock(&running_lock);
  runner *found = runners;
  while (found != NULL && found->taken) found = found->next;
  if (found == NULL && (found = calloc(1, sizeof *found)) != NULL) {
    found->next = runners;
    runners = found;
  }
  if (found != NULL) found->taken = true;
  pthread_mutex_unlock(&running_lock);
  if (found != NULL) pthread_setspecific(at_end, found);
  return found;
}

void running_begin(device *dev, const kernel *kern) {
  if (__builtin_expect(mine == NULL, 0) && (mine = join()) == NULL) return; /* the kernel runs without being listed */
  mine->dev = dev;
  atomic_store_explicit(&mine->kern, kern, memory_order_release);
}

void running_end(void) {
  if (mine != NULL) atomic_store_explicit(&mine->kern, NULL, memory_order_release);
}

/* After this, no thread reads the name of a kernel that has ended. */
void running_settle(void) {
  pthread_mutex_lock(&running_lock);
  pthread_mutex_unlock(&running_lock);
}

size_t softgpu_running(uint32_t ordinal, char *text, size_t bytes) {
  size_t used = 0;
  if (text == NULL || bytes == 0 || ordinal >= (uint32_t)device_count) return 0;
  *text = 0;
  pthread_mutex_lock(&running_lock);
  for (const runner *r = runners; r != NULL; r = r->next) {
    const kernel *kern = atomic_load_explicit(&r->kern, memory_order_acquire);
    if (kern == NULL || r->dev != &devices[ordinal]) continue;
    int more = snprintf(text + used, bytes - used, "%s%s", used > 0 ? "\n" : "", kern->info->name);
    if (more < 0 || (size_t)more >= bytes - used) { /* a name that does not fit is left out */
      text[used] = 0;
      break;
    }
    used += (size_t)more;
  }
  pthread_mutex_unlock(&running_lock);
  return used;
}

/* What each thread has of its own. It lies on the heap: of storage that is thread-local without a call there are some
 * hundred bytes in a process, and a library that finds none left, ours or the next one, cannot be loaded. */
#include "driver.h"

#include <stdlib.h>

static _Thread_local thread_state *mine INITIAL_EXEC;
static pthread_key_t at_end;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void leave(void *gone) {
  mine = NULL;
  free(gone);
}

static void start(void) { pthread_key_create(&at_end, leave); }

static thread_state *join(void) {
  pthread_once(&once, start);
  mine = calloc(1, sizeof *mine);
  if (mine == NULL) abort(); /* there is nowhere to say it */
  pthread_setspecific(at_end, mine);
  return mine;
}

thread_state *thread_here(void) { return __builtin_expect(mine != NULL, 1) ? mine : join(); }

/* The state of each thread. It is on the heap: a process has only some hundred bytes of thread-local storage without
 * calls, and a library that finds none left, this or another, cannot be loaded. */
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
  if (mine == NULL) abort(); /* there is no place for an error */
  pthread_setspecific(at_end, mine);
  return mine;
}

thread_state *thread_here(void) { return __builtin_expect(mine != NULL, 1) ? mine : join(); }

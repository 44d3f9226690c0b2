/* Objects behind CUDA handles: their memory outlives them, so that a stale handle is an error and not a crash. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

enum { MAGIC = 0x6b616173, QUARANTINE = 64 }; /* a destroyed handle is reused after as many later ones */

static struct {
  pthread_mutex_t lock;
  handle *first, *last;
  size_t count;
} destroyed[HANDLE_KINDS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void init_lists(void) {
  for (int i = 0; i < HANDLE_KINDS; i++) pthread_mutex_init(&destroyed[i].lock, NULL);
}

void *handle_new(enum handle_kind kind, size_t bytes) {
  pthread_once(&once, init_lists);
  pthread_mutex_lock(&destroyed[kind].lock);
  handle *object = NULL;
  if (destroyed[kind].count > QUARANTINE) {
    object = destroyed[kind].first;
    destroyed[kind].first = object->next;
    destroyed[kind].count--;
  }
  pthread_mutex_unlock(&destroyed[kind].lock);
  if (object == NULL && posix_memalign((void **)&object, 64, (bytes + 63) & ~(size_t)63) != 0) return NULL;
  memset(object, 0, bytes);
  object->magic = MAGIC;
  object->kind = kind;
  return object;
}

void handle_delete(void *object) {
  enum handle_kind kind = ((handle *)object)->kind;
  handle_kill(object);
  handle_bury(object, kind);
}

void handle_kill(void *object) { ((handle *)object)->kind = 0; }

void handle_bury(void *object, enum handle_kind kind) {
  handle *head = object;
  head->next = NULL;
  pthread_mutex_lock(&destroyed[kind].lock);
  if (destroyed[kind].count++ == 0) destroyed[kind].first = head;
  else destroyed[kind].last->next = head;
  destroyed[kind].last = head;
  pthread_mutex_unlock(&destroyed[kind].lock);
}

bool handle_is(const void *object, enum handle_kind kind) {
  uintptr_t address = (uintptr_t)object;
  if (address < 4096 || address % 16 != 0) return false; /* no handle of this driver, and not safe to read */
  const handle *head = object;
  return head->magic == MAGIC && head->kind == (uint32_t)kind;
}

unsigned long long unique_id(void) {
  static _Atomic unsigned long long last;
  return atomic_fetch_add(&last, 1) + 1;
}

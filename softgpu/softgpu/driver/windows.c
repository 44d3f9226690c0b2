/* Windows of a program: it makes one, maps memory in its first half by hand, and loads libraries that are confined to it. */
#include <stdlib.h>

#include "mapped.h"

typedef struct entry {
  struct entry *next;
  sg_window *window;
  uint32_t libraries;
} entry;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static entry *entries;
static _Thread_local uint64_t confined INITIAL_EXEC; /* the window of libraries that this thread loads; 0: none */

static entry *find_locked(uint64_t base) {
  entry *at = entries;
  while (at != NULL && at->window->base != base) at = at->next;
  return at;
}

int softgpu_window(uint64_t bytes, uint64_t *base) {
  TRY(require_init());
  REQUIRE_POINTER(base);
  entry *made = malloc(sizeof *made);
  sg_window *window = made != NULL ? sg_window_new(bytes) : NULL;
  if (window != NULL && !mapped_reserve(window->base + SG_WINDOW_MARGIN, bytes - SG_WINDOW_MARGIN)) {
    sg_window_free(window);
    window = NULL;
  }
  if (window == NULL) free(made);
  REQUIRE(window != NULL, CUDA_ERROR_INVALID_VALUE,
          "no window of %llu bytes: it has a power of two of bytes, from 128 MiB, and the host has so many addresses",
          (unsigned long long)bytes);
  pthread_mutex_lock(&lock);
  *made = (entry){.next = entries, .window = window};
  entries = made;
  pthread_mutex_unlock(&lock);
  *base = window->base;
  return CUDA_SUCCESS;
}

static CUresult free_locked(uint64_t base) {
  entry **at = &entries;
  while (*at != NULL && (*at)->window->base != base) at = &(*at)->next;
  entry *gone = *at;
  REQUIRE(gone != NULL, CUDA_ERROR_INVALID_VALUE, "there is no window at 0x%llx", (unsigned long long)base);
  REQUIRE(gone->libraries == 0, CUDA_ERROR_INVALID_VALUE, "%u libraries are still confined to the window at 0x%llx",
          gone->libraries, (unsigned long long)base);
  TRY(mapped_unreserve(base + SG_WINDOW_MARGIN));
  *at = gone->next;
  sg_window_free(gone->window);
  free(gone);
  return CUDA_SUCCESS;
}

int softgpu_window_free(uint64_t base) {
  TRY(require_init());
  pthread_mutex_lock(&lock);
  CUresult status = free_locked(base);
  pthread_mutex_unlock(&lock);
  return status;
}

int softgpu_confine(uint64_t base) {
  pthread_mutex_lock(&lock);
  bool known = base == 0 || find_locked(base) != NULL;
  pthread_mutex_unlock(&lock);
  REQUIRE(known, CUDA_ERROR_INVALID_VALUE, "there is no window at 0x%llx", (unsigned long long)base);
  confined = base;
  return CUDA_SUCCESS;
}

sg_window *window_enter(void) {
  pthread_mutex_lock(&lock);
  entry *found = confined != 0 ? find_locked(confined) : NULL;
  if (found != NULL) found->libraries++;
  pthread_mutex_unlock(&lock);
  return found != NULL ? found->window : NULL;
}

void window_leave(const sg_window *window) {
  if (window == NULL) return;
  pthread_mutex_lock(&lock);
  find_locked(window->base)->libraries--;
  pthread_mutex_unlock(&lock);
}

/* Windows: aligned ranges of addresses between guards, and the memory that the runner takes from their second halves. */
#define _GNU_SOURCE
#include "window.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* A fenced address may be the base of a group of lanes: lanes reach LANES_REACH (codegen/fences.py) farther, and an
 * access ends some bytes behind. */
static const uint64_t GUARD = (uint64_t)64 << 20, LEAST_BYTES = (uint64_t)128 << 20, MOST_BYTES = (uint64_t)1 << 45;
static atomic_uint_fast64_t windows;
enum { PAGE = 4096, CLASSES = 46, PARAM_BYTES = 64 << 10, SHARED_BYTES = 192 << 10 };

typedef struct piece {
  struct piece *next;
  void *memory;
} piece;

struct sg_room {
  pthread_mutex_t lock;
  uint8_t *mapped; /* with the guards */
  uint64_t mapped_bytes, next, end;
  piece *free[CLASSES]; /* by the power of two */
  sg_memory *spare;
};

sg_window *sg_window_new(uint64_t bytes) {
  if (bytes < LEAST_BYTES || bytes > MOST_BYTES || bytes & (bytes - 1)) return NULL;
  uint64_t whole = 2 * bytes, asked = 2 * whole + 2 * GUARD;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  sg_window *window = calloc(1, sizeof *window);
  struct sg_room *room = calloc(1, sizeof *room);
  uint8_t *all = window && room ? mmap(NULL, asked, PROT_NONE, flags, -1, 0) : MAP_FAILED;
  if (all == MAP_FAILED) {
    free(window);
    free(room);
    return NULL;
  }
  uint64_t from = (uint64_t)(uintptr_t)all, base = (from + GUARD + whole - 1) & ~(whole - 1);
  if (base - GUARD > from) munmap(all, base - GUARD - from);
  munmap((void *)(uintptr_t)(base + whole + GUARD), from + asked - base - whole - GUARD);
  pthread_mutex_init(&room->lock, NULL);
  room->mapped = (uint8_t *)(uintptr_t)(base - GUARD);
  room->mapped_bytes = whole + 2 * GUARD;
  room->next = base + bytes;
  room->end = base + whole - SG_WINDOW_MARGIN;
  *window = (sg_window){.base = base, .mask = whole - 1, .room = room, .number = atomic_fetch_add(&windows, 1) + 1};
  return window;
}

static void free_pieces(struct sg_room *room) {
  for (int class = 0; class < CLASSES; class++)
    while (room->free[class]) {
      piece *next = room->free[class]->next;
      free(room->free[class]);
      room->free[class] = next;
    }
}

void sg_window_free(sg_window *window) {
  struct sg_room *room = window->room;
  while (room->spare) {
    sg_memory *next = room->spare->next;
    free(room->spare);
    room->spare = next;
  }
  free_pieces(room);
  munmap(room->mapped, room->mapped_bytes);
  pthread_mutex_destroy(&room->lock);
  free(room);
  free(window);
}

/* The least power of two of pages. */
static int class_of(size_t bytes) {
  size_t pages = (bytes + PAGE - 1) / PAGE;
  return pages <= 1 ? 0 : 64 - __builtin_clzll((unsigned long long)(pages - 1));
}

void *sg_window_take(sg_window *window, size_t bytes) {
  struct sg_room *room = window->room;
  int class = class_of(bytes);
  if (bytes > MOST_BYTES || class >= CLASSES) return NULL;
  uint64_t whole = (uint64_t)PAGE << class;
  void *memory = NULL;
  pthread_mutex_lock(&room->lock);
  piece *found = room->free[class];
  if (found) {
    room->free[class] = found->next;
    memory = found->memory;
  } else if (room->end - room->next >= whole) {
    memory = (void *)(uintptr_t)room->next;
    room->next += whole;
  }
  pthread_mutex_unlock(&room->lock);
  free(found);
  /* No more than was asked for: a kernel could take pages behind it that nobody counts. */
  if (memory && mprotect(memory, (bytes + PAGE - 1) / PAGE * PAGE, PROT_READ | PROT_WRITE)) {
    sg_window_give(window, memory, bytes);
    return NULL;
  }
  return memory;
}

void sg_window_give(sg_window *window, void *memory, size_t bytes) {
  struct sg_room *room = window->room;
  int class = class_of(bytes);
  piece *made = malloc(sizeof *made);
  madvise(memory, (size_t)PAGE << class, MADV_DONTNEED);
  mprotect(memory, (size_t)PAGE << class, PROT_NONE);
  if (!made) return; /* its addresses are lost */
  pthread_mutex_lock(&room->lock);
  *made = (piece){room->free[class], memory};
  room->free[class] = made;
  pthread_mutex_unlock(&room->lock);
}

sg_memory *sg_window_borrow(sg_window *window) {
  struct sg_room *room = window->room;
  pthread_mutex_lock(&room->lock);
  sg_memory *memory = room->spare;
  if (memory) room->spare = memory->next;
  pthread_mutex_unlock(&room->lock);
  if (memory) return memory;
  memory = calloc(1, sizeof *memory);
  uint8_t *both = memory ? sg_window_take(window, PARAM_BYTES + SHARED_BYTES) : NULL;
  if (!both) {
    free(memory);
    return NULL;
  }
  memory->params = both;
  memory->shared = both + PARAM_BYTES;
  memory->shared_capacity = SHARED_BYTES;
  return memory;
}

void sg_window_return(sg_window *window, sg_memory *memory) {
  struct sg_room *room = window->room;
  pthread_mutex_lock(&room->lock);
  memory->next = room->spare;
  room->spare = memory;
  pthread_mutex_unlock(&room->lock);
}

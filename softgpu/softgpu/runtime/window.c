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
enum { PAGE = 4096, PARAM_BYTES = 64 << 10, SHARED_BYTES = 192 << 10 };

typedef struct range {
  struct range *next;
  uint64_t from, to;
} range;

struct sg_room {
  pthread_mutex_t lock;
  uint8_t *mapped; /* with the guards */
  uint64_t mapped_bytes;
  range *free; /* by addresses, and no two side by side */
  sg_memory *spare;
};

sg_window *sg_window_new(uint64_t bytes) {
  if (bytes < LEAST_BYTES || bytes > MOST_BYTES || bytes & (bytes - 1)) return NULL;
  uint64_t whole = 2 * bytes, asked = 2 * whole + 2 * GUARD;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  sg_window *window = calloc(1, sizeof *window);
  struct sg_room *room = calloc(1, sizeof *room);
  range *whole_room = malloc(sizeof *whole_room);
  uint8_t *all = window && room && whole_room ? mmap(NULL, asked, PROT_NONE, flags, -1, 0) : MAP_FAILED;
  if (all == MAP_FAILED) {
    free(window);
    free(room);
    free(whole_room);
    return NULL;
  }
  uint64_t from = (uint64_t)(uintptr_t)all, base = (from + GUARD + whole - 1) & ~(whole - 1);
  if (base - GUARD > from) munmap(all, base - GUARD - from);
  munmap((void *)(uintptr_t)(base + whole + GUARD), from + asked - base - whole - GUARD);
  pthread_mutex_init(&room->lock, NULL);
  room->mapped = (uint8_t *)(uintptr_t)(base - GUARD);
  room->mapped_bytes = whole + 2 * GUARD;
  *whole_room = (range){NULL, base + bytes, base + whole - SG_WINDOW_MARGIN};
  room->free = whole_room;
  *window = (sg_window){.base = base, .mask = whole - 1, .room = room, .number = atomic_fetch_add(&windows, 1) + 1};
  return window;
}

void sg_window_free(sg_window *window) {
  struct sg_room *room = window->room;
  while (room->spare) {
    sg_memory *next = room->spare->next;
    free(room->spare);
    room->spare = next;
  }
  while (room->free) {
    range *next = room->free->next;
    free(room->free);
    room->free = next;
  }
  munmap(room->mapped, room->mapped_bytes);
  pthread_mutex_destroy(&room->lock);
  free(room);
  free(window);
}

static uint64_t whole_pages(size_t bytes) { return ((bytes ? bytes : 1) + (uint64_t)PAGE - 1) / PAGE * PAGE; }

/* The lowest addresses that are free; 0: there are not so many side by side. */
static uint64_t take_addresses(struct sg_room *room, uint64_t bytes) {
  range **at = &room->free;
  while (*at && (*at)->to - (*at)->from < bytes) at = &(*at)->next;
  range *found = *at;
  if (!found) return 0;
  uint64_t from = found->from;
  found->from += bytes;
  if (found->from == found->to) {
    *at = found->next;
    free(found);
  }
  return from;
}

/* Addresses that lie beside free ones join them: otherwise ever smaller pieces would be left. */
static void give_addresses(struct sg_room *room, uint64_t from, uint64_t to) {
  range *before = NULL, *after = room->free;
  for (; after && after->from < from; after = after->next) before = after;
  if (after && after->from == to) after->from = from;
  else {
    range *made = malloc(sizeof *made);
    if (!made) return; /* the addresses are lost */
    *made = (range){after, from, to};
    if (before) before->next = made;
    else room->free = made;
    after = made;
  }
  if (!before || before->to != after->from) return;
  before->to = after->to;
  before->next = after->next;
  free(after);
}

void *sg_window_take(sg_window *window, size_t bytes) {
  struct sg_room *room = window->room;
  if (bytes > MOST_BYTES) return NULL;
  uint64_t whole = whole_pages(bytes);
  pthread_mutex_lock(&room->lock);
  void *memory = (void *)(uintptr_t)take_addresses(room, whole);
  pthread_mutex_unlock(&room->lock);
  if (memory && mprotect(memory, whole, PROT_READ | PROT_WRITE)) {
    sg_window_give(window, memory, bytes);
    return NULL;
  }
  return memory;
}

void sg_window_give(sg_window *window, void *memory, size_t bytes) {
  struct sg_room *room = window->room;
  uint64_t from = (uint64_t)(uintptr_t)memory, whole = whole_pages(bytes);
  madvise(memory, whole, MADV_DONTNEED);
  mprotect(memory, whole, PROT_NONE);
  pthread_mutex_lock(&room->lock);
  give_addresses(room, from, from + whole);
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

/* Device memory, apart from the process's heap: a kernel that writes outside its buffers meets other device memory, as
 * on a GPU, or a guard, which is an error of its launch; never the objects of the program or of its C library. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
  PAGE = 4096,
  SMALL = 64 << 10,         /* up to this size memory shares a chunk */
  GUARDED_AT_MOST = 4096,   /* mappings of a process; each takes two or three of the system's 65,530 */
  CHUNK = 256 << 20,        /* of address space; its pages are taken as they are written */
};
static const size_t LEAST_GUARD = 1 << 20, MOST_GUARD = 1 << 30; /* of address space; a guard takes no memory */

typedef struct {
  uintptr_t base;
  size_t bytes;
} span;

/* Sorted by address. They are kept apart from the memory, which a kernel may overwrite. */
typedef struct {
  span *items;
  size_t count, capacity;
} spans;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static spans chunks, holes; /* holes: the unused parts of chunks, none beside another */
static size_t guarded;      /* the number of mappings that are no chunk */

static size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) & ~(size_t)(PAGE - 1); }

/* As long as the memory: a kernel that takes elements to be twice as large does not get past it. */
static size_t guard(size_t pages) { return pages < LEAST_GUARD ? LEAST_GUARD : pages > MOST_GUARD ? MOST_GUARD : pages; }

/* Maps memory between two guards. It ends where the second guard begins. */
static uintptr_t map(size_t bytes) {
  size_t pages = whole_pages(bytes), beside = guard(pages);
  uint8_t *all = mmap(NULL, pages + 2 * beside, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) return 0;
  if (mprotect(all + beside, pages, PROT_READ | PROT_WRITE) != 0) {
    munmap(all, pages + 2 * beside);
    return 0;
  }
  return (uintptr_t)all + beside + pages - bytes;
}

static void unmap(uintptr_t base, size_t bytes) {
  size_t pages = whole_pages(bytes), beside = guard(pages);
  munmap((uint8_t *)(base + bytes - pages - beside), pages + 2 * beside);
}

/* The index of the first span behind an address. */
static size_t behind(const spans *all, uintptr_t address) {
  size_t low = 0, high = all->count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (all->items[middle].base <= address) low = middle + 1;
    else high = middle;
  }
  return low;
}

static bool insert(spans *all, size_t at, span added) {
  if (all->count == all->capacity) {
    size_t more = all->capacity == 0 ? 64 : 2 * all->capacity;
    span *grown = realloc(all->items, more * sizeof *grown);
    if (grown == NULL) return false;
    all->items = grown;
    all->capacity = more;
  }
  memmove(&all->items[at + 1], &all->items[at], (all->count - at) * sizeof added);
  all->items[at] = added;
  all->count++;
  return true;
}

static void take_out(spans *all, size_t at) {
  all->count--;
  memmove(&all->items[at], &all->items[at + 1], (all->count - at) * sizeof *all->items);
}

static const span *chunk_of(uintptr_t address) {
  size_t after = behind(&chunks, address);
  const span *chunk = after > 0 ? &chunks.items[after - 1] : NULL;
  return chunk != NULL && address - chunk->base < chunk->bytes ? chunk : NULL;
}

/* Adds a chunk, whole a hole. */
static bool add_chunk(void) {
  span made = {.base = map(CHUNK), .bytes = CHUNK};
  if (made.base == 0) return false;
  size_t at = behind(&chunks, made.base);
  if (!insert(&chunks, at, made)) {
    unmap(made.base, CHUNK);
    return false;
  }
  if (insert(&holes, behind(&holes, made.base), made)) return true;
  take_out(&chunks, at);
  unmap(made.base, CHUNK);
  return false;
}

/* The lowest hole that is large enough: low addresses are used again first, so that the last chunks get empty. */
static uintptr_t from_chunk_locked(size_t bytes) {
  for (int tries = 0; tries < 2; tries++) {
    for (size_t i = 0; i < holes.count; i++) {
      span *hole = &holes.items[i];
      if (hole->bytes < bytes) continue;
      uintptr_t base = hole->base;
      hole->base += bytes;
      hole->bytes -= bytes;
      if (hole->bytes == 0) take_out(&holes, i);
      return base;
    }
    if (!add_chunk()) return 0;
  }
  return 0;
}

/* Gives a part of a chunk back: it becomes a hole, one with the holes beside it. The last empty chunk stays. */
static void to_chunk_locked(const span *chunk, span freed) {
  size_t at = behind(&holes, freed.base);
  span *before = at > 0 ? &holes.items[at - 1] : NULL, *after = at < holes.count ? &holes.items[at] : NULL;
  bool joins_before = before != NULL && before->base + before->bytes == freed.base && before->base >= chunk->base;
  bool joins_after = after != NULL && freed.base + freed.bytes == after->base &&
                     after->base < chunk->base + chunk->bytes;
  if (joins_before) {
    before->bytes += freed.bytes + (joins_after ? after->bytes : 0);
    if (joins_after) take_out(&holes, at);
    at--;
  } else if (joins_after) {
    after->base = freed.base;
    after->bytes += freed.bytes;
  } else if (!insert(&holes, at, freed)) {
    return; /* the host has no memory for its address: it is lost */
  }
  if (holes.items[at].bytes < CHUNK || chunks.count == 1) return;
  uintptr_t base = chunk->base;
  take_out(&holes, at);
  take_out(&chunks, (size_t)(chunk - chunks.items));
  unmap(base, CHUNK);
}

uintptr_t pages_take(size_t bytes) {
  pthread_mutex_lock(&lock);
  bool own = bytes > CHUNK || (bytes > SMALL && guarded < GUARDED_AT_MOST);
  uintptr_t base = own ? map(bytes) : 0;
  if (base != 0) guarded++;
  else if (bytes <= CHUNK) base = from_chunk_locked(bytes);
  pthread_mutex_unlock(&lock);
  return base;
}

/* Chunks hand on what earlier allocations left there. */
uintptr_t pages_take_zeros(size_t bytes) {
  uintptr_t base = pages_take(bytes);
  pthread_mutex_lock(&lock);
  bool used_before = chunk_of(base) != NULL;
  pthread_mutex_unlock(&lock);
  if (used_before) memset((void *)base, 0, bytes);
  return base;
}

void pages_free(uintptr_t base, size_t bytes) {
  if (base == 0) return;
  pthread_mutex_lock(&lock);
  const span *chunk = chunk_of(base);
  if (chunk != NULL) {
    to_chunk_locked(chunk, (span){base, bytes});
  } else {
    unmap(base, bytes);
    guarded--;
  }
  pthread_mutex_unlock(&lock);
}

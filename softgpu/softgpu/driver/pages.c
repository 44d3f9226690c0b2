/* Device memory, apart from the process's heap: a kernel that writes outside its buffers meets other device memory, as
 * on a GPU, or a guard, which is an error of its launch; never the objects of the program or of its C library. */
#include "driver.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4096, SMALL = 64 << 10, CHUNK = 4 << 20, CLASSES = SMALL / ALIGNMENT };
static const size_t LEAST_GUARD = 1 << 20, MOST_GUARD = 1 << 30; /* of address space; a guard takes no memory */

/* Freed small memory, by size. The addresses are kept apart from the memory, which a kernel may overwrite. */
static struct {
  uintptr_t *bases;
  size_t count, capacity;
} freed[CLASSES + 1];
static uintptr_t chunk;   /* the end of the unused part of the newest chunk, which is used from its end down */
static size_t chunk_left;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

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

static uintptr_t small_locked(size_t bytes) {
  size_t class = bytes / ALIGNMENT;
  if (freed[class].count > 0) return freed[class].bases[--freed[class].count];
  if (chunk_left < bytes) {
    uintptr_t made = map(CHUNK);
    if (made == 0) return 0;
    chunk = made + CHUNK;
    chunk_left = CHUNK;
  }
  chunk_left -= bytes;
  return chunk -= bytes;
}

uintptr_t pages_take(size_t bytes) {
  if (bytes > SMALL) return map(bytes);
  pthread_mutex_lock(&lock);
  uintptr_t base = small_locked(bytes);
  pthread_mutex_unlock(&lock);
  return base;
}

void pages_free(uintptr_t base, size_t bytes) {
  if (base == 0) return;
  if (bytes > SMALL) {
    unmap(base, bytes);
    return;
  }
  pthread_mutex_lock(&lock);
  size_t class = bytes / ALIGNMENT;
  if (freed[class].count == freed[class].capacity) {
    size_t more = freed[class].capacity == 0 ? 16 : 2 * freed[class].capacity;
    uintptr_t *grown = realloc(freed[class].bases, more * sizeof *grown);
    if (grown != NULL) {
      freed[class].bases = grown;
      freed[class].capacity = more;
    }
  }
  if (freed[class].count < freed[class].capacity) freed[class].bases[freed[class].count++] = base; /* else it is lost */
  pthread_mutex_unlock(&lock);
}

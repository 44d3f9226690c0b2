/* Windows: the only memory that a confined kernel can reach. */
#ifndef SOFTGPU_WINDOW_H
#define SOFTGPU_WINDOW_H
#include <stddef.h>
#include <stdint.h>

/* Code finds an address's place in the window without a branch: (address & mask) | base. The first half of the window
 * is the program's, for its buffers; the second half holds what the runner and the compiler keep for kernels: shared and
 * local memory, parameters, the variables of modules. */
enum { SG_WINDOW_MARGIN = 32 << 20 }; /* at both ends of a window: the base of a group of lanes may lie there */
typedef struct sg_window {
  uint64_t base, mask;
  struct sg_room *room;
  uint64_t number; /* from 1, of no other window of the process */
} sg_window;

/* bytes of the program's half: a power of two, from 128 MiB. NULL: no addresses or no memory are left. */
sg_window *sg_window_new(uint64_t bytes);
/* No kernel may use it any more. */
void sg_window_free(sg_window *window);
/* Memory of the second half, which is zero; NULL: there is none left. */
void *sg_window_take(sg_window *window, size_t bytes);
void sg_window_give(sg_window *window, void *memory, size_t bytes);

static inline uint64_t sg_fenced(const sg_window *window, uint64_t address) {
  return window ? (address & window->mask) | window->base : address;
}

/* The memory of a block's kernel: of its thread, or borrowed from a window for one launch. */
typedef struct sg_memory {
  uint8_t *params;
  uint8_t *shared, *local;
  size_t shared_capacity, local_capacity;
  size_t shared_left, local_left; /* bytes, from the start, that the latest launch may have written */
  struct sg_memory *next;
} sg_memory;

/* Several threads may borrow at a time; NULL: there is no memory left. */
sg_memory *sg_window_borrow(sg_window *window) __attribute__((visibility("hidden")));
void sg_window_return(sg_window *window, sg_memory *memory) __attribute__((visibility("hidden")));
#endif

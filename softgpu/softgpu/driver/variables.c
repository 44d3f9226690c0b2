/* Memory of the variables of modules: the compiler takes it from the device, so that a program sees it in use. */
#include "driver.h"

enum { PAGE = 4096 };

/* A window gives whole pages. */
static size_t taken(const sg_window *window, size_t bytes) {
  return window != NULL ? (bytes + PAGE - 1) & ~(size_t)(PAGE - 1) : memory_round(bytes);
}

void *sg_variables_take(uint32_t ordinal, sg_window *window, size_t bytes) {
  device *dev = &devices[ordinal];
  size_t all = taken(window, bytes);
  if (memory_reserve(dev, all, NULL) != CUDA_SUCCESS) return NULL;
  void *memory = window != NULL ? sg_window_take(window, all) : (void *)pages_take_zeros(all);
  if (memory == NULL) memory_unreserve(dev, all);
  return memory;
}

void sg_variables_give(uint32_t ordinal, sg_window *window, void *memory, size_t bytes) {
  size_t all = taken(window, bytes);
  if (window != NULL) sg_window_give(window, memory, all);
  else memory_free((uintptr_t)memory, all);
  memory_unreserve(&devices[ordinal], all);
}

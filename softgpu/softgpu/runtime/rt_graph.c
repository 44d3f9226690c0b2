/* Calls of kernels that change the graph that runs them. */
#include <stdio.h>

#include "block.h"

static sg_condition *find(sg_conditions *conditions, uint64_t handle) {
  for (uint32_t i = 0; conditions && i < conditions->count; i++)
    if (conditions->items[i].handle == handle) return &conditions->items[i];
  return NULL;
}

/* cudaGraphSetConditional(handle, value) in each of the lanes; the last one counts. */
void sg_rt_set_condition(sg_warp *warp, const uint64_t *handles, const uint32_t *values, uint32_t lanes) {
  char message[120];
  for (; lanes; lanes &= lanes - 1) {
    uint32_t lane = (uint32_t)__builtin_ctz(lanes);
    sg_condition *found = find(warp->block->launch->conditions, handles[lane]);
    if (!found) {
      snprintf(message, sizeof message, "cudaGraphSetConditional: no conditional node of this launch has handle 0x%llx",
               (unsigned long long)handles[lane]);
      sg_abandon(warp->block, LAUNCH_FAILED, message);
    }
    if (warp->block->pages) sg_touch(warp->block, (uintptr_t)&found->value, sizeof found->value, SG_WRITE);
    __atomic_store_n(&found->value, values[lane], __ATOMIC_RELAXED);
  }
}

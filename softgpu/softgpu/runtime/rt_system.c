/* System functions of compiled kernels: the time, and the end of the launch for bad calls and full stacks. */
#define _GNU_SOURCE
#include "block.h"

#include <stdio.h>
#include <time.h>

/* %globaltimer. */
uint64_t sg_rt_nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* A call through a pointer to no function that it can reach; the message is about the first of the lanes. */
void sg_rt_nowhere(sg_warp *warp, uint32_t line, const uint64_t *addresses, uint32_t lanes) {
  enum { FUNCTIONS = 0x5F }; /* the top byte of their addresses: FIRST_FUNCTION of ptx/pointers.py */
  uint64_t address = addresses[__builtin_ctz(lanes)];
  char text[300];
  snprintf(text, sizeof text, "the call at %s is of %#llx, which is %s, block (%u, %u, %u), warp %u",
           sg_place_of(warp, line).text,
           (unsigned long long)address,
           address >> 56 == FUNCTIONS ? "a function of another kind, without a body, or under way already (recursion)"
                                      : "no function",
           warp->ctaid[0], warp->ctaid[1], warp->ctaid[2], warp->warp);
  sg_abandon(warp->block, INVALID_PC, text);
}

void sg_rt_overflow(sg_warp *warp, uint32_t line) {
  char text[240];
  snprintf(text, sizeof text, "alloca at %s takes more than the stack has, block (%u, %u, %u), warp %u",
           sg_place_of(warp, line).text, warp->ctaid[0], warp->ctaid[1], warp->ctaid[2], warp->warp);
  sg_abandon(warp->block, HARDWARE_STACK_ERROR, text);
}

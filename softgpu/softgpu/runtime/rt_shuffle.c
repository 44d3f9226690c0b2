/* memcheck: shuffles that read from lanes that do not run. */
#include "block.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { PLACES = 256, NAME_BYTES = 56 };

static struct {
  atomic_flag busy;
  uint32_t count;
  struct {
    char kernel[NAME_BYTES];
    uint32_t line;
  } at[PLACES];
} reported = {.busy = ATOMIC_FLAG_INIT};

/* True if this place was not reported yet and the list has room: a loop would fill any log. */
static int is_new(const char *kernel, uint32_t line) {
  while (atomic_flag_test_and_set_explicit(&reported.busy, memory_order_acquire)) {}
  uint32_t i = 0;
  while (i < reported.count && !(reported.at[i].line == line && !strncmp(reported.at[i].kernel, kernel, NAME_BYTES - 1))) i++;
  int new = i == reported.count && reported.count < PLACES;
  if (new) {
    snprintf(reported.at[i].kernel, NAME_BYTES, "%s", kernel);
    reported.at[i].line = line;
    reported.count++;
  }
  atomic_flag_clear_explicit(&reported.busy, memory_order_release);
  return new;
}

/* Reports a shuffle in which these running lanes read from lanes that do not run. */
void sg_rt_stray_shuffle(const sg_warp *warp, uint32_t lanes, uint32_t line) {
  if (__builtin_expect(!lanes, 1)) return;
  const char *kernel = warp->block->launch->name ? warp->block->launch->name : "without a name";
  uint32_t at[3];
  if (!is_new(kernel, line)) return;
  sg_thread_index(warp, (uint32_t)__builtin_ctz(lanes), at);
  fprintf(stderr,
          "softgpu: kernel %s, %s: thread (%u, %u, %u) of block (%u, %u, %u) shuffles a value from a lane that "
          "does not run; it is undefined, and has all bits set under memcheck\n",
          kernel, sg_place_of(warp, line).text, at[0], at[1], at[2], warp->ctaid[0], warp->ctaid[1], warp->ctaid[2]);
}

/* What the block runner asks the driver for, in tests that have no driver: a few ranges of memory, set by the test. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "block.h"

static sg_range known[16];
static uint32_t count;
static uint64_t changes;

/* Bytes of 0: forgets all ranges. */
void sg_test_know(uint64_t address, uint64_t bytes) {
  changes++;
  if (bytes == 0) count = 0;
  else if (count < sizeof known / sizeof *known) known[count++] = (sg_range){.address = address, .bytes = bytes};
}

uint64_t sg_memory_changes(void) { return changes; }

int sg_memory_nearest(uint64_t address, sg_range *range) {
  uint64_t least = UINT64_MAX;
  for (uint32_t i = 0; i < count; i++) {
    uint64_t start = known[i].address, end = start + known[i].bytes;
    uint64_t distance = address < start ? start - address : address >= end ? address - end + 1 : 0;
    if (distance >= least) continue;
    least = distance;
    *range = known[i];
  }
  return count != 0;
}

/* Exactly as many bytes as a device gives, before a page that no access reaches. */
enum { PAGE = 4096, ALIGNMENT = 512 };

static size_t pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

void *sg_variables_take(uint32_t device, sg_window *window, size_t bytes) {
  (void)device;
  if (window != NULL) return sg_window_take(window, bytes);
  size_t whole = pages(bytes);
  uint8_t *made = mmap(NULL, whole + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED || mprotect(made, whole, PROT_READ | PROT_WRITE) != 0) return NULL;
  return made + whole - (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void sg_variables_give(uint32_t device, sg_window *window, void *memory, size_t bytes) {
  (void)device;
  if (window != NULL) sg_window_give(window, memory, bytes);
  else munmap((void *)((uintptr_t)memory / PAGE * PAGE), pages(bytes) + PAGE);
}

static char printed[1 << 16];
static size_t printed_bytes;
static pthread_mutex_t printing = PTHREAD_MUTEX_INITIALIZER;

void softgpu_write(uint32_t device, const char *text, size_t bytes) {
  (void)device;
  pthread_mutex_lock(&printing);
  if (bytes < sizeof printed - printed_bytes) memcpy(printed + printed_bytes, text, bytes), printed_bytes += bytes;
  pthread_mutex_unlock(&printing);
}

void sg_test_printed(char *text, size_t bytes) {
  snprintf(text, bytes, "%.*s", (int)printed_bytes, printed);
  printed_bytes = 0;
}

void softgpu_set_last_error(const char *message) { fprintf(stderr, "%s\n", message); }

/* Fills the stacks on which this thread runs kernels, and its own below this frame. */
__attribute__((noinline)) void sg_test_dirty_stacks(uint32_t word) {
  volatile uint32_t own[32 << 10];
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) own[i] = word;
  for (uint32_t warp = 0; warp < MAX_WARPS; warp++) {
    uint32_t *stack = (uint32_t *)(sg_current_block->stacks[warp] + GUARD_BYTES);
    if (!sg_current_block->stacks[warp]) continue;
    for (size_t i = 0; i < STACK_BYTES / sizeof *stack; i++) stack[i] = word;
  }
}

/* How often the word stands on the first of the stacks. */
uint32_t sg_test_dirt(uint32_t word) {
  const uint32_t *stack = (const uint32_t *)(sg_current_block->stacks[0] + GUARD_BYTES);
  uint32_t found = 0;
  for (size_t i = 0; i < STACK_BYTES / sizeof *stack; i++) found += stack[i] == word;
  return found;
}

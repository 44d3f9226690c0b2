/* Declarations shared by block.c (one block: warps, barriers) and runner.c (launches: memory, threads). */
#ifndef SOFTGPU_BLOCK_H
#define SOFTGPU_BLOCK_H
#include "abi.h"

#include <stdatomic.h>

enum { MAX_WARPS = 32, BARRIERS = 16, STACK_BYTES = 512 << 10, GUARD_BYTES = 64 << 10 };
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, LAUNCH_FAILED = 719 }; /* CUresult */
enum { ILLEGAL_ADDRESS = 700, LAUNCH_TIMEOUT = 702, ASSERT = 710, MISALIGNED_ADDRESS = 716, INVALID_PC = 718, HARDWARE_STACK_ERROR = 714 };

typedef enum { NOT_STARTED, READY, WAITING, DONE } warp_state;

typedef struct barrier_state {
  uint32_t arrived;  /* warps, including those that arrive and do not wait */
  uint32_t expected; /* warps; 0: all that have not ended */
  uint32_t popcount; /* of a bar.red in progress */
  uint32_t refused, any;
  uint32_t result_popcount, result_refused, result_any;
} barrier_state;

typedef struct sg_block {
  sg_warp warps[MAX_WARPS];
  warp_state state[MAX_WARPS];
  uint8_t waits_for[MAX_WARPS];
  void *stack_pointer[MAX_WARPS]; /* of a warp that does not run now */
  uint32_t running, warp_count, ended, stacks_in_use;
  void *outside_pointer; /* of the thread's own stack, after its warps, while it waits in run_block */
  int barriers_used;
  barrier_state barriers[BARRIERS];
  const sg_launch *launch;
  uint8_t *stacks[MAX_WARPS];
  uint32_t stacks_written; /* the first of them, since they were cleared */
  uint64_t written_by;     /* the number of the window whose kernels have written stacks; 0: not of a window */
  sg_memory own, *memory; /* memory: of the launch; own: of launches that are not confined */
  sg_window *window;      /* from which the memory is borrowed; NULL: it is own */
  const uint8_t *params;
  int result;
  char *error;
  size_t error_bytes;
  void *escape[5];
  volatile int in_kernel; /* a fault now is the fault of a kernel */
  int faulted, fault_has_address, fault_of_stack;
  uintptr_t fault_address;
  void *signal_stack;
  sg_range known; /* memcheck: a live range, as of known_at_change */
  uint64_t known_at_change;
  struct sg_pages *pages; /* the bytes that the launch has touched so far, if it records them */
  struct sg_block *next;  /* of a cooperative launch: the next block that a thread has under way */
} sg_block;

/* A launch, or the rest of one, whose blocks several threads take. */
typedef struct sg_job {
  const sg_launch *launch;
  uint64_t blocks;
  atomic_uint_fast64_t next;
  atomic_int result;
  char *error;
  size_t error_bytes;
  uint64_t chunk;  /* blocks that a thread takes at a time */
  sg_grid *grid; /* of a cooperative launch */
} sg_job;

/* runner.c: the shared and local memory of a block for this launch, and its place in the grid; `at` becomes the next. */
int sg_prepare_block(sg_block *block, const sg_launch *launch) __attribute__((visibility("hidden")));
/* After a launch: gives borrowed memory back. */
void sg_settle_block(sg_block *block) __attribute__((visibility("hidden")));
void sg_find_place(const uint32_t grid[3], uint64_t index, uint32_t at[3]) __attribute__((visibility("hidden")));
void sg_place_block(sg_block *block, uint32_t at[3]) __attribute__((visibility("hidden")));
void sg_free_block(void *block) __attribute__((visibility("hidden")));
/* The result of a block that has left by its escape. */
int sg_after_escape(sg_block *block) __attribute__((visibility("hidden")));

/* runner_cooperative.c: begins blocks of a cooperative launch, and goes on with all of them in turn until they end. */
int sg_take_cooperative(sg_job *work, char *error, size_t error_bytes) __attribute__((visibility("hidden")));

/* Runs all warps of the block that `warps` describe. Does not return if one traps or a barrier is never met: block->result
 * and the message are set, and control goes to block->escape. */
void sg_run_block(sg_block *block) __attribute__((visibility("hidden")));
/* A block of a cooperative launch: begins it; then runs one of its warps, on a stack of its own, until that rests. Whether
 * all have ended. */
void sg_begin_block(sg_block *block) __attribute__((visibility("hidden")));
int sg_go_on(sg_block *block) __attribute__((visibility("hidden")));
/* Ends the launch from inside a warp, with this result and message. */
_Noreturn void sg_abandon(sg_block *block, int result, const char *message) __attribute__((visibility("hidden")));
/* Ends a launch that is to stop. */
_Noreturn void sg_stop(sg_warp *warp) __attribute__((visibility("hidden")));
/* The place of an instruction, for messages: "PTX line 7", or "a.cu:3 (PTX line 7)" where the image tells that. */
typedef struct sg_place {
  char text[96];
} sg_place;
sg_place sg_place_of(const sg_warp *warp, uint32_t line) __attribute__((visibility("hidden")));
/* threadIdx of a lane. */
void sg_thread_index(const sg_warp *warp, uint32_t lane, uint32_t at[3]) __attribute__((visibility("hidden")));
/* The block that this thread works with; its fibers find it here. */
extern _Thread_local sg_block *sg_current_block __attribute__((visibility("hidden"), tls_model("initial-exec")));

/* rt_touch.c: a thread records the bytes that it touches, and at its end adds them to those of the launch. */
struct sg_pages *sg_pages_new(void) __attribute__((visibility("hidden")));
void sg_touch(sg_block *block, uint64_t address, uint32_t bytes, uint32_t verb) __attribute__((visibility("hidden")));
void sg_report_touched(sg_block *block) __attribute__((visibility("hidden")));

/* faults.c: before blocks run; for a thread with its first block, and at its end; after an escape for a fault. */
void sg_watch_faults(void) __attribute__((visibility("hidden")));
void sg_open_signal_stack(sg_block *block) __attribute__((visibility("hidden")));
void sg_close_signal_stack(sg_block *block) __attribute__((visibility("hidden")));
void sg_report_fault(sg_block *block) __attribute__((visibility("hidden")));
#endif

/* Runs the warps of one block, each on its own stack once a barrier makes that necessary.
 *
 * Warp 0 runs on the stack of its thread. When it reaches a barrier, or has done many rounds of a loop, the next warps
 * run on a second stack until they do the same. So a warp may wait for another without a barrier. A block may wait for
 * an earlier one too, since blocks start in order on several threads. A block that waits for a later one may wait for
 * ever, unless the launch is cooperative: there every warp has its own stack, and after many rounds of a loop it lets
 * another block run (runner_cooperative.c).
 */
#define _GNU_SOURCE
#include "block.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* --- switching stacks: saves the registers that a C call must keep; the caller saves the others */

#if defined(__x86_64__)
__asm__(".text\n.p2align 4\n.globl sg_switch\n.hidden sg_switch\n.type sg_switch,@function\nsg_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
        ".size sg_switch,.-sg_switch\n");
enum { SAVED_WORDS = 7, RETURN_WORD = 6 };
#elif defined(__aarch64__)
__asm__(".text\n.p2align 4\n.globl sg_switch\n.hidden sg_switch\n.type sg_switch,%function\nsg_switch:\n"
        "sub sp,sp,#160\n"
        "stp x19,x20,[sp,#0]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\n"
        "stp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\nstp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\n"
        "stp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
        "mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
        "ldp x19,x20,[sp,#0]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\n"
        "ldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\nldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\n"
        "ldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
        "add sp,sp,#160\nret\n.size sg_switch,.-sg_switch\n");
enum { SAVED_WORDS = 20, RETURN_WORD = 11 };
#else
#error "no stack switch for this processor"
#endif
void sg_switch(void **save, void *next) __attribute__((visibility("hidden")));

/* Leaves the block for good, from any of its stacks. */
static _Noreturn void leave(sg_block *block) { __builtin_longjmp(block->escape, 1); }

void sg_abandon(sg_block *block, int result, const char *message) {
  block->result = result;
  if (block->error && block->error_bytes) snprintf(block->error, block->error_bytes, "%s", message);
  leave(block);
}

void sg_thread_index(const sg_warp *warp, uint32_t lane, uint32_t at[3]) {
  const uint32_t *extent = warp->block->launch->block;
  uint32_t thread = SG_WARP * warp->warp + lane;
  at[0] = thread % extent[0];
  at[1] = thread / extent[0] % extent[1];
  at[2] = thread / extent[0] / extent[1];
}

static void fiber_main(void);

_Thread_local sg_block *sg_current_block __attribute__((tls_model("initial-exec")));

static int make_stack(sg_block *block, uint32_t index) {
  if (block->stacks[index]) return OK;
  uint8_t *stack = mmap(NULL, STACK_BYTES + GUARD_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) return OUT_OF_MEMORY;
  mprotect(stack, GUARD_BYTES, PROT_NONE);
  block->stacks[index] = stack;
  return OK;
}

/* A fresh stack whose first switch goes to fiber_main. */
static void *prepare_stack(sg_block *block, uint32_t index) {
  if (make_stack(block, index) != OK) sg_abandon(block, LAUNCH_FAILED, "out of memory for the stacks of a block");
  if (index >= block->stacks_written) block->stacks_written = index + 1;
  void **top = (void **)(block->stacks[index] + GUARD_BYTES + STACK_BYTES - 64);
  void **frame = top - SAVED_WORDS - 1; /* after the return the stack is 8 below a multiple of 16, as after a call */
  memset(frame, 0, SAVED_WORDS * sizeof *frame);
  frame[RETURN_WORD] = (void *)fiber_main;
#if defined(__aarch64__)
  frame = top - SAVED_WORDS;
  memset(frame, 0, SAVED_WORDS * sizeof *frame);
  frame[RETURN_WORD] = (void *)fiber_main;
#endif
  return frame;
}

/* The warp to run next after `from`, in turn; MAX_WARPS if none can run. */
static uint32_t next_warp(const sg_block *block, uint32_t from) {
  for (uint32_t i = 1; i <= block->warp_count; i++) {
    uint32_t warp = from + i < block->warp_count ? from + i : from + i - block->warp_count;
    if (block->state[warp] == READY || block->state[warp] == NOT_STARTED) return warp;
  }
  return MAX_WARPS;
}

static void report_deadlock(sg_block *block) {
  char text[160];
  uint32_t first = 0;
  while (first < block->warp_count && block->state[first] != WAITING) first++;
  snprintf(text, sizeof text, "barrier deadlock: warp %u waits at barrier %u, which %u of its warps never reach", first,
           first < block->warp_count ? block->waits_for[first] : 0, block->warp_count - block->ended);
  sg_abandon(block, LAUNCH_FAILED, text);
}

/* The stack on which a warp runs from now on: its own, or a fresh one. */
static void *enter(sg_block *block, uint32_t warp) {
  block->running = warp;
  return block->state[warp] == READY ? block->stack_pointer[warp] : prepare_stack(block, block->stacks_in_use++);
}

/* Saves the running warp (or the end of the thread's own stack) and switches to the next warp that can run. */
static void switch_away(sg_block *block, void **save) {
  uint32_t next = next_warp(block, block->running);
  if (next == MAX_WARPS) {
    if (block->ended != block->warp_count) report_deadlock(block);
    sg_switch(save, block->outside_pointer);
    return;
  }
  if (next == block->running && block->state[next] == READY && save == &block->stack_pointer[next]) return;
  sg_switch(save, enter(block, next));
}

static void release(sg_block *block, uint32_t id) {
  barrier_state *barrier = &block->barriers[id];
  barrier->result_popcount = barrier->popcount;
  barrier->result_refused = barrier->refused;
  barrier->result_any = barrier->any;
  barrier->arrived = barrier->expected = barrier->popcount = barrier->refused = barrier->any = 0;
  for (uint32_t warp = 0; warp < block->warp_count; warp++)
    if (block->state[warp] == WAITING && block->waits_for[warp] == id) block->state[warp] = READY;
}

static int is_complete(const sg_block *block, const barrier_state *barrier) {
  uint32_t living = block->warp_count - block->ended;
  uint32_t expected = barrier->expected ? barrier->expected : living;
  return barrier->arrived && barrier->arrived >= expected;
}

static void end_warp(sg_block *block, uint32_t warp) {
  block->state[warp] = DONE;
  block->ended++;
  if (!block->barriers_used) return;
  for (uint32_t id = 0; id < BARRIERS; id++)
    if (is_complete(block, &block->barriers[id])) release(block, id);
}

/* Runs warps that have not started, beginning with the warp that the scheduler chose. */
static void run_fresh_warps(sg_block *block) {
  for (;;) {
    uint32_t warp = block->running;
    block->state[warp] = READY;
    block->launch->fn(block->params, &block->warps[warp]);
    end_warp(block, warp);
    uint32_t next = next_warp(block, warp);
    if (next == MAX_WARPS || block->state[next] != NOT_STARTED) return;
    block->running = next;
  }
}

static void fiber_main(void) {
  sg_block *block = sg_current_block;
  run_fresh_warps(block);
  void *unused;
  switch_away(block, &unused);
  leave(block); /* not reached: nothing switches back to a stack whose warps have ended */
}

void sg_begin_block(sg_block *block) {
  memset(block->state, 0, sizeof block->state);
  block->running = block->ended = block->stacks_in_use = 0;
  if (block->barriers_used) memset(block->barriers, 0, sizeof block->barriers);
  block->barriers_used = 0;
}

int sg_go_on(sg_block *block) {
  uint32_t latest = block->stacks_in_use ? block->running : block->warp_count - 1; /* so that the first comes first */
  sg_switch(&block->outside_pointer, enter(block, next_warp(block, latest)));
  return block->ended == block->warp_count;
}

void sg_run_block(sg_block *block) {
  uint32_t count = block->warp_count;
  sg_begin_block(block);
  run_fresh_warps(block);
  if (block->ended != count) switch_away(block, &block->outside_pointer);
}

/* --- called by compiled code */

static void arrive(sg_warp *warp, uint32_t id, uint32_t threads, int waits) {
  sg_block *block = warp->block;
  if (id >= BARRIERS || threads % SG_WARP)
    sg_abandon(block, LAUNCH_FAILED, "bar: no such barrier, or a number of threads that is no multiple of 32");
  barrier_state *barrier = &block->barriers[id];
  block->barriers_used = 1;
  barrier->arrived++;
  barrier->expected = threads / SG_WARP;
  if (is_complete(block, barrier)) {
    release(block, id);
    return;
  }
  if (!waits) return;
  block->state[warp->warp] = WAITING;
  block->waits_for[warp->warp] = (uint8_t)id;
  switch_away(block, &block->stack_pointer[warp->warp]);
}

void sg_rt_barrier(sg_warp *warp, uint32_t id, uint32_t threads) { arrive(warp, id, threads, 1); }

void sg_rt_arrive(sg_warp *warp, uint32_t id, uint32_t threads) { arrive(warp, id, threads, 0); }

static barrier_state *arrive_with(sg_warp *warp, uint32_t id, uint32_t threads, uint32_t bits, uint32_t lanes) {
  barrier_state *barrier = &warp->block->barriers[id < BARRIERS ? id : 0];
  barrier->popcount += (uint32_t)__builtin_popcount(bits & lanes);
  barrier->refused |= (bits & lanes) != lanes;
  barrier->any |= (bits & lanes) != 0;
  arrive(warp, id, threads, 1);
  return barrier;
}

uint32_t sg_rt_barrier_popc(sg_warp *warp, uint32_t id, uint32_t threads, uint32_t bits, uint32_t lanes) {
  return arrive_with(warp, id, threads, bits, lanes)->result_popcount;
}
uint32_t sg_rt_barrier_and(sg_warp *warp, uint32_t id, uint32_t threads, uint32_t bits, uint32_t lanes) {
  return !arrive_with(warp, id, threads, bits, lanes)->result_refused;
}
uint32_t sg_rt_barrier_or(sg_warp *warp, uint32_t id, uint32_t threads, uint32_t bits, uint32_t lanes) {
  return arrive_with(warp, id, threads, bits, lanes)->result_any;
}

void sg_rt_rest(sg_warp *warp) {
  if (__builtin_expect(*warp->stop, 0)) sg_stop(warp);
  sg_block *block = warp->block;
  void **save = &block->stack_pointer[warp->warp];
  if (__builtin_expect(block->launch->cooperative, 0)) sg_switch(save, block->outside_pointer);
  else switch_away(block, save);
}

void sg_stop(sg_warp *warp) {
  char text[160];
  snprintf(text, sizeof text, "cancelled while block (%u, %u, %u), warp %u ran", warp->ctaid[0], warp->ctaid[1],
           warp->ctaid[2], warp->warp);
  sg_abandon(warp->block, LAUNCH_TIMEOUT, text);
}

void sg_rt_trap(sg_warp *warp, uint32_t line) {
  char text[240];
  snprintf(text, sizeof text, "trap at %s, block (%u, %u, %u), warp %u", sg_place_of(warp, line).text, warp->ctaid[0],
           warp->ctaid[1], warp->ctaid[2], warp->warp);
  sg_abandon(warp->block, LAUNCH_FAILED, text);
}

/* Ends the launch if not all lanes run an instruction of the whole warp. */
void sg_rt_need_warp(sg_warp *warp, uint32_t running, uint32_t line) {
  if (__builtin_expect(running == UINT32_MAX, 1)) return;
  char text[300];
  snprintf(text, sizeof text,
           "%s: the whole warp has to come to this instruction together, but %d of 32 lanes run; "
           "block (%u, %u, %u), warp %u",
           sg_place_of(warp, line).text, __builtin_popcount(running), warp->ctaid[0], warp->ctaid[1], warp->ctaid[2], warp->warp);
  sg_abandon(warp->block, LAUNCH_FAILED, text);
}

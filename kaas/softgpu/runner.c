/* Runs the blocks of a launch: warps as fibers, barriers, shared and local memory, and all cores for large launches.
 *
 * Warp 0 of a block runs on the stack of its thread. Only when it meets a barrier does a second stack come into play,
 * on which the next warps run until they meet one too; a kernel without barriers never switches.
 */
#define _GNU_SOURCE
#include "abi.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MAX_WARPS = 32, BARRIERS = 16, STACK_BYTES = 512 << 10, GUARD_BYTES = 64 << 10 };
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, LAUNCH_FAILED = 719 };
/* Blocks are handed to other threads once those run so far have taken this long. */
static const int64_t SHARE_AFTER_NS = 30000;

/* --- switching stacks: saves what a C call must keep, the rest is saved by the caller */

#if defined(__x86_64__)
__asm__(".text\n.p2align 4\n.globl kaas_switch\n.hidden kaas_switch\n.type kaas_switch,@function\nkaas_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
        ".size kaas_switch,.-kaas_switch\n");
enum { SAVED_WORDS = 7, RETURN_WORD = 6 };
#elif defined(__aarch64__)
__asm__(".text\n.p2align 4\n.globl kaas_switch\n.hidden kaas_switch\n.type kaas_switch,%function\nkaas_switch:\n"
        "sub sp,sp,#160\n"
        "stp x19,x20,[sp,#0]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\n"
        "stp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\nstp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\n"
        "stp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
        "mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
        "ldp x19,x20,[sp,#0]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\n"
        "ldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\nldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\n"
        "ldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
        "add sp,sp,#160\nret\n.size kaas_switch,.-kaas_switch\n");
enum { SAVED_WORDS = 20, RETURN_WORD = 11 };
#else
#error "no stack switch for this processor"
#endif
void kaas_switch(void **save, void *next) __attribute__((visibility("hidden")));

/* --- the state of one block; each thread has one and uses it for all its blocks */

typedef enum { NOT_STARTED, READY, WAITING, DONE } warp_state;

typedef struct barrier_state {
  uint32_t arrived;  /* warps, those that only arrive included */
  uint32_t expected; /* warps; 0: all that have not ended */
  uint32_t popcount; /* of a bar.red in progress */
  uint32_t refused, any;
  uint32_t result_popcount, result_refused, result_any;
} barrier_state;

typedef struct kaas_block {
  kaas_warp warps[MAX_WARPS];
  warp_state state[MAX_WARPS];
  uint8_t waits_for[MAX_WARPS];
  void *stack_pointer[MAX_WARPS]; /* of a warp that has been switched away from */
  uint32_t running, warp_count, ended, stacks_in_use;
  void *outside_pointer; /* of the thread's own stack, once it has no warp left and waits in run_block */
  int barriers_used;
  barrier_state barriers[BARRIERS];
  const kaas_launch *launch;
  uint8_t *stacks[MAX_WARPS];
  uint8_t *shared, *local;
  size_t shared_capacity, local_capacity;
  int result;
  char *error;
  size_t error_bytes;
  void *escape[5];
} kaas_block;

static void fail(kaas_block *block, const char *message) {
  block->result = LAUNCH_FAILED;
  if (block->error && block->error_bytes) snprintf(block->error, block->error_bytes, "%s", message);
}

/* Leaves the block for good, from whichever stack. */
static _Noreturn void abandon(kaas_block *block) { __builtin_longjmp(block->escape, 1); }

static void fiber_main(void);

static _Thread_local kaas_block *current;

static int make_stack(kaas_block *block, uint32_t index) {
  if (block->stacks[index]) return OK;
  uint8_t *stack = mmap(NULL, STACK_BYTES + GUARD_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) return OUT_OF_MEMORY;
  mprotect(stack, GUARD_BYTES, PROT_NONE);
  block->stacks[index] = stack;
  return OK;
}

/* A fresh stack whose first switch goes to fiber_main. */
static void *prepare_stack(kaas_block *block, uint32_t index) {
  if (make_stack(block, index) != OK) {
    fail(block, "out of memory for the stacks of a block");
    abandon(block);
  }
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
static uint32_t next_warp(const kaas_block *block, uint32_t from) {
  for (uint32_t i = 1; i <= block->warp_count; i++) {
    uint32_t warp = from + i < block->warp_count ? from + i : from + i - block->warp_count;
    if (block->state[warp] == READY || block->state[warp] == NOT_STARTED) return warp;
  }
  return MAX_WARPS;
}

static void report_deadlock(kaas_block *block) {
  char text[160];
  uint32_t first = 0;
  while (first < block->warp_count && block->state[first] != WAITING) first++;
  snprintf(text, sizeof text, "barrier deadlock: warp %u waits at barrier %u, which %u of its warps never reach", first,
           first < block->warp_count ? block->waits_for[first] : 0, block->warp_count - block->ended);
  fail(block, text);
  abandon(block);
}

/* Saves the running warp (or, if `save` says so, the end of the thread's own stack) and goes to the next that can run. */
static void switch_away(kaas_block *block, void **save) {
  uint32_t next = next_warp(block, block->running);
  if (next == MAX_WARPS) {
    if (block->ended != block->warp_count) report_deadlock(block);
    kaas_switch(save, block->outside_pointer);
    return;
  }
  if (block->state[next] == READY) {
    if (next == block->running && save == &block->stack_pointer[next]) return;
    block->running = next;
    kaas_switch(save, block->stack_pointer[next]);
    return;
  }
  block->running = next;
  kaas_switch(save, prepare_stack(block, ++block->stacks_in_use));
}

static void release(kaas_block *block, uint32_t id) {
  barrier_state *barrier = &block->barriers[id];
  barrier->result_popcount = barrier->popcount;
  barrier->result_refused = barrier->refused;
  barrier->result_any = barrier->any;
  barrier->arrived = barrier->expected = barrier->popcount = barrier->refused = barrier->any = 0;
  for (uint32_t warp = 0; warp < block->warp_count; warp++)
    if (block->state[warp] == WAITING && block->waits_for[warp] == id) block->state[warp] = READY;
}

static int is_complete(const kaas_block *block, const barrier_state *barrier) {
  uint32_t living = block->warp_count - block->ended;
  uint32_t expected = barrier->expected ? barrier->expected : living;
  return barrier->arrived && barrier->arrived >= expected;
}

static void end_warp(kaas_block *block, uint32_t warp) {
  block->state[warp] = DONE;
  block->ended++;
  for (uint32_t id = 0; id < BARRIERS; id++)
    if (is_complete(block, &block->barriers[id])) release(block, id);
}

/* Runs warps that have not started, from the one the scheduler chose. */
static void run_fresh_warps(kaas_block *block) {
  for (;;) {
    uint32_t warp = block->running;
    block->state[warp] = READY;
    block->launch->fn(block->launch->params, &block->warps[warp]);
    end_warp(block, warp);
    uint32_t next = next_warp(block, warp);
    if (next == MAX_WARPS || block->state[next] != NOT_STARTED) return;
    block->running = next;
  }
}

static void fiber_main(void) {
  kaas_block *block = current;
  run_fresh_warps(block);
  void *unused;
  switch_away(block, &unused);
  abandon(block); /* not reached: nothing switches back to a stack whose warps have ended */
}

static void run_block(kaas_block *block) {
  uint32_t count = block->warp_count;
  memset(block->state, 0, sizeof block->state);
  block->running = block->ended = block->stacks_in_use = 0;
  if (block->barriers_used) memset(block->barriers, 0, sizeof block->barriers);
  block->barriers_used = 0;
  run_fresh_warps(block);
  if (block->ended != count) switch_away(block, &block->outside_pointer);
}

/* --- called by compiled code */

static void arrive(kaas_warp *warp, uint32_t id, uint32_t threads, int waits) {
  kaas_block *block = warp->block;
  if (id >= BARRIERS || threads % KAAS_WARP) {
    fail(block, "bar: no such barrier, or a number of threads that is no multiple of 32");
    abandon(block);
  }
  barrier_state *barrier = &block->barriers[id];
  block->barriers_used = 1;
  barrier->arrived++;
  barrier->expected = threads / KAAS_WARP;
  if (is_complete(block, barrier)) {
    release(block, id);
    return;
  }
  if (!waits) return;
  block->state[warp->warp] = WAITING;
  block->waits_for[warp->warp] = (uint8_t)id;
  switch_away(block, &block->stack_pointer[warp->warp]);
}

void kaas_rt_barrier(kaas_warp *warp, uint32_t id, uint32_t threads) { arrive(warp, id, threads, 1); }

void kaas_rt_arrive(kaas_warp *warp, uint32_t id, uint32_t threads) { arrive(warp, id, threads, 0); }

static barrier_state *arrive_with(kaas_warp *warp, uint32_t id, uint32_t threads, uint32_t bits, uint32_t lanes) {
  barrier_state *barrier = &warp->block->barriers[id < BARRIERS ? id : 0];
  barrier->popcount += (uint32_t)__builtin_popcount(bits & lanes);
  barrier->refused |= (bits & lanes) != lanes;
  barrier->any |= (bits & lanes) != 0;
  arrive(warp, id, threads, 1);
  return barrier;
}

uint32_t kaas_rt_barrier_popc(kaas_warp *warp, uint32_t id, uint32_t threads, uint32_t bits, uint32_t lanes) {
  return arrive_with(warp, id, threads, bits, lanes)->result_popcount;
}
uint32_t kaas_rt_barrier_and(kaas_warp *warp, uint32_t id, uint32_t threads, uint32_t bits, uint32_t lanes) {
  return !arrive_with(warp, id, threads, bits, lanes)->result_refused;
}
uint32_t kaas_rt_barrier_or(kaas_warp *warp, uint32_t id, uint32_t threads, uint32_t bits, uint32_t lanes) {
  return arrive_with(warp, id, threads, bits, lanes)->result_any;
}

void kaas_rt_trap(kaas_warp *warp, uint32_t line) {
  char text[160];
  snprintf(text, sizeof text, "trap at PTX line %u, block (%u, %u, %u), warp %u", line, warp->ctaid[0], warp->ctaid[1],
           warp->ctaid[2], warp->warp);
  fail(warp->block, text);
  abandon(warp->block);
}

/* --- memory of a block */

static int grow(uint8_t **memory, size_t *capacity, size_t bytes) {
  if (bytes <= *capacity) return OK;
  free(*memory);
  *capacity = 0;
  *memory = aligned_alloc(128, (bytes + 127) / 128 * 128);
  if (!*memory) return OUT_OF_MEMORY;
  *capacity = bytes;
  return OK;
}

static int prepare_block(kaas_block *block, const kaas_launch *launch) {
  uint32_t threads = launch->block[0] * launch->block[1] * launch->block[2];
  size_t shared = (size_t)launch->static_shared_bytes + launch->dynamic_shared_bytes;
  size_t local = (size_t)launch->local_bytes * KAAS_WARP;
  block->launch = launch;
  block->warp_count = (threads + KAAS_WARP - 1) / KAAS_WARP;
  /* Room behind the end: a vector access may touch the lanes that are switched off. */
  if (grow(&block->shared, &block->shared_capacity, shared + 1024) != OK) return OUT_OF_MEMORY;
  if (local && grow(&block->local, &block->local_capacity, local * block->warp_count) != OK) return OUT_OF_MEMORY;
  for (uint32_t i = 0; i < block->warp_count; i++) {
    kaas_warp *warp = &block->warps[i];
    uint32_t left = threads - i * KAAS_WARP;
    memcpy(warp->nctaid, launch->grid, sizeof warp->nctaid);
    warp->warp = i;
    warp->live = left >= KAAS_WARP ? UINT32_MAX : (UINT32_C(1) << left) - 1;
    warp->shared = block->shared;
    warp->local = local ? block->local + local * i : NULL;
    warp->dynamic_shared_bytes = launch->dynamic_shared_bytes;
    warp->shared_bytes = (uint32_t)shared;
    warp->block = block;
  }
  return OK;
}

static void place_block(kaas_block *block, uint64_t index) {
  const uint32_t *grid = block->launch->grid;
  uint32_t at[3] = {(uint32_t)(index % grid[0]), (uint32_t)(index / grid[0] % grid[1]),
                    (uint32_t)(index / grid[0] / grid[1])};
  for (uint32_t i = 0; i < block->warp_count; i++) memcpy(block->warps[i].ctaid, at, sizeof at);
}

/* --- threads */

typedef struct job {
  const kaas_launch *launch;
  uint64_t blocks;
  atomic_uint_fast64_t next;
  atomic_int result;
  char *error;
  size_t error_bytes;
  uint64_t chunk;
} job;

static pthread_key_t block_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static struct {
  pthread_mutex_t busy; /* held by the launch that uses the other threads */
  pthread_mutex_t lock;
  pthread_cond_t work, idle;
  job *job;
  uint64_t generation;
  uint32_t threads, working;
} pool = {.busy = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER,
          .idle = PTHREAD_COND_INITIALIZER};

static void free_block(void *memory) {
  kaas_block *block = memory;
  for (uint32_t i = 0; i < MAX_WARPS; i++)
    if (block->stacks[i]) munmap(block->stacks[i], STACK_BYTES + GUARD_BYTES);
  free(block->shared);
  free(block->local);
  free(block);
}

static kaas_block *block_of_thread(void) {
  if (!current) {
    current = calloc(1, sizeof *current);
    if (current) pthread_setspecific(block_key, current);
  }
  return current;
}

/* Runs blocks [from, to); stops at the first that fails. */
static __attribute__((noinline)) int run_range(kaas_block *block, uint64_t from, uint64_t to) {
  volatile uint64_t index = from;
  block->result = OK;
  if (__builtin_setjmp(block->escape)) return current->result;
  for (; index < to; index++) {
    place_block(block, index);
    run_block(block);
  }
  return OK;
}

static void take_part(job *work) {
  kaas_block *block = block_of_thread();
  char error[256] = "";
  int result = block ? prepare_block(block, work->launch) : OUT_OF_MEMORY;
  if (block) block->error = error, block->error_bytes = sizeof error;
  while (result == OK && atomic_load(&work->result) == OK) {
    uint64_t from = atomic_fetch_add(&work->next, work->chunk);
    if (from >= work->blocks) break;
    uint64_t to = from + work->chunk < work->blocks ? from + work->chunk : work->blocks;
    result = run_range(block, from, to);
  }
  int expected = OK;
  if (result != OK && atomic_compare_exchange_strong(&work->result, &expected, result) && work->error)
    snprintf(work->error, work->error_bytes, "%s", error);
}

static void *pool_main(void *unused) {
  (void)unused;
  uint64_t seen = 0;
  pthread_mutex_lock(&pool.lock);
  for (;;) {
    while (pool.generation == seen || !pool.job) pthread_cond_wait(&pool.work, &pool.lock);
    seen = pool.generation;
    job *work = pool.job;
    pool.working++;
    pthread_mutex_unlock(&pool.lock);
    take_part(work);
    pthread_mutex_lock(&pool.lock);
    if (!--pool.working) pthread_cond_signal(&pool.idle);
  }
  return NULL;
}

static void forget_pool(void) {
  /* A forked child has none of the threads. */
  pthread_mutex_init(&pool.busy, NULL);
  pthread_mutex_init(&pool.lock, NULL);
  pthread_cond_init(&pool.work, NULL);
  pthread_cond_init(&pool.idle, NULL);
  pool.threads = pool.working = 0;
  pool.job = NULL;
}

static void start(void) {
  pthread_key_create(&block_key, free_block);
  pthread_atfork(NULL, NULL, forget_pool);
}

static uint32_t usable_cores(void) {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) ? 1 : (uint32_t)CPU_COUNT(&cores);
}

/* Starts the other threads, one for each further core; how many run. Called with pool.busy held. */
static uint32_t start_pool(void) {
  static _Thread_local uint32_t cores;
  if (!cores) cores = usable_cores();
  while (pool.threads + 1 < cores) {
    pthread_t thread;
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    int failed = pthread_create(&thread, &detached, pool_main, NULL);
    pthread_attr_destroy(&detached);
    if (failed) break;
    pool.threads++;
  }
  return pool.threads;
}

static void share(job *work) {
  uint32_t threads = start_pool();
  uint64_t left = work->blocks - atomic_load(&work->next);
  work->chunk = left / (8 * (uint64_t)(threads + 1)) + 1;
  pthread_mutex_lock(&pool.lock);
  pool.job = work;
  pool.generation++;
  pthread_cond_broadcast(&pool.work);
  pthread_mutex_unlock(&pool.lock);
  take_part(work);
  pthread_mutex_lock(&pool.lock);
  pool.job = NULL; /* a thread that has not woken yet finds nothing */
  while (pool.working) pthread_cond_wait(&pool.idle, &pool.lock);
  pthread_mutex_unlock(&pool.lock);
}

static int64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Alone while the launch is short: blocks in runs of 1, 1, 2, 4, ... with a look at the clock between them. */
static int run_short(kaas_block *block, uint64_t blocks, uint64_t *done) {
  int64_t started = now_ns();
  uint64_t run = 1;
  while (*done < blocks) {
    uint64_t to = *done + run < blocks ? *done + run : blocks;
    int result = run_range(block, *done, to);
    if (result != OK) return result;
    *done = to;
    int64_t taken = now_ns() - started;
    if (taken > SHARE_AFTER_NS) return OK;
    run = taken * 2 < SHARE_AFTER_NS ? to : run;
  }
  return OK;
}

int kaas_run(const kaas_launch *launch, char *error, size_t error_bytes) {
  uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
  uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
  if (error && error_bytes) *error = 0;
  if (!blocks || !threads || threads > MAX_WARPS * KAAS_WARP) return INVALID_VALUE;
  pthread_once(&once, start);
  kaas_block *block = block_of_thread();
  if (!block || prepare_block(block, launch) != OK) return OUT_OF_MEMORY;
  block->error = error;
  block->error_bytes = error_bytes;
  if (blocks == 1) return run_range(block, 0, 1);
  uint64_t done = 0;
  int result = run_short(block, blocks, &done);
  if (result != OK || done == blocks) return result;
  if (blocks - done == 1 || pthread_mutex_trylock(&pool.busy)) return run_range(block, done, blocks);
  job work = {.launch = launch, .blocks = blocks, .error = error, .error_bytes = error_bytes};
  atomic_init(&work.next, done);
  atomic_init(&work.result, OK);
  share(&work);
  pthread_mutex_unlock(&pool.busy);
  return atomic_load(&work.result);
}

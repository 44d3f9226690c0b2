/* Runs launches: shared and local memory of their blocks, and all cores for large ones. */
#define _GNU_SOURCE
#include "block.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Other threads get blocks after the first blocks have taken this long. */
static const int64_t SHARE_AFTER_NS = 30000;
/* Room behind the end: a vector access may touch the memory of lanes that do not run. */
enum { SHARED_ROOM = 1024, LOCAL_ROOM = 4096, CLEAR_BY_PAGES = 128 << 10 };
/* Local memory that stays for the next launch: 1 KiB for each thread of the largest block, as CUDA's default stack. */
enum { LOCAL_KEPT = 1 << 20 };

/* --- memory of a block */

static size_t whole_pages(size_t bytes) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}

/* Pages of the system, not of the heap: memory of the heap would show kernels the data of the process. */
static void *take_local(sg_window *window, size_t bytes) {
  if (window) return sg_window_take(window, bytes);
  void *made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return made == MAP_FAILED ? NULL : made;
}

static void drop_local(sg_memory *memory, sg_window *window) {
  size_t bytes = memory->local_capacity + LOCAL_ROOM;
  if (memory->local && window) sg_window_give(window, memory->local, bytes);
  else if (memory->local) munmap(memory->local, bytes);
  memory->local = NULL;
  memory->local_capacity = memory->local_left = 0;
}

static int grow_local(sg_memory *memory, sg_window *window, size_t bytes) {
  if (bytes <= memory->local_capacity) return OK;
  drop_local(memory, window);
  size_t capacity = whole_pages(bytes);
  memory->local = take_local(window, capacity + LOCAL_ROOM);
  if (!memory->local) return OUT_OF_MEMORY;
  memory->local_capacity = capacity;
  return OK;
}

/* Clears the data of an earlier launch: the next launch may belong to another client. Large memory is cleared by pages,
 * where only written pages cost time. */
static void clear_left(uint8_t *memory, size_t *left, size_t next) {
  if (*left > CLEAR_BY_PAGES) madvise(memory, whole_pages(*left), MADV_DONTNEED);
  else if (*left) memset(memory, 0, *left);
  *left = next;
}

/* Offsets in shared memory have 32 bits with a sign: all addresses that they reach are reserved, so that an access
 * outside shared memory faults and does not change memory of the process. */
static const size_t SHARED_REACH = (size_t)1 << 31;

static int grow_shared(sg_memory *memory, size_t bytes) {
  if (bytes <= memory->shared_capacity) return OK;
  if (!memory->shared) {
    uint8_t *start = mmap(NULL, 2 * SHARED_REACH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return OUT_OF_MEMORY;
    memory->shared = start + SHARED_REACH;
  }
  if (mprotect(memory->shared, bytes, PROT_READ | PROT_WRITE)) return OUT_OF_MEMORY;
  memory->shared_capacity = bytes;
  return OK;
}

static __attribute__((noinline)) void clear_own_stack(void) {
  uint8_t below[64 << 10];
  memset(below, 0, sizeof below);
  __asm__ volatile("" : : "r"(below) : "memory");
}

/* Clears the stacks before another client's kernels: a second wall, since compiled code reads only what it has written. */
static void clear_stacks(sg_block *block, const sg_window *window) {
  uint64_t number = window ? window->number : 0;
  if (block->written_by == number) return;
  block->written_by = number;
  while (block->stacks_written) madvise(block->stacks[--block->stacks_written] + GUARD_BYTES, STACK_BYTES, MADV_DONTNEED);
  clear_own_stack();
}

static const volatile uint32_t never;

/* A confined kernel finds its parameters in its window too: some kernels take their addresses. */
static int borrow(sg_block *block, const sg_launch *launch) {
  if (block->window != launch->window) sg_settle_block(block);
  if (!launch->window) {
    block->memory = &block->own;
    block->params = launch->params;
    return OK;
  }
  sg_memory *memory = block->window ? block->memory : sg_window_borrow(launch->window);
  if (!memory) return OUT_OF_MEMORY;
  block->window = launch->window;
  block->memory = memory;
  block->params = memory->params;
  if (launch->param_bytes) memcpy(memory->params, launch->params, launch->param_bytes);
  return OK;
}

void sg_settle_block(sg_block *block) {
  if (block->memory && block->memory->local_capacity > LOCAL_KEPT) drop_local(block->memory, block->window);
  if (!block->window) return;
  sg_window_return(block->window, block->memory);
  block->window = NULL;
  block->memory = &block->own;
}

int sg_prepare_block(sg_block *block, const sg_launch *launch) {
  uint32_t threads = launch->block[0] * launch->block[1] * launch->block[2];
  size_t shared = (size_t)launch->static_shared_bytes + launch->dynamic_shared_bytes;
  size_t local = (size_t)launch->local_bytes * SG_WARP;
  block->launch = launch;
  block->warp_count = (threads + SG_WARP - 1) / SG_WARP;
  if (borrow(block, launch) != OK) return OUT_OF_MEMORY;
  clear_stacks(block, launch->window);
  sg_memory *memory = block->memory;
  if (grow_shared(memory, shared + SHARED_ROOM) != OK) return OUT_OF_MEMORY;
  if (launch->touched && !block->pages && !(block->pages = sg_pages_new())) return OUT_OF_MEMORY;
  if (local && grow_local(memory, launch->window, local * block->warp_count) != OK) return OUT_OF_MEMORY;
  clear_left(memory->shared, &memory->shared_left, shared ? shared + SHARED_ROOM : 0);
  clear_left(memory->local, &memory->local_left, local * block->warp_count);
  for (uint32_t i = 0; i < block->warp_count; i++) {
    sg_warp *warp = &block->warps[i];
    uint32_t left = threads - i * SG_WARP;
    memcpy(warp->nctaid, launch->grid, sizeof warp->nctaid);
    warp->warp = i;
    warp->live = left >= SG_WARP ? UINT32_MAX : (UINT32_C(1) << left) - 1;
    warp->shared = memory->shared;
    warp->local = local ? memory->local + local * i : NULL;
    warp->dynamic_shared_bytes = launch->dynamic_shared_bytes;
    warp->shared_bytes = (uint32_t)shared;
    warp->block = block;
    warp->stop = launch->stop ? launch->stop : &never;
    warp->window_base = launch->window ? launch->window->base : 0;
    warp->window_mask = launch->window ? launch->window->mask : 0;
  }
  return OK;
}

/* The coordinates of block number `index` in the grid. */
void sg_find_place(const uint32_t grid[3], uint64_t index, uint32_t at[3]) {
  at[0] = (uint32_t)(index % grid[0]);
  at[1] = (uint32_t)(index / grid[0] % grid[1]);
  at[2] = (uint32_t)(index / grid[0] / grid[1]);
}

void sg_place_block(sg_block *block, uint32_t at[3]) {
  for (uint32_t i = 0; i < block->warp_count; i++) memcpy(block->warps[i].ctaid, at, sizeof block->warps[i].ctaid);
  const uint32_t *grid = block->launch->grid; /* on to the next */
  if (++at[0] < grid[0]) return;
  at[0] = 0;
  if (++at[1] < grid[1]) return;
  at[1] = 0;
  at[2]++;
}

/* --- threads */

static pthread_key_t block_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static struct {
  pthread_mutex_t busy; /* held by the launch that uses the other threads */
  pthread_mutex_t lock;
  pthread_cond_t work, idle;
  sg_job *job;
  uint64_t generation;
  uint32_t threads, working;
} pool = {.busy = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER,
          .idle = PTHREAD_COND_INITIALIZER};

void sg_free_block(void *memory) {
  sg_block *block = memory;
  for (uint32_t i = 0; i < MAX_WARPS; i++)
    if (block->stacks[i]) munmap(block->stacks[i], STACK_BYTES + GUARD_BYTES);
  sg_settle_block(block);
  if (block->own.shared) munmap(block->own.shared - SHARED_REACH, 2 * SHARED_REACH);
  drop_local(&block->own, NULL);
  free(block->pages);
  sg_close_signal_stack(block);
  if (sg_current_block == block) sg_current_block = NULL;
  free(block);
}

static sg_block *block_of_thread(void) {
  if (!sg_current_block) {
    sg_current_block = calloc(1, sizeof *sg_current_block);
    if (sg_current_block) {
      pthread_setspecific(block_key, sg_current_block);
      sg_open_signal_stack(sg_current_block);
    }
  }
  return sg_current_block;
}

int sg_after_escape(sg_block *block) {
  block->in_kernel = 0;
  if (block->faulted) sg_report_fault(block);
  return block->result;
}

/* Runs blocks [from, to); stops at the first that fails. */
static __attribute__((noinline)) int run_range(sg_block *block, uint64_t from, uint64_t to) {
  uint32_t at[3];
  sg_find_place(block->launch->grid, from, at);
  block->result = OK;
  if (__builtin_setjmp(block->escape)) return sg_after_escape(sg_current_block);
  block->in_kernel = 1;
  for (uint64_t index = from; index < to; index++) {
    sg_place_block(block, at);
    if (__builtin_expect(*block->warps->stop, 0)) sg_stop(block->warps);
    sg_run_block(block);
  }
  block->in_kernel = 0;
  return OK;
}

static int take_ranges(sg_job *work, char *error, size_t error_bytes) {
  sg_block *block = sg_current_block;
  int result = sg_prepare_block(block, work->launch);
  block->error = error;
  block->error_bytes = error_bytes;
  while (result == OK && atomic_load(&work->result) == OK) {
    uint64_t from = atomic_fetch_add(&work->next, work->chunk);
    if (from >= work->blocks) break;
    uint64_t to = from + work->chunk < work->blocks ? from + work->chunk : work->blocks;
    result = run_range(block, from, to);
  }
  if (work->launch->touched && block->pages) sg_report_touched(block);
  sg_settle_block(block);
  return result;
}

static void take_part(sg_job *work) {
  char error[400] = "";
  int result = OUT_OF_MEMORY, expected = OK;
  if (block_of_thread())
    result = (work->launch->cooperative ? sg_take_cooperative : take_ranges)(work, error, sizeof error);
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
    sg_job *work = pool.job;
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
  pthread_key_create(&block_key, sg_free_block);
  pthread_atfork(NULL, NULL, forget_pool);
}

static uint32_t usable_cores(void) {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) ? 1 : (uint32_t)CPU_COUNT(&cores);
}

/* Starts the other threads, one for each further core; returns their number. The caller holds pool.busy. */
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

static void share(sg_job *work) {
  uint32_t threads = start_pool();
  uint64_t left = work->blocks - atomic_load(&work->next);
  uint64_t parts = work->launch->cooperative ? 1 : 8;
  work->chunk = left / (parts * (threads + 1)) + 1;
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

/* Runs a short launch on this thread: blocks in runs of 1, 1, 2, 4, ... with a check of the clock between them. */
static int run_short(sg_block *block, uint64_t blocks, uint64_t *done) {
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

/* One thread can run all blocks of a cooperative launch: the others help only if no other launch has them. */
static int run_cooperative(sg_block *block, uint64_t blocks) {
  sg_window *window = block->launch->window;
  /* on the heap, or in the window: kernels see its address, and must not see one of a stack */
  sg_grid *grid = window ? sg_window_take(window, sizeof *grid) : calloc(1, sizeof *grid);
  if (!grid) return OUT_OF_MEMORY;
  grid->bytes = sizeof *grid;
  sg_job work = {.launch = block->launch, .blocks = blocks, .chunk = blocks, .grid = grid, .error = block->error,
                   .error_bytes = block->error_bytes};
  atomic_init(&work.next, 0);
  atomic_init(&work.result, OK);
  if (blocks > 1 && !pthread_mutex_trylock(&pool.busy)) {
    share(&work);
    pthread_mutex_unlock(&pool.busy);
  } else {
    take_part(&work);
  }
  if (window) sg_window_give(window, grid, sizeof *grid);
  else free(grid);
  return atomic_load(&work.result);
}

static int run_blocks(sg_block *block, uint64_t blocks) {
  if (__builtin_expect(block->launch->cooperative, 0)) return run_cooperative(block, blocks);
  if (blocks == 1) return run_range(block, 0, 1);
  uint64_t done = 0;
  int result = run_short(block, blocks, &done);
  if (result != OK || done == blocks) return result;
  if (blocks - done == 1 || pthread_mutex_trylock(&pool.busy)) return run_range(block, done, blocks);
  sg_job work = {.launch = block->launch, .blocks = blocks, .error = block->error, .error_bytes = block->error_bytes};
  atomic_init(&work.next, done);
  atomic_init(&work.result, OK);
  share(&work);
  pthread_mutex_unlock(&pool.busy);
  return atomic_load(&work.result);
}

int sg_run(const sg_launch *launch, char *error, size_t error_bytes) {
  uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
  uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
  if (error && error_bytes) *error = 0;
  if (!blocks || !threads || threads > MAX_WARPS * SG_WARP) return INVALID_VALUE;
  pthread_once(&once, start);
  sg_block *block = block_of_thread();
  if (!block) return OUT_OF_MEMORY;
  int result = sg_prepare_block(block, launch);
  block->error = error;
  block->error_bytes = error_bytes;
  sg_watch_faults();
  if (result == OK) result = run_blocks(block, blocks);
  if (__builtin_expect(launch->touched != NULL, 0) && block->pages) sg_report_touched(block);
  sg_settle_block(block);
  return result;
}

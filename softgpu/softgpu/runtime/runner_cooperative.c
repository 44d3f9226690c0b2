/* Cooperative launches: their blocks may wait for one another, so all are under way at once.
 *
 * Every thread that takes part begins some of the blocks and continues each in turn: a block runs until one of its
 * warps has done many rounds of a loop. A block stays with its thread. A thread also takes blocks that no other thread
 * takes, so that one thread can run the launch.
 */
#include "block.h"

#include <sched.h>
#include <stdlib.h>

/* The blocks of one thread. */
typedef struct thread_blocks {
  sg_job *work;
  char *error;
  size_t error_bytes;
  sg_block *under_way, **end; /* in order; end: the place of the next one */
  sg_block *spare;            /* blocks that have ended: later blocks use their memory */
} thread_blocks;

static sg_block *get_block(thread_blocks *c) {
  sg_block *block = c->spare;
  if (block) {
    c->spare = block->next;
    return block;
  }
  block = calloc(1, sizeof *block);
  if (!block) return NULL;
  if (sg_prepare_block(block, c->work->launch) != OK) {
    sg_free_block(block);
    return NULL;
  }
  for (uint32_t i = 0; i < block->warp_count; i++) block->warps[i].grid = c->work->grid;
  block->error = c->error;
  block->error_bytes = c->error_bytes;
  return block;
}

/* Continues a block; sets *ended if the block has ended. */
static __attribute__((noinline)) int go_on(sg_block *block, int *ended) {
  block->result = OK;
  if (__builtin_setjmp(block->escape)) return sg_after_escape(sg_current_block);
  block->in_kernel = 1;
  if (__builtin_expect(*block->warps->stop, 0)) sg_stop(block->warps);
  *ended = sg_go_on(block);
  block->in_kernel = 0;
  return OK;
}

/* Runs one turn of a block that is in no list, and appends it to the blocks under way if it has not ended. */
static int turn(thread_blocks *c, sg_block *block) {
  sg_block *own = sg_current_block; /* this thread's, for other launches */
  int ended = 0;
  sg_current_block = block;
  int result = go_on(block, &ended);
  sg_current_block = own;
  if (ended) {
    block->next = c->spare;
    c->spare = block;
  } else {
    block->next = NULL;
    *c->end = block;
    c->end = &block->next;
  }
  return result;
}

/* Begins up to `count` of the remaining blocks. */
static int begin(thread_blocks *c, uint64_t count) {
  while (count-- && atomic_load(&c->work->result) == OK) {
    uint64_t index = atomic_fetch_add(&c->work->next, 1);
    uint32_t at[3];
    if (index >= c->work->blocks) return OK;
    sg_block *block = get_block(c);
    if (!block) return OUT_OF_MEMORY;
    sg_find_place(c->work->launch->grid, index, at);
    sg_place_block(block, at);
    sg_begin_block(block);
    int result = turn(c, block);
    if (result != OK) return result;
  }
  return OK;
}

/* Runs one turn of each block under way; stops at the first that fails. */
static int go_round(thread_blocks *c) {
  sg_block *next = c->under_way;
  c->under_way = NULL;
  c->end = &c->under_way;
  int result = OK;
  while (next && result == OK) {
    sg_block *block = next;
    next = block->next;
    result = turn(c, block);
  }
  *c->end = next;
  return result;
}

static void dismiss(sg_block *blocks) {
  while (blocks) {
    sg_block *next = blocks->next;
    if (blocks->pages) sg_report_touched(blocks);
    sg_free_block(blocks);
    blocks = next;
  }
}

int sg_take_cooperative(sg_job *work, char *error, size_t error_bytes) {
  thread_blocks c = {.work = work, .error = error, .error_bytes = error_bytes};
  c.end = &c.under_way;
  int result = begin(&c, work->chunk);
  while (result == OK && atomic_load(&work->result) == OK) {
    if (atomic_load(&work->next) < work->blocks) result = begin(&c, work->chunk / 4 + 1); /* no thread took them */
    else if (!c.under_way) break;
    if (result != OK) break;
    sched_yield(); /* to the thread of the blocks for which these wait */
    result = go_round(&c);
  }
  dismiss(c.under_way);
  dismiss(c.spare);
  return result;
}

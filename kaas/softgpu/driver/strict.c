/* Strict mode: whatever CUDA does not promise happens as late, in as odd an order and with as bad values as it may.
 *
 * Nothing runs before somebody waits; then either only what is needed runs, or the latest submitted first, or any, as a
 * seed has it. Nodes of graphs run in any order that their edges allow. New and freed memory holds poison, all bits set:
 * not a number as a float, no valid index. So a missing synchronisation or a use after free gives wrong results here.
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

enum { POISON = 0xff, KEPT_BLOCKS = 256, KEPT_BYTES = 64 << 20 };

_Atomic bool strict;
static _Atomic uint64_t state;

/* A number below limit. */
uint32_t strict_draw(uint32_t limit) { /* splitmix64 */
  uint64_t z = atomic_fetch_add(&state, 0x9e3779b97f4a7c15u) + 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return (uint32_t)((z ^ z >> 31) >> 32) % limit;
}

void strict_poison(uintptr_t base, size_t bytes) {
  if (atomic_load_explicit(&strict, memory_order_relaxed)) memset((void *)base, POISON, bytes);
}

/* --- freed memory: kept for a while, so that nobody else's bytes appear where it was */

static struct {
  pthread_mutex_t lock;
  struct kept {
    void *base;
    size_t bytes;
  } blocks[KEPT_BLOCKS];
  size_t first, count, bytes;
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

void memory_free(uintptr_t base, size_t bytes) {
  if (base == 0 || !atomic_load_explicit(&strict, memory_order_relaxed) || bytes > KEPT_BYTES) {
    free((void *)base);
    return;
  }
  strict_poison(base, bytes);
  pthread_mutex_lock(&kept.lock);
  while (kept.count == KEPT_BLOCKS || kept.bytes + bytes > KEPT_BYTES) {
    struct kept *oldest = &kept.blocks[kept.first];
    free(oldest->base);
    kept.bytes -= oldest->bytes;
    kept.first = (kept.first + 1) % KEPT_BLOCKS;
    kept.count--;
  }
  kept.blocks[(kept.first + kept.count++) % KEPT_BLOCKS] = (struct kept){(void *)base, bytes};
  kept.bytes += bytes;
  pthread_mutex_unlock(&kept.lock);
}

/* --- graphs */

static bool ready(const struct CUgraphExec_st *exec, const bool *done, const step *s) {
  for (uint32_t i = 0; i < s->needs_count; i++)
    if (!done[exec->position[exec->needs[s->needs_from + i]]]) return false;
  return true;
}

/* Another order of the steps that their edges allow: any, or the latest first. False without memory. */
bool strict_order(const struct CUgraphExec_st *exec, uint32_t *order) {
  bool *done = calloc(exec->step_count + 1, sizeof *done);
  bool latest = strict_draw(2) == 0;
  if (done == NULL) return false;
  for (size_t placed = 0; placed < exec->step_count; placed++) {
    uint32_t found = 0, choices = 0;
    for (uint32_t i = 0; i < exec->step_count; i++)
      if (!done[i] && ready(exec, done, &exec->steps[i]) && (latest || strict_draw(++choices) == 0)) found = i;
    done[found] = true;
    order[placed] = found;
  }
  free(done);
  return true;
}

void kaas_softgpu_strict(int on, uint64_t seed) {
  atomic_store(&state, seed);
  atomic_store(&strict, on != 0);
}

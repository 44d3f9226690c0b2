/* Strict mode: where CUDA promises nothing, work runs as late as allowed, in an unusual order, and with bad values.
 *
 * Work runs only when a thread waits, and then only the necessary work; nodes of graphs run in any order that their
 * edges allow, chosen by a seed. So the host, whose reads are not checked, reads too early if it does not wait. The
 * bytes that work touches show races on the device (races.c). New and freed memory holds poison, all bits set: as a
 * float it is not a number, and it is no valid index. Freed memory is checked again later.
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

/* --- freed memory: kept for a while, so that it is not reused at once, and writes to it are found */

typedef struct kept_block {
  void *base;
  size_t bytes;
} kept_block;

static struct {
  pthread_mutex_t lock;
  kept_block blocks[KEPT_BLOCKS];
  size_t first, count, bytes;
  kept_block written; /* the first block that was written after it was freed; base: NULL if none */
  size_t at;
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The first byte that is no poison; bytes if all are. */
static size_t written_at(const uint8_t *base, size_t bytes) {
  if (bytes == 0 || (base[0] == POISON && memcmp(base, base + 1, bytes - 1) == 0)) return bytes;
  size_t at = 0;
  while (base[at] == POISON) at++;
  return at;
}

static CUresult tell_written(CUcontext ctx, uintptr_t base, size_t bytes, size_t at) {
  return context_fail(ctx, fail(CUDA_ERROR_LAUNCH_FAILED,
                                "a write to freed memory: byte %zu of the %zu freed at 0x%zx was written after that",
                                at, bytes, (size_t)base));
}

CUresult strict_look_at(CUcontext ctx, uintptr_t base, size_t bytes) {
  if (!atomic_load_explicit(&strict, memory_order_relaxed)) return CUDA_SUCCESS;
  size_t at = written_at((const uint8_t *)base, bytes);
  return at == bytes ? CUDA_SUCCESS : tell_written(ctx, base, bytes, at);
}

static void look_locked(const kept_block *block) {
  size_t at = written_at(block->base, block->bytes);
  if (at == block->bytes || kept.written.base != NULL) return;
  kept.written = *block;
  kept.at = at;
}

void strict_note(uintptr_t base, size_t bytes) {
  if (!atomic_load_explicit(&strict, memory_order_relaxed)) return;
  pthread_mutex_lock(&kept.lock);
  look_locked(&(kept_block){(void *)base, bytes});
  pthread_mutex_unlock(&kept.lock);
}

CUresult strict_look(CUcontext ctx) {
  if (!atomic_load_explicit(&strict, memory_order_relaxed)) return CUDA_SUCCESS;
  TRY(pools_look(ctx));
  pthread_mutex_lock(&kept.lock);
  for (size_t i = 0; i < kept.count; i++) look_locked(&kept.blocks[(kept.first + i) % KEPT_BLOCKS]);
  kept_block written = kept.written;
  size_t at = kept.at;
  kept.written.base = NULL;
  pthread_mutex_unlock(&kept.lock);
  return written.base == NULL ? CUDA_SUCCESS : tell_written(ctx, (uintptr_t)written.base, written.bytes, at);
}

static void let_go(void *base, size_t bytes) {
  race_forget((uintptr_t)base, bytes);
  pages_free((uintptr_t)base, bytes);
}

static void drop_oldest_locked(void) {
  const kept_block *oldest = &kept.blocks[kept.first];
  look_locked(oldest);
  kept.bytes -= oldest->bytes;
  kept.first = (kept.first + 1) % KEPT_BLOCKS;
  kept.count--;
  let_go(oldest->base, oldest->bytes);
}

void memory_free(uintptr_t base, size_t bytes) {
  if (base == 0 || !atomic_load_explicit(&strict, memory_order_relaxed)) {
    pages_free(base, bytes);
    return;
  }
  if (bytes > KEPT_BYTES) {
    let_go((void *)base, bytes);
    return;
  }
  strict_poison(base, bytes);
  pthread_mutex_lock(&kept.lock);
  while (kept.count == KEPT_BLOCKS || kept.bytes + bytes > KEPT_BYTES) drop_oldest_locked();
  kept.blocks[(kept.first + kept.count++) % KEPT_BLOCKS] = (kept_block){(void *)base, bytes};
  kept.bytes += bytes;
  pthread_mutex_unlock(&kept.lock);
}

static void forget_kept(void) {
  pthread_mutex_lock(&kept.lock);
  while (kept.count > 0) drop_oldest_locked();
  kept.written.base = NULL;
  pthread_mutex_unlock(&kept.lock);
}

/* --- graphs */

static bool ready(const struct CUgraphExec_st *exec, const bool *done, const step *s) {
  for (uint32_t i = 0; i < s->needs_count; i++)
    if (!done[exec->position[exec->needs[s->needs_from + i]]]) return false;
  return true;
}

/* Another order of the steps that their edges allow: a random one, or the latest first. False without memory. */
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

void softgpu_strict(int on, uint64_t seed) {
  atomic_store(&state, seed);
  atomic_store(&strict, on != 0);
  race_forget_all();
  forget_kept();
  pools_poison();
}

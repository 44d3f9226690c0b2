/* Kernels in C and a compiler that finds them by name: the driver is tested without PTX, LLVM or the block runner.
 *
 * An image is text: kernel names, "global" for a module with a global of 16 bytes, or "bad" to be refused.
 */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"

static _Thread_local int trap_status;
static _Atomic int compiles, modules;

static _Thread_local sg_touched *touched;

/* As checked code does it. */
static void touch(uint32_t verb, const void *address, size_t bytes) {
  if (touched != NULL) sg_touched_add(touched, verb, (uintptr_t)address, bytes);
}

#define LANES(w, i) \
  for (uint32_t lane = 0, i = (w)->ctaid[0] * block_threads + 32 * (w)->warp; lane < 32; lane++, i++) \
    if ((w)->live >> lane & 1)

static _Thread_local uint32_t block_threads;
static _Thread_local sg_conditions *conditions;

int sg_run(const sg_launch *l, char *error, size_t error_bytes) {
  trap_status = 0;
  touched = l->touched;
  conditions = l->conditions;
  block_threads = l->block[0] * l->block[1] * l->block[2];
  sg_warp w = {.nctaid = {l->grid[0], l->grid[1], l->grid[2]}, .dynamic_shared_bytes = l->dynamic_shared_bytes,
                 .shared_bytes = l->static_shared_bytes + l->dynamic_shared_bytes};
  for (w.ctaid[0] = 0; w.ctaid[0] < l->grid[0]; w.ctaid[0]++)
    for (w.warp = 0; w.warp * 32 < block_threads; w.warp++) {
      uint32_t rest = block_threads - 32 * w.warp;
      w.live = rest >= 32 ? UINT32_MAX : (1u << rest) - 1;
      l->fn(l->params, &w);
    }
  if (trap_status != 0) snprintf(error, error_bytes, "trap called");
  return trap_status;
}

static void empty(const uint8_t *params, sg_warp *w) { (void)params, (void)w; }

static void add(const uint8_t *params, sg_warp *w) { /* (int *x, int n, int amount) */
  int *x, n, amount;
  memcpy(&x, params, 8), memcpy(&n, params + 8, 4), memcpy(&amount, params + 12, 4);
  touch(SG_READ, x, 4 * (size_t)n), touch(SG_WRITE, x, 4 * (size_t)n);
  LANES(w, i) if ((int)i < n) x[i] += amount;
}

static void vecadd(const uint8_t *params, sg_warp *w) { /* (const float *a, const float *b, float *c, int n) */
  float *p[3];
  int n;
  memcpy(p, params, 24), memcpy(&n, params + 24, 4);
  for (int i = 0; i < 3; i++) touch(i == 2 ? SG_WRITE : SG_READ, p[i], 4 * (size_t)n);
  LANES(w, i) if ((int)i < n) p[2][i] = p[0][i] + p[1][i];
}

static void append(const uint8_t *params, sg_warp *w) { /* (int *log, int id): log[0] is the length */
  int *log, id;
  (void)w;
  memcpy(&log, params, 8), memcpy(&id, params + 8, 4);
  log[++log[0]] = id;
  touch(SG_READ, log, 4), touch(SG_WRITE, log, 4), touch(SG_WRITE, log + log[0], 4);
}

static void trap(const uint8_t *params, sg_warp *w) {
  (void)params, (void)w;
  trap_status = 719;
}

static void meet(const uint8_t *params, sg_warp *w) { /* (int *arrived): ends once two kernels have come */
  _Atomic int *arrived;
  (void)w;
  memcpy(&arrived, params, 8);
  touch(SG_UPDATE, arrived, 4);
  atomic_fetch_add(arrived, 1);
  while (atomic_load(arrived) < 2) sched_yield();
}

static void increment(const uint8_t *params, sg_warp *w) { /* (int *x): not atomic, with a switch in its middle */
  int *x;
  (void)w;
  memcpy(&x, params, 8);
  int seen = *(volatile int *)x;
  sched_yield();
  *(volatile int *)x = seen + 1;
  touch(SG_READ, x, 4), touch(SG_WRITE, x, 4);
}

static void shared(const uint8_t *params, sg_warp *w) { /* (uint32_t *out) */
  uint32_t *out;
  memcpy(&out, params, 8);
  out[0] = w->shared_bytes;
  out[1] = w->dynamic_shared_bytes;
}

static void blob(const uint8_t *params, sg_warp *w) { /* (int *out, char flag, struct { int v[5]; }) */
  int *out;
  (void)w;
  memcpy(&out, params, 8);
  out[0] = params[8];
  memcpy(out + 1, params + 12, 20);
}

static void decide(const uint8_t *params, sg_warp *w) { /* (handle, int *x, int change): sets the condition to x */
  uint64_t handle;
  int *x, change;
  (void)w;
  memcpy(&handle, params, 8), memcpy(&x, params + 8, 8), memcpy(&change, params + 16, 4);
  *x += change;
  touch(SG_READ, x, 4), touch(SG_WRITE, x, 4);
  for (uint32_t i = 0; conditions != NULL && i < conditions->count; i++) {
    if (conditions->items[i].handle != handle) continue;
    conditions->items[i].value = (uint32_t)*x;
    touch(SG_WRITE, &conditions->items[i].value, 4);
    return;
  }
  trap_status = 719;
}

#define U32(...) (const uint32_t[]){__VA_ARGS__}
static const sg_kernel_info infos[] = {
  {.name = "empty", .max_threads = 1024},
  {"add", 3, U32(0, 8, 12), U32(8, 4, 4), 16, 0, 0, 1024, 10},
  {"vecadd", 4, U32(0, 8, 16, 24), U32(8, 8, 8, 4), 28, 0, 0, 1024, 12},
  {"append", 2, U32(0, 8), U32(8, 4), 12, 0, 0, 1024, 8},
  {.name = "trap", .max_threads = 1024},
  {"meet", 1, U32(0), U32(8), 8, 0, 0, 1024, 8},
  {"touch", 1, U32(0), U32(8), 8, 0, 0, 1024, 8},
  {"shared", 1, U32(0), U32(8), 8, 1024, 16, 256, 8},
  {"blob", 3, U32(0, 8, 12), U32(8, 1, 20), 32, 0, 0, 1024, 8},
  {"decide", 3, U32(0, 8, 16), U32(8, 8, 4), 20, 0, 0, 1024, 8},
};
static const sg_kernel_fn functions[] = {empty, add, vecadd, append, trap, meet, increment, shared, blob, decide};
enum { KERNELS = sizeof infos / sizeof *infos };

typedef struct module { sg_global_info global; uint32_t globals; int value[4]; } module;

static int load(const void *image, size_t bytes, uint32_t device, sg_window *window, uint64_t *made) {
  (void)device, (void)window;
  (void)bytes;
  if (strncmp(image, "bad", 3) == 0) {
    softgpu_set_last_error("line 1: bad is no instruction");
    return 218;
  }
  module *m = calloc(1, sizeof *m);
  if (m == NULL) return 2;
  m->globals = strncmp(image, "global", 6) == 0;
  m->value[0] = 42;
  m->global = (sg_global_info){"value", (uintptr_t)m->value, sizeof m->value, strncmp(image, "global managed", 14) == 0};
  atomic_fetch_add(&modules, 1);
  *made = (uintptr_t)m;
  return 0;
}

static int describe(uint64_t made, const sg_kernel_info **kernels, uint32_t *kernel_count, const sg_global_info **globals,
                    uint32_t *global_count) {
  module *m = (module *)made;
  *kernels = infos;
  *kernel_count = KERNELS;
  *globals = &m->global;
  *global_count = m->globals;
  return 0;
}

static int announce(uint64_t made, uint32_t kernel, const uint32_t block[3], uint32_t checked) {
  (void)made, (void)block, (void)checked;
  return kernel < KERNELS ? 0 : 500;
}

static int compile(uint64_t made, uint32_t kernel, const uint32_t block[3], uint32_t checked,
                   sg_kernel_fn *fn) {
  (void)made, (void)checked;
  if (kernel >= KERNELS) return 500;
  if (block[0] == 7) {
    softgpu_set_last_error("blocks of 7 cannot be compiled");
    return 218;
  }
  atomic_fetch_add(&compiles, 1);
  *fn = functions[kernel];
  return 0;
}

static void unload(uint64_t made) {
  atomic_fetch_sub(&modules, 1);
  free((module *)made);
}

const sg_compiler *sg_test_compiler(void) {
  static const sg_compiler compiler = {load, describe, announce, compile, unload};
  return &compiler;
}

int sg_test_compiles(void) { return atomic_load(&compiles); }
int sg_test_modules(void) { return atomic_load(&modules); }

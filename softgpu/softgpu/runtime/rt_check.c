/* memcheck: the functions that compiled code calls before an access. The first bad access of a launch ends it. A launch
 * in strict mode records the bytes of good accesses. */
#include "block.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The numbers of codegen/memcheck.py. */
enum space { GENERIC, GLOBAL, SHARED, LOCAL };
static const char *const verbs[] = {"reads", "writes", "updates"};

typedef struct access {
  sg_warp *warp;
  uint64_t address;
  uint32_t lane, bytes, line, space, verb;
} access;

static int is_within(uint64_t address, uint32_t bytes, uint64_t start, uint64_t length) {
  return address >= start && address - start < length && length - (address - start) >= bytes;
}

static int is_shared(const access *a) {
  return is_within(a->address, a->bytes, (uintptr_t)a->warp->shared, a->warp->shared_bytes);
}

static int is_local(const access *a) {
  uint64_t each = a->warp->block->launch->local_bytes;
  return is_within(a->address, a->bytes, (uintptr_t)a->warp->local + each * a->lane, each);
}

static int is_parameter(const access *a) {
  const sg_launch *launch = a->warp->block->launch;
  return a->verb == 0 && is_within(a->address, a->bytes, (uintptr_t)launch->params, launch->param_bytes);
}

/* Most accesses are in the range of the access before, so that range is kept until any range changes. */
static int is_device_memory(const access *a) {
  sg_block *block = a->warp->block;
  uint64_t changes = sg_memory_changes();
  if (block->known_at_change != changes) block->known.bytes = 0;
  block->known_at_change = changes;
  if (is_within(a->address, a->bytes, block->known.address, block->known.bytes)) return 1;
  return sg_memory_nearest(a->address, &block->known) &&
         is_within(a->address, a->bytes, block->known.address, block->known.bytes);
}

/* The barrier of a cooperative launch's blocks is memory of the driver, which kernels may access. */
static int is_grid(const access *a) {
  const sg_grid *grid = a->warp->grid;
  return grid && is_within(a->address, a->bytes, (uintptr_t)grid, sizeof *grid);
}

static int is_good_device_access(const access *a) {
  if (is_grid(a)) return 1;
  if (!is_device_memory(a)) return 0;
  if (a->warp->block->launch->touched) sg_touch(a->warp->block, a->address, a->bytes, a->verb);
  return 1;
}

static int is_good(const access *a) {
  switch (a->space) {
    case SHARED: return is_shared(a);
    case LOCAL: return is_local(a);
    case GLOBAL: return is_good_device_access(a);
    default: return is_shared(a) || is_local(a) || is_parameter(a) || is_good_device_access(a);
  }
}

/* --- messages */

enum { TABLE_ENTRIES = 64, POINTER_BYTES = 8 };
static const uint64_t NEAR_BYTES = 64 << 10;

static uint64_t distance_of(const access *a, const sg_range *range) {
  uint64_t end = range->address + range->bytes;
  return a->address < range->address ? range->address - a->address : a->address >= end ? a->address - end + 1 : 0;
}

/* True if the number is a pointer into a range; the range becomes the nearest if it is nearer to the access. */
static int is_pointer(const access *a, uint64_t number, sg_range *range, sg_range *nearest) {
  if (!sg_memory_nearest(number, range) || number - range->address > range->bytes) return 0;
  if (!nearest->bytes || distance_of(a, range) < distance_of(a, nearest)) *nearest = *range;
  return 1;
}

static uint64_t number_at(const uint8_t *memory) {
  uint64_t number;
  memcpy(&number, memory, sizeof number);
  return number;
}

/* The nearest buffer of the launch's arguments, which point to it directly or by a table of pointers: a stray access
 * comes from one of these, even if another buffer is nearer. 0 if all are far, as for an address in the code itself. */
static int nearest_argument(const access *a, sg_range *nearest) {
  const sg_launch *launch = a->warp->block->launch;
  nearest->bytes = 0;
  for (uint32_t at = 0; at + POINTER_BYTES <= launch->param_bytes; at += POINTER_BYTES) {
    uint64_t pointer = number_at(launch->params + at);
    sg_range range, of_entry;
    if (!is_pointer(a, pointer, &range, nearest) || pointer % POINTER_BYTES) continue;
    uint64_t entries = (range.address + range.bytes - pointer) / POINTER_BYTES;
    for (uint64_t i = 0; i < entries && i < TABLE_ENTRIES; i++)
      is_pointer(a, number_at((const uint8_t *)(uintptr_t)pointer + i * POINTER_BYTES), &of_entry, nearest);
  }
  uint64_t distance = distance_of(a, nearest);
  return nearest->bytes && (distance <= NEAR_BYTES || distance <= nearest->bytes);
}

static void describe(const access *a, char *text, size_t bytes) {
  if (a->space == SHARED)
    snprintf(text, bytes, "shared memory at offset %" PRId64 ", of which the block has %u bytes",
             (int64_t)(a->address - (uintptr_t)a->warp->shared), a->warp->shared_bytes);
  else if (a->space == LOCAL)
    snprintf(text, bytes, "local memory at 0x%" PRIx64 ", outside the thread's %u bytes", a->address,
             a->warp->block->launch->local_bytes);
  else {
    sg_range near;
    int start = snprintf(text, bytes, "0x%" PRIx64 ", ", a->address);
    if (nearest_argument(a, &near)) sg_describe_near(a->address, a->bytes, &near, text + start, bytes - (size_t)start);
    else sg_describe_access(a->address, a->bytes, text + start, bytes - (size_t)start);
  }
}

static _Noreturn void refuse(const access *a, int result) {
  const uint32_t *block = a->warp->ctaid;
  uint32_t at[3];
  char text[400], where[200];
  if (result == MISALIGNED_ADDRESS)
    snprintf(where, sizeof where, "0x%" PRIx64 ", which is no multiple of that", a->address);
  else describe(a, where, sizeof where);
  sg_thread_index(a->warp, a->lane, at);
  snprintf(text, sizeof text, "%s: thread (%u, %u, %u) of block (%u, %u, %u) %s %u bytes of %s",
           sg_place_of(a->warp, a->line).text, at[0], at[1], at[2], block[0], block[1], block[2], verbs[a->verb],
           a->bytes, where);
  sg_abandon(a->warp->block, result, text);
}

/* Checks the access of each of the lanes to `bytes` at its address. */
void sg_rt_check(sg_warp *warp, const uint64_t *addresses, uint32_t lanes, uint32_t bytes, uint32_t line,
                   uint32_t space, uint32_t verb) {
  for (; lanes; lanes &= lanes - 1) {
    uint32_t lane = (uint32_t)__builtin_ctz(lanes);
    access a = {warp, addresses[lane], lane, bytes, line, space, verb};
    if (!is_good(&a)) refuse(&a, ILLEGAL_ADDRESS);
    if (a.address % bytes) refuse(&a, MISALIGNED_ADDRESS);
  }
}

/* Checks the copy of each of the lanes from global to shared memory; counts as in rt_copies.c. */
void sg_rt_check_copy(sg_warp *warp, const uint64_t *to, const uint64_t *from, const uint32_t *counts,
                        uint32_t lanes, uint32_t bytes, uint32_t line) {
  for (; lanes; lanes &= lanes - 1) {
    uint32_t lane = (uint32_t)__builtin_ctz(lanes), count = counts && counts[lane] < bytes ? counts[lane] : bytes;
    access source = {warp, from[lane], lane, count, line, GLOBAL, SG_READ};
    access target = {warp, to[lane], lane, bytes, line, SHARED, SG_WRITE};
    if (count && !is_good(&source)) refuse(&source, ILLEGAL_ADDRESS);
    source.bytes = bytes;
    if (count && source.address % bytes) refuse(&source, MISALIGNED_ADDRESS);
    if (!is_good(&target)) refuse(&target, ILLEGAL_ADDRESS);
    if (target.address % bytes) refuse(&target, MISALIGNED_ADDRESS);
  }
}

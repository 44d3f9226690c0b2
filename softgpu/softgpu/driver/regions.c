/* Regions: a program's own division of an allocation, which checked kernels must respect.
 *
 * A program may divide an allocation, or a part of one, into named regions. An access of a checked kernel to that part
 * must then lie in one of them, as if each were an allocation. Regions may overlap, if they use memory in turn.
 */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct region {
  uint64_t from, to;
  uint64_t reach; /* the largest `to` of this region and those before it */
  char name[sizeof((sg_range *)0)->name];
} region;

typedef struct part {
  struct part *next;
  uint64_t from, to;
  size_t count;
  region regions[]; /* by their first byte */
} part;

static part *parts; /* under memory_lock; they do not overlap */

static int by_place(const void *left, const void *right) {
  const region *a = left, *b = right;
  return a->from < b->from ? -1 : a->from > b->from;
}

/* The region that holds the address and reaches farthest, or else the nearest region. */
static const region *nearest_region(const part *p, uint64_t address) {
  const region *best = p->regions;
  uint64_t least = UINT64_MAX;
  for (size_t i = p->count; i-- > 0;) {
    const region *r = &p->regions[i];
    uint64_t distance = address < r->from ? r->from - address : address >= r->to ? address - r->to + 1 : 0;
    if (distance < least || (distance == 0 && r->to > best->to)) {
      least = distance;
      best = r;
    }
    if (r->from <= address && r->reach <= address && least < address - r->reach + 1) break; /* none before is nearer */
  }
  return best;
}

/* Narrows the allocation's range around the address to the region that holds it, or to the bytes between parts. */
void regions_narrow_locked(uint64_t address, sg_range *range) {
  for (const part *p = parts; p != NULL; p = p->next) {
    uint64_t end = range->address + range->bytes;
    if (p->to <= range->address || p->from >= end) continue;
    if (address >= p->to) {
      range->address = p->to;
      range->bytes = end - p->to;
    } else if (address < p->from) {
      range->bytes = p->from - range->address;
    } else {
      const region *r = nearest_region(p, address);
      *range = (sg_range){.address = r->from, .bytes = r->to - r->from};
      memcpy(range->name, r->name, sizeof r->name);
      return;
    }
  }
}

/* Removes the parts that begin in these bytes. */
void regions_forget_locked(uint64_t address, uint64_t bytes) {
  for (part **at = &parts; *at != NULL;) {
    part *p = *at;
    if (p->from - address >= bytes) {
      at = &p->next;
      continue;
    }
    *at = p->next;
    free(p);
  }
}

static CUresult fill_part(part *made, uint32_t count, const uint64_t *offsets, const uint64_t *sizes,
                          const char *const *names) {
  uint64_t bytes = made->to - made->from, reach = 0;
  for (uint32_t i = 0; i < count; i++) {
    REQUIRE(sizes[i] > 0 && offsets[i] <= bytes && sizes[i] <= bytes - offsets[i], CUDA_ERROR_INVALID_VALUE,
            "region %s: %llu bytes at offset %llu of %llu", names[i], (unsigned long long)sizes[i],
            (unsigned long long)offsets[i], (unsigned long long)bytes);
    region *r = &made->regions[i];
    *r = (region){.from = made->from + offsets[i], .to = made->from + offsets[i] + sizes[i]};
    snprintf(r->name, sizeof r->name, "%s", names[i]);
  }
  qsort(made->regions, count, sizeof *made->regions, by_place);
  for (uint32_t i = 0; i < count; i++) {
    if (made->regions[i].to > reach) reach = made->regions[i].to;
    made->regions[i].reach = reach;
  }
  return CUDA_SUCCESS;
}

int softgpu_regions(uint64_t address, uint64_t bytes, uint32_t count, const uint64_t *offsets,
                         const uint64_t *sizes, const char *const *names) {
  TRY(require_init());
  TRY(memory_check(address, bytes, true));
  part *made = calloc(1, sizeof *made + count * sizeof *made->regions);
  REQUIRE(made != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for %u regions", count);
  *made = (part){.from = address, .to = address + bytes, .count = count};
  CUresult status = fill_part(made, count, offsets, sizes, names);
  pthread_mutex_lock(&memory_lock);
  for (const part *p = parts; p != NULL && status == CUDA_SUCCESS; p = p->next) {
    bool within = p->from >= address && p->to <= address + bytes; /* it is replaced */
    bool apart = p->to <= address || p->from >= address + bytes;
    if (!within && !apart) status = fail(CUDA_ERROR_INVALID_VALUE, "a part that overlaps is described already");
  }
  if (status == CUDA_SUCCESS) {
    regions_forget_locked(address, bytes);
    memory_changed();
  }
  bool kept = status == CUDA_SUCCESS && count > 0;
  if (kept) {
    made->next = parts;
    parts = made;
  }
  pthread_mutex_unlock(&memory_lock);
  if (!kept) free(made);
  return status;
}

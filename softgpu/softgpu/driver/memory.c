/* Memory: a table of all live ranges, the memory that each device has given out, and allocation of memory.
 *
 * Device memory is host memory, and a device pointer is its address, so an address inside a range finds the range.
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  allocation *items;
  size_t count, capacity;
} table; /* by base; ranges never overlap */
static atomic_uint_fast64_t changes;

/* The index of the first range that begins after address. */
static size_t upper_bound_locked(uintptr_t address) {
  size_t low = 0, high = table.count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (table.items[middle].base <= address) low = middle + 1;
    else high = middle;
  }
  return low;
}

static allocation *find_locked(uintptr_t address) {
  size_t after = upper_bound_locked(address);
  if (after == 0) return NULL;
  allocation *entry = &table.items[after - 1];
  return address - entry->base < entry->bytes || address == entry->base ? entry : NULL;
}

bool memory_find(uintptr_t address, allocation *found) {
  pthread_mutex_lock(&memory_lock);
  const allocation *entry = find_locked(address);
  bool there = entry != NULL && !entry->leaving;
  if (there) *found = *entry;
  pthread_mutex_unlock(&memory_lock);
  return there;
}

void memory_changed(void) { atomic_fetch_add(&changes, 1); }

uint64_t sg_memory_changes(void) { return atomic_load(&changes); }

int sg_memory_nearest(uint64_t address, sg_range *range) {
  pthread_mutex_lock(&memory_lock);
  size_t after = upper_bound_locked(address);
  const allocation *below = after > 0 ? &table.items[after - 1] : NULL;
  const allocation *above = after < table.count ? &table.items[after] : NULL;
  bool is_above = above != NULL && (below == NULL || (address - below->base >= below->bytes &&
                                                      above->base - address < address - below->base - below->bytes));
  const allocation *nearest = is_above ? above : below;
  if (nearest != NULL) {
    *range = (sg_range){.address = nearest->base, .bytes = nearest->bytes};
    if (address - nearest->base < nearest->bytes) regions_narrow_locked(address, range);
  }
  pthread_mutex_unlock(&memory_lock);
  return nearest != NULL;
}

CUresult memory_check(uintptr_t address, size_t bytes, bool must_be_known) {
  if (bytes == 0) return CUDA_SUCCESS;
  allocation found;
  bool known = memory_find(address, &found);
  REQUIRE(known || !must_be_known, CUDA_ERROR_INVALID_VALUE, "0x%zx lies in no live allocation", (size_t)address);
  REQUIRE(known || !mapped_is_reserved(address), CUDA_ERROR_INVALID_VALUE,
          "0x%zx is reserved, but no memory that may be accessed is mapped there", (size_t)address);
  REQUIRE(known || address != 0, CUDA_ERROR_INVALID_VALUE, "a NULL pointer cannot be copied from or to");
  REQUIRE(!known || bytes <= found.bytes - (address - found.base), CUDA_ERROR_INVALID_VALUE,
          "%zu bytes at 0x%zx reach beyond the allocation of %zu bytes at 0x%zx", bytes, (size_t)address, found.bytes,
          (size_t)found.base);
  return CUDA_SUCCESS;
}

CUresult memory_check_writable(uintptr_t address, size_t bytes, bool must_be_known) {
  allocation found;
  TRY(memory_check(address, bytes, must_be_known));
  REQUIRE(bytes == 0 || !memory_find(address, &found) || !found.read_only, CUDA_ERROR_INVALID_VALUE,
          "%zu bytes at 0x%zx are mapped to be read only", bytes, (size_t)address);
  return CUDA_SUCCESS;
}

static CUresult add_locked(const allocation *entry) {
  if (table.count == table.capacity) {
    size_t capacity = table.capacity ? 2 * table.capacity : 256;
    allocation *items = realloc(table.items, capacity * sizeof *items);
    REQUIRE(items != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for the table of allocations");
    table.items = items;
    table.capacity = capacity;
  }
  size_t at = upper_bound_locked(entry->base);
  memmove(&table.items[at + 1], &table.items[at], (table.count - at) * sizeof *entry);
  table.items[at] = *entry;
  table.items[at].id = unique_id();
  table.count++;
  memory_changed();
  return CUDA_SUCCESS;
}

CUresult memory_add(const allocation *entry) {
  pthread_mutex_lock(&memory_lock);
  CUresult status = add_locked(entry);
  pthread_mutex_unlock(&memory_lock);
  return status;
}

bool memory_remove(uintptr_t base, allocation *removed) {
  pthread_mutex_lock(&memory_lock);
  allocation *entry = find_locked(base);
  bool found = entry != NULL && entry->base == base;
  if (found) {
    *removed = *entry;
    regions_forget_locked(base, entry->bytes);
    memmove(entry, entry + 1, (size_t)(&table.items[table.count] - (entry + 1)) * sizeof *entry);
    table.count--;
    memory_changed();
  }
  pthread_mutex_unlock(&memory_lock);
  return found;
}

/* True if the entry is among `entries`, perhaps larger there. */
static bool stays(const allocation *entry, const allocation *entries, size_t count, const allocation **as) {
  for (size_t i = 0; i < count; i++)
    if (entries[i].base == entry->base && entries[i].dev == entry->dev) {
      *as = &entries[i];
      return true;
    }
  return false;
}

CUresult memory_set_mapped(const allocation *entries, size_t count) {
  CUresult status = CUDA_SUCCESS;
  size_t kept = 0;
  pthread_mutex_lock(&memory_lock);
  for (size_t i = 0; i < table.count; i++) { /* work under way still uses the ranges that stay */
    const allocation *as = NULL;
    if (table.items[i].mapped && !stays(&table.items[i], entries, count, &as)) continue;
    table.items[kept] = table.items[i];
    if (as != NULL) {
      table.items[kept].bytes = table.items[kept].reserved = as->bytes;
      table.items[kept].read_only = as->read_only;
    }
    kept++;
  }
  table.count = kept;
  memory_changed();
  for (size_t i = 0; i < count && status == CUDA_SUCCESS; i++) {
    const allocation *there = find_locked(entries[i].base);
    if (there == NULL || there->base != entries[i].base) status = add_locked(&entries[i]);
  }
  pthread_mutex_unlock(&memory_lock);
  return status;
}

hints *memory_hints_locked(uintptr_t address) {
  allocation *entry = find_locked(address);
  if (entry != NULL && entry->hints == NULL) entry->hints = calloc(1, sizeof *entry->hints);
  return entry != NULL ? entry->hints : NULL;
}

void memory_disown(uintptr_t base) {
  pthread_mutex_lock(&memory_lock);
  allocation *entry = find_locked(base);
  if (entry != NULL && entry->base == base) entry->graph = NULL;
  pthread_mutex_unlock(&memory_lock);
}

bool memory_leave(uintptr_t base, allocation *leaving) {
  pthread_mutex_lock(&memory_lock);
  allocation *entry = find_locked(base);
  bool found = entry != NULL && entry->base == base && !entry->leaving;
  if (found) {
    entry->leaving = true;
    *leaving = *entry;
  }
  pthread_mutex_unlock(&memory_lock);
  return found;
}

CUresult memory_reserve_locked(device *dev, size_t bytes) {
  if (bytes > dev->memory_bytes - dev->used_bytes) pools_release_locked(dev);
  REQUIRE(bytes <= dev->memory_bytes - dev->used_bytes, CUDA_ERROR_OUT_OF_MEMORY,
          "%zu bytes wanted; of device %d's %zu bytes %zu are in use", bytes, dev->ordinal, (size_t)dev->memory_bytes,
          (size_t)dev->used_bytes);
  dev->used_bytes += bytes;
  return CUDA_SUCCESS;
}

void memory_give_back(const allocation *entry) {
  free(entry->hints);
  if (entry->kind == MEMORY_REGISTERED || entry->kind == MEMORY_GLOBAL) return; /* not the driver's memory */
  if (entry->pool != NULL) {
    pool_take_back(entry);
    return;
  }
  memory_free(entry->base, entry->reserved);
  if (entry->dev != NULL) memory_unreserve(entry->dev, entry->reserved);
}

static CUresult reserve_now(device *dev, size_t bytes) {
  pthread_mutex_lock(&memory_lock);
  CUresult status = memory_reserve_locked(dev, bytes);
  pthread_mutex_unlock(&memory_lock);
  return status;
}

CUresult memory_reserve(device *dev, size_t bytes, CUcontext ctx) {
  CUresult status = reserve_now(dev, bytes);
  return status == CUDA_ERROR_OUT_OF_MEMORY && frees_awaited(ctx) ? reserve_now(dev, bytes) : status;
}

void memory_unreserve(device *dev, size_t bytes) {
  pthread_mutex_lock(&memory_lock);
  dev->used_bytes -= bytes;
  pthread_mutex_unlock(&memory_lock);
}

CUresult memory_allocate(allocation entry, uintptr_t *base) {
  REQUIRE(entry.bytes > 0, CUDA_ERROR_INVALID_VALUE, "an allocation of 0 bytes");
  REQUIRE(entry.bytes <= SIZE_MAX / 2, CUDA_ERROR_OUT_OF_MEMORY, "%zu bytes wanted", entry.bytes);
  entry.reserved = memory_round(entry.bytes);
  if (entry.dev != NULL) {
    if (entry.dev->faulty) TRY(fault_at(FAULT_AT_ALLOCATION, entry.dev, NULL, ""));
    TRY(memory_reserve(entry.dev, entry.reserved, entry.ctx));
  }
  entry.base = pages_take(entry.reserved);
  CUresult status = entry.base != 0 ? memory_add(&entry)
                                    : fail(CUDA_ERROR_OUT_OF_MEMORY, "the host has no %zu bytes left", entry.bytes);
  if (status != CUDA_SUCCESS) memory_give_back(&entry);
  else strict_poison(entry.base, entry.reserved);
  *base = status == CUDA_SUCCESS ? entry.base : 0;
  return status;
}

/* Frees the memory that a context owns. Blocks of pools do not belong to a context. */
void memory_free_context(CUcontext ctx) {
  for (;;) {
    size_t i = 0;
    pthread_mutex_lock(&memory_lock);
    while (i < table.count && (table.items[i].ctx != ctx || table.items[i].pool != NULL)) i++;
    uintptr_t base = i < table.count ? table.items[i].base : 0;
    pthread_mutex_unlock(&memory_lock);
    allocation entry;
    if (base == 0) return;
    if (memory_remove(base, &entry)) memory_give_back(&entry);
  }
}

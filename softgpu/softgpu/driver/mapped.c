/* Reserved addresses and the memory mapped there; other files see the accessible parts of it as allocations. */
#define _GNU_SOURCE
#include "mapped.h"
#include "races.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

pthread_mutex_t mapped_lock = PTHREAD_MUTEX_INITIALIZER;

typedef struct range { /* reserved, or mapped if memory is not NULL */
  struct range *next;  /* by the first byte */
  uintptr_t base;
  size_t bytes;
  physical *memory;
  uint8_t access[MAX_DEVICES];
  bool in_window; /* reserved: the window keeps the addresses */
} range;
static range *reserved, *mapped; /* under mapped_lock; neither's ranges overlap */

static void insert_locked(range **list, range *made) {
  while (*list != NULL && (*list)->base < made->base) list = &(*list)->next;
  made->next = *list;
  *list = made;
}

static range *find_locked(range *list, uintptr_t address) {
  while (list != NULL && address - list->base >= list->bytes) list = list->next;
  return list;
}

static bool touched_locked(const range *list, uintptr_t base, size_t bytes) {
  for (; list != NULL; list = list->next)
    if (list->base < base + bytes && base < list->base + list->bytes) return true;
  return false;
}

/* The place in the list of the first of the whole ranges that are exactly these bytes; NULL if there are none. */
static range **whole_locked(range **list, uintptr_t base, size_t bytes) {
  while (*list != NULL && (*list)->base != base) list = &(*list)->next;
  uintptr_t end = base;
  for (const range *r = *list; r != NULL && r->base == end && end < base + bytes; r = r->next) end += r->bytes;
  return bytes > 0 && end == base + bytes ? list : NULL;
}

physical *mapped_at_locked(uintptr_t address) {
  const range *r = find_locked(mapped, address);
  return r != NULL ? r->memory : NULL;
}

bool mapped_is_reserved(uintptr_t address) {
  pthread_mutex_lock(&mapped_lock);
  bool is = find_locked(reserved, address) != NULL;
  pthread_mutex_unlock(&mapped_lock);
  return is;
}

unsigned mapped_handle_types(uintptr_t address) {
  pthread_mutex_lock(&mapped_lock);
  const physical *p = mapped_at_locked(address);
  unsigned types = p != NULL ? (unsigned)p->props.requestedHandleTypes : CU_MEM_HANDLE_TYPE_NONE;
  pthread_mutex_unlock(&mapped_lock);
  return types;
}

static int union_of(const uint8_t access[MAX_DEVICES]) { /* of all devices: all are in one process */
  int all = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  for (int i = 0; i < device_count; i++) all |= access[i];
  return all;
}

static int access_of(const range *r) { return union_of(r->access); }

/* Puts the accessible parts of mapped memory into the table of allocations; neighbouring parts are one allocation. */
static CUresult publish_locked(void) {
  size_t most = 0, count = 0;
  for (const range *r = mapped; r != NULL; r = r->next) most++;
  allocation *found = calloc(most + 1, sizeof *found);
  REQUIRE(found != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for the table of allocations");
  for (const range *r = mapped; r != NULL; r = r->next) {
    if (access_of(r) == CU_MEM_ACCESS_FLAGS_PROT_NONE) continue;
    allocation *last = count > 0 ? &found[count - 1] : NULL;
    bool read_only = access_of(r) == CU_MEM_ACCESS_FLAGS_PROT_READ;
    bool same = last != NULL && last->dev == r->memory->dev && last->read_only == read_only;
    if (same && last->base + last->bytes == r->base) last->bytes += r->bytes;
    else
      found[count++] = (allocation){.base = r->base, .bytes = r->bytes, .kind = MEMORY_DEVICE, .dev = r->memory->dev,
                                    .mapped = true, .read_only = read_only};
  }
  CUresult status = memory_set_mapped(found, count);
  free(found);
  return status;
}

static uintptr_t reserve(size_t bytes, size_t alignment, uintptr_t wanted) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  if (wanted != 0 && wanted % alignment == 0) {
    void *there = mmap((void *)wanted, bytes, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
    if (there == (void *)wanted) return wanted;
    if (there != MAP_FAILED) munmap(there, bytes); /* kernels that do not know the flag */
  }
  void *all = mmap(NULL, bytes + alignment, PROT_NONE, flags, -1, 0);
  if (all == MAP_FAILED) return 0;
  uintptr_t from = (uintptr_t)all, base = (from + alignment - 1) & ~(alignment - 1);
  if (base > from) munmap(all, base - from);
  munmap((void *)(base + bytes), from + alignment - base);
  return base;
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wanted,
                             unsigned long long flags) {
  TRY(require_init());
  REQUIRE_POINTER(address);
  REQUIRE(bytes > 0 && flags == 0 && (alignment & (alignment - 1)) == 0, CUDA_ERROR_INVALID_VALUE,
          "%s: %zu bytes, alignment %zu, flags %#llx", __func__, bytes, alignment, flags);
  REQUIRE_WHOLE(bytes);
  if (alignment < MAP_GRANULARITY) alignment = MAP_GRANULARITY;
  REQUIRE(bytes <= SIZE_MAX / 4 && alignment <= SIZE_MAX / 4, CUDA_ERROR_OUT_OF_MEMORY, "%zu bytes wanted", bytes);
  range *made = calloc(1, sizeof *made);
  uintptr_t base = made != NULL ? reserve(bytes, alignment, wanted) : 0;
  if (base == 0) free(made);
  REQUIRE(base != 0, CUDA_ERROR_OUT_OF_MEMORY, "the host has no %zu addresses left", bytes);
  made->base = base;
  made->bytes = bytes;
  pthread_mutex_lock(&mapped_lock);
  insert_locked(&reserved, made);
  pthread_mutex_unlock(&mapped_lock);
  *address = base;
  return CUDA_SUCCESS;
}

bool mapped_reserve(uintptr_t base, size_t bytes) {
  range *made = calloc(1, sizeof *made);
  if (made == NULL) return false;
  *made = (range){.base = base, .bytes = bytes, .in_window = true};
  pthread_mutex_lock(&mapped_lock);
  insert_locked(&reserved, made);
  pthread_mutex_unlock(&mapped_lock);
  return true;
}

static CUresult unreserve_locked(uintptr_t base) {
  range **at = &reserved;
  while ((*at)->base != base) at = &(*at)->next;
  range *gone = *at;
  REQUIRE(!touched_locked(mapped, base, gone->bytes), CUDA_ERROR_INVALID_VALUE,
          "memory is still mapped in the window at 0x%zx", (size_t)base);
  *at = gone->next;
  free(gone);
  return CUDA_SUCCESS;
}

CUresult mapped_unreserve(uintptr_t base) {
  pthread_mutex_lock(&mapped_lock);
  CUresult status = unreserve_locked(base);
  pthread_mutex_unlock(&mapped_lock);
  return status;
}

/* Frees one or several neighbouring reservations: cuda.core makes one of two when it grows a buffer. */
static CUresult free_locked(uintptr_t base, size_t bytes) {
  range **at = whole_locked(&reserved, base, bytes);
  bool own = at != NULL;
  for (const range *r = own ? *at : NULL; r != NULL && r->base - base < bytes; r = r->next) own = own && !r->in_window;
  REQUIRE(own, CUDA_ERROR_INVALID_VALUE, "the %zu bytes at 0x%zx were not reserved", bytes, (size_t)base);
  REQUIRE(!touched_locked(mapped, base, bytes), CUDA_ERROR_INVALID_VALUE,
          "memory is still mapped in the %zu bytes at 0x%zx", bytes, (size_t)base);
  while (*at != NULL && (*at)->base - base < bytes) {
    range *gone = *at;
    *at = gone->next;
    free(gone);
  }
  munmap((void *)base, bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  TRY(require_init());
  pthread_mutex_lock(&mapped_lock);
  CUresult status = free_locked(address, bytes);
  pthread_mutex_unlock(&mapped_lock);
  return status;
}

/* Linux has one mapping for neighbours of one file, and needs more as soon as one between them is unmapped: that must
 * not fail. So each counts, with the addresses behind it where nothing is mapped. Others get a quarter of all. */
static bool may_map_locked(void) {
  static size_t most;
  size_t count = 2 + 2 * device_file_parked_locked();
  if (most == 0) {
    FILE *limit = fopen("/proc/sys/vm/max_map_count", "r");
    if (limit == NULL || fscanf(limit, "%zu", &most) != 1) most = 65530;
    if (limit != NULL) fclose(limit);
  }
  for (const range *r = mapped; r != NULL; r = r->next)
    count += r->next != NULL && r->next->base == r->base + r->bytes ? 1 : 2;
  return count <= most / 4 * 3;
}

static CUresult map_locked(range *made) {
  physical *p = made->memory;
  const range *within = find_locked(reserved, made->base);
  REQUIRE(handle_is(p, HANDLE_PHYSICAL), CUDA_ERROR_INVALID_VALUE, "%p is no live handle of memory", (void *)p);
  REQUIRE(made->bytes <= p->bytes, CUDA_ERROR_INVALID_VALUE, "%zu bytes of %zu", made->bytes, p->bytes);
  REQUIRE(within != NULL && made->bytes <= within->bytes - (made->base - within->base), CUDA_ERROR_INVALID_VALUE,
          "the %zu bytes at 0x%zx were not reserved", made->bytes, (size_t)made->base);
  REQUIRE(!touched_locked(mapped, made->base, made->bytes), CUDA_ERROR_INVALID_VALUE,
          "memory is mapped already in the %zu bytes at 0x%zx", made->bytes, (size_t)made->base);
  REQUIRE(may_map_locked(), CUDA_ERROR_OUT_OF_MEMORY,
          "this process has made three quarters of the mappings that vm.max_map_count allows");
  void *there = mmap((void *)made->base, made->bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, p->file, p->offset);
  REQUIRE(there != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY, "the host cannot map %zu bytes", made->bytes);
  p->mappings++;
  insert_locked(&mapped, made);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle memory,
                  unsigned long long flags) {
  TRY(require_init());
  REQUIRE(bytes > 0 && offset == 0 && flags == 0, CUDA_ERROR_INVALID_VALUE, "%s: %zu bytes at offset %zu, flags %#llx",
          __func__, bytes, offset, flags);
  REQUIRE_WHOLE(address);
  REQUIRE_WHOLE(bytes);
  range *made = calloc(1, sizeof *made);
  REQUIRE(made != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a mapping");
  *made = (range){.base = address, .bytes = bytes, .memory = (physical *)(uintptr_t)memory};
  pthread_mutex_lock(&mapped_lock);
  CUresult status = map_locked(made);
  pthread_mutex_unlock(&mapped_lock);
  if (status != CUDA_SUCCESS) free(made);
  return status;
}

static CUresult unmap_locked(uintptr_t base, size_t bytes) {
  range **at = whole_locked(&mapped, base, bytes);
  REQUIRE(at != NULL, CUDA_ERROR_INVALID_VALUE, "the %zu bytes at 0x%zx are no whole mappings", bytes, (size_t)base);
  for (const range *r = *at; r != NULL && r->base - base < bytes; r = r->next)
    if (access_of(r) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE && r->bytes == r->memory->bytes)
      device_file_park_locked(r->memory, r->base);
  void *there = mmap((void *)base, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  REQUIRE(there != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY, "the host cannot unmap %zu bytes", bytes);
  while (*at != NULL && (*at)->base - base < bytes) {
    range *gone = *at;
    *at = gone->next;
    gone->memory->mappings--;
    physical_drop_locked(gone->memory);
    free(gone);
  }
  pthread_mutex_lock(&memory_lock);
  regions_forget_locked(base, bytes);
  pthread_mutex_unlock(&memory_lock);
  return publish_locked();
}

/* CUDA waits for no work here: the program does. A later access is a fault of the work that makes it. */
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  TRY(require_init());
  pthread_mutex_lock(&mapped_lock);
  CUresult status = unmap_locked(address, bytes);
  pthread_mutex_unlock(&mapped_lock);
  TRY(status);
  CUcontext ctx = peek_context(); /* NULL: there is none to be failed */
  return ctx != NULL ? race_freed_by_host(ctx, address, bytes) : CUDA_SUCCESS;
}

/* 0, or an errno. */
static int protect(const range *r, const uint8_t access[MAX_DEVICES]) {
  int flags = union_of(access);
  int may = flags == CU_MEM_ACCESS_FLAGS_PROT_NONE   ? PROT_NONE
            : flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ
                                                     : PROT_READ | PROT_WRITE;
  bool whole = r->bytes == r->memory->bytes;
  if (may == (PROT_READ | PROT_WRITE) && whole && device_file_fetch_locked(r->memory, r->base)) return 0;
  return mprotect((void *)r->base, r->bytes, may) == 0 ? 0 : errno;
}

static CUresult access_locked(uintptr_t base, size_t bytes, const CUmemAccessDesc *wanted, size_t count) {
  range **at = whole_locked(&mapped, base, bytes);
  REQUIRE(at != NULL, CUDA_ERROR_INVALID_VALUE, "the %zu bytes at 0x%zx are no whole mappings", bytes, (size_t)base);
  int error = 0;
  for (range *r = *at; error == 0 && r != NULL && r->base - base < bytes; r = r->next) {
    uint8_t access[MAX_DEVICES];
    memcpy(access, r->access, sizeof access);
    for (size_t i = 0; i < count; i++) access[wanted[i].location.id] = (uint8_t)wanted[i].flags;
    error = protect(r, access);
    if (error == 0) memcpy(r->access, access, sizeof access);
  }
  TRY(publish_locked()); /* also if it failed: the ranges before have their new access */
  REQUIRE(error != EACCES, CUDA_ERROR_INVALID_VALUE,
          "the memory at 0x%zx can only be read: it is sealed, or was imported from a descriptor that is read only",
          (size_t)base);
  REQUIRE(error == 0, CUDA_ERROR_OUT_OF_MEMORY, "the host cannot protect %zu bytes", bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *wanted, size_t count) {
  device *dev;
  TRY(require_init());
  REQUIRE_POINTER(wanted);
  REQUIRE(count > 0, CUDA_ERROR_INVALID_VALUE, "%s: access of no device", __func__);
  for (size_t i = 0; i < count; i++) {
    CUmemAccess_flags flags = wanted[i].flags;
    REQUIRE(wanted[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_INVALID_VALUE,
            "access is a device's, not of location type %d", (int)wanted[i].location.type);
    TRY(device_get(wanted[i].location.id, &dev));
    REQUIRE(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            CUDA_ERROR_INVALID_VALUE, "there is no access %d", (int)flags);
  }
  pthread_mutex_lock(&mapped_lock);
  CUresult status = access_locked(address, bytes, wanted, count);
  pthread_mutex_unlock(&mapped_lock);
  return status;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address) {
  device *dev;
  TRY(require_init());
  REQUIRE_POINTER(flags);
  REQUIRE_POINTER(location);
  REQUIRE(location->type == CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_INVALID_VALUE,
          "access is a device's, not of location type %d", (int)location->type);
  TRY(device_get(location->id, &dev));
  pthread_mutex_lock(&mapped_lock);
  const range *r = find_locked(mapped, address);
  if (r != NULL) *flags = r->access[dev->ordinal];
  pthread_mutex_unlock(&mapped_lock);
  REQUIRE(r != NULL, CUDA_ERROR_INVALID_VALUE, "no memory is mapped at 0x%llx", address);
  return CUDA_SUCCESS;
}

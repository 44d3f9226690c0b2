/* Hints about managed memory: kept and returned, and without other effect, since host and devices share all memory.
 *
 * CUDA keeps them by page. This driver keeps the latest hint to any part of an allocation.
 */
#include "driver.h"

enum { NOWHERE = -2, ON_HOST = -1, HOST_BIT = MAX_DEVICES };

static CUresult check(CUdeviceptr address, size_t bytes) {
  allocation entry;
  REQUIRE(bytes > 0, CUDA_ERROR_INVALID_VALUE, "0 bytes of managed memory");
  TRY(memory_check(address, bytes, true));
  REQUIRE(memory_find(address, &entry) && entry.kind == MEMORY_MANAGED, CUDA_ERROR_INVALID_VALUE,
          "0x%llx is not managed memory", address);
  return CUDA_SUCCESS;
}

static CUresult check_location(CUmemLocation location, int *bit) {
  device *dev;
  TRY(pool_location(location, &dev));
  *bit = dev != NULL ? dev->ordinal : HOST_BIT;
  return CUDA_SUCCESS;
}

static void advise(hints *h, CUmem_advise advice, CUmemLocation location, uint32_t accessor) {
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY: h->read_mostly = true; break;
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY: h->read_mostly = false; break;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION: h->preferred = location; break;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION: h->preferred = (CUmemLocation){0}; break;
    case CU_MEM_ADVISE_SET_ACCESSED_BY: h->accessed_by |= accessor; break;
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY: h->accessed_by &= ~accessor; break;
  }
}

CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location) {
  int bit = 0;
  TRY(require_init());
  TRY(check(address, bytes));
  REQUIRE(advice >= CU_MEM_ADVISE_SET_READ_MOSTLY && advice <= CU_MEM_ADVISE_UNSET_ACCESSED_BY,
          CUDA_ERROR_INVALID_VALUE, "there is no advice %d", (int)advice);
  bool places = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION || advice == CU_MEM_ADVISE_SET_ACCESSED_BY ||
                advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
  if (places) TRY(check_location(location, &bit));
  pthread_mutex_lock(&memory_lock);
  hints *h = memory_hints_locked(address);
  if (h != NULL) advise(h, advice, location, 1u << bit);
  pthread_mutex_unlock(&memory_lock);
  REQUIRE(h != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a hint");
  return CUDA_SUCCESS;
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned flags,
                               CUstream stream) {
  CUstream s;
  int bit;
  TRY(stream_get(stream, &s));
  TRY(capture_forbids(s));
  REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE, "%s: flags %#x", __func__, flags);
  TRY(check(address, bytes));
  TRY(check_location(location, &bit));
  pthread_mutex_lock(&memory_lock);
  hints *h = memory_hints_locked(address);
  if (h != NULL) h->prefetched = location;
  pthread_mutex_unlock(&memory_lock);
  REQUIRE(h != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a hint");
  return CUDA_SUCCESS;
}

CUresult cuMemPrefetchBatchAsync(CUdeviceptr *addresses, size_t *sizes, size_t count, CUmemLocation *locations,
                                 size_t *first, size_t location_count, unsigned long long flags, CUstream stream) {
  REQUIRE(count > 0 && addresses != NULL && sizes != NULL && locations != NULL && first != NULL && location_count > 0 &&
              first[0] == 0,
          CUDA_ERROR_INVALID_VALUE, "%s: lists without members", __func__);
  for (size_t i = 0, at = 0; i < count; i++) {
    while (at + 1 < location_count && first[at + 1] <= i) at++;
    TRY(cuMemPrefetchAsync_v2(addresses[i], sizes[i], locations[at], (unsigned)flags, stream));
  }
  return CUDA_SUCCESS;
}

CUresult cuMemDiscardBatchAsync(CUdeviceptr *addresses, size_t *sizes, size_t count, unsigned long long flags,
                                CUstream stream) {
  CUstream s;
  TRY(stream_get(stream, &s));
  TRY(capture_forbids(s));
  REQUIRE(count > 0 && addresses != NULL && sizes != NULL && flags == 0, CUDA_ERROR_INVALID_VALUE,
          "%s: %zu ranges, flags %llu", __func__, count, flags);
  for (size_t i = 0; i < count; i++) {
    TRY(check(addresses[i], sizes[i]));
    if (!atomic_load_explicit(&strict, memory_order_relaxed)) continue;
    fill poison = {.dst = (uint8_t *)(uintptr_t)addresses[i],
                   .value = 0xff,
                   .element_bytes = 1,
                   .width = sizes[i],
                   .height = 1};
    TRY(submit(s, &(op){.kind = OP_FILL, .fill = poison}, false)); /* discarded data is lost */
  }
  return CUDA_SUCCESS;
}

CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr *addresses, size_t *sizes, size_t count,
                                           CUmemLocation *locations, size_t *first, size_t location_count,
                                           unsigned long long flags, CUstream stream) {
  TRY(cuMemDiscardBatchAsync(addresses, sizes, count, flags, stream));
  return cuMemPrefetchBatchAsync(addresses, sizes, count, locations, first, location_count, flags, stream);
}

/* --- queries */

static int as_device(CUmemLocation location) {
  return location.type == CU_MEM_LOCATION_TYPE_INVALID  ? NOWHERE
         : location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id
                                                        : ON_HOST;
}

static void tell_accessed_by(int *out, size_t room, uint32_t mask) {
  size_t count = 0;
  for (int bit = 0; bit <= HOST_BIT && count < room; bit++)
    if (mask >> bit & 1) out[count++] = bit == HOST_BIT ? ON_HOST : bit;
  while (count < room) out[count++] = NOWHERE;
}

CUresult cuMemRangeGetAttribute(void *data, size_t data_bytes, CUmem_range_attribute attribute, CUdeviceptr address,
                                size_t bytes) {
  TRY(require_init());
  REQUIRE_POINTER(data);
  TRY(check(address, bytes));
  REQUIRE(data_bytes >= 4 && data_bytes % 4 == 0, CUDA_ERROR_INVALID_VALUE, "%s: room for %zu bytes", __func__,
          data_bytes);
  pthread_mutex_lock(&memory_lock);
  const hints *kept = memory_hints_locked(address);
  hints h = kept != NULL ? *kept : (hints){0};
  pthread_mutex_unlock(&memory_lock);
  int *out = data;
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY: *out = h.read_mostly; break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION: *out = as_device(h.preferred); break;
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: tell_accessed_by(out, data_bytes / 4, h.accessed_by); break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION: *out = as_device(h.prefetched); break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE: *out = (int)h.preferred.type; break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID: *out = h.preferred.id; break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE: *out = (int)h.prefetched.type; break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID: *out = h.prefetched.id; break;
    default: return fail(CUDA_ERROR_INVALID_VALUE, "there is no attribute %d of ranges", (int)attribute);
  }
  return CUDA_SUCCESS;
}

CUresult cuMemRangeGetAttributes(void **data, size_t *data_bytes, CUmem_range_attribute *attributes, size_t count,
                                 CUdeviceptr address, size_t bytes) {
  REQUIRE(count > 0 && data != NULL && data_bytes != NULL && attributes != NULL, CUDA_ERROR_INVALID_VALUE,
          "%s: lists without members", __func__);
  for (size_t i = 0; i < count; i++)
    TRY(cuMemRangeGetAttribute(data[i], data_bytes[i], attributes[i], address, bytes));
  return CUDA_SUCCESS;
}

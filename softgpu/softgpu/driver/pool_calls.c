/* Queries and settings of pools: places, counters, access by other devices. */
#include "driver.h"

#include <string.h>

CUresult pool_location(CUmemLocation location, device **dev) {
  *dev = NULL;
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE: return device_get(location.id, dev);
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return CUDA_SUCCESS;
    default: return fail(CUDA_ERROR_INVALID_VALUE, "a pool cannot lie at location type %d", (int)location.type);
  }
}

static CUresult pool_at(CUmemoryPool *pool, const CUmemLocation *location, CUmemAllocationType type, bool by_default) {
  device *dev;
  TRY(require_init());
  REQUIRE_POINTER(pool);
  REQUIRE_POINTER(location);
  REQUIRE(type == CU_MEM_ALLOCATION_TYPE_PINNED || type == CU_MEM_ALLOCATION_TYPE_MANAGED, CUDA_ERROR_INVALID_VALUE,
          "there is no allocation type %d", (int)type);
  if (type == CU_MEM_ALLOCATION_TYPE_MANAGED) {
    *pool = managed_pool;
    return CUDA_SUCCESS;
  }
  TRY(pool_location(*location, &dev));
  *pool = dev == NULL ? host_pool : by_default ? dev->default_pool : dev->pool;
  return CUDA_SUCCESS;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
  return pool_at(pool, location, type, true);
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
  return pool_at(pool, location, type, false);
}

/* The 64-bit attributes; NULL for the others. */
static uint64_t *counter(CUmemoryPool pool, CUmemPool_attribute attribute) {
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: return &pool->release_threshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: return &pool->reserved;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: return &pool->reserved_high;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return &pool->used;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: return &pool->used_high;
    default: return NULL;
  }
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
  TRY(require_init());
  REQUIRE_HANDLE(pool, HANDLE_POOL);
  REQUIRE_POINTER(value);
  const uint64_t *found = counter(pool, attribute);
  REQUIRE(found != NULL || ((int)attribute >= 1 && (int)attribute <= 3), CUDA_ERROR_INVALID_VALUE,
          "pool attribute %d is not known", (int)attribute);
  pthread_mutex_lock(&memory_lock);
  if (found != NULL) memcpy(value, found, sizeof *found);
  else memcpy(value, &pool->reuse[attribute], sizeof pool->reuse[attribute]);
  pthread_mutex_unlock(&memory_lock);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
  TRY(require_init());
  REQUIRE_HANDLE(pool, HANDLE_POOL);
  REQUIRE_POINTER(value);
  uint64_t *found = counter(pool, attribute);
  bool high = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH || attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH;
  bool reuse = (int)attribute >= 1 && (int)attribute <= 3;
  REQUIRE(reuse || high || attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, CUDA_ERROR_INVALID_VALUE,
          "pool attribute %d cannot be set", (int)attribute);
  uint64_t wanted = 0;
  memcpy(&wanted, value, reuse ? sizeof(int) : sizeof wanted);
  REQUIRE(!high || wanted == 0, CUDA_ERROR_INVALID_VALUE, "a high-water mark can only be set to 0");
  pthread_mutex_lock(&memory_lock);
  if (reuse) pool->reuse[attribute] = (int)wanted;
  else if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) *found = pool->reserved;
  else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) *found = pool->used;
  else *found = wanted;
  pthread_mutex_unlock(&memory_lock);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *descriptions, size_t count) {
  TRY(require_init());
  REQUIRE_HANDLE(pool, HANDLE_POOL);
  REQUIRE(count == 0 || descriptions != NULL, CUDA_ERROR_INVALID_VALUE, "%s: descriptions is NULL", __func__);
  for (size_t i = 0; i < count; i++) {
    device *dev;
    TRY(pool_location(descriptions[i].location, &dev));
    bool allow = descriptions[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    REQUIRE(allow || dev != pool->dev, CUDA_ERROR_INVALID_VALUE, "a device cannot lose access to its own pool");
    if (dev == NULL) continue;
    pool->access = allow ? pool->access | 1u << dev->ordinal : pool->access & ~(1u << dev->ordinal);
  }
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location) {
  device *dev;
  TRY(require_init());
  REQUIRE_POINTER(flags);
  REQUIRE_POINTER(location);
  REQUIRE_HANDLE(pool, HANDLE_POOL);
  TRY(pool_location(*location, &dev));
  bool allowed = dev != NULL ? pool->access >> dev->ordinal & 1 : pool->dev == NULL;
  *flags = allowed ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

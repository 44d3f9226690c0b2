/* Stream-ordered allocation: pools that keep freed blocks, up to a threshold, for later allocations. */
#include "races.h"

#include <stdlib.h>
#include <string.h>

static CUmemoryPool pools; /* under memory_lock */
CUmemoryPool host_pool;    /* of page-locked host memory */
CUmemoryPool managed_pool;

CUresult pool_new(const CUmemPoolProps *props, device *dev, CUmemoryPool *pool) {
  CUmemoryPool made = handle_new(HANDLE_POOL, sizeof *made);
  REQUIRE(made != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a pool");
  made->props = *props;
  made->dev = dev;
  for (int i = 0; i < 4; i++) made->reuse[i] = 1;
  made->access = dev != NULL ? 1u << dev->ordinal : 0;
  pthread_mutex_lock(&memory_lock);
  made->next = pools;
  pools = made;
  pthread_mutex_unlock(&memory_lock);
  *pool = made;
  return CUDA_SUCCESS;
}

/* Frees cached blocks until the pool reserves at most keep bytes. */
static void trim_locked(CUmemoryPool pool, uint64_t keep) {
  while (pool->cached != NULL && pool->reserved > keep) {
    struct block *block = pool->cached;
    pool->cached = block->next;
    pool->reserved -= block->bytes;
    if (pool->dev != NULL) pool->dev->used_bytes -= block->bytes;
    strict_note(block->base, block->bytes);
    memory_free(block->base, block->bytes);
    free(block);
  }
}

void pools_poison(void) {
  pthread_mutex_lock(&memory_lock);
  for (CUmemoryPool pool = pools; pool != NULL; pool = pool->next)
    for (const struct block *b = pool->cached; b != NULL; b = b->next) strict_poison(b->base, b->bytes);
  pthread_mutex_unlock(&memory_lock);
}

CUresult pools_look(CUcontext ctx) {
  CUresult status = CUDA_SUCCESS;
  pthread_mutex_lock(&memory_lock);
  for (CUmemoryPool pool = pools; pool != NULL; pool = pool->next)
    for (const struct block *b = pool->cached; b != NULL && status == CUDA_SUCCESS; b = b->next)
      status = strict_look_at(ctx, b->base, b->bytes);
  pthread_mutex_unlock(&memory_lock);
  return status;
}

void pools_release_locked(device *dev) {
  for (CUmemoryPool pool = pools; pool != NULL; pool = pool->next)
    if (pool->dev == dev) trim_locked(pool, 0);
}

/* A cached block of exactly this size: all of a larger one would count against the device's memory. */
static uintptr_t take_cached_locked(CUmemoryPool pool, size_t bytes) {
  for (struct block **at = &pool->cached; *at != NULL; at = &(*at)->next) {
    struct block *block = *at;
    if (block->bytes != bytes) continue;
    uintptr_t base = block->base;
    *at = block->next;
    free(block);
    return base;
  }
  return 0;
}

static CUresult take_locked(CUmemoryPool pool, size_t *bytes, uintptr_t *base, bool *recycled) {
  *base = take_cached_locked(pool, *bytes);
  *recycled = *base != 0;
  if (*base == 0) {
    uint64_t limit = pool->props.maxSize;
    REQUIRE(limit == 0 || pool->used + *bytes <= limit, CUDA_ERROR_OUT_OF_MEMORY,
            "%zu bytes wanted; of the pool's %zu bytes %zu are in use", *bytes, (size_t)limit, (size_t)pool->used);
    if (pool->dev != NULL) TRY(memory_reserve_locked(pool->dev, *bytes));
    *base = pages_take(*bytes);
    if (*base == 0) {
      if (pool->dev != NULL) pool->dev->used_bytes -= *bytes;
      return fail(CUDA_ERROR_OUT_OF_MEMORY, "the host has no %zu bytes left", *bytes);
    }
    pool->reserved += *bytes;
    if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
  }
  pool->used += *bytes;
  if (pool->used > pool->used_high) pool->used_high = pool->used;
  return CUDA_SUCCESS;
}

static CUresult take(CUmemoryPool pool, allocation *entry, bool *recycled) {
  pthread_mutex_lock(&memory_lock);
  CUresult status = take_locked(pool, &entry->reserved, &entry->base, recycled);
  pthread_mutex_unlock(&memory_lock);
  return status;
}

CUresult pool_alloc(CUmemoryPool pool, size_t bytes, CUcontext ctx, CUdeviceptr *address) {
  REQUIRE(bytes > 0, CUDA_ERROR_INVALID_VALUE, "an allocation of 0 bytes");
  REQUIRE(bytes <= SIZE_MAX / 2, CUDA_ERROR_OUT_OF_MEMORY, "%zu bytes wanted", bytes);
  allocation entry = {.bytes = bytes,
                      .reserved = memory_round(bytes),
                      .dev = pool->dev,
                      .ctx = ctx,
                      .pool = pool,
                      .kind = pool->props.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED ? MEMORY_MANAGED
                              : pool->dev == NULL                                     ? MEMORY_HOST
                                                                                      : MEMORY_DEVICE};
  if (pool->dev != NULL && pool->dev->faulty) TRY(fault_at(FAULT_AT_ALLOCATION, pool->dev, NULL, ""));
  bool recycled;
  CUresult status = take(pool, &entry, &recycled);
  if (status == CUDA_ERROR_OUT_OF_MEMORY && frees_awaited(ctx)) status = take(pool, &entry, &recycled);
  TRY(status);
  if (recycled) status = strict_look_at(ctx, entry.base, entry.reserved);
  if (status == CUDA_SUCCESS) status = memory_add(&entry);
  if (status != CUDA_SUCCESS) pool_take_back(&entry);
  else strict_poison(entry.base, entry.reserved);
  *address = entry.base;
  return status;
}

void pool_take_back(const allocation *entry) {
  CUmemoryPool pool = entry->pool;
  struct block *block = malloc(sizeof *block);
  strict_poison(entry->base, entry->reserved);
  pthread_mutex_lock(&memory_lock);
  pool->used -= entry->reserved;
  if (block != NULL) {
    *block = (struct block){entry->base, entry->reserved, pool->cached};
    pool->cached = block;
    trim_locked(pool, handle_is(pool, HANDLE_POOL) ? pool->release_threshold : 0);
  } else { /* without memory to note the block: free it */
    pool->reserved -= entry->reserved;
    if (pool->dev != NULL) pool->dev->used_bytes -= entry->reserved;
    memory_free(entry->base, entry->reserved);
  }
  pthread_mutex_unlock(&memory_lock);
}

static CUresult alloc_on(CUmemoryPool pool, CUdeviceptr *address, size_t bytes, CUstream s) {
  REQUIRE_POINTER(address);
  if (atomic_load_explicit(&s->capture, memory_order_acquire) != NULL) return capture_alloc(s, pool, bytes, address);
  TRY(pool_alloc(pool, bytes, s->ctx, address));
  return race_allocated(s, *address, memory_round(bytes));
}

CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream) {
  CUstream s;
  TRY(stream_get(stream, &s));
  return alloc_on(s->ctx->dev->pool, address, bytes, s);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  CUstream s;
  TRY(stream_get(stream, &s));
  REQUIRE_HANDLE(pool, HANDLE_POOL);
  return alloc_on(pool, address, bytes, s);
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props) {
  device *dev;
  TRY(require_init());
  REQUIRE_POINTER(pool);
  REQUIRE_POINTER(props);
  bool managed = props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
  REQUIRE(managed || props->allocType == CU_MEM_ALLOCATION_TYPE_PINNED, CUDA_ERROR_INVALID_VALUE,
          "there is no allocation type %d", (int)props->allocType);
  REQUIRE(props->handleTypes == CU_MEM_HANDLE_TYPE_NONE, CUDA_ERROR_NOT_SUPPORTED,
          "pools shared between processes are not supported");
  if (managed && props->location.type == CU_MEM_LOCATION_TYPE_INVALID) dev = NULL; /* it may lie anywhere */
  else TRY(pool_location(props->location, &dev));
  return pool_new(props, dev, pool);
}

/* Allocations may outlive the handle; they go back to the device one by one (pool_take_back). */
CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  TRY(require_init());
  REQUIRE_HANDLE(pool, HANDLE_POOL);
  bool by_default =
      pool == host_pool || pool == managed_pool || (pool->dev != NULL && pool == pool->dev->default_pool);
  REQUIRE(!by_default, CUDA_ERROR_INVALID_VALUE, "a default pool cannot be destroyed");
  pthread_mutex_lock(&memory_lock);
  if (pool->dev != NULL && pool->dev->pool == pool) pool->dev->pool = pool->dev->default_pool;
  trim_locked(pool, 0);
  bool empty = pool->used == 0;
  if (empty)
    for (CUmemoryPool *at = &pools; *at != NULL; at = &(*at)->next)
      if (*at == pool) {
        *at = pool->next;
        break;
      }
  pool->release_threshold = 0;
  pthread_mutex_unlock(&memory_lock);
  if (empty) handle_delete(pool);
  else pool->head.kind = 0; /* the object stays for the allocations that refer to it */
  return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  TRY(require_init());
  REQUIRE_HANDLE(pool, HANDLE_POOL);
  pthread_mutex_lock(&memory_lock);
  trim_locked(pool, keep);
  pthread_mutex_unlock(&memory_lock);
  return CUDA_SUCCESS;
}

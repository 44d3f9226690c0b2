/* Allocation calls: device, managed and page-locked host memory. */
#include "races.h"

#include <string.h>

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
  CUcontext ctx;
  uintptr_t base;
  TRY(current_context(&ctx));
  TRY(capture_gate());
  REQUIRE_POINTER(address);
  TRY(memory_allocate((allocation){.bytes = bytes, .kind = MEMORY_DEVICE, .dev = ctx->dev, .ctx = ctx}, &base));
  *address = base;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element_bytes) {
  REQUIRE_POINTER(pitch);
  REQUIRE(element_bytes == 4 || element_bytes == 8 || element_bytes == 16, CUDA_ERROR_INVALID_VALUE,
          "%s: elements of %u bytes", __func__, element_bytes);
  REQUIRE(width > 0 && height > 0 && width <= SIZE_MAX / 4 / height, CUDA_ERROR_INVALID_VALUE, "%s: %zu by %zu bytes",
          __func__, width, height);
  size_t row = memory_round(width);
  TRY(cuMemAlloc_v2(address, row * height));
  *pitch = row;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags) {
  CUcontext ctx;
  uintptr_t base;
  TRY(current_context(&ctx));
  TRY(capture_gate());
  REQUIRE_POINTER(address);
  REQUIRE(flags == 1 || flags == 2, CUDA_ERROR_INVALID_VALUE, "%s: flags %u", __func__, flags); /* global or host */
  TRY(memory_allocate((allocation){.bytes = bytes, .kind = MEMORY_MANAGED, .dev = ctx->dev, .ctx = ctx}, &base));
  *address = base;
  return CUDA_SUCCESS;
}

/* Frees memory. host: only memory of the host calls; otherwise only device and managed memory, pools included.
 * stream: free in its order; NULL: at once. */
static CUresult release(uintptr_t base, bool host, CUstream stream) {
  allocation entry;
  if (base == 0) return CUDA_SUCCESS;
  bool known = memory_find(base, &entry) && entry.base == base;
  bool right = known && !entry.mapped && (host ? entry.kind == MEMORY_HOST
                              : entry.kind == MEMORY_DEVICE || entry.kind == MEMORY_MANAGED ||
                                    (entry.kind == MEMORY_HOST && entry.pool != NULL));
  if (right && entry.graph != NULL) return graph_block_release(entry.graph, stream);
  bool later = stream != NULL && (atomic_load(&strict) || !stream_settled(stream));
  REQUIRE(right && (later ? memory_leave(base, &entry) : memory_remove(base, &entry)), CUDA_ERROR_INVALID_VALUE,
          "0x%zx is not the start of %s allocation", (size_t)base, host ? "a host" : "a device");
  if (later) return submit(stream, &(op){.kind = OP_FREE, .freed = entry}, false);
  memory_give_back(&entry);
  return CUDA_SUCCESS;
}

/* Waits for work under way, which may use the memory, as CUDA does. Inside a host function this does not wait. */
static void settle(CUcontext ctx) { (void)context_wait(ctx); }

/* In strict mode, checks that pool memory is not in use: CUDA frees it without waiting, so the program must wait. */
static CUresult look_in_use(CUcontext ctx, CUdeviceptr address) {
  allocation entry;
  bool pooled = atomic_load(&strict) && memory_find(address, &entry) && entry.base == address && entry.pool != NULL;
  return pooled ? race_freed_by_host(ctx, entry.base, entry.reserved) : CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  CUcontext ctx;
  TRY(current_context(&ctx));
  TRY(capture_gate());
  TRY(look_in_use(ctx, address));
  settle(ctx);
  return release(address, false, NULL);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  CUstream s;
  TRY(stream_get(stream, &s));
  if (atomic_load_explicit(&s->capture, memory_order_acquire) != NULL) return capture_free(s, address);
  return release(address, false, s);
}

CUresult cuMemFreeHost(void *address) {
  CUcontext ctx;
  TRY(current_context(&ctx));
  TRY(capture_gate());
  settle(ctx);
  return release((uintptr_t)address, true, NULL);
}

CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags) {
  CUcontext ctx;
  uintptr_t base;
  TRY(current_context(&ctx));
  TRY(capture_gate());
  REQUIRE_POINTER(address);
  REQUIRE((flags & ~(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)) == 0,
          CUDA_ERROR_INVALID_VALUE, "%s: flags %#x", __func__, flags);
  TRY(memory_allocate((allocation){.bytes = bytes, .kind = MEMORY_HOST, .ctx = ctx, .flags = flags}, &base));
  *address = (void *)base;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocHost_v2(void **address, size_t bytes) {
  return cuMemHostAlloc(address, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
}

CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags) {
  CUcontext ctx;
  allocation other;
  TRY(current_context(&ctx));
  REQUIRE_POINTER(address);
  REQUIRE(bytes > 0, CUDA_ERROR_INVALID_VALUE, "%s: 0 bytes", __func__);
  uintptr_t base = (uintptr_t)address;
  REQUIRE(!memory_find(base, &other) && !memory_find(base + bytes - 1, &other),
          CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "a part of the %zu bytes at %p is already registered", bytes,
          address);
  return memory_add(&(allocation){.base = base, .bytes = bytes, .kind = MEMORY_REGISTERED, .ctx = ctx, .flags = flags});
}

CUresult cuMemHostUnregister(void *address) {
  CUcontext ctx;
  allocation entry;
  TRY(current_context(&ctx));
  settle(ctx);
  bool registered = memory_find((uintptr_t)address, &entry) && entry.kind == MEMORY_REGISTERED &&
                    entry.base == (uintptr_t)address && memory_remove(entry.base, &entry);
  REQUIRE(registered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "%p was not registered", address);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device_address, void *address, unsigned flags) {
  CUcontext ctx;
  allocation entry;
  TRY(current_context(&ctx));
  REQUIRE_POINTER(device_address);
  REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE, "%s: flags must be 0", __func__);
  REQUIRE(memory_find((uintptr_t)address, &entry) && (entry.kind == MEMORY_HOST || entry.kind == MEMORY_REGISTERED),
          CUDA_ERROR_INVALID_VALUE, "%p is not page-locked host memory", address);
  *device_address = (CUdeviceptr)(uintptr_t)address;
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned *flags, void *address) {
  allocation entry;
  TRY(require_init());
  REQUIRE_POINTER(flags);
  REQUIRE(memory_find((uintptr_t)address, &entry) && entry.kind == MEMORY_HOST, CUDA_ERROR_INVALID_VALUE,
          "%p was not allocated by cuMemHostAlloc", address);
  *flags = entry.flags | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  CUcontext ctx;
  TRY(current_context(&ctx));
  pthread_mutex_lock(&memory_lock);
  if (free_bytes != NULL) *free_bytes = ctx->dev->memory_bytes - ctx->dev->used_bytes;
  pthread_mutex_unlock(&memory_lock);
  if (total_bytes != NULL) *total_bytes = ctx->dev->memory_bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
  allocation entry;
  TRY(require_init());
  REQUIRE(memory_find(address, &entry), CUDA_ERROR_NOT_FOUND, "0x%llx lies in no live allocation", address);
  if (base != NULL) *base = entry.base;
  if (bytes != NULL) *bytes = entry.bytes;
  return CUDA_SUCCESS;
}

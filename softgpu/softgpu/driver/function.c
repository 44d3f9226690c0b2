/* Queries of kernels: names, parameters, attributes and occupancy. A CUfunction is its CUkernel. */
#include "driver.h"

CUresult kernel_get(const void *function, kernel **kern) {
  REQUIRE(handle_is(function, HANDLE_KERNEL), CUDA_ERROR_INVALID_HANDLE, "%p is not a live kernel", function);
  *kern = (kernel *)(uintptr_t)function;
  return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel given) {
  kernel *kern;
  CUcontext ctx;
  TRY(current_context(&ctx));
  REQUIRE_POINTER(function);
  TRY(kernel_get(given, &kern));
  *function = (CUfunction)kern;
  return CUDA_SUCCESS;
}

CUresult cuKernelGetLibrary(CUlibrary *lib, CUkernel given) {
  kernel *kern;
  TRY(require_init());
  REQUIRE_POINTER(lib);
  TRY(kernel_get(given, &kern));
  *lib = (CUlibrary)kern->lib;
  return CUDA_SUCCESS;
}

CUresult cuFuncGetModule(CUmodule *module, CUfunction function) {
  return cuKernelGetLibrary((CUlibrary *)module, (CUkernel)function);
}

CUresult cuKernelGetName(const char **name, CUkernel given) {
  kernel *kern;
  TRY(require_init());
  REQUIRE_POINTER(name);
  TRY(kernel_get(given, &kern));
  *name = kern->info->name;
  return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char **name, CUfunction function) { return cuKernelGetName(name, (CUkernel)function); }

CUresult cuKernelGetParamInfo(CUkernel given, size_t index, size_t *offset, size_t *bytes) {
  kernel *kern;
  TRY(require_init());
  REQUIRE_POINTER(offset);
  TRY(kernel_get(given, &kern));
  if (index >= kern->info->param_count) return CUDA_ERROR_INVALID_VALUE; /* callers find the end by this error */
  *offset = kern->info->param_offsets[index];
  if (bytes != NULL) *bytes = kern->info->param_sizes[index];
  return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *bytes) {
  return cuKernelGetParamInfo((CUkernel)function, index, offset, bytes);
}

static CUresult get_attribute(int *value, CUfunction_attribute attribute, CUkernel given, device *dev) {
  kernel *kern;
  REQUIRE_POINTER(value);
  TRY(kernel_get(given, &kern));
  REQUIRE((int)attribute >= 0 && attribute <= CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
          CUDA_ERROR_INVALID_VALUE, "there is no function attribute %d", (int)attribute);
  const sg_kernel_info *info = kern->info;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = (int)info->max_threads; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = (int)info->shared_bytes; break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = (int)info->local_bytes; break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *value = (int)info->const_bytes; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = (int)info->registers; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = 80; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = kern->max_dynamic_shared[dev->ordinal]; break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = kern->carveout; break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}

static CUresult set_attribute(CUfunction_attribute attribute, int value, CUkernel given, device *dev) {
  kernel *kern;
  TRY(kernel_get(given, &kern));
  int most = SHARED_OPTIN_BYTES - (int)kern->info->shared_bytes;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      REQUIRE(value >= 0 && value <= most, CUDA_ERROR_INVALID_VALUE,
              "kernel %s: %d bytes of dynamic shared memory; at most %d are possible", kern->info->name, value, most);
      kern->max_dynamic_shared[dev->ordinal] = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      REQUIRE(value >= -1 && value <= 100, CUDA_ERROR_INVALID_VALUE, "a carveout of %d %%", value);
      kern->carveout = value;
      return CUDA_SUCCESS;
    default: return fail(CUDA_ERROR_INVALID_VALUE, "function attribute %d cannot be set", (int)attribute);
  }
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  CUcontext ctx;
  TRY(current_context(&ctx));
  return get_attribute(value, attribute, (CUkernel)function, ctx->dev);
}

CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kern, CUdevice ordinal) {
  device *dev;
  TRY(device_get(ordinal, &dev));
  return get_attribute(value, attribute, kern, dev);
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  CUcontext ctx;
  TRY(current_context(&ctx));
  return set_attribute(attribute, value, (CUkernel)function, ctx->dev);
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kern, CUdevice ordinal) {
  device *dev;
  TRY(device_get(ordinal, &dev));
  return set_attribute(attribute, value, kern, dev);
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { /* a hint */
  kernel *kern;
  (void)config;
  TRY(require_init());
  return kernel_get(function, &kern);
}

CUresult cuKernelSetCacheConfig(CUkernel kern, CUfunc_cache config, CUdevice ordinal) {
  device *dev;
  TRY(device_get(ordinal, &dev));
  return cuFuncSetCacheConfig((CUfunction)kern, config);
}

CUresult cuFuncLoad(CUfunction function) {
  kernel *kern;
  TRY(require_init());
  return kernel_get(function, &kern);
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState *loaded, CUfunction function) {
  kernel *kern;
  TRY(require_init());
  REQUIRE_POINTER(loaded);
  TRY(kernel_get(function, &kern));
  *loaded = CU_FUNCTION_LOADING_STATE_LOADED;
  return CUDA_SUCCESS;
}

/* --- occupancy, by the limits of a multiprocessor of sm_80 */

enum { SM_THREADS = 2048, SM_BLOCKS = 32, SM_RESERVED_SHARED = 1024, SHARED_UNIT = 128 };

static int blocks_per_sm(const kernel *kern, int block_size, size_t dynamic_shared, const device *dev) {
  size_t threads = ((size_t)block_size + SG_WARP - 1) / SG_WARP * SG_WARP;
  size_t shared = kern->info->shared_bytes + dynamic_shared;
  if (threads == 0 || threads > kern->info->max_threads) return 0;
  if (dynamic_shared > (size_t)kern->max_dynamic_shared[dev->ordinal]) return 0;
  shared = (shared + SM_RESERVED_SHARED + SHARED_UNIT - 1) / SHARED_UNIT * SHARED_UNIT;
  size_t blocks = SM_THREADS / threads, by_shared = SHARED_SM_BYTES / shared;
  if (by_shared < blocks) blocks = by_shared;
  return (int)(blocks < SM_BLOCKS ? blocks : SM_BLOCKS);
}

/* All blocks of a cooperative launch run at a time, else one on each multiprocessor. */
CUresult kernel_check_resident(const kernel_call *call) {
  const sg_launch *l = &call->launch;
  const device *dev = &devices[l->device];
  uint64_t blocks = (uint64_t)l->grid[0] * l->grid[1] * l->grid[2], all = device_sms(dev);
  uint64_t sms = call->sms != NULL ? sms_count(call->sms) : all;
  int threads = (int)(l->block[0] * l->block[1] * l->block[2]);
  if (l->cooperative) {
    int each = blocks_per_sm(call->kern, threads, l->dynamic_shared_bytes, dev);
    REQUIRE(blocks <= (uint64_t)each * sms, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
            "kernel %s: a cooperative launch of %llu blocks; %d multiprocessors have room for %d each at once",
            call->kern->info->name, (unsigned long long)blocks, (int)sms, each);
  } else if (blocks > all) blocks = all;
  uint64_t local = blocks * l->local_bytes * (uint64_t)((threads + SG_WARP - 1) / SG_WARP * SG_WARP);
  REQUIRE(local <= dev->memory_bytes, CUDA_ERROR_OUT_OF_MEMORY,
          "kernel %s: the threads that run at a time have %llu bytes of local memory; device %d has %zu bytes",
          call->kern->info->name, (unsigned long long)local, dev->ordinal, (size_t)dev->memory_bytes);
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int block_size,
                                                              size_t dynamic_shared, unsigned flags) {
  kernel *kern;
  CUcontext ctx;
  TRY(current_context(&ctx));
  REQUIRE_POINTER(blocks);
  TRY(kernel_get(function, &kern));
  REQUIRE(block_size > 0 && flags <= 1, CUDA_ERROR_INVALID_VALUE, "%s: block of %d, flags %u", __func__, block_size,
          flags);
  *blocks = blocks_per_sm(kern, block_size, dynamic_shared, ctx->dev);
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block_size,
                                                     size_t dynamic_shared) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size, dynamic_shared, 0);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid_size, int *block_size, CUfunction function,
                                                   CUoccupancyB2DSize shared_of, size_t dynamic_shared, int limit,
                                                   unsigned flags) {
  kernel *kern;
  CUcontext ctx;
  TRY(current_context(&ctx));
  REQUIRE_POINTER(grid_size);
  REQUIRE_POINTER(block_size);
  TRY(kernel_get(function, &kern));
  REQUIRE(limit >= 0 && flags <= 1, CUDA_ERROR_INVALID_VALUE, "%s: limit %d, flags %u", __func__, limit, flags);
  int most = (int)kern->info->max_threads, best_threads = 0;
  if (limit > 0 && limit < most) most = limit;
  for (int size = most / SG_WARP * SG_WARP; size > 0; size -= SG_WARP) { /* of equals, the largest block */
    int blocks = blocks_per_sm(kern, size, shared_of != NULL ? shared_of(size) : dynamic_shared, ctx->dev);
    if (blocks * size <= best_threads) continue;
    best_threads = blocks * size;
    *block_size = size;
    *grid_size = blocks * (int)context_sms(peek_home());
  }
  REQUIRE(best_threads > 0, CUDA_ERROR_INVALID_VALUE, "kernel %s: no block size fits", kern->info->name);
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSize(int *grid_size, int *block_size, CUfunction function,
                                          CUoccupancyB2DSize shared_of, size_t dynamic_shared, int limit) {
  return cuOccupancyMaxPotentialBlockSizeWithFlags(grid_size, block_size, function, shared_of, dynamic_shared, limit,
                                                   0);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction function, int blocks, int block_size) {
  kernel *kern;
  CUcontext ctx;
  TRY(current_context(&ctx));
  REQUIRE_POINTER(bytes);
  TRY(kernel_get(function, &kern));
  REQUIRE(blocks > 0 && block_size > 0, CUDA_ERROR_INVALID_VALUE, "%s: %d blocks of %d", __func__, blocks, block_size);
  size_t each = (size_t)SHARED_SM_BYTES / (size_t)blocks / SHARED_UNIT * SHARED_UNIT;
  size_t used = kern->info->shared_bytes + SM_RESERVED_SHARED;
  size_t most = (size_t)kern->max_dynamic_shared[ctx->dev->ordinal];
  *bytes = each <= used ? 0 : each - used < most ? each - used : most;
  return CUDA_SUCCESS;
}

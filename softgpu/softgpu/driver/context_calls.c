/* Queries and settings of contexts, and access to peers. */
#include "driver.h"

CUresult cuCtxGetDevice_v2(CUdevice *dev, CUcontext given) {
  CUcontext ctx;
  REQUIRE_POINTER(dev);
  TRY(context_or_current(given, &ctx)); /* allowed after a kernel failed */
  *dev = ctx->dev->ordinal;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *dev) { return cuCtxGetDevice_v2(dev, NULL); }

CUresult cuCtxGetId(CUcontext given, unsigned long long *id) {
  CUcontext ctx;
  REQUIRE_POINTER(id);
  TRY(context_or_current(given, &ctx));
  *id = ctx->id;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext given, unsigned *version) {
  CUcontext ctx;
  REQUIRE_POINTER(version);
  TRY(context_or_current(given, &ctx));
  *version = 3020;
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize_v2(CUcontext given) {
  CUcontext ctx;
  TRY(context_or_current(given, &ctx));
  TRY(capture_gate());
  TRY(context_wait(ctx));
  TRY(context_status(ctx));
  return strict_look(ctx);
}

CUresult cuCtxSynchronize(void) { return cuCtxSynchronize_v2(NULL); }

CUresult cuCtxGetFlags(unsigned *flags) {
  CUcontext ctx;
  REQUIRE_POINTER(flags);
  TRY(current_context(&ctx));
  *flags = ctx->flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned flags) {
  CUcontext ctx;
  TRY(current_context(&ctx));
  REQUIRE((flags & ~CU_CTX_FLAGS_MASK) == 0, CUDA_ERROR_INVALID_VALUE, "%s: flags %#x", __func__, flags);
  ctx->flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
  CUcontext ctx;
  REQUIRE_POINTER(value);
  TRY(current_context(&ctx));
  REQUIRE((unsigned)limit < LIMITS, CUDA_ERROR_UNSUPPORTED_LIMIT, "there is no limit %d", (int)limit);
  *value = ctx->limits[limit];
  return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  CUcontext ctx;
  TRY(current_context(&ctx));
  REQUIRE((unsigned)limit <= CU_LIMIT_MALLOC_HEAP_SIZE, CUDA_ERROR_UNSUPPORTED_LIMIT, "limit %d cannot be set",
          (int)limit);
  ctx->limits[limit] = value;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *config) {
  CUcontext ctx;
  REQUIRE_POINTER(config);
  TRY(current_context(&ctx));
  *config = CU_FUNC_CACHE_PREFER_NONE;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config) { /* a hint */
  CUcontext ctx;
  (void)config;
  return current_context(&ctx);
}

/* Profilers: there is no profiler. */
CUresult cuProfilerStart(void) { return require_init(); }
CUresult cuProfilerStop(void) { return require_init(); }

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  CUcontext ctx;
  TRY(current_context(&ctx));
  if (least != NULL) *least = 0;
  if (greatest != NULL) *greatest = -5;
  return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  CUcontext ctx;
  TRY(current_context(&ctx));
  REQUIRE(handle_is(peer, HANDLE_CONTEXT), CUDA_ERROR_INVALID_CONTEXT, "%s: not a live context", __func__);
  REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE, "%s: flags must be 0", __func__);
  REQUIRE(peer->dev != ctx->dev, CUDA_ERROR_INVALID_DEVICE, "device %d is no peer of itself", ctx->dev->ordinal);
  uint32_t bit = 1u << peer->dev->ordinal;
  REQUIRE(!(ctx->peers & bit), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "access to device %d is already enabled",
          peer->dev->ordinal);
  ctx->peers |= bit;
  return CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  CUcontext ctx;
  TRY(current_context(&ctx));
  REQUIRE(handle_is(peer, HANDLE_CONTEXT), CUDA_ERROR_INVALID_CONTEXT, "%s: not a live context", __func__);
  uint32_t bit = 1u << peer->dev->ordinal;
  REQUIRE(ctx->peers & bit, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "access to device %d was not enabled",
          peer->dev->ordinal);
  ctx->peers &= ~bit;
  return CUDA_SUCCESS;
}

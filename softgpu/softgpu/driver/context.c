/* Contexts: a device's primary one, others, and the stack of current contexts that each thread has. */
#include "driver.h"

#include <string.h>

CUcontext peek_home(void) {
  thread_state *here = thread_here();
  for (; here->depth > 0; here->depth--) { /* some were destroyed while current */
    struct current top = here->contexts[here->depth - 1];
    if (handle_is(top.ctx, HANDLE_CONTEXT) && top.ctx->id == top.id) return top.ctx;
  }
  return NULL;
}

CUcontext peek_context(void) {
  CUcontext home = peek_home();
  return home != NULL ? home->base : NULL;
}

CUresult current_context(CUcontext *ctx) {
  TRY(require_init());
  CUcontext found = peek_context();
  REQUIRE(found != NULL, CUDA_ERROR_INVALID_CONTEXT, "no context is current in this thread");
  *ctx = found;
  return context_status(found);
}

CUresult context_or_current(CUcontext given, CUcontext *ctx) {
  TRY(require_init());
  *ctx = given != NULL ? given : peek_home();
  REQUIRE(*ctx != NULL, CUDA_ERROR_INVALID_CONTEXT, "no context is current in this thread");
  REQUIRE(handle_is(*ctx, HANDLE_CONTEXT), CUDA_ERROR_INVALID_CONTEXT, "not a live context");
  return CUDA_SUCCESS;
}

CUresult context_status(CUcontext ctx) {
  ctx = ctx->base;
  int sticky = atomic_load_explicit(&ctx->sticky, memory_order_acquire);
  bool lost = atomic_load_explicit(&ctx->dev->lost, memory_order_relaxed);
  REQUIRE(!lost || sticky != 0, CUDA_ERROR_UNKNOWN, "device %d is lost", ctx->dev->ordinal);
  REQUIRE(sticky == 0, (CUresult)sticky, "%s", ctx->failure);
  return CUDA_SUCCESS;
}

CUresult context_new(device *dev, unsigned flags, bool primary, CUcontext *ctx) {
  REQUIRE(!atomic_load(&dev->lost), CUDA_ERROR_DEVICE_UNAVAILABLE, "device %d is lost", dev->ordinal);
  CUcontext made = handle_new(HANDLE_CONTEXT, sizeof *made);
  REQUIRE(made != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a context");
  made->base = made;
  made->dev = dev;
  atomic_store(&dev->stop, 0);
  made->flags = flags;
  made->id = unique_id();
  made->primary = primary;
  made->limits[CU_LIMIT_STACK_SIZE] = 1024;
  made->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
  made->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
  stream_init(&made->legacy, made, 0, 0);
  stream_init(&made->per_thread, made, CU_STREAM_NON_BLOCKING, 0);
  context_events_begin(made);
  *ctx = made;
  return CUDA_SUCCESS;
}

/* A hung kernel ends with its context. */
static CUresult wait_last(CUcontext ctx) {
  atomic_store(&ctx->dying, true);
  faults_let_go(false);
  return context_wait(ctx);
}

void context_delete(CUcontext ctx) {
  (void)wait_last(ctx);
  greens_end(ctx);
  while (ctx->streams != NULL) stream_forget(ctx->streams);
  stream_forget(&ctx->legacy);
  stream_forget(&ctx->per_thread);
  context_events_end(ctx);
  memory_free_context(ctx);
  handle_delete(ctx);
}

static CUresult take_locked(device *dev, CUcontext *ctx) {
  if (dev->primary == NULL) TRY(context_new(dev, dev->primary_flags, true, &dev->primary));
  dev->primary_references++;
  *ctx = dev->primary;
  return CUDA_SUCCESS;
}

CUresult primary_take(device *dev, CUcontext *ctx) {
  pthread_mutex_lock(&state_lock);
  CUresult status = take_locked(dev, ctx);
  pthread_mutex_unlock(&state_lock);
  return status;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice ordinal) {
  device *dev;
  TRY(device_get(ordinal, &dev));
  REQUIRE_POINTER(ctx);
  return primary_take(dev, ctx);
}

CUresult primary_drop(device *dev, bool all) {
  CUcontext dead = NULL;
  if (dev->primary != NULL && (all || dev->primary_references == 1)) TRY(wait_last(dev->primary)); /* refused inside a host function */
  pthread_mutex_lock(&state_lock);
  bool active = dev->primary_references > 0;
  if (active) dev->primary_references = all ? 0 : dev->primary_references - 1;
  if (active && dev->primary_references == 0) {
    dead = dev->primary;
    dev->primary = NULL;
  }
  pthread_mutex_unlock(&state_lock);
  if (dead != NULL) context_delete(dead);
  REQUIRE(active || all, CUDA_ERROR_INVALID_CONTEXT, "device %d has no primary context to release", dev->ordinal);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
  device *dev;
  TRY(device_get(ordinal, &dev));
  return primary_drop(dev, false);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
  device *dev;
  TRY(device_get(ordinal, &dev));
  return primary_drop(dev, true);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned flags) {
  device *dev;
  TRY(device_get(ordinal, &dev));
  REQUIRE((flags & ~CU_CTX_FLAGS_MASK) == 0, CUDA_ERROR_INVALID_VALUE, "%s: flags %#x", __func__, flags);
  dev->primary_flags = flags;
  if (dev->primary != NULL) dev->primary->flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned *flags, int *active) {
  device *dev;
  TRY(device_get(ordinal, &dev));
  if (flags != NULL) *flags = dev->primary_flags;
  if (active != NULL) *active = dev->primary != NULL;
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
  TRY(require_init());
  REQUIRE(handle_is(ctx, HANDLE_CONTEXT), CUDA_ERROR_INVALID_CONTEXT, "%s: not a live context", __func__);
  thread_state *here = thread_here();
  REQUIRE(here->depth < CONTEXT_STACK, CUDA_ERROR_INVALID_VALUE, "more than %d contexts on a thread's stack",
          CONTEXT_STACK);
  here->contexts[here->depth++] = (struct current){ctx, ctx->id};
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *ctx) {
  TRY(require_init());
  CUcontext top = peek_home();
  thread_state *here = thread_here();
  REQUIRE(here->depth > 0, CUDA_ERROR_INVALID_CONTEXT, "no context is current in this thread");
  here->depth--;
  if (ctx != NULL) *ctx = top;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext ctx) {
  TRY(require_init());
  REQUIRE(ctx == NULL || handle_is(ctx, HANDLE_CONTEXT), CUDA_ERROR_INVALID_CONTEXT, "%s: not a live context",
          __func__);
  thread_state *here = thread_here();
  if (here->depth > 0) here->depth--;
  if (ctx != NULL) here->contexts[here->depth++] = (struct current){ctx, ctx->id};
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *ctx) {
  TRY(require_init());
  REQUIRE_POINTER(ctx);
  *ctx = peek_home();
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v4(CUcontext *ctx, CUctxCreateParams *params, unsigned flags, CUdevice ordinal) {
  device *dev;
  TRY(device_get(ordinal, &dev));
  REQUIRE_POINTER(ctx);
  REQUIRE(params == NULL || (params->numExecAffinityParams == 0 && params->cigParams == NULL), CUDA_ERROR_NOT_SUPPORTED,
          "contexts with affinity or graphics parameters are not supported");
  REQUIRE((flags & ~CU_CTX_FLAGS_MASK) == 0, CUDA_ERROR_INVALID_VALUE, "%s: flags %#x", __func__, flags);
  TRY(context_new(dev, flags, false, ctx));
  return cuCtxPushCurrent_v2(*ctx);
}

CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice ordinal) {
  return cuCtxCreate_v4(ctx, NULL, flags, ordinal);
}

CUresult cuCtxDestroy_v2(CUcontext ctx) {
  TRY(require_init());
  REQUIRE(handle_is(ctx, HANDLE_CONTEXT), CUDA_ERROR_INVALID_CONTEXT, "%s: not a live context", __func__);
  REQUIRE(!ctx->primary, CUDA_ERROR_INVALID_CONTEXT, "a primary context is released, not destroyed");
  REQUIRE(ctx->green == NULL, CUDA_ERROR_INVALID_CONTEXT, "a green context is destroyed by cuGreenCtxDestroy");
  TRY(wait_last(ctx)); /* refused inside a host function */
  if (peek_context() == ctx) thread_here()->depth--;
  context_delete(ctx);
  return CUDA_SUCCESS;
}

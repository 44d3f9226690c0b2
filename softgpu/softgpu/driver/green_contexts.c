/* Green contexts: partitions of a device's SMs, with streams whose kernels run only there.
 *
 * Memory, libraries, modules and errors are those of the device's primary context, the base. A green context has a
 * context of its own for the calls that take one, and there its streams, its default stream and its SMs.
 */
#include "driver.h"

CUresult green_get(CUgreenCtx green) {
  TRY(require_init());
  REQUIRE(handle_is(green, HANDLE_GREEN), CUDA_ERROR_INVALID_CONTEXT, "%p is not a live green context", (void *)green);
  REQUIRE(green->ctx != NULL, CUDA_ERROR_CONTEXT_IS_DESTROYED, "the primary context of the green context was reset");
  return CUDA_SUCCESS;
}

static CUcontext view_new(CUcontext base, CUgreenCtx green) {
  CUcontext made = handle_new(HANDLE_CONTEXT, sizeof *made);
  if (made == NULL) return NULL;
  made->base = base;
  made->green = green;
  made->dev = base->dev;
  made->flags = base->flags;
  made->id = unique_id();
  if (sms_count(&green->desc->sms) > 0) made->sms = &green->desc->sms;
  stream_init(&made->legacy, made, 0, 0);
  context_events_begin(made);
  return made;
}

static CUresult green_new(CUcontext base, CUdevResourceDesc desc, CUgreenCtx *green) {
  CUgreenCtx made = handle_new(HANDLE_GREEN, sizeof *made);
  REQUIRE(made != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a green context");
  made->desc = desc;
  made->ctx = view_new(base, made);
  if (made->ctx == NULL) {
    handle_delete(made);
    return fail(CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a green context");
  }
  pthread_mutex_lock(&state_lock);
  made->next = base->greens;
  base->greens = made;
  gate_follow(&made->ctx->gate);
  pthread_mutex_unlock(&state_lock);
  *green = made;
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc desc, CUdevice ordinal, unsigned flags) {
  device *dev;
  CUcontext base;
  TRY(device_get(ordinal, &dev));
  REQUIRE_POINTER(green);
  REQUIRE(handle_is(desc, HANDLE_RESOURCES), CUDA_ERROR_INVALID_VALUE, "%p is no descriptor", (void *)desc);
  REQUIRE(desc->dev == dev, CUDA_ERROR_INVALID_VALUE, "the resources are those of device %d", desc->dev->ordinal);
  REQUIRE((flags & ~CU_GREEN_CTX_DEFAULT_STREAM) == 0, CUDA_ERROR_INVALID_VALUE, "%s: flags %#x", __func__, flags);
  sm_set all = sms_all(device_sms(dev));
  REQUIRE(sms_within(&desc->sms, &all), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
          "device %d has other SMs than when the descriptor was made", ordinal);
  TRY(primary_take(dev, &base));
  CUresult status = context_status(base);
  if (status == CUDA_SUCCESS) status = green_new(base, desc, green);
  if (status != CUDA_SUCCESS) (void)primary_drop(dev, false);
  return status;
}

static void forget_embedded(CUcontext view) {
  stream_forget(&view->legacy);
  context_events_end(view);
}

/* Its streams stay, but are of no use. */
static void detach_streams(CUcontext view) {
  while (view->streams != NULL) {
    CUstream s = view->streams;
    capture_spoil(s);
    pthread_mutex_lock(&state_lock);
    view->streams = s->next;
    s->next = view->base->streams;
    view->base->streams = s;
    s->home = view->base;
    s->detached = true;
    pthread_mutex_unlock(&state_lock);
  }
}

CUresult cuGreenCtxDestroy(CUgreenCtx green) {
  TRY(require_init());
  REQUIRE(handle_is(green, HANDLE_GREEN), CUDA_ERROR_INVALID_CONTEXT, "%p is not a live green context", (void *)green);
  CUcontext view = green->ctx;
  if (view == NULL) { /* its primary context was reset */
    handle_delete(green);
    return CUDA_SUCCESS;
  }
  TRY(context_wait(view));
  CUcontext base = view->base;
  pthread_mutex_lock(&state_lock);
  for (CUgreenCtx *at = &base->greens; *at != NULL; at = &(*at)->next)
    if (*at == green) {
      *at = green->next;
      break;
    }
  pthread_mutex_unlock(&state_lock);
  detach_streams(view);
  forget_embedded(view);
  handle_delete(view);
  handle_delete(green);
  return primary_drop(base->dev, false);
}

/* All work is done, and the streams go with the base. The handles stay, and say what has become of them. */
void greens_end(CUcontext base) {
  for (CUgreenCtx green = base->greens; green != NULL; green = green->next) {
    CUcontext view = green->ctx;
    green->ctx = NULL;
    while (view->streams != NULL) stream_forget(view->streams);
    forget_embedded(view);
    handle_delete(view);
  }
  base->greens = NULL;
}

CUresult cuCtxFromGreenCtx(CUcontext *ctx, CUgreenCtx green) {
  REQUIRE_POINTER(ctx);
  TRY(green_get(green));
  *ctx = green->ctx;
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxGetId(CUgreenCtx green, unsigned long long *id) {
  TRY(require_init());
  REQUIRE_POINTER(id);
  CUcontext home = peek_home();
  if (green == NULL && home != NULL) green = home->green;
  TRY(green_get(green));
  *id = green->ctx->id;
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned flags, int priority) {
  REQUIRE_POINTER(stream);
  TRY(green_get(green));
  TRY(context_status(green->ctx));
  REQUIRE(flags == CU_STREAM_NON_BLOCKING, CUDA_ERROR_INVALID_VALUE, "%s: flags %#x, not CU_STREAM_NON_BLOCKING",
          __func__, flags);
  return stream_new(green->ctx, flags, priority, stream);
}

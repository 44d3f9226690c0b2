/* Streams: handles, queries and waits. Their work is in work.c. */
#include "driver.h"

#include <stdlib.h>

void stream_init(CUstream s, CUcontext home, unsigned flags, int priority) {
  s->ctx = home->base;
  s->home = home;
  s->flags = flags;
  s->priority = priority;
  s->id = unique_id();
  track_take(s);
}

CUresult stream_new(CUcontext home, unsigned flags, int priority, CUstream *stream) {
  CUstream s = handle_new(HANDLE_STREAM, sizeof *s);
  REQUIRE(s != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a stream");
  stream_init(s, home, flags, priority > 0 ? 0 : priority < -5 ? -5 : priority);
  pthread_mutex_lock(&state_lock);
  s->next = home->streams;
  home->streams = s;
  gate_follow(s);
  pthread_mutex_unlock(&state_lock);
  *stream = s;
  return CUDA_SUCCESS;
}

void stream_forget(CUstream s) {
  capture_drop_stream(s);
  pthread_mutex_lock(&state_lock);
  for (CUstream *at = &s->home->streams; *at != NULL; at = &(*at)->next)
    if (*at == s) {
      *at = s->next;
      break;
    }
  pthread_mutex_unlock(&state_lock);
  nodes_clear(&s->tail);
  track_give_back(s);
  if (handle_is(s, HANDLE_STREAM)) stream_let_go(s); /* else it is a part of its context */
}

/* The same as stream_get, but without the sticky error of a kernel. */
static CUresult stream_find(CUstream given, CUstream *s) {
  TRY(require_init());
  CUcontext ctx = peek_home();
  if (given == NULL || given == CU_STREAM_LEGACY || given == CU_STREAM_PER_THREAD) {
    REQUIRE(ctx != NULL, CUDA_ERROR_INVALID_CONTEXT, "no context is current in this thread");
    REQUIRE(given != CU_STREAM_PER_THREAD || ctx->green == NULL, CUDA_ERROR_INVALID_HANDLE,
            "a green context has no stream for each thread");
    *s = given == CU_STREAM_PER_THREAD ? &ctx->per_thread : &ctx->legacy;
    return CUDA_SUCCESS;
  }
  REQUIRE(handle_is(given, HANDLE_STREAM), CUDA_ERROR_INVALID_HANDLE, "%p is not a live stream", (void *)given);
  REQUIRE(!given->detached, CUDA_ERROR_STREAM_DETACHED, "the stream's green context is destroyed");
  *s = given;
  return CUDA_SUCCESS;
}

CUresult stream_get(CUstream given, CUstream *s) {
  TRY(stream_find(given, s));
  return context_status((*s)->ctx);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
  CUcontext ctx;
  TRY(current_context(&ctx));
  REQUIRE_POINTER(stream);
  REQUIRE((flags & ~CU_STREAM_NON_BLOCKING) == 0, CUDA_ERROR_INVALID_VALUE, "%s: flags %#x", __func__, flags);
  return stream_new(peek_home(), flags, priority, stream);
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }

CUresult cuStreamDestroy_v2(CUstream stream) {
  TRY(require_init());
  REQUIRE(handle_is(stream, HANDLE_STREAM), CUDA_ERROR_INVALID_HANDLE, "%p is not a live stream", (void *)stream);
  stream_forget(stream);
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
  CUstream s;
  TRY(stream_get(stream, &s));
  TRY(capture_forbids(s));
  TRY(stream_wait(s));
  return context_status(s->ctx);
}

CUresult cuStreamQuery(CUstream stream) {
  CUstream s;
  TRY(stream_get(stream, &s));
  TRY(capture_forbids(s));
  return stream_idle(s) ? context_status(s->ctx) : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamGetFlags(CUstream stream, unsigned *flags) {
  CUstream s;
  REQUIRE_POINTER(flags);
  TRY(stream_find(stream, &s));
  *flags = s->flags;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetPriority(CUstream stream, int *priority) {
  CUstream s;
  REQUIRE_POINTER(priority);
  TRY(stream_find(stream, &s));
  *priority = s->priority;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream stream, unsigned long long *id) {
  CUstream s;
  REQUIRE_POINTER(id);
  TRY(stream_find(stream, &s));
  *id = s->id;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *ctx) {
  CUstream s;
  REQUIRE_POINTER(ctx);
  TRY(stream_find(stream, &s));
  *ctx = s->home;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *ctx, CUgreenCtx *green) {
  CUstream s;
  REQUIRE_POINTER(ctx);
  TRY(stream_find(stream, &s));
  *ctx = s->ctx;
  if (green != NULL) *green = s->home->green;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetGreenCtx(CUstream stream, CUgreenCtx *green) {
  CUcontext ctx;
  REQUIRE_POINTER(green);
  return cuStreamGetCtx_v2(stream, &ctx, green);
}

CUresult cuStreamGetDevice(CUstream stream, CUdevice *dev) {
  CUstream s;
  REQUIRE_POINTER(dev);
  TRY(stream_find(stream, &s));
  *dev = s->ctx->dev->ordinal;
  return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *data) {
  CUstream s;
  TRY(stream_get(stream, &s));
  REQUIRE_POINTER(fn);
  return submit(s, &(op){.kind = OP_HOST, .host = {fn, data}}, false);
}

CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t bytes, unsigned flags) {
  CUstream s;
  (void)flags; /* managed memory is always visible everywhere */
  TRY(stream_get(stream, &s));
  return memory_check(address, bytes, true);
}

/* Copy and set calls: checked, made into operations and submitted. */
#include "driver.h"

enum { STAGED_BYTES = 64 << 10 };

static copy linear(CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
  return (copy){.dst = (uint8_t *)(uintptr_t)dst,
                .src = (const uint8_t *)(uintptr_t)src,
                .width = bytes,
                .height = 1,
                .depth = 1};
}

static bool on_device(uintptr_t address, bool *pageable) {
  allocation found;
  bool known = memory_find(address, &found);
  if (!known) *pageable = true;
  return known && found.dev != NULL;
}

/* Submits a copy. The caller may reuse pageable host memory after the call, so it stages a small source, or waits. */
static CUresult submit_copy(CUstream stream, copy c, bool src_known, bool dst_known, bool now) {
  CUstream s;
  bool from_pageable = false, to_pageable = false;
  TRY(stream_get(stream, &s));
  TRY(copy_check(&c, src_known, dst_known));
  if (c.width == 0 || c.height == 0 || c.depth == 0) return CUDA_SUCCESS;
  bool from_device = on_device((uintptr_t)c.src, &from_pageable), to_device = on_device((uintptr_t)c.dst, &to_pageable);
  c.staged = from_pageable && !now && c.height == 1 && c.depth == 1 && c.width <= STAGED_BYTES &&
             atomic_load_explicit(&s->capture, memory_order_relaxed) == NULL;
  bool wait = (now && !(from_device && to_device)) || to_pageable || (from_pageable && !c.staged);
  return submit(s, &(op){.kind = OP_COPY, .copy = c}, wait);
}

/* A copy without a stream, which cannot be captured; it waits, unless both ends are on devices. */
static CUresult copy_now(copy c, bool src_known, bool dst_known) {
  CUcontext ctx;
  TRY(current_context(&ctx));
  TRY(capture_gate());
  return submit_copy(NULL, c, src_known, dst_known, true);
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
  return copy_now(linear(dst, src, bytes), false, false);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t bytes) {
  return copy_now(linear(dst, (CUdeviceptr)(uintptr_t)src, bytes), false, true);
}

CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t bytes) {
  return copy_now(linear((CUdeviceptr)(uintptr_t)dst, src, bytes), true, false);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
  return copy_now(linear(dst, src, bytes), true, true);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  return submit_copy(stream, linear(dst, src, bytes), false, false, false);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream) {
  return submit_copy(stream, linear(dst, (CUdeviceptr)(uintptr_t)src, bytes), false, true, false);
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  return submit_copy(stream, linear((CUdeviceptr)(uintptr_t)dst, src, bytes), true, false, false);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  return submit_copy(stream, linear(dst, src, bytes), true, true, false);
}

static CUresult peers(CUcontext dst, CUcontext src) {
  TRY(require_init());
  REQUIRE(handle_is(dst, HANDLE_CONTEXT) && handle_is(src, HANDLE_CONTEXT), CUDA_ERROR_INVALID_CONTEXT,
          "a peer copy needs two live contexts");
  return CUDA_SUCCESS;
}

CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t bytes) {
  TRY(peers(dst_ctx, src_ctx));
  return cuMemcpyDtoD_v2(dst, src, bytes);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t bytes,
                           CUstream stream) {
  TRY(peers(dst_ctx, src_ctx));
  return cuMemcpyDtoDAsync_v2(dst, src, bytes, stream);
}

static CUDA_MEMCPY3D from_2d(const CUDA_MEMCPY2D *p) {
  return (CUDA_MEMCPY3D){.srcXInBytes = p->srcXInBytes,
                         .srcY = p->srcY,
                         .srcMemoryType = p->srcMemoryType,
                         .srcHost = p->srcHost,
                         .srcDevice = p->srcDevice,
                         .srcPitch = p->srcPitch,
                         .dstXInBytes = p->dstXInBytes,
                         .dstY = p->dstY,
                         .dstMemoryType = p->dstMemoryType,
                         .dstHost = p->dstHost,
                         .dstDevice = p->dstDevice,
                         .dstPitch = p->dstPitch,
                         .WidthInBytes = p->WidthInBytes,
                         .Height = p->Height,
                         .Depth = 1};
}

CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *p) {
  copy c;
  REQUIRE_POINTER(p);
  TRY(copy_from_3d(p, &c));
  return copy_now(c, false, false);
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *p, CUstream stream) {
  copy c;
  REQUIRE_POINTER(p);
  TRY(copy_from_3d(p, &c));
  return submit_copy(stream, c, false, false, false);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *p) {
  REQUIRE_POINTER(p);
  CUDA_MEMCPY3D p3 = from_2d(p);
  return cuMemcpy3D_v2(&p3);
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *p) { return cuMemcpy2D_v2(p); }

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *p, CUstream stream) {
  REQUIRE_POINTER(p);
  CUDA_MEMCPY3D p3 = from_2d(p);
  return cuMemcpy3DAsync_v2(&p3, stream);
}

/* True if the host can read the memory without a copy: then CUDA's sets without a stream are done when they return. */
static bool is_hosts(uintptr_t address) {
  allocation found;
  if (!memory_find(address, &found)) return false;
  return found.kind == MEMORY_GLOBAL ? found.flags == SEEN_BY_HOST : found.kind != MEMORY_DEVICE;
}

static CUresult set(CUstream stream, CUdeviceptr dst, size_t pitch, uint32_t value, uint32_t element_bytes,
                    size_t width, size_t height, bool now) {
  CUstream s;
  fill f = {.dst = (uint8_t *)(uintptr_t)dst,
            .value = value,
            .element_bytes = element_bytes,
            .width = width,
            .height = height,
            .pitch = pitch};
  TRY(stream_get(stream, &s));
  if (now) TRY(capture_gate());
  TRY(fill_check(&f));
  if (width == 0 || height == 0) return CUDA_SUCCESS;
  return submit(s, &(op){.kind = OP_FILL, .fill = f}, now && is_hosts(dst));
}

CUresult cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t n) {
  return set(NULL, dst, 0, value, 1, n, 1, true);
}
CUresult cuMemsetD16_v2(CUdeviceptr dst, unsigned short value, size_t n) {
  return set(NULL, dst, 0, value, 2, n, 1, true);
}
CUresult cuMemsetD32_v2(CUdeviceptr dst, unsigned value, size_t n) { return set(NULL, dst, 0, value, 4, n, 1, true); }

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n, CUstream stream) {
  return set(stream, dst, 0, value, 1, n, 1, false);
}

CUresult cuMemsetD16Async(CUdeviceptr dst, unsigned short value, size_t n, CUstream stream) {
  return set(stream, dst, 0, value, 2, n, 1, false);
}

CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned value, size_t n, CUstream stream) {
  return set(stream, dst, 0, value, 4, n, 1, false);
}

CUresult cuMemsetD2D8_v2(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height) {
  return set(NULL, dst, pitch, value, 1, width, height, true);
}

CUresult cuMemsetD2D32_v2(CUdeviceptr dst, size_t pitch, unsigned value, size_t width, size_t height) {
  return set(NULL, dst, pitch, value, 4, width, height, true);
}

CUresult cuMemsetD2D8Async(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height,
                           CUstream stream) {
  return set(stream, dst, pitch, value, 1, width, height, false);
}

CUresult cuMemsetD2D32Async(CUdeviceptr dst, size_t pitch, unsigned value, size_t width, size_t height,
                            CUstream stream) {
  return set(stream, dst, pitch, value, 4, width, height, false);
}

CUresult cuMemsetD2D16_v2(CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height) {
  return set(NULL, dst, pitch, value, 2, width, height, true);
}

CUresult cuMemsetD2D16Async(CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height,
                            CUstream stream) {
  return set(stream, dst, pitch, value, 2, width, height, false);
}

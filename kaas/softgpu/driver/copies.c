/* Copies between contexts in three dimensions, and many copies at once. */
#include "driver.h"

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream);
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *p);
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *p, CUstream stream);

/* CUDA_MEMCPY3D_PEER is CUDA_MEMCPY3D with the contexts in its two reserved fields. */
static CUresult check_peers(const CUDA_MEMCPY3D *p) {
  TRY(require_init());
  REQUIRE_POINTER(p);
  bool live = (p->srcMemoryType != CU_MEMORYTYPE_DEVICE || handle_is(p->reserved0, HANDLE_CONTEXT)) &&
              (p->dstMemoryType != CU_MEMORYTYPE_DEVICE || handle_is(p->reserved1, HANDLE_CONTEXT));
  REQUIRE(live, CUDA_ERROR_INVALID_CONTEXT, "a peer copy needs two live contexts");
  return CUDA_SUCCESS;
}

CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D *p) {
  TRY(check_peers(p));
  return cuMemcpy3D_v2(p);
}

CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D *p, CUstream stream) {
  TRY(check_peers(p));
  return cuMemcpy3DAsync_v2(p, stream);
}

/* The attributes say when a source may be read, and where memory lies: every source is read in stream order here. */
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, void *attributes,
                               size_t *first, size_t attribute_count, CUstream stream) {
  (void)attributes, (void)first;
  REQUIRE(count > 0 && to != NULL && from != NULL && sizes != NULL && attribute_count <= count,
          CUDA_ERROR_INVALID_VALUE, "%s: %zu copies, %zu attributes", __func__, count, attribute_count);
  for (size_t i = 0; i < count; i++) TRY(cuMemcpyAsync(to[i], from[i], sizes[i], stream));
  return CUDA_SUCCESS;
}

CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, void *attributes,
                            size_t *first, size_t attribute_count, size_t *failed, CUstream stream) {
  CUresult status = cuMemcpyBatchAsync_v2(to, from, sizes, count, attributes, first, attribute_count, stream);
  if (status != CUDA_SUCCESS && failed != NULL) *failed = SIZE_MAX; /* not known which, says CUDA */
  return status;
}

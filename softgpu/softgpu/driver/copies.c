/* Copies between contexts in three dimensions, and many copies at once. */
#include "driver.h"

#include <string.h>

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream);
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *p);
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *p, CUstream stream);

static CUresult from_peers(const CUDA_MEMCPY3D_PEER *p, CUDA_MEMCPY3D *copy) {
  TRY(require_init());
  REQUIRE_POINTER(p);
  bool live = (p->srcMemoryType != CU_MEMORYTYPE_DEVICE || handle_is(p->srcContext, HANDLE_CONTEXT)) &&
              (p->dstMemoryType != CU_MEMORYTYPE_DEVICE || handle_is(p->dstContext, HANDLE_CONTEXT));
  REQUIRE(live, CUDA_ERROR_INVALID_CONTEXT, "a peer copy needs two live contexts");
  memcpy(copy, p, sizeof *copy);
  copy->reserved0 = copy->reserved1 = NULL;
  return CUDA_SUCCESS;
}

CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *p) {
  CUDA_MEMCPY3D copy;
  TRY(from_peers(p, &copy));
  return cuMemcpy3D_v2(&copy);
}

CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *p, CUstream stream) {
  CUDA_MEMCPY3D copy;
  TRY(from_peers(p, &copy));
  return cuMemcpy3DAsync_v2(&copy, stream);
}

/* The attributes, the time to read a source and the place of memory, are ignored: sources are read in stream order. */
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                               CUmemcpyAttributes *attributes, size_t *first, size_t attribute_count, CUstream stream) {
  (void)attributes, (void)first;
  REQUIRE(count > 0 && to != NULL && from != NULL && sizes != NULL && attribute_count <= count,
          CUDA_ERROR_INVALID_VALUE, "%s: %zu copies, %zu attributes", __func__, count, attribute_count);
  for (size_t i = 0; i < count; i++) TRY(cuMemcpyAsync(to[i], from[i], sizes[i], stream));
  return CUDA_SUCCESS;
}

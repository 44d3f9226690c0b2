/* Queries of pointers: the kind, the owner and the size of the memory they point to. */
#include "driver.h"

#include <string.h>

static bool on_device(const allocation *entry) { return entry->kind == MEMORY_DEVICE || entry->kind == MEMORY_GLOBAL; }

/* Writes attribute into data, whose size the attribute implies. entry is NULL for memory that is not ours. */
static CUresult get(void *data, CUpointer_attribute attribute, CUdeviceptr address, const allocation *entry) {
  static const allocation unknown;
  const allocation *e = entry != NULL ? entry : &unknown;
  bool known = entry != NULL, device = known && on_device(e);
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)data = e->ctx; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *(unsigned *)data = !known ? 0 : device || e->kind == MEMORY_MANAGED ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)data = known ? address : 0; break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      *(void **)data = known && !device ? (void *)(uintptr_t)address : NULL;
      break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)data = e->id; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(int *)data = known && e->kind == MEMORY_MANAGED; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *(int *)data = !known ? -2 : e->dev != NULL ? e->dev->ordinal : e->ctx != NULL ? e->ctx->dev->ordinal : -1;
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(void **)data = (void *)e->base; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)data = e->bytes; break;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(int *)data = known; break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: *(int *)data = 0; break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      *(unsigned long long *)data = known && e->mapped ? mapped_handle_types(address) : 0;
      break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: *(int *)data = known ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : 0; break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: *(CUmemoryPool *)data = e->pool; break;
    default: return fail(CUDA_ERROR_INVALID_VALUE, "pointer attribute %d is not known", (int)attribute);
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address) {
  allocation entry;
  TRY(require_init());
  REQUIRE_POINTER(data);
  REQUIRE(memory_find(address, &entry), CUDA_ERROR_INVALID_VALUE, "0x%llx lies in no live allocation", address);
  return get(data, attribute, address, &entry);
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **data, CUdeviceptr address) {
  allocation entry;
  TRY(require_init());
  REQUIRE_POINTER(attributes);
  REQUIRE_POINTER(data);
  bool known = memory_find(address, &entry); /* this call does not refuse unknown pointers */
  for (unsigned i = 0; i < count; i++) {
    REQUIRE_POINTER(data[i]);
    TRY(get(data[i], attributes[i], address, known ? &entry : NULL));
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr address) {
  allocation entry;
  TRY(require_init());
  REQUIRE_POINTER(value);
  REQUIRE(attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, CUDA_ERROR_INVALID_VALUE, "pointer attribute %d cannot be set",
          (int)attribute);
  REQUIRE(memory_find(address, &entry), CUDA_ERROR_INVALID_VALUE, "0x%llx lies in no live allocation", address);
  return CUDA_SUCCESS; /* the attribute has no effect: copies that wait always wait */
}

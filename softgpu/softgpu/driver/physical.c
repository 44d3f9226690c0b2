/* Memory that programs map by hand: files of the host's memory, counted against their device. */
#include <unistd.h>

#include "mapped.h"

CUresult physical_check(const CUmemAllocationProp *props, device **dev) {
  REQUIRE_POINTER(props);
  REQUIRE(props->type == CU_MEM_ALLOCATION_TYPE_PINNED, CUDA_ERROR_INVALID_VALUE, "memory of type %d cannot be mapped",
          (int)props->type);
  REQUIRE((props->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0, CUDA_ERROR_NOT_SUPPORTED,
          "memory is shared as a file descriptor only, not as handle type %#x", (unsigned)props->requestedHandleTypes);
  REQUIRE(props->location.type == CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_NOT_SUPPORTED,
          "only memory of devices can be mapped, not of location type %d", (int)props->location.type);
  return device_get(props->location.id, dev);
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *props,
                                       CUmemAllocationGranularity_flags option) {
  device *dev;
  TRY(require_init());
  REQUIRE_POINTER(granularity);
  TRY(physical_check(props, &dev));
  REQUIRE(option == CU_MEM_ALLOC_GRANULARITY_MINIMUM || option == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
          CUDA_ERROR_INVALID_VALUE, "there is no granularity %d", (int)option);
  *granularity = MAP_GRANULARITY;
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *made, size_t bytes, const CUmemAllocationProp *props,
                     unsigned long long flags) {
  device *dev;
  TRY(require_init());
  REQUIRE_POINTER(made);
  TRY(physical_check(props, &dev));
  REQUIRE(bytes > 0 && flags == 0, CUDA_ERROR_INVALID_VALUE, "%s: %zu bytes, flags %#llx", __func__, bytes, flags);
  REQUIRE_WHOLE(bytes);
  if (dev->faulty) TRY(fault_at(FAULT_AT_ALLOCATION, dev, NULL, ""));
  TRY(memory_reserve(dev, bytes, NULL));
  physical *p = handle_new(HANDLE_PHYSICAL, sizeof *p);
  if (p != NULL) {
    p->dev = dev;
    p->props = *props;
    p->bytes = bytes;
    p->references = 1;
  }
  if (p == NULL || !memory_file_new(p)) {
    if (p != NULL) handle_delete(p);
    memory_unreserve(dev, bytes);
    return fail(CUDA_ERROR_OUT_OF_MEMORY, "the host has no %zu bytes left", bytes);
  }
  *made = (uintptr_t)p;
  return CUDA_SUCCESS;
}

void physical_drop_locked(physical *p) {
  if (p->references == 0) handle_kill(p);
  if (p->references > 0 || p->mappings > 0) return;
  if (p->shares_file) device_file_give_locked(p);
  else close(p->file);
  if (shared_leave_locked(p)) memory_unreserve(p->dev, p->bytes);
  handle_bury(p, HANDLE_PHYSICAL);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle memory) {
  physical *p = (physical *)(uintptr_t)memory;
  TRY(require_init());
  pthread_mutex_lock(&mapped_lock);
  bool live = handle_is(p, HANDLE_PHYSICAL);
  if (live) {
    p->references--;
    physical_drop_locked(p);
  }
  pthread_mutex_unlock(&mapped_lock);
  REQUIRE(live, CUDA_ERROR_INVALID_VALUE, "0x%llx is no live handle of memory", memory);
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *memory, void *address) {
  TRY(require_init());
  REQUIRE_POINTER(memory);
  pthread_mutex_lock(&mapped_lock);
  physical *p = mapped_at_locked((uintptr_t)address);
  if (p != NULL) {
    p->references++;
    p->head.kind = HANDLE_PHYSICAL; /* all handles may have been released */
  }
  pthread_mutex_unlock(&mapped_lock);
  REQUIRE(p != NULL, CUDA_ERROR_INVALID_VALUE, "no memory is mapped at %p", address);
  *memory = (uintptr_t)p;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *props, CUmemGenericAllocationHandle memory) {
  const physical *p = (const physical *)(uintptr_t)memory;
  TRY(require_init());
  REQUIRE_POINTER(props);
  REQUIRE(handle_is(p, HANDLE_PHYSICAL), CUDA_ERROR_INVALID_VALUE, "0x%llx is no live handle of memory", memory);
  *props = p->props;
  return CUDA_SUCCESS;
}

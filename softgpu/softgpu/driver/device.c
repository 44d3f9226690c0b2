/* Devices: names, sizes and attributes. They look like an sm_80 GPU, whose kernels they run. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* An absent attribute is 0: not supported. */
static const int attributes[CU_DEVICE_ATTRIBUTE_MAX] = {
    [CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = MAX_THREADS,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X] = MAX_THREADS,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y] = MAX_THREADS,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z] = MAX_BLOCK_Z,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X] = INT32_MAX,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y] = MAX_GRID_YZ,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z] = MAX_GRID_YZ,
    [CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK] = SHARED_DEFAULT_BYTES,
    [CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY] = 64 << 10,
    [CU_DEVICE_ATTRIBUTE_WARP_SIZE] = SG_WARP,
    [CU_DEVICE_ATTRIBUTE_MAX_PITCH] = INT32_MAX,
    [CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK] = 65536,
    [CU_DEVICE_ATTRIBUTE_CLOCK_RATE] = 1000000,
    [CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT] = ALIGNMENT,
    [CU_DEVICE_ATTRIBUTE_GPU_OVERLAP] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY] = 1,
    [CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS] = 1,
    [CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE] = 1000000,
    [CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH] = 64,
    [CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE] = 1 << 20,
    [CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR] = 2048,
    [CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT] = 1,
    [CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING] = 1,
    [CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 8,
    [CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR] = 0,
    [CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR] = SHARED_SM_BYTES,
    [CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR] = 65536,
    [CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY] = 1,
    [CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO] = 2,
    [CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS] = 1,
    [CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM] = 1,
    [CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN] = SHARED_OPTIN_BYTES,
    [CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR] = 32,
    [CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK] = 1024,
    [CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR] = 1,
    [CU_DEVICE_ATTRIBUTE_NUMA_ID] = -1,
    [CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED] = 1,
};
enum { FIRST_PCI_BUS = 0x80 };

int processor_count(void) {
  long processors = sysconf(_SC_NPROCESSORS_ONLN);
  return processors > 0 ? (int)processors : 1;
}

uint32_t device_all_sms(const device *dev) {
  int processors = processor_count();
  return dev->sms != 0 ? dev->sms : processors < MAX_SMS ? (uint32_t)processors : MAX_SMS;
}

static double active_percentage = 100;

static void read_active_percentage(void) {
  const char *text = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
  char *end = NULL;
  double given = text != NULL ? strtod(text, &end) : 0;
  if (end != text && end != NULL && *end == '\0' && given > 0 && given <= 100) active_percentage = given;
}

uint32_t device_sms(const device *dev) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, read_active_percentage);
  double part = device_all_sms(dev) * active_percentage / 100;
  uint32_t whole = (uint32_t)part;
  return whole + (whole < part);
}

uint32_t context_sms(const struct CUctx_st *ctx) {
  return ctx->sms != NULL ? sms_count(ctx->sms) : device_sms(ctx->dev);
}

CUresult cuDeviceGetCount(int *count) {
  TRY(require_init());
  REQUIRE_POINTER(count);
  *count = device_count;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *dev, int ordinal) {
  device *found;
  REQUIRE_POINTER(dev);
  TRY(device_get(ordinal, &found));
  *dev = found->ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice dev) {
  device *d;
  TRY(device_get(dev, &d));
  REQUIRE_POINTER(name);
  REQUIRE(length > 0, CUDA_ERROR_INVALID_VALUE, "%s: length %d", __func__, length);
  snprintf(name, (size_t)length, "KaaS software GPU");
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev) {
  device *d;
  TRY(device_get(dev, &d));
  REQUIRE_POINTER(uuid);
  memcpy(uuid->bytes, "KaaS softwareGPU", sizeof uuid->bytes);
  uuid->bytes[15] = (char)d->ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev) {
  device *d;
  TRY(device_get(dev, &d));
  REQUIRE_POINTER(bytes);
  *bytes = d->memory_bytes;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice dev) {
  device *d;
  TRY(device_get(dev, &d));
  REQUIRE_POINTER(value);
  REQUIRE((int)attribute > 0 && attribute < CU_DEVICE_ATTRIBUTE_MAX, CUDA_ERROR_INVALID_VALUE,
          "there is no device attribute %d", (int)attribute);
  *value = attributes[attribute];
  if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) *value = FIRST_PCI_BUS + d->ordinal;
  if (attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) *value = (int)device_sms(d);
  return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev) {
  TRY(cuDeviceGetAttribute(major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, dev));
  return cuDeviceGetAttribute(minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, dev);
}

CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice dev) {
  device *d;
  TRY(device_get(dev, &d));
  REQUIRE_POINTER(text);
  int needed = snprintf(text, length > 0 ? (size_t)length : 0, "0000:%02x:00.0", FIRST_PCI_BUS + d->ordinal);
  REQUIRE(needed < length, CUDA_ERROR_INVALID_VALUE, "%s: %d bytes do not hold a bus id", __func__, length);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *text) {
  unsigned domain, bus, slot, function;
  TRY(require_init());
  REQUIRE_POINTER(dev);
  REQUIRE_POINTER(text);
  bool read = sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) == 4;
  REQUIRE(read && domain == 0 && slot == 0 && function == 0 && bus >= FIRST_PCI_BUS &&
              bus < (unsigned)(FIRST_PCI_BUS + device_count),
          CUDA_ERROR_INVALID_DEVICE, "no device has the bus id %s", text);
  *dev = (CUdevice)bus - FIRST_PCI_BUS;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetExecAffinitySupport(int *supported, CUexecAffinityType type, CUdevice dev) {
  device *d;
  (void)type;
  TRY(device_get(dev, &d));
  REQUIRE_POINTER(supported);
  *supported = 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer) {
  device *d;
  TRY(device_get(dev, &d));
  TRY(device_get(peer, &d));
  REQUIRE_POINTER(can);
  *can = dev != peer;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice dev, CUdevice peer) {
  device *d;
  TRY(device_get(dev, &d));
  TRY(device_get(peer, &d));
  REQUIRE_POINTER(value);
  REQUIRE(dev != peer, CUDA_ERROR_INVALID_DEVICE, "device %d is no peer of itself", dev);
  *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED ||
           attribute == CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice dev) {
  device *d;
  TRY(device_get(dev, &d));
  REQUIRE_POINTER(pool);
  *pool = d->default_pool;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev) {
  device *d;
  TRY(device_get(dev, &d));
  REQUIRE_POINTER(pool);
  *pool = d->pool;
  return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
  device *d;
  TRY(device_get(dev, &d));
  REQUIRE_HANDLE(pool, HANDLE_POOL);
  REQUIRE(pool->dev == d, CUDA_ERROR_INVALID_VALUE, "the pool does not live on device %d", dev);
  d->pool = pool;
  return CUDA_SUCCESS;
}

/* The driver's entry: configuration, cuInit, and the checks that it came first. */
#include "driver.h"

#include <string.h>

device devices[MAX_DEVICES];
int device_count;
bool initialised;
struct sealed sealed SEALED;
pthread_mutex_t state_lock = PTHREAD_MUTEX_INITIALIZER;
static bool configured;

int softgpu_configure(uint32_t count, const uint64_t *memory_bytes, const sg_compiler *with) {
  REQUIRE(with != NULL && with->load && with->describe && with->announce && with->compile && with->unload, CUDA_ERROR_INVALID_VALUE,
          "the compiler's functions are missing");
  REQUIRE(count >= 1 && count <= MAX_DEVICES && memory_bytes != NULL, CUDA_ERROR_INVALID_VALUE,
          "%u devices asked for; 1 to %d are possible", count, MAX_DEVICES);
  pthread_mutex_lock(&state_lock);
  bool late = configured;
  if (!late) {
    sealed.compiler = *with;
    seal(&sealed, PROT_READ);
    for (uint32_t i = 0; i < count; i++) devices[i] = (device){.ordinal = (int)i, .memory_bytes = memory_bytes[i]};
    device_count = (int)count;
    configured = true;
  }
  pthread_mutex_unlock(&state_lock);
  REQUIRE(!late, CUDA_ERROR_INVALID_VALUE, "the software devices of a process are configured once");
  return CUDA_SUCCESS;
}

int softgpu_cancel(uint32_t ordinal) {
  REQUIRE(ordinal < (uint32_t)device_count, CUDA_ERROR_INVALID_DEVICE, "there is no device %u (of %d)", ordinal,
          device_count);
  device *dev = &devices[ordinal];
  if (atomic_load(&dev->stop) == 0) {
    (void)softgpu_running(ordinal, dev->stopped, sizeof dev->stopped);
    for (char *at = dev->stopped; (at = strchr(at, '\n')) != NULL;) *at = ' ';
  }
  atomic_store(&dev->stop, 1);
  work_end_sleeps();
  faults_let_go(false);
  return CUDA_SUCCESS;
}

static CUresult init_device(device *dev) {
  CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                          .location = {CU_MEM_LOCATION_TYPE_DEVICE, dev->ordinal}};
  TRY(pool_new(&props, dev, &dev->default_pool));
  dev->pool = dev->default_pool;
  return CUDA_SUCCESS;
}

static CUresult init_host(void) {
  CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_HOST, 0}};
  TRY(pool_new(&props, NULL, &host_pool));
  props = (CUmemPoolProps){.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED};
  return pool_new(&props, NULL, &managed_pool);
}

static CUresult init_locked(void) {
  if (initialised) return CUDA_SUCCESS;
  REQUIRE(configured, CUDA_ERROR_NO_DEVICE, "cuInit: no software devices were configured");
  TRY(init_host());
  for (int i = 0; i < device_count; i++) TRY(init_device(&devices[i]));
  initialised = true;
  return CUDA_SUCCESS;
}

CUresult cuInit(unsigned flags) {
  REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE, "cuInit: flags must be 0, not %u", flags);
  pthread_mutex_lock(&state_lock);
  CUresult status = init_locked();
  pthread_mutex_unlock(&state_lock);
  return status;
}

CUresult cuDriverGetVersion(int *version) {
  REQUIRE_POINTER(version);
  *version = DRIVER_VERSION;
  return CUDA_SUCCESS;
}

CUresult require_init(void) {
  REQUIRE(initialised, CUDA_ERROR_NOT_INITIALIZED, "cuInit has not been called");
  return CUDA_SUCCESS;
}

CUresult device_get(CUdevice ordinal, device **dev) {
  TRY(require_init());
  REQUIRE(ordinal >= 0 && ordinal < device_count, CUDA_ERROR_INVALID_DEVICE, "there is no device %d (of %d)", ordinal,
          device_count);
  *dev = &devices[ordinal];
  return CUDA_SUCCESS;
}

/* Faults on demand: at the n-th allocation, copy or kernel of a device, or at random by a seed. */
#include "driver.h"

#include <time.h>

enum { MOST_FAULTS = 32 };
enum fault_kind { OUT_OF_MEMORY_FAULT, LAUNCH_FAILURE, ILLEGAL_ADDRESS, HANG, SLOW_COPY, ECC_ERROR, LOST, FAULT_KINDS };

static const struct {
  enum fault_site site;
  CUresult sticks; /* 0: to nothing */
  const char *message;
} kinds[FAULT_KINDS] = {
    [OUT_OF_MEMORY_FAULT] = {FAULT_AT_ALLOCATION, 0, "out of memory"},
    [LAUNCH_FAILURE] = {FAULT_AT_KERNEL, CUDA_ERROR_LAUNCH_FAILED, "launch failed"},
    [ILLEGAL_ADDRESS] = {FAULT_AT_KERNEL, CUDA_ERROR_ILLEGAL_ADDRESS, "illegal address"},
    [HANG] = {FAULT_AT_KERNEL, CUDA_ERROR_LAUNCH_TIMEOUT, "hung until it was cancelled"},
    [SLOW_COPY] = {FAULT_AT_COPY, 0, "slow"},
    [ECC_ERROR] = {FAULT_AT_KERNEL, CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable memory error"},
    [LOST] = {FAULT_AT_KERNEL, CUDA_ERROR_UNKNOWN, "the device is lost"},
};

typedef struct fault {
  device *dev;
  enum fault_kind kind;
  uint64_t left;  /* the fault comes at the event for which this is 1 */
  double rate;    /* if not 0: it comes at each event with this probability */
  uint64_t state; /* of the random numbers */
  double seconds;
} fault;

static pthread_mutex_t fault_lock = PTHREAD_MUTEX_INITIALIZER;
static fault faults[MOST_FAULTS];
static size_t count;
static uint64_t cancelled; /* the number of times that all hangs were ended */
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;

static double draw(uint64_t *state) { /* splitmix64 */
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static bool comes_locked(fault *f) { return f->rate > 0 ? draw(&f->state) < f->rate : --f->left == 0; }

static bool find_locked(device *dev, enum fault_site site, fault *found) {
  bool any = false;
  for (size_t i = 0; i < count; i++) {
    if (faults[i].dev != dev || kinds[faults[i].kind].site != site || !comes_locked(&faults[i]) || any) continue;
    *found = faults[i];
    any = true;
    if (faults[i].rate == 0) faults[i--] = faults[--count]; /* once */
  }
  return any;
}

/* Waits until the hang is ended, the device must end its kernels, or the context dies. */
static void hang_locked(CUcontext ctx) {
  uint64_t before = cancelled;
  while (cancelled == before && !atomic_load(&ctx->dying) && atomic_load(&ctx->dev->stop) == 0)
    pthread_cond_wait(&ended, &fault_lock);
}

static void delay(const device *dev, int64_t duration_ns) {
  if (dev->model != NULL) model_set_clock(model_clock() + duration_ns);
  else nanosleep(&(struct timespec){duration_ns / 1000000000, duration_ns % 1000000000}, NULL);
}

CUresult fault_at(enum fault_site site, device *dev, CUcontext ctx, const char *name) {
  fault f = {0};
  pthread_mutex_lock(&fault_lock);
  bool comes = find_locked(dev, site, &f);
  if (comes && f.kind == HANG) hang_locked(ctx);
  if (comes && f.kind == LOST) atomic_store(&dev->lost, true);
  pthread_mutex_unlock(&fault_lock);
  if (!comes) return CUDA_SUCCESS;
  if (f.kind == OUT_OF_MEMORY_FAULT)
    return fail(CUDA_ERROR_OUT_OF_MEMORY, "device %d is out of memory, as was asked for", dev->ordinal);
  if (f.kind == SLOW_COPY) {
    delay(dev, (int64_t)(f.seconds * 1e9));
    return CUDA_SUCCESS;
  }
  return fail(kinds[f.kind].sticks, "kernel %s: %s, as was asked for", name, kinds[f.kind].message);
}

void faults_let_go(bool all) {
  pthread_mutex_lock(&fault_lock);
  cancelled += all;
  pthread_cond_broadcast(&ended);
  pthread_mutex_unlock(&fault_lock);
}

int softgpu_inject(uint32_t ordinal, uint32_t kind, uint64_t at, double rate, uint64_t seed, double seconds) {
  REQUIRE(ordinal < (uint32_t)device_count && kind < FAULT_KINDS && (at > 0 || rate > 0), CUDA_ERROR_INVALID_VALUE,
          "no such fault: device %u, kind %u", ordinal, kind);
  pthread_mutex_lock(&fault_lock);
  bool fits = count < MOST_FAULTS;
  if (fits)
    faults[count++] = (fault){
        .dev = &devices[ordinal], .kind = kind, .left = at, .rate = rate, .state = seed, .seconds = seconds};
  pthread_mutex_unlock(&fault_lock);
  REQUIRE(fits, CUDA_ERROR_INVALID_VALUE, "more than %d faults at a time", MOST_FAULTS);
  atomic_store(&devices[ordinal].faulty, true);
  return CUDA_SUCCESS;
}

void softgpu_end_hangs(void) { faults_let_go(true); }

/* Removes the faults that have not come yet, ends hangs, and brings lost devices back. */
void softgpu_forgive(void) {
  pthread_mutex_lock(&fault_lock);
  count = 0;
  pthread_mutex_unlock(&fault_lock);
  for (int i = 0; i < device_count; i++) {
    atomic_store(&devices[i].faulty, false);
    atomic_store(&devices[i].lost, false);
  }
  faults_let_go(true);
}

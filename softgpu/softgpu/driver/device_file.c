/* The memory file of a device, in which all its physical memory lies that no other process maps.
 *
 * A process has few descriptors, so that not each page can have a file of its own. Bytes are at the lowest offsets that
 * are free: pages that are mapped one after the other lie side by side, and Linux has one mapping for neighbours.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mapped.h"

static struct device_file { /* under mapped_lock */
  int file;       /* -1: none yet */
  uint8_t *taken; /* by units of MAP_GRANULARITY */
  size_t units, first_free;
  uintptr_t home; /* addresses of the driver's own for as many bytes as the device has; 0: none yet */
  size_t parked;
} files[MAX_DEVICES] = {[0 ... MAX_DEVICES - 1] = {.file = -1}};

/* A forked child takes no bytes of its parent's file, and frees none. */
static void forget(void) {
  for (int i = 0; i < MAX_DEVICES; i++) files[i] = (struct device_file){.file = -1};
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, forget); }

static bool grow_locked(struct device_file *f, size_t units) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, watch_forks);
  if (f->file < 0) f->file = memfd_create("softgpu", MFD_CLOEXEC); /* it can never be sealed */
  if (f->file < 0 || ftruncate(f->file, (off_t)units * MAP_GRANULARITY) != 0) return false;
  uint8_t *taken = realloc(f->taken, units);
  if (taken == NULL) return false;
  memset(taken + f->units, 0, units - f->units);
  f->taken = taken;
  f->units = units;
  return true;
}

bool device_file_take_locked(physical *p) {
  struct device_file *f = &files[p->dev->ordinal];
  size_t wanted = p->bytes / MAP_GRANULARITY, at = f->first_free, end = at;
  while (end < f->units && end - at < wanted)
    if (f->taken[end++]) at = end;
  if (end - at < wanted && !grow_locked(f, at + wanted)) return false;
  memset(f->taken + at, 1, wanted);
  if (at == f->first_free) f->first_free += wanted;
  p->shares_file = true;
  p->file = f->file;
  p->offset = (off_t)at * MAP_GRANULARITY;
  return true;
}

/* Makes sure that nothing is mapped at a place of the driver's own. */
static void leave_locked(struct device_file *f, off_t offset, size_t bytes) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  (void)mmap((void *)(f->home + (uintptr_t)offset), bytes, PROT_NONE, flags, -1, 0);
  f->parked--;
}

static bool move(uintptr_t from, uintptr_t to, size_t bytes) {
  const int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
  return mremap((void *)from, bytes, bytes, flags, (void *)to) != MAP_FAILED;
}

void device_file_park_locked(physical *p, uintptr_t from) {
  struct device_file *f = &files[p->dev->ordinal];
  size_t bytes = p->dev->memory_bytes;
  if (!p->shares_file || p->file != f->file || p->parked || (size_t)p->offset + p->bytes > bytes) return;
  if (f->home == 0) {
    void *all = mmap(NULL, bytes + MAP_GRANULARITY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return;
    f->home = ((uintptr_t)all + MAP_GRANULARITY - 1) & ~(uintptr_t)(MAP_GRANULARITY - 1);
  }
  p->parked = move(from, f->home + (uintptr_t)p->offset, p->bytes);
  f->parked += p->parked;
}

bool device_file_fetch_locked(physical *p, uintptr_t to) {
  struct device_file *f = &files[p->dev->ordinal];
  if (!p->parked || p->file != f->file || !move(f->home + (uintptr_t)p->offset, to, p->bytes)) return false;
  leave_locked(f, p->offset, p->bytes);
  p->parked = false;
  return true;
}

size_t device_file_parked_locked(void) {
  size_t parked = 0;
  for (int i = 0; i < MAX_DEVICES; i++) parked += files[i].parked;
  return parked;
}

/* Gives bytes back to the host, and makes zeros of them; false: they are still there. */
static bool punch(int file, off_t offset, size_t bytes) {
  int failed;
  do failed = fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, (off_t)bytes);
  while (failed != 0 && errno == EINTR);
  return failed == 0;
}

void device_file_give_locked(const physical *p) {
  struct device_file *f = &files[p->dev->ordinal];
  size_t at = (size_t)p->offset / MAP_GRANULARITY;
  if (p->file != f->file) return;
  if (p->parked) leave_locked(f, p->offset, p->bytes);
  if (!punch(p->file, p->offset, p->bytes)) return; /* nobody may get these bytes */
  memset(f->taken + at, 0, p->bytes / MAP_GRANULARITY);
  if (at < f->first_free) f->first_free = at;
}

/* Makes a handle of each unit at these offsets; false: the host has no memory left, or an offset is wrong. */
static bool take_over_locked(device *dev, struct device_file *f, const uint64_t *offsets, size_t count, uint64_t *made) {
  for (size_t i = 0; i < count; i++) {
    size_t at = offsets[i] / MAP_GRANULARITY;
    if (offsets[i] % MAP_GRANULARITY != 0 || at >= f->units || f->taken[at]) return false;
    physical *p = handle_new(HANDLE_PHYSICAL, sizeof *p);
    if (p == NULL) return false;
    p->dev = dev;
    p->props.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p->props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p->props.location.id = dev->ordinal;
    p->bytes = MAP_GRANULARITY;
    p->references = 1;
    p->shares_file = true;
    p->file = f->file;
    p->offset = (off_t)offsets[i];
    f->taken[at] = 1;
    made[i] = (uintptr_t)p;
  }
  return true;
}

static bool punch_the_rest_locked(const struct device_file *f) {
  for (size_t at = 0, end; at < f->units; at = end) {
    for (end = at + 1; end < f->units && f->taken[end] == f->taken[at];) end++;
    if (!f->taken[at] && !punch(f->file, (off_t)at * MAP_GRANULARITY, (end - at) * MAP_GRANULARITY)) return false;
  }
  return true;
}

static CUresult adopt_locked(device *dev, int file, const uint64_t *offsets, size_t count, uint64_t *made) {
  struct device_file *f = &files[dev->ordinal], adopted = {.file = fcntl(file, F_DUPFD_CLOEXEC, 0)};
  struct stat info;
  REQUIRE(f->file < 0, CUDA_ERROR_INVALID_VALUE, "device %d has memory of its own already", dev->ordinal);
  bool is_file = adopted.file >= 0 && fstat(adopted.file, &info) == 0 && S_ISREG(info.st_mode);
  adopted.units = is_file ? (size_t)info.st_size / MAP_GRANULARITY : 0;
  adopted.taken = calloc(adopted.units + 1, 1);
  memset(made, 0, count * sizeof *made);
  bool done = is_file && adopted.taken != NULL && take_over_locked(dev, &adopted, offsets, count, made) &&
              punch_the_rest_locked(&adopted);
  if (done) {
    *f = adopted;
    return CUDA_SUCCESS;
  }
  for (size_t i = 0; i < count && made[i] != 0; i++) handle_delete((physical *)(uintptr_t)made[i]);
  free(adopted.taken);
  if (adopted.file >= 0) close(adopted.file);
  return fail(CUDA_ERROR_INVALID_VALUE, "the descriptor %d is of no file with %zu such units of memory", file, count);
}

int softgpu_adopt(uint32_t ordinal, int file, const uint64_t *offsets, uint64_t count, uint64_t *made) {
  device *dev;
  TRY(require_init());
  TRY(device_get((int)ordinal, &dev));
  TRY(memory_reserve(dev, count * MAP_GRANULARITY, NULL));
  pthread_mutex_lock(&mapped_lock);
  CUresult status = adopt_locked(dev, file, offsets, count, made);
  pthread_mutex_unlock(&mapped_lock);
  if (status != CUDA_SUCCESS) memory_unreserve(dev, count * MAP_GRANULARITY);
  return status;
}

int softgpu_offset(uint64_t memory, uint64_t *offset) {
  const physical *p = (const physical *)(uintptr_t)memory;
  TRY(require_init());
  REQUIRE(handle_is(p, HANDLE_PHYSICAL) && p->shares_file, CUDA_ERROR_INVALID_VALUE,
          "%p is no handle of memory in the device's file", (const void *)p);
  *offset = (uint64_t)p->offset;
  return CUDA_SUCCESS;
}

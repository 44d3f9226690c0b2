/* The memory file of a device, in which all its physical memory lies that no other process may have.
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

void device_file_give_locked(const physical *p) {
  struct device_file *f = &files[p->dev->ordinal];
  size_t at = (size_t)p->offset / MAP_GRANULARITY;
  const int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  int failed;
  if (p->file != f->file) return;
  if (p->parked) leave_locked(f, p->offset, p->bytes);
  do failed = fallocate(p->file, punch, p->offset, (off_t)p->bytes);
  while (failed != 0 && errno == EINTR);
  if (failed != 0) return; /* the bytes are still there: nobody may get them */
  memset(f->taken + at, 0, p->bytes / MAP_GRANULARITY);
  if (at < f->first_free) f->first_free = at;
}

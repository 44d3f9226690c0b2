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

void device_file_give_locked(const physical *p) {
  struct device_file *f = &files[p->dev->ordinal];
  size_t at = (size_t)p->offset / MAP_GRANULARITY;
  const int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  int failed;
  if (p->file != f->file) return;
  do failed = fallocate(p->file, punch, p->offset, (off_t)p->bytes);
  while (failed != 0 && errno == EINTR);
  if (failed != 0) return; /* the bytes are still there: nobody may get them */
  memset(f->taken + at, 0, p->bytes / MAP_GRANULARITY);
  if (at < f->first_free) f->first_free = at;
}

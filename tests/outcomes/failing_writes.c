// Preloaded: lets system calls on the files of one folder fail, those that need room on its disk or that change it.
//
// failing_begin(folder, at, count, error, kinds) counts the calls of these kinds from then on; the calls at..at+count-1
// fail with `error`. With PARTIAL the first of them writes a half, as on a disk with room for that. With RESERVED the
// calls succeed again, but posix_fallocate, once a file named `reserve` was made empty: that has given room.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROOM = 1, SYNC = 2, NAMES = 4, CUT = 8, PARTIAL = 16, RESERVED = 32 };

static char folder[4096];
static long at, count, calls, failed;
static int error_code, kinds, released;

void failing_begin(const char *where, long first, long number, int error, int which) {
  snprintf(folder, sizeof folder, "%s", where);
  at = first, count = number, error_code = error, kinds = which, calls = failed = released = 0;
}

long failing_end(void) {
  folder[0] = 0;
  return failed;
}

static int here(const char *path) {
  return folder[0] && path && strncmp(path, folder, strlen(folder)) == 0;
}

static const char *path_of(int file, char *place, size_t size) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, place, size - 1);
  place[length < 0 ? 0 : length] = 0;
  return place;
}

// Returns 0 for a call that goes on, 1 for one that fails, 2 for one that does a half.
static int fails(const char *path, int kind, int reserving) {
  if (!(kinds & kind) || !here(path)) return 0;
  long call = __sync_add_and_fetch(&calls, 1);
  if (call < at || (count >= 0 && call >= at + count)) return 0;
  if ((kinds & RESERVED) && released && !reserving) return 0;
  failed++;
  errno = error_code;
  return (kinds & PARTIAL) && call == at ? 2 : 1;
}

static int file_fails(int file, int kind, int reserving) {
  char place[4096];
  return folder[0] ? fails(path_of(file, place, sizeof place), kind, reserving) : 0;
}

#define REAL(name) \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int file, const void *data, size_t size) {
  REAL(write);
  int how = file_fails(file, ROOM, 0);
  if (how == 2 && size > 1) return real(file, data, size / 2);
  return how ? -1 : real(file, data, size);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t offset) {
  REAL(pwrite);
  int how = file_fails(file, ROOM, 0);
  if (how == 2 && size > 1) return real(file, data, size / 2, offset);
  return how ? -1 : real(file, data, size, offset);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t offset) {
  REAL(pwrite64);
  int how = file_fails(file, ROOM, 0);
  if (how == 2 && size > 1) return real(file, data, size / 2, offset);
  return how ? -1 : real(file, data, size, offset);
}

int posix_fallocate(int file, off_t offset, off_t size) {
  REAL(posix_fallocate);
  return file_fails(file, ROOM, 1) ? error_code : real(file, offset, size);
}

int posix_fallocate64(int file, off64_t offset, off64_t size) {
  REAL(posix_fallocate64);
  return file_fails(file, ROOM, 1) ? error_code : real(file, offset, size);
}

static int cut(int file, off64_t size) {
  char place[4096];
  const char *path = folder[0] ? path_of(file, place, sizeof place) : "";
  size_t length = strlen(path);
  if (size == 0 && length > 8 && strcmp(path + length - 8, "/reserve") == 0) released = 1;
  struct stat64 found;
  int grows = fstat64(file, &found) == 0 && size > found.st_size;
  return folder[0] ? fails(path, grows ? ROOM : CUT, 0) : 0;
}

int ftruncate(int file, off_t size) {
  REAL(ftruncate);
  return cut(file, size) ? -1 : real(file, size);
}

int ftruncate64(int file, off64_t size) {
  REAL(ftruncate64);
  return cut(file, size) ? -1 : real(file, size);
}

int fsync(int file) {
  REAL(fsync);
  return file_fails(file, SYNC, 0) ? -1 : real(file);
}

int fdatasync(int file) {
  REAL(fdatasync);
  return file_fails(file, SYNC, 0) ? -1 : real(file);
}

int rename(const char *from, const char *to) {
  REAL(rename);
  return fails(to, NAMES, 0) ? -1 : real(from, to);
}

int unlink(const char *path) {
  REAL(unlink);
  return fails(path, NAMES, 0) ? -1 : real(path);
}

int link(const char *from, const char *to) {
  REAL(link);
  return fails(to, ROOM, 0) ? -1 : real(from, to);
}

int mkdir(const char *path, mode_t mode) {
  REAL(mkdir);
  return fails(path, access(path, F_OK) ? ROOM : 0, 0) ? -1 : real(path, mode);
}

static int makes(const char *path, int flags) {
  return (flags & O_CREAT) && folder[0] && access(path, F_OK) && fails(path, ROOM, 0);
}

#define OPEN(name)                                     \
  int name(const char *path, int flags, ...) {         \
    va_list rest;                                      \
    va_start(rest, flags);                             \
    mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0; \
    va_end(rest);                                      \
    REAL(name);                                        \
    return makes(path, flags) ? -1 : real(path, flags, mode); \
  }

OPEN(open)
OPEN(open64)

/* Memory of several processes: its file goes from one to another as a descriptor, and each has handles of its own.
 *
 * Behind the bytes that are mapped, such a file has a label, which says what memory it is. Seals keep the size of the
 * file: no access to mapped memory can end a process (SIGBUS), whatever the others do.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "mapped.h"

enum { SIZE_SEALS = F_SEAL_SHRINK | F_SEAL_GROW };

typedef struct label {
  char kind[16];
  CUmemAllocationProp props;
} label;
static const char KIND[16] = "softgpu memory";

static physical *exchanged; /* handles whose file other handles, of any process, may have; under mapped_lock */

static bool add_label(int file, size_t bytes, const CUmemAllocationProp *props) {
  label written = {.props = *props};
  memcpy(written.kind, KIND, sizeof KIND);
  written.props.win32HandleMetaData = NULL;
  return pwrite(file, &written, sizeof written, (off_t)bytes) == sizeof written &&
         fcntl(file, F_ADD_SEALS, SIZE_SEALS) == 0;
}

static bool poison(const physical *p) { /* in strict mode */
  void *seen = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p->file, p->offset);
  if (seen == MAP_FAILED) return false;
  strict_poison((uintptr_t)seen, p->bytes);
  munmap(seen, p->bytes);
  return true;
}

static bool own_file_new(physical *p) {
  p->file = memfd_create("softgpu", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (p->file < 0) return false;
  if (ftruncate(p->file, (off_t)p->bytes) == 0 && poison(p) && add_label(p->file, p->bytes, &p->props)) return true;
  close(p->file);
  return false;
}

bool memory_file_new(physical *p) {
  if (p->props.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE) return own_file_new(p);
  pthread_mutex_lock(&mapped_lock);
  bool taken = device_file_take_locked(p), made = taken && poison(p);
  if (taken && !made) device_file_give_locked(p);
  pthread_mutex_unlock(&mapped_lock);
  return made;
}

static CUresult check_type(CUmemAllocationHandleType type) {
  REQUIRE(type != CU_MEM_HANDLE_TYPE_NONE, CUDA_ERROR_INVALID_VALUE, "memory is shared as a handle of some type");
  REQUIRE(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_NOT_SUPPORTED,
          "memory is shared as a file descriptor only, not as handle type %#x", (unsigned)type);
  return CUDA_SUCCESS;
}

static uint64_t inode_of(int file) { /* never 0 for a file */
  struct stat info;
  return fstat(file, &info) == 0 ? info.st_ino : 0;
}

static void exchange_locked(physical *p) {
  p->inode = inode_of(p->file);
  p->next_shared = exchanged;
  exchanged = p;
}

/* The device is charged once for memory of which this process has several handles. */
static bool is_known_locked(const device *dev, uint64_t inode) {
  const physical *p = exchanged;
  while (p != NULL && (p->inode != inode || p->dev != dev)) p = p->next_shared;
  return p != NULL;
}

bool shared_leave_locked(physical *p) {
  if (p->inode == 0) return true;
  physical **at = &exchanged;
  while (*at != p) at = &(*at)->next_shared;
  *at = p->next_shared;
  return !is_known_locked(p->dev, p->inode);
}

static CUresult export_locked(physical *p, int *file) {
  REQUIRE(handle_is(p, HANDLE_PHYSICAL), CUDA_ERROR_INVALID_VALUE, "%p is no live handle of memory", (void *)p);
  REQUIRE(p->props.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_INVALID_VALUE,
          "the memory was not created to be exported: its requestedHandleTypes are %#x",
          (unsigned)p->props.requestedHandleTypes);
  *file = fcntl(p->file, F_DUPFD_CLOEXEC, 0);
  REQUIRE(*file >= 0, CUDA_ERROR_OPERATING_SYSTEM, "no descriptor for memory: %s", strerror(errno));
  if (p->inode == 0) exchange_locked(p);
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *made, CUmemGenericAllocationHandle memory, CUmemAllocationHandleType type,
                                      unsigned long long flags) {
  int file;
  TRY(require_init());
  REQUIRE_POINTER(made);
  TRY(check_type(type));
  REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE, "%s: flags must be 0, not %#llx", __func__, flags);
  pthread_mutex_lock(&mapped_lock);
  CUresult status = export_locked((physical *)(uintptr_t)memory, &file);
  pthread_mutex_unlock(&mapped_lock);
  TRY(status);
  *(int *)made = file;
  return CUDA_SUCCESS;
}

/* Fills in what a descriptor of memory says; an error for any other descriptor. */
static CUresult read_label(physical *p) {
  struct statfs system;
  struct stat info;
  label found;
  int seals = fcntl(p->file, F_GET_SEALS);
  /* Files of huge pages have seals too, but an access ends the process if the host has no such page left. */
  REQUIRE(seals >= 0 && fstatfs(p->file, &system) == 0 && system.f_type == TMPFS_MAGIC && fstat(p->file, &info) == 0,
          CUDA_ERROR_INVALID_VALUE, "the descriptor is of no memory file");
  REQUIRE((seals & SIZE_SEALS) == SIZE_SEALS, CUDA_ERROR_INVALID_VALUE,
          "the size of the memory file may change: it is not sealed");
  p->bytes = (size_t)info.st_size - sizeof found;
  REQUIRE(info.st_size > (off_t)sizeof found && p->bytes % MAP_GRANULARITY == 0, CUDA_ERROR_INVALID_VALUE,
          "a memory file of %lld bytes is no memory of a software GPU", (long long)info.st_size);
  REQUIRE(pread(p->file, &found, sizeof found, (off_t)p->bytes) == sizeof found &&
              memcmp(found.kind, KIND, sizeof KIND) == 0,
          CUDA_ERROR_INVALID_VALUE, "the memory file is no memory of a software GPU, or cannot be read");
  p->props = found.props;
  return physical_check(&p->props, &p->dev);
}

static CUresult enter(physical *p) {
  CUresult status = CUDA_SUCCESS;
  pthread_mutex_lock(&mapped_lock);
  if (!is_known_locked(p->dev, inode_of(p->file))) {
    pthread_mutex_lock(&memory_lock);
    status = memory_reserve_locked(p->dev, p->bytes);
    pthread_mutex_unlock(&memory_lock);
  }
  if (status == CUDA_SUCCESS) exchange_locked(p);
  pthread_mutex_unlock(&mapped_lock);
  return status;
}

static CUresult import(physical *p) {
  TRY(read_label(p));
  CUresult status = enter(p);
  return status == CUDA_ERROR_OUT_OF_MEMORY && frees_awaited(NULL) ? enter(p) : status;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *made, void *shared,
                                        CUmemAllocationHandleType type) {
  TRY(require_init());
  REQUIRE_POINTER(made);
  TRY(check_type(type));
  int file = (uintptr_t)shared <= INT_MAX ? fcntl((int)(uintptr_t)shared, F_DUPFD_CLOEXEC, 0) : -1;
  REQUIRE(file >= 0, CUDA_ERROR_INVALID_VALUE, "descriptor %lld cannot be used: %s", (long long)(intptr_t)shared,
          (uintptr_t)shared <= INT_MAX ? strerror(errno) : "there is none of this number");
  physical *p = handle_new(HANDLE_PHYSICAL, sizeof *p);
  if (p == NULL) close(file);
  REQUIRE(p != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a handle");
  p->file = file;
  p->references = 1;
  CUresult status = import(p);
  if (status != CUDA_SUCCESS) {
    handle_delete(p);
    close(file);
    return status;
  }
  *made = (uintptr_t)p;
  return CUDA_SUCCESS;
}

static CUresult seal_locked(const physical *p) {
  REQUIRE(handle_is(p, HANDLE_PHYSICAL), CUDA_ERROR_INVALID_VALUE, "%p is no live handle of memory", (const void *)p);
  bool done = (fcntl(p->file, F_GET_SEALS) & F_SEAL_FUTURE_WRITE) != 0;
  REQUIRE(done || fcntl(p->file, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0, CUDA_ERROR_NOT_PERMITTED,
          "the memory cannot be sealed: %s", strerror(errno));
  return CUDA_SUCCESS;
}

int softgpu_seal(uint64_t memory) {
  TRY(require_init());
  pthread_mutex_lock(&mapped_lock);
  CUresult status = seal_locked((const physical *)(uintptr_t)memory);
  pthread_mutex_unlock(&mapped_lock);
  return status;
}

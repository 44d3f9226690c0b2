/* Code images: libraries and modules, and the kernels and globals in them. */
#define _GNU_SOURCE
#include "driver.h"

#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static const size_t MAX_IMAGE_BYTES = (size_t)1 << 30;

typedef struct {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;
} fatbin_header;
typedef struct {
  uint32_t magic, version;
  const void *data;
} fatbin_wrapper;

/* The size of an image, which CUDA's calls do not pass: binaries hold it, and other images are text up to a NUL (0). */
static size_t binary_bytes(const void *image) {
  if (strncmp(image, ELFMAG, SELFMAG) == 0) {
    const Elf64_Ehdr *elf = image;
    uint64_t sections = elf->e_shoff + (uint64_t)elf->e_shnum * elf->e_shentsize;
    uint64_t segments = elf->e_phoff + (uint64_t)elf->e_phnum * elf->e_phentsize;
    return sections > segments ? sections : segments;
  }
  if (strncmp(image, "\x50\xed\x55\xba", 4) != 0) return 0;
  fatbin_header header;
  memcpy(&header, image, sizeof header);
  return header.bytes > MAX_IMAGE_BYTES ? SIZE_MAX : header.header_bytes + header.bytes;
}

/* A binary may announce more bytes than can be read. The system's kernel copies it if possible: it survives a fault. */
static bool copy_image(void *to, const void *from, size_t bytes) {
  struct iovec local = {to, bytes}, remote = {(void *)from, bytes};
  ssize_t copied = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
  if (copied < 0 && errno != EFAULT) { /* for example in a sandbox that forbids the call */
    memcpy(to, from, bytes);
    return true;
  }
  return copied == (ssize_t)bytes;
}

/* nvcc wraps a fatbin into a struct with a pointer to it. */
static const void *unwrap(const void *image) {
  fatbin_wrapper wrapper;
  if (strncmp(image, "\xb1\x43\x62\x46", 4) != 0) return image;
  memcpy(&wrapper, image, sizeof wrapper);
  return wrapper.data;
}

static void forget(struct loaded *at) {
  allocation entry;
  for (uint32_t i = 0; i < at->global_count; i++) (void)memory_remove(at->globals[i].address, &entry);
  sealed.compiler.unload(at->module);
}

static CUresult describe(struct loaded *at, device *dev, const sg_kernel_info **kernels, uint32_t *count) {
  TRY((CUresult)sealed.compiler.describe(at->module, kernels, count, &at->globals, &at->global_count));
  for (uint32_t i = 0; i < at->global_count; i++)
    TRY(memory_add(&(allocation){
        .base = at->globals[i].address, .bytes = at->globals[i].bytes, .kind = MEMORY_GLOBAL, .dev = dev,
        .flags = at->globals[i].managed ? SEEN_BY_HOST : 0}));
  return CUDA_SUCCESS;
}

static CUresult load(const library *lib, device *dev, struct loaded *at, const sg_kernel_info **kernels,
                     uint32_t *count) {
  TRY((CUresult)sealed.compiler.load(lib->image, lib->image_bytes, (uint32_t)dev->ordinal, lib->window,
                                          &at->module));
  CUresult status = describe(at, dev, kernels, count);
  if (status != CUDA_SUCCESS) forget(at);
  return status;
}

/* Loads without a lock; if two threads load for one device, the later one unloads its module again. */
static CUresult loaded_on(library *lib, device *dev, struct loaded **found) {
  const sg_kernel_info *kernels;
  uint32_t count;
  struct loaded *at = lib->shares_module ? &lib->first : &lib->loaded[dev->ordinal], made = {0};
  *found = at;
  if (atomic_load_explicit(&at->ready, memory_order_acquire)) return CUDA_SUCCESS;
  TRY(load(lib, dev, &made, &kernels, &count));
  pthread_mutex_lock(&state_lock);
  bool late = atomic_load(&at->ready);
  if (!late) {
    at->module = made.module;
    at->globals = made.globals;
    at->global_count = made.global_count;
    atomic_store_explicit(&at->ready, true, memory_order_release);
  }
  pthread_mutex_unlock(&state_lock);
  if (late) forget(&made);
  return CUDA_SUCCESS;
}

CUresult library_module(library *lib, device *dev, uint64_t *module) {
  struct loaded *at;
  TRY(loaded_on(lib, dev, &at));
  *module = at->module;
  return CUDA_SUCCESS;
}

static CUresult make_kernels(library *lib, const sg_kernel_info *kernels, uint32_t count) {
  lib->kernels = calloc(count + 1, sizeof *lib->kernels);
  REQUIRE(lib->kernels != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for %u kernels", count);
  for (; lib->kernel_count < count; lib->kernel_count++) {
    kernel *kern = handle_new(HANDLE_KERNEL, sizeof *kern);
    REQUIRE(kern != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for %u kernels", count);
    kern->lib = lib;
    kern->index = lib->kernel_count;
    kern->info = &kernels[lib->kernel_count];
    kern->carveout = -1;
    for (int d = 0; d < MAX_DEVICES; d++)
      kern->max_dynamic_shared[d] = SHARED_DEFAULT_BYTES - (int)kern->info->shared_bytes;
    lib->kernels[lib->kernel_count] = kern;
  }
  return CUDA_SUCCESS;
}

static void library_delete(library *lib) {
  running_settle();
  for (uint32_t i = 0; i < lib->kernel_count; i++) {
    variant *v = atomic_load(&lib->kernels[i]->variants);
    while (v != NULL) {
      variant *next = v->next;
      free(v);
      v = next;
    }
    handle_delete(lib->kernels[i]);
  }
  for (int d = 0; d < device_count; d++)
    if (atomic_load(&lib->loaded[d].ready)) forget(&lib->loaded[d]);
  if (atomic_load(&lib->first.ready)) forget(&lib->first);
  window_leave(lib->window);
  free(lib->kernels);
  free(lib->image);
  handle_delete(lib);
}

/* Loads for one device now, so that a bad image is refused here. Its kernels are the same on all devices. */
static CUresult fill_library(library *lib, const void *image, device *dev) {
  const sg_kernel_info *kernels;
  uint32_t count;
  struct loaded made = {0};
  image = unwrap(image);
  lib->image_bytes = binary_bytes(image);
  REQUIRE(lib->image_bytes <= MAX_IMAGE_BYTES, CUDA_ERROR_INVALID_IMAGE, "the image announces %zu bytes",
          lib->image_bytes);
  size_t bytes = lib->image_bytes != 0 ? lib->image_bytes : strlen(image) + 1;
  lib->image = malloc(bytes);
  REQUIRE(lib->image != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for an image of %zu bytes", bytes);
  REQUIRE(copy_image(lib->image, image, bytes), CUDA_ERROR_INVALID_IMAGE,
          "the image is cut off: it announces %zu bytes", bytes);
  TRY(load(lib, dev, &made, &kernels, &count));
  lib->shares_module = made.global_count == 0;
  struct loaded *at = lib->shares_module ? &lib->first : &lib->loaded[dev->ordinal];
  at->module = made.module;
  at->globals = made.globals;
  at->global_count = made.global_count;
  atomic_store(&at->ready, true);
  return make_kernels(lib, kernels, count);
}

static CUresult library_new(const void *image, library **made) {
  REQUIRE(image != NULL, CUDA_ERROR_INVALID_VALUE, "the image is NULL");
  CUcontext ctx = peek_context();
  library *lib = handle_new(HANDLE_LIBRARY, sizeof *lib);
  REQUIRE(lib != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a library");
  lib->window = window_enter();
  CUresult status = fill_library(lib, image, ctx != NULL ? ctx->dev : &devices[0]);
  if (status != CUDA_SUCCESS) {
    char reason[512]; /* later messages must not replace the reason */
    snprintf(reason, sizeof reason, "%s", softgpu_last_error());
    library_delete(lib);
    return fail(status, "%s", reason);
  }
  *made = lib;
  return CUDA_SUCCESS;
}

/* Copies the reason into the error buffer in the caller's options. */
static void log_error(const CUjit_option *options, void **values, unsigned count) {
  char *buffer = NULL;
  size_t bytes = 0;
  for (unsigned i = 0; i < count; i++) {
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER) buffer = values[i];
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) bytes = (size_t)(uintptr_t)values[i];
  }
  if (buffer != NULL && bytes > 0) snprintf(buffer, bytes, "%s", softgpu_last_error());
}

/* --- libraries */

CUresult cuLibraryLoadData(CUlibrary *lib, const void *image, CUjit_option *jit_options, void **jit_values,
                           unsigned jit_count, CUlibraryOption *options, void **values, unsigned count) {
  (void)options, (void)values, (void)count; /* hints about binaries linked into the program */
  TRY(require_init());
  REQUIRE_POINTER(lib);
  REQUIRE(jit_count == 0 || (jit_options != NULL && jit_values != NULL), CUDA_ERROR_INVALID_VALUE,
          "%s: %u options, but no list of them", __func__, jit_count);
  CUresult status = library_new(image, (library **)lib);
  if (status != CUDA_SUCCESS) log_error(jit_options, jit_values, jit_count);
  return status;
}

CUresult cuLibraryUnload(CUlibrary lib) {
  TRY(require_init());
  REQUIRE_HANDLE(lib, HANDLE_LIBRARY);
  (void)context_wait(NULL); /* its kernels may be queued */
  library_delete((library *)lib);
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel *kern, CUlibrary handle, const char *name) {
  TRY(require_init());
  REQUIRE_POINTER(kern);
  REQUIRE_POINTER(name);
  REQUIRE_HANDLE(handle, HANDLE_LIBRARY);
  library *lib = (library *)handle;
  for (uint32_t i = 0; i < lib->kernel_count; i++)
    if (strcmp(lib->kernels[i]->info->name, name) == 0) {
      const char *refusal = lib->kernels[i]->info->refusal;
      REQUIRE(refusal == NULL, CUDA_ERROR_INVALID_PTX, "%s", refusal);
      *kern = (CUkernel)lib->kernels[i];
      return CUDA_SUCCESS;
    }
  return fail(CUDA_ERROR_NOT_FOUND, "the image has no kernel %s", name);
}

CUresult cuLibraryGetKernelCount(unsigned *count, CUlibrary lib) {
  TRY(require_init());
  REQUIRE_POINTER(count);
  REQUIRE_HANDLE(lib, HANDLE_LIBRARY);
  *count = ((library *)lib)->kernel_count;
  return CUDA_SUCCESS;
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned count, CUlibrary handle) {
  TRY(require_init());
  REQUIRE_POINTER(kernels);
  REQUIRE_HANDLE(handle, HANDLE_LIBRARY);
  const library *lib = (library *)handle;
  for (uint32_t i = 0; i < count && i < lib->kernel_count; i++) kernels[i] = (CUkernel)lib->kernels[i];
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary lib) {
  TRY(require_init());
  REQUIRE_POINTER(module);
  REQUIRE_HANDLE(lib, HANDLE_LIBRARY);
  *module = (CUmodule)lib;
  return CUDA_SUCCESS;
}

static CUresult find_variable(CUdeviceptr *address, size_t *bytes, CUlibrary lib, const char *name, bool managed) {
  CUcontext ctx;
  struct loaded *at;
  TRY(current_context(&ctx));
  REQUIRE_POINTER(name);
  REQUIRE_HANDLE(lib, HANDLE_LIBRARY);
  TRY(loaded_on((library *)lib, ctx->dev, &at));
  for (uint32_t i = 0; i < at->global_count; i++)
    if (strcmp(at->globals[i].name, name) == 0 && (!managed || at->globals[i].managed)) {
      if (address != NULL) *address = at->globals[i].address;
      if (bytes != NULL) *bytes = at->globals[i].bytes;
      return CUDA_SUCCESS;
    }
  return fail(CUDA_ERROR_NOT_FOUND, "the image has no %s %s", managed ? "managed variable" : "global", name);
}

CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary lib, const char *name) {
  return find_variable(address, bytes, lib, name, false);
}

/* Each device has its own variable: devices share no memory here. */
CUresult cuLibraryGetManaged(CUdeviceptr *address, size_t *bytes, CUlibrary lib, const char *name) {
  return find_variable(address, bytes, lib, name, true);
}

/* --- modules: the older calls for the same thing */

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values) {
  CUcontext ctx;
  TRY(current_context(&ctx));
  return cuLibraryLoadData((CUlibrary *)module, image, options, values, count, NULL, NULL, 0);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  return cuModuleLoadDataEx(module, image, 0, NULL, NULL);
}
CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) { return cuModuleLoadData(module, image); }
CUresult cuModuleUnload(CUmodule module) { return cuLibraryUnload((CUlibrary)module); }

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  return cuLibraryGetKernel((CUkernel *)function, (CUlibrary)module, name);
}

CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule module) {
  return cuLibraryGetKernelCount(count, (CUlibrary)module);
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name) {
  return cuLibraryGetGlobal(address, bytes, (CUlibrary)module, name);
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
  REQUIRE_POINTER(mode);
  *mode = CU_MODULE_EAGER_LOADING;
  return CUDA_SUCCESS;
}

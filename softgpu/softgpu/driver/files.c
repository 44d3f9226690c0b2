/* Libraries from files, and modules, CUDA's older name for them. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

CUresult cuLibraryLoadData(CUlibrary *lib, const void *image, CUjit_option *jit_options, void **jit_values,
                           unsigned jit_count, CUlibraryOption *options, void **values, unsigned count);

/* All bytes of a file and a NUL, to be freed. */
static CUresult read_file(const char *path, char **content) {
  struct stat info;
  FILE *file = fopen(path, "rb");
  REQUIRE(file != NULL, CUDA_ERROR_FILE_NOT_FOUND, "%s cannot be read", path);
  bool regular = fstat(fileno(file), &info) == 0 && S_ISREG(info.st_mode);
  size_t bytes = regular ? (size_t)info.st_size : 0;
  char *made = regular ? malloc(bytes + 1) : NULL;
  bool good = made != NULL && fread(made, 1, bytes, file) == bytes;
  fclose(file);
  if (!good) {
    free(made);
    return fail(CUDA_ERROR_FILE_NOT_FOUND, "%s could not be read", path);
  }
  made[bytes] = 0;
  *content = made;
  return CUDA_SUCCESS;
}

CUresult cuLibraryLoadFromFile(CUlibrary *lib, const char *path, CUjit_option *jit_options, void **jit_values,
                               unsigned jit_count, CUlibraryOption *options, void **values, unsigned count) {
  char *content;
  TRY(require_init());
  REQUIRE_POINTER(path);
  TRY(read_file(path, &content));
  CUresult status = cuLibraryLoadData(lib, content, jit_options, jit_values, jit_count, options, values, count);
  free(content);
  return status;
}

CUresult cuModuleLoad(CUmodule *module, const char *path) {
  CUcontext ctx;
  TRY(current_context(&ctx));
  return cuLibraryLoadFromFile((CUlibrary *)module, path, NULL, NULL, 0, NULL, NULL, 0);
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned count, CUmodule module) {
  TRY(require_init());
  REQUIRE_POINTER(functions);
  REQUIRE_HANDLE(module, HANDLE_LIBRARY);
  const library *lib = (const library *)module;
  for (unsigned i = 0; i < count && i < lib->kernel_count; i++) functions[i] = (CUfunction)lib->kernels[i];
  return CUDA_SUCCESS;
}

/* Libraries from files, and CUDA's older word for them, modules. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>

CUresult cuLibraryLoadData(CUlibrary *lib, const void *image, CUjit_option *jit_options, void **jit_values,
                           unsigned jit_count, CUlibraryOption *options, void **values, unsigned count);

/* All bytes of a file and a NUL, to be freed. */
static CUresult read_file(const char *path, char **content) {
  FILE *file = fopen(path, "rb");
  REQUIRE(file != NULL, CUDA_ERROR_FILE_NOT_FOUND, "%s cannot be read", path);
  bool good = fseek(file, 0, SEEK_END) == 0;
  long bytes = good ? ftell(file) : -1;
  char *made = bytes >= 0 ? malloc((size_t)bytes + 1) : NULL;
  good = made != NULL && fseek(file, 0, SEEK_SET) == 0 && fread(made, 1, (size_t)bytes, file) == (size_t)bytes;
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

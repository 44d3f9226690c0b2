/* Linking: the driver collects images, and the compiler, which knows PTX, joins them into an image to load. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_INPUTS = 1024 };
static const size_t MAX_FILE_BYTES = (size_t)1 << 30;

struct CUlinkState_st {
  handle handle;
  uint32_t count;
  void *images[MAX_INPUTS], *joined;
  char *names[MAX_INPUTS];
  size_t bytes[MAX_INPUTS];
  char *log; /* the caller's, for errors; NULL: none */
  size_t log_bytes;
};

static CUresult log_and_return(CUlinkState state, CUresult status) {
  if (status != CUDA_SUCCESS && state->log != NULL) snprintf(state->log, state->log_bytes, "%s", softgpu_last_error());
  return status;
}

CUresult cuLinkCreate_v2(unsigned count, CUjit_option *options, void **values, CUlinkState *made) {
  TRY(require_init());
  REQUIRE_POINTER(made);
  REQUIRE(count == 0 || (options != NULL && values != NULL), CUDA_ERROR_INVALID_VALUE, "%s: %u options, but no list",
          __func__, count);
  CUlinkState state = handle_new(HANDLE_LINK, sizeof *state);
  REQUIRE(state != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory to link");
  for (unsigned i = 0; i < count; i++) {
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER) state->log = values[i];
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) state->log_bytes = (size_t)(uintptr_t)values[i];
    if (options[i] == CU_JIT_INFO_LOG_BUFFER && values[i] != NULL) *(char *)values[i] = 0;
  }
  if (state->log_bytes == 0) state->log = NULL;
  if (state->log != NULL) *state->log = 0;
  *made = state;
  return CUDA_SUCCESS;
}

static CUresult add(CUlinkState state, CUjitInputType type, const void *data, size_t bytes, const char *name) {
  REQUIRE(type == CU_JIT_INPUT_PTX || type == CU_JIT_INPUT_FATBINARY, CUDA_ERROR_NO_BINARY_FOR_GPU,
          "%s: the software GPU links PTX, and fatbins with PTX, not machine code, objects and libraries",
          name != NULL ? name : "an input");
  REQUIRE(state->count < MAX_INPUTS, CUDA_ERROR_INVALID_VALUE, "more than %d inputs", MAX_INPUTS);
  char *copy = malloc(bytes + 1), *called = strdup(name != NULL ? name : "an input");
  if (copy == NULL || called == NULL) {
    free(copy);
    free(called);
    return fail(CUDA_ERROR_OUT_OF_MEMORY, "no host memory for an input of %zu bytes", bytes);
  }
  memcpy(copy, data, bytes);
  copy[bytes] = 0;
  state->images[state->count] = copy;
  state->names[state->count] = called;
  state->bytes[state->count++] = bytes;
  return CUDA_SUCCESS;
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t bytes, const char *name, unsigned count,
                          CUjit_option *options, void **values) {
  (void)count, (void)options, (void)values; /* hints for machine code */
  TRY(require_init());
  REQUIRE_HANDLE(state, HANDLE_LINK);
  REQUIRE_POINTER(data);
  return log_and_return(state, add(state, type, data, bytes, name));
}

static CUresult add_file(CUlinkState state, CUjitInputType type, const char *path) {
  FILE *file = fopen(path, "rb");
  REQUIRE(file != NULL, CUDA_ERROR_FILE_NOT_FOUND, "%s cannot be opened", path);
  long bytes = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
  bool right = bytes >= 0 && (size_t)bytes <= MAX_FILE_BYTES && fseek(file, 0, SEEK_SET) == 0;
  char *content = right ? malloc((size_t)bytes + 1) : NULL;
  bool whole = content != NULL && fread(content, 1, (size_t)bytes, file) == (size_t)bytes;
  fclose(file);
  CUresult status = whole ? add(state, type, content, (size_t)bytes, path)
                          : fail(CUDA_ERROR_INVALID_VALUE, "%s cannot be read", path);
  free(content);
  return status;
}

CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path, unsigned count, CUjit_option *options,
                          void **values) {
  (void)count, (void)options, (void)values;
  TRY(require_init());
  REQUIRE_HANDLE(state, HANDLE_LINK);
  REQUIRE_POINTER(path);
  return log_and_return(state, add_file(state, type, path));
}

static CUresult complete(CUlinkState state, void **image, size_t *bytes) {
  const void *joined;
  size_t joined_bytes;
  REQUIRE(state->count > 0, CUDA_ERROR_INVALID_VALUE, "there is nothing to link");
  REQUIRE(sealed.compiler.link != NULL, CUDA_ERROR_NOT_SUPPORTED, "this compiler does not link");
  TRY((CUresult)sealed.compiler.link(state->count, (const void *const *)state->images, state->bytes,
                                     (const char *const *)state->names, &joined, &joined_bytes));
  free(state->joined);
  state->joined = malloc(joined_bytes);
  REQUIRE(state->joined != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for an image of %zu bytes", joined_bytes);
  memcpy(state->joined, joined, joined_bytes);
  *image = state->joined;
  if (bytes != NULL) *bytes = joined_bytes;
  return CUDA_SUCCESS;
}

CUresult cuLinkComplete(CUlinkState state, void **image, size_t *bytes) {
  TRY(require_init());
  REQUIRE_HANDLE(state, HANDLE_LINK);
  REQUIRE_POINTER(image);
  return log_and_return(state, complete(state, image, bytes));
}

CUresult cuLinkDestroy(CUlinkState state) {
  TRY(require_init());
  REQUIRE_HANDLE(state, HANDLE_LINK);
  for (uint32_t i = 0; i < state->count; i++) {
    free(state->images[i]);
    free(state->names[i]);
  }
  free(state->joined);
  handle_delete(state);
  return CUDA_SUCCESS;
}

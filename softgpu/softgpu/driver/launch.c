/* Kernel launches: check the limits, compile the kernel for its block shape, pack the parameters. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

/* The kernel's code for this block shape; NULL: it is not compiled yet. */
static sg_kernel_fn find_variant(const kernel *kern, uint64_t module, const uint32_t block[3], bool checked) {
  for (variant *v = atomic_load_explicit(&kern->variants, memory_order_acquire); v != NULL; v = v->next)
    if (v->module == module && v->checked == checked && memcmp(v->block, block, sizeof v->block) == 0) return v->fn;
  return NULL;
}

static CUresult get_variant(kernel *kern, uint64_t module, const uint32_t block[3], bool checked, sg_kernel_fn *fn) {
  *fn = find_variant(kern, module, block, checked);
  if (*fn != NULL) return CUDA_SUCCESS;
  /* No lock is held: two threads may compile the same code, which only costs time. */
  TRY((CUresult)sealed.compiler.compile(module, kern->index, block, checked, fn));
  variant *made = malloc(sizeof *made);
  REQUIRE(made != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a compiled kernel");
  *made = (variant){.module = module, .checked = checked, .block = {block[0], block[1], block[2]}, .fn = *fn};
  made->next = atomic_load(&kern->variants);
  while (!atomic_compare_exchange_weak(&kern->variants, &made->next, made)) {}
  return CUDA_SUCCESS;
}

static CUresult check_shape(const kernel *kern, const uint32_t grid[3], const uint32_t block[3]) {
  const char *name = kern->info->name;
  REQUIRE(grid[0] && grid[1] && grid[2] && block[0] && block[1] && block[2], CUDA_ERROR_INVALID_VALUE,
          "kernel %s: a grid or block with no extent", name);
  REQUIRE(grid[0] <= INT32_MAX && grid[1] <= MAX_GRID_YZ && grid[2] <= MAX_GRID_YZ, CUDA_ERROR_INVALID_VALUE,
          "kernel %s: the grid (%u, %u, %u) is larger than (2147483647, 65535, 65535)", name, grid[0], grid[1],
          grid[2]);
  uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
  REQUIRE(block[0] <= MAX_THREADS && block[1] <= MAX_THREADS && block[2] <= MAX_BLOCK_Z && threads <= MAX_THREADS,
          CUDA_ERROR_INVALID_VALUE, "kernel %s: the block (%u, %u, %u) is larger than (1024, 1024, 64) or 1024 threads",
          name, block[0], block[1], block[2]);
  REQUIRE(threads <= kern->info->max_threads, CUDA_ERROR_INVALID_VALUE, "kernel %s: %llu threads; it allows %u", name,
          (unsigned long long)threads, kern->info->max_threads);
  return CUDA_SUCCESS;
}

CUresult kernel_prepare(kernel *kern, CUcontext ctx, const uint32_t grid[3], const uint32_t block[3], uint32_t shared,
                        kernel_call *call) {
  uint64_t module;
  const sg_kernel_info *info = kern->info;
  TRY(check_shape(kern, grid, block));
  int most = kern->max_dynamic_shared[ctx->dev->ordinal];
  REQUIRE(shared <= INT32_MAX && (int)shared <= most, CUDA_ERROR_INVALID_VALUE,
          "kernel %s: %u bytes of dynamic shared memory and %u static; %d are allowed in all", info->name,
          shared, info->shared_bytes, most + (int)info->shared_bytes);
  *call = (kernel_call){.kern = kern,
                        .ctx = ctx,
                        .ctx_id = ctx->id,
                        .sms = ctx->sms,
                        .launch = {.static_shared_bytes = info->shared_bytes,
                                   .dynamic_shared_bytes = shared,
                                   .local_bytes = info->local_bytes,
                                   .param_bytes = info->param_bytes,
                                   .device = (uint32_t)ctx->dev->ordinal,
                                   .name = info->name,
                                   .sources = info->sources,
                                   .source_count = info->source_count,
                                   .window = kern->lib->window,
                                   .stop = (const volatile uint32_t *)&ctx->dev->stop}};
  memcpy(call->launch.grid, grid, sizeof call->launch.grid);
  memcpy(call->launch.block, block, sizeof call->launch.block);
  TRY(library_module(kern->lib, ctx->dev, &module));
  call->launch.fn = find_variant(kern, module, block, atomic_load_explicit(&strict, memory_order_relaxed));
  return CUDA_SUCCESS;
}

CUresult kernel_announce(const kernel_call *call) {
  uint64_t module;
  if (call->launch.fn != NULL) return CUDA_SUCCESS;
  TRY(library_module(call->kern->lib, &devices[call->launch.device], &module));
  return (CUresult)sealed.compiler.announce(module, call->kern->index, call->launch.block, atomic_load(&strict));
}

CUresult kernel_compile(kernel_call *call) {
  uint64_t module;
  TRY(kernel_check_resident(call));
  if (call->launch.fn != NULL) return CUDA_SUCCESS;
  TRY(library_module(call->kern->lib, &devices[call->launch.device], &module));
  return get_variant(call->kern, module, call->launch.block, atomic_load(&strict), &call->launch.fn);
}

CUresult kernel_checked(kernel *kern, device *dev, const uint32_t block[3], sg_kernel_fn *fn) {
  uint64_t module;
  TRY(library_module(kern->lib, dev, &module));
  return get_variant(kern, module, block, true, fn);
}

size_t param_storage_bytes(const kernel *kern) { return kern->info->param_bytes < 16 ? 16 : kern->info->param_bytes; }

/* The other form: {BUFFER_POINTER, buffer, BUFFER_SIZE, &bytes, END}. */
static CUresult pack_extra(const kernel *kern, void **extra, uint8_t *buffer) {
  const void *from = NULL;
  size_t bytes = 0;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) from = extra[1];
    else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE && extra[1] != NULL) bytes = *(const size_t *)extra[1];
    else return fail(CUDA_ERROR_INVALID_VALUE, "kernel %s: entry %p in extra makes no sense", kern->info->name,
                     extra[0]);
  }
  const sg_kernel_info *info = kern->info;
  uint32_t last =
      info->param_count ? info->param_offsets[info->param_count - 1] + info->param_sizes[info->param_count - 1] : 0;
  REQUIRE(bytes >= last && bytes <= MAX_PARAM_BYTES && (from != NULL || bytes == 0), CUDA_ERROR_INVALID_VALUE,
          "kernel %s: a parameter buffer of %zu bytes; it takes %u", info->name, bytes, last);
  if (last > 0) memcpy(buffer, from, last);
  return CUDA_SUCCESS;
}

CUresult kernel_storage(const kernel *kern, const uint8_t *params, void **storage) {
  const sg_kernel_info *info = kern->info;
  size_t bytes = (param_storage_bytes(kern) + 15) & ~(size_t)15;
  uint8_t *made;
  REQUIRE(posix_memalign((void **)&made, PARAM_ALIGNMENT, bytes + info->param_count * sizeof(void *)) == 0,
          CUDA_ERROR_OUT_OF_MEMORY, "kernel %s: no host memory for its parameters", info->name);
  if (params != NULL) memcpy(made, params, info->param_bytes);
  for (uint32_t i = 0; i < info->param_count; i++) kernel_pointers(kern, made)[i] = made + info->param_offsets[i];
  *storage = made;
  return CUDA_SUCCESS;
}

void **kernel_pointers(const kernel *kern, void *storage) {
  return (void **)((uint8_t *)storage + ((param_storage_bytes(kern) + 15) & ~(size_t)15));
}

CUresult kernel_pack(const kernel *kern, kernel_args args, uint8_t *buffer) {
  const sg_kernel_info *info = kern->info;
  REQUIRE(args.pointers == NULL || args.extra == NULL, CUDA_ERROR_INVALID_VALUE,
          "kernel %s: kernelParams and extra both given", info->name);
  if (args.extra != NULL) return pack_extra(kern, args.extra, buffer);
  REQUIRE(args.pointers != NULL || info->param_count == 0, CUDA_ERROR_INVALID_VALUE,
          "kernel %s: %u parameters, none given", info->name, info->param_count);
  for (uint32_t i = 0; i < info->param_count; i++) /* before a byte is written: the buffer may be a graph's */
    REQUIRE(args.pointers[i] != NULL, CUDA_ERROR_INVALID_VALUE, "kernel %s: the pointer to parameter %u is NULL",
            info->name, i);
  for (uint32_t i = 0; i < info->param_count; i++) {
    uint8_t *to = buffer + info->param_offsets[i];
    const void *from = args.pointers[i];
    if (info->param_sizes[i] == 8) memcpy(to, from, 8); /* the usual sizes, without a call */
    else if (info->param_sizes[i] == 4) memcpy(to, from, 4);
    else memcpy(to, from, info->param_sizes[i]);
  }
  return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, const uint32_t grid[3], const uint32_t block[3], uint32_t shared,
                       CUstream stream, kernel_args args, bool cooperative) {
  kernel *kern;
  CUcontext ctx;
  CUstream s;
  op o = {.kind = OP_KERNEL};
  TRY(current_context(&ctx));
  TRY(stream_get(stream, &s));
  TRY(kernel_get(function, &kern));
  REQUIRE(s->ctx == ctx, CUDA_ERROR_INVALID_HANDLE,
          "kernel %s: the stream belongs to another context than the current one", kern->info->name);
  TRY(kernel_prepare(kern, s->home, grid, block, shared, &o.kernel));
  o.kernel.launch.cooperative = cooperative;
  TRY(kernel_compile(&o.kernel));
  uint8_t raw[param_storage_bytes(kern) + PARAM_ALIGNMENT];
  uint8_t *params = (uint8_t *)(((uintptr_t)raw + PARAM_ALIGNMENT - 1) & ~(uintptr_t)(PARAM_ALIGNMENT - 1));
  TRY(kernel_pack(kern, args, params));
  o.kernel.launch.params = params;
  return submit(s, &o, false);
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **params,
                        void **extra) {
  return launch(function, (uint32_t[]){grid_x, grid_y, grid_z}, (uint32_t[]){block_x, block_y, block_z}, shared, stream,
                (kernel_args){params, extra}, false);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                   CUstream stream, void **params) {
  return launch(function, (uint32_t[]){grid_x, grid_y, grid_z}, (uint32_t[]){block_x, block_y, block_z}, shared, stream,
                (kernel_args){params, NULL}, true);
}

CUresult launch_attributes_take(const CUlaunchAttribute *attributes, unsigned count, bool *cooperative) {
  for (unsigned i = 0; i < count; i++) {
    const CUlaunchAttribute *a = &attributes[i];
    if (a->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) *cooperative = a->value.cooperative != 0;
    bool cluster = a->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION &&
                   (uint64_t)a->value.clusterDim.x * a->value.clusterDim.y * a->value.clusterDim.z > 1;
    REQUIRE(!cluster, CUDA_ERROR_NOT_SUPPORTED, "block clusters are not supported");
  }
  return CUDA_SUCCESS; /* the others are hints */
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra) {
  REQUIRE_POINTER(config);
  REQUIRE(config->numAttrs == 0 || config->attrs != NULL, CUDA_ERROR_INVALID_VALUE, "%s: attrs is NULL", __func__);
  bool cooperative = false;
  TRY(launch_attributes_take(config->attrs, config->numAttrs, &cooperative));
  return launch(function, (uint32_t[]){config->gridDimX, config->gridDimY, config->gridDimZ},
                (uint32_t[]){config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes,
                config->hStream, (kernel_args){params, extra}, cooperative);
}

/* The interface of compiled kernels, the block runner and the driver; they share nothing else.
 *
 * A kernel is compiled for one block shape. One call of it executes one warp of one block; registers that differ
 * between lanes are 32-wide vectors. The runner gives every warp of a block a stack of its own, so that a barrier
 * is a switch to the next warp.
 */
#ifndef SOFTGPU_ABI_H
#define SOFTGPU_ABI_H
#include <stddef.h>
#include <stdint.h>

#include "window.h"

#define SG_WARP 32
#define SG_SHARED_ALIGN 1024 /* also in ptx/limits.py */

/* The barrier of the blocks of a cooperative launch, in the layout of CUDA's cooperative_groups. Zeros at first. */
typedef struct sg_grid {
  uint32_t bytes;
  uint32_t barrier; /* of the whole grid; kernels count in it themselves */
} sg_grid;

/* Field offsets are known to codegen/special.py (WARP_FIELDS): change both. */
typedef struct sg_warp {
  uint32_t ctaid[3];
  uint32_t nctaid[3];
  uint32_t warp;      /* index in the block; lane l is linear thread 32 * warp + l */
  uint32_t live;      /* bit l: lane l exists (the last warp may be short) */
  uint8_t *shared;    /* static then dynamic shared memory of the block, aligned to SG_SHARED_ALIGN */
  uint8_t *local;     /* local_bytes for each lane, lane after lane; NULL if the kernel has none */
  uint32_t dynamic_shared_bytes;
  uint32_t shared_bytes;
  struct sg_block *block; /* the runner's own */
  const volatile uint32_t *stop; /* read after many rounds of a loop: not 0 if the launch must end */
  sg_grid *grid; /* of a cooperative launch: the address in %envreg1 and %envreg2; else NULL */
  uint64_t window_base, window_mask; /* of a confined launch */
} sg_warp;

/* params: the parameter buffer, laid out at the offsets of the kernel's parameters. */
typedef void (*sg_kernel_fn)(const uint8_t *params, sg_warp *warp);

/* The source line of the instructions from this line of the PTX on. */
typedef struct sg_source {
  uint32_t ptx_line, line;
  const char *file; /* "": it is not known */
} sg_source;

/* A kernel of an image, before it is compiled for a block shape. Strings and arrays belong to the module. */
typedef struct sg_kernel_info {
  const char *name;
  uint32_t param_count;
  const uint32_t *param_offsets;
  const uint32_t *param_sizes;
  uint32_t param_bytes;
  uint32_t shared_bytes; /* static */
  uint32_t local_bytes;  /* per thread */
  uint32_t max_threads;  /* per block; 1024 unless the image says less */
  uint32_t registers;    /* declared by the image: a figure for attributes, not a resource here */
  uint32_t const_bytes;  /* of the image's .const variables */
  const char *refusal;   /* the unsupported parts of the kernel, as an error's text; NULL: it can run */
  const sg_source *sources; /* of the image, by line of the PTX */
  uint32_t source_count;
} sg_kernel_info;

typedef struct sg_global_info {
  const char *name;
  uint64_t address, bytes;
  uint32_t managed; /* declared as memory of the host too */
} sg_global_info;

/* The compiler, given to the driver by jit.py. Every function returns a CUresult and, unless it is 0, leaves a message
 * for softgpu_last_error. image is the bytes given to cuLibraryLoadData (bytes = 0: NUL-terminated text). */
typedef struct sg_compiler {
  /* device: its variables are in its memory. window: its kernels are confined to it, and its variables lie there; NULL:
   * they are not. */
  int (*load)(const void *image, size_t bytes, uint32_t device, sg_window *window, uint64_t *module);
  int (*describe)(uint64_t module, const sg_kernel_info **kernels, uint32_t *kernel_count,
                  const sg_global_info **globals, uint32_t *global_count);
  /* Lets other threads begin a compilation that compile will be called for; returns at once. */
  int (*announce)(uint64_t module, uint32_t kernel, const uint32_t block[3], uint32_t checked);
  /* checked: as for memcheck; the code also reports the bytes that it touches. */
  int (*compile)(uint64_t module, uint32_t kernel, const uint32_t block[3], uint32_t checked, sg_kernel_fn *fn);
  void (*unload)(uint64_t module);
  /* Joins images that hold PTX. The joined image lives until this thread's next call. NULL: linking is unsupported. */
  int (*link)(uint32_t count, const void *const *images, const size_t *bytes, const char *const *names,
              const void **joined, size_t *joined_bytes);
} sg_compiler;

/* --- variables.c: for the compiler */

/* Memory of a device, which is zero, in the window if there is one; NULL: one of them has not enough. */
void *sg_variables_take(uint32_t device, sg_window *window, size_t bytes);
void sg_variables_give(uint32_t device, sg_window *window, void *memory, size_t bytes);

/* --- runner.c: blocks, warps, barriers, and the helpers that compiled code calls (sg_rt_*) */

/* A value that a conditional node of a graph launch reads, and its kernels set (cudaGraphSetConditional). */
typedef struct sg_condition {
  uint64_t handle;
  uint32_t value; /* atomic */
  uint32_t initial, has_initial; /* at the beginning of a launch */
} sg_condition;
typedef struct sg_conditions {
  uint32_t count;
  sg_condition items[];
} sg_conditions;

typedef struct sg_launch {
  sg_kernel_fn fn;
  const uint8_t *params;
  uint32_t grid[3], block[3];
  uint32_t static_shared_bytes, dynamic_shared_bytes, local_bytes, param_bytes;
  uint32_t device; /* the device that gets the output */
  const volatile uint32_t *stop; /* as in sg_warp; NULL: it cannot be stopped */
  struct sg_touched *touched;  /* the record of the device memory that checked code touches; NULL: no record */
  sg_conditions *conditions;   /* of its graph launch; NULL: it has none */
  const char *name;              /* of the kernel, for messages; NULL: it has none */
  const sg_source *sources;    /* of the kernel's image */
  uint32_t source_count;
  uint32_t cooperative;          /* its blocks may wait for one another: all are under way at once */
  sg_window *window;             /* its code is confined to it; NULL: it is not confined */
} sg_launch;

/* Runs every block; returns 0, or the CUresult of a trap, a bad access or a stop. error (may be NULL) receives a sentence. */
int sg_run(const sg_launch *launch, char *error, size_t error_bytes);

/* --- memory.c: the driver's memory, for memcheck and for messages */

typedef struct sg_range {
  uint64_t address, bytes;
  char name[64]; /* "" if it has none */
} sg_range;
/* The live allocation, or region of one, that holds the address, or else the nearest; 0 if there is none. */
int sg_memory_nearest(uint64_t address, sg_range *range);
/* Grows with each change of an allocation or region: a range that was found at another count may be gone. */
uint64_t sg_memory_changes(void);

/* faults.c: calls body; 0 if it has ended at an access of this address, where it may do nothing. */
int sg_guarded(void (*body)(void *), void *data, uint64_t *address) __attribute__((visibility("hidden")));
/* Describes the place of an address, for a message. */
int sg_describe_access(uint64_t address, uint32_t bytes, char *text, size_t text_bytes)
    __attribute__((visibility("hidden")));
/* The same, relative to this range. */
int sg_describe_near(uint64_t address, uint32_t bytes, const sg_range *near, char *text, size_t text_bytes)
    __attribute__((visibility("hidden")));

/* --- touched.c: the bytes that a piece of work has touched, by the kind of access */

enum { SG_READ, SG_WRITE, SG_UPDATE /* atomically */, SG_VERBS }; /* the numbers of codegen/memcheck.py */
typedef struct sg_span {
  uint64_t from, to;
  const char *by; /* the name of the work that touched them; never freed */
} sg_span;
typedef struct sg_touched {
  struct sg_spans {
    sg_span *items;
    size_t count, capacity;
  } sets[SG_VERBS];
  const char *by;  /* of spans to be added */
  int incomplete;  /* there was not enough memory for all spans */
} sg_touched;
/* Called by one thread at a time. */
void sg_touched_add(sg_touched *touched, uint32_t verb, uint64_t address, uint64_t bytes);

/* --- output.c: the output of kernels */

/* Text of a kernel, from any of the runner's threads. */
void softgpu_write(uint32_t device, const char *text, size_t bytes);
/* Sends the output also to the process's stdout, or not. It does at first. */
void softgpu_echo(int on);
/* Moves at most `bytes` of the device's output since the last call, oldest first; returns the number of bytes. */
size_t softgpu_take_output(uint32_t device, char *text, size_t bytes);

/* --- driver.c: the functions that jit.py and softgpu call, besides the cu* functions */

/* Once per process, before cuInit: number of devices, bytes of memory of each, and the compiler. */
int softgpu_configure(uint32_t devices, const uint64_t *memory_bytes, const sg_compiler *compiler);
/* Ends the kernels of a device, and later ones, with CUDA_ERROR_LAUNCH_TIMEOUT, until it gets a new context.
 * Any thread may call it; it returns before they have ended. */
int softgpu_cancel(uint32_t device);
/* Writes the names of the kernels that run on a device now, one a line, as many as fit; returns the bytes. */
size_t softgpu_running(uint32_t device, char *text, size_t bytes);
/* The sentence of this thread's last failed call ("" if there is none). */
const char *softgpu_last_error(void);
/* Adds a fault; see softgpu.Fault for the kinds, by number. softgpu_forgive removes all faults. */
int softgpu_inject(uint32_t device, uint32_t kind, uint64_t at, double rate, uint64_t seed, double seconds);
void softgpu_forgive(void);
void softgpu_end_hangs(void);
/* Strict mode for all devices; see strict.c. Memory and work from before stay as they are. */
void softgpu_strict(int on, uint64_t seed);
/* Makes a window for `bytes` of a program's memory (a power of two, from 128 MiB); it can be mapped by
 * hand in the window's first half, from SG_WINDOW_MARGIN on. */
int softgpu_window(uint64_t bytes, uint64_t *base);
int softgpu_window_free(uint64_t base);
/* Confines to this window the libraries that this thread loads from now on; 0: they are not confined. */
int softgpu_confine(uint64_t base);
/* Ends the writing of memory (a handle of cuMemCreate) at all places where it is mapped from now on, in any process. */
int softgpu_seal(uint64_t memory);
/* Makes a file the memory of a device that has no physical memory yet. Each unit of 2 MB at these offsets stays as it is,
 * and gets a handle; all else in the file becomes zeros. `made` has room for `count` handles. */
int softgpu_adopt(uint32_t device, int file, const uint64_t *offsets, uint64_t count, uint64_t *made);
/* The place in that file of memory (a handle of cuMemCreate) that cannot be exported. */
int softgpu_offset(uint64_t memory, uint64_t *offset);
/* Divides memory in an allocation into regions (regions.c), and removes its earlier regions; 0 regions: only removes. */
int softgpu_regions(uint64_t address, uint64_t bytes, uint32_t regions, const uint64_t *offsets,
                         const uint64_t *sizes, const char *const *names);
/* The modelled time of copies and kernels of a device; see softgpu.Model. */
typedef struct sg_takes {
  const char *name;
  double seconds, share, bandwidth; /* a share of 0: as much as the kernel's blocks fill */
} sg_takes;
typedef struct sg_model {
  double copy_bytes_per_s, copy_latency_s, launch_latency_s; /* a rate of 0: not modelled */
  uint32_t sms, blocks_per_sm;                               /* 0 SMs: kernels hold shares of the device */
  uint32_t count;
  const sg_takes *kernels;
} sg_model;
int softgpu_model(uint32_t device, const sg_model *model);
/* Writes the names of the calls that were refused since the last call, one a line; returns the bytes. */
size_t softgpu_refused(char *text, size_t bytes);
void softgpu_set_last_error(const char *message);

#endif

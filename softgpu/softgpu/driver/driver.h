/* Declarations of all source files of the driver: handles, contexts, streams, operations and graphs of a device.
 *
 * Every piece of work is an `op`. Its stream queues it (work.c), and a thread that waits for it, or a worker, runs it.
 *
 * Locks, in the order in which they may be taken: capture_lock, state_lock, work_lock, memory_lock, a handle list's.
 * A thread holds no lock while it runs work or calls the compiler: both may wait for Python's interpreter lock.
 */
#ifndef SOFTGPU_DRIVER_H
#define SOFTGPU_DRIVER_H
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "abi.h"
#include "sealed.h"
#include "cuda_abi.h"
#include "sms.h"

enum {
  DRIVER_VERSION = 13010,
  MAX_DEVICES = 16,
  MAX_THREADS = 1024, /* a block */
  MAX_BLOCK_Z = 64,
  MAX_GRID_YZ = 65535,
  MAX_PARAM_BYTES = 32764,
  PARAM_ALIGNMENT = 64,            /* no parameter type needs more */
  SHARED_DEFAULT_BYTES = 48 << 10, /* of a block, without an attribute */
  SHARED_OPTIN_BYTES = 163 << 10,  /* with CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, as on sm_80 */
  SHARED_SM_BYTES = 164 << 10,
  ALIGNMENT = 512, /* of device memory, and its granularity */
  LIMITS = 10,
};

/* --- errors (errors.c). Every failure gives softgpu_last_error a sentence, and the caller a status. */

void explain(const char *format, ...) __attribute__((format(printf, 1, 2), cold));

#define fail(status, ...) (explain(__VA_ARGS__), (status)) /* a macro, so that the C compiler sees the status */
#define REQUIRE(condition, status, ...) \
  do { \
    if (!(condition)) return fail((status), __VA_ARGS__); \
  } while (0)
#define TRY(call) \
  do { \
    CUresult status_ = (call); \
    if (status_ != CUDA_SUCCESS) return status_; \
  } while (0)
#define REQUIRE_POINTER(p) REQUIRE((p) != NULL, CUDA_ERROR_INVALID_VALUE, "%s: %s is NULL", __func__, #p)

/* --- handles (handles.c). Each object begins with a handle, whose kind is 0 after destruction. The C library never
 * gets the memory back, so that a stale handle is an error and not a crash. */

enum handle_kind {
  HANDLE_CONTEXT = 1,
  HANDLE_STREAM,
  HANDLE_EVENT,
  HANDLE_POOL,
  HANDLE_LIBRARY,
  HANDLE_KERNEL,
  HANDLE_GRAPH,
  HANDLE_NODE,
  HANDLE_EXEC,
  HANDLE_USER_OBJECT,
  HANDLE_PHYSICAL,
  HANDLE_LINK,
  HANDLE_GREEN,
  HANDLE_RESOURCES,
  HANDLE_KINDS
};
typedef struct handle {
  uint32_t magic;
  uint32_t kind;
  struct handle *next; /* in the list of destroyed handles */
} handle;

void *handle_new(enum handle_kind kind, size_t bytes); /* zeroed; NULL without memory */
void handle_delete(void *object);
void handle_kill(void *object);                         /* the first half of handle_delete: the handle is not live */
void handle_bury(void *object, enum handle_kind kind);  /* the second half: its memory may be reused */
bool handle_is(const void *object, enum handle_kind kind);
unsigned long long unique_id(void);

#define REQUIRE_HANDLE(object, kind) \
  REQUIRE(handle_is((object), (kind)), CUDA_ERROR_INVALID_HANDLE, "%s: %s is not a live handle", __func__, #object)

/* For thread variables that short work reads: access without a call. */
#define INITIAL_EXEC __attribute__((tls_model("initial-exec")))

/* --- threads (thread.c) */

enum { CONTEXT_STACK = 64 };
typedef struct thread_state {
  struct current {
    CUcontext ctx;
    unsigned long long id; /* another one means that it is gone, and the address is another context's */
  } contexts[CONTEXT_STACK]; /* the last of `depth` is current */
  int depth;
  char last_error[1024];
} thread_state;
thread_state *thread_here(void);

/* --- devices and contexts (device.c, context.c) */

typedef struct device {
  int ordinal;
  uint64_t memory_bytes;
  uint64_t used_bytes; /* under memory_lock */
  uint32_t sms;        /* its multiprocessors; 0: as many as the machine has processors */
  CUcontext primary;   /* under state_lock, as the next two */
  unsigned primary_references, primary_flags;
  CUmemoryPool default_pool, pool;
  _Atomic uint32_t stop; /* its kernels end, until the device gets a new context */
  char stopped[256];     /* the names of the kernels that ran when stop was set; written before stop */
  struct model *model; /* of its time; NULL: no time is modelled */
  _Atomic bool faulty; /* faults may come */
  _Atomic bool lost;
} device;

/* In strict mode, a place in the order of all work: for each track, how much of its work came before (order.c). */
enum { TRACKS = 64 };
typedef struct moment {
  uint64_t at[TRACKS];
} moment;

struct CUstream_st {
  handle head;
  CUcontext ctx;  /* which has its memory and its errors: of a green context, the primary one */
  CUcontext home; /* the context in which it was made: ctx, or a green one */
  bool detached;  /* its green context is destroyed */
  bool internal;  /* a gather or gate */
  unsigned flags;
  int priority;
  unsigned long long id;
  struct CUstream_st *next; /* in the context */
  /* Under work_lock. */
  struct work *first, *last; /* submitted and not yet done */
  size_t waiting;            /* their number */
  bool running;              /* a thread runs the first */
  bool dying;                /* destroyed; buried with the last of its work */
  uint64_t legacy_seen;      /* the work of the default stream for which this stream last waited */
  int64_t clock_ns;          /* the modelled end of its latest work */
  struct CUstream_st *next_busy;
  uint32_t track;
  moment order; /* of its latest work, and of the work for which the next will wait */
  /* Under capture_lock; a thread may read without the lock if there is a capture. */
  _Atomic(struct capture *) capture;
  struct CUstream_st *next_captured;
  struct nodes {
    CUgraphNode *items;
    size_t count, capacity;
  } tail; /* the nodes on which the next captured node depends */
};

struct CUctx_st {
  handle head;
  device *dev;
  unsigned flags;
  unsigned long long id;
  _Atomic int sticky; /* the CUresult of the kernel that failed; every later call returns it */
  char failure[512];  /* the message of that error; written before sticky */
  _Atomic bool dying;
  bool primary;
  uint32_t peers; /* bit d: access to device d was enabled */
  size_t limits[LIMITS];
  struct CUstream_st *streams; /* under state_lock */
  struct CUstream_st legacy, per_thread;
  struct CUstream_st gather, gate; /* without work of the program (context_events.c) */
  moment all, blocking; /* under work_lock: of the latest work of all its streams, and of its blocking streams */
  CUcontext base;      /* the context that has its memory and its errors: itself, or of a green one the primary one */
  CUgreenCtx green;    /* of which it is the context; NULL: it is no green one */
  const sm_set *sms;   /* on which its kernels run, for ever at this address; NULL: on all */
  CUgreenCtx greens;   /* under state_lock: those of which it is the base */
};

struct CUdevResourceDesc_st { /* never freed */
  handle head;
  device *dev;
  sm_set sms; /* none: the green context has all of the device's */
  CUdevWorkqueueConfigResource queue;
};

struct CUgreenCtx_st {
  handle head;
  CUcontext ctx; /* NULL: its primary context was reset */
  CUdevResourceDesc desc;
  CUgreenCtx next; /* of the same base */
};

extern device devices[MAX_DEVICES];
extern int device_count;
extern bool initialised;
extern struct sealed {
  sg_compiler compiler;
  char rest[SEALED_BYTES - sizeof(sg_compiler)];
} sealed;
extern pthread_mutex_t state_lock;

CUresult require_init(void);
CUresult device_get(CUdevice ordinal, device **dev);
int processor_count(void);                  /* of the machine */
uint32_t device_all_sms(const device *dev); /* the number of its multiprocessors */
uint32_t device_sms(const device *dev);     /* of those that this process may use (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE) */
uint32_t context_sms(const struct CUctx_st *ctx); /* of those on which its kernels run */
/* The base of the current context: initialised, current and without a sticky error. */
CUresult current_context(CUcontext *ctx);
CUcontext peek_context(void); /* likewise, also with an error; NULL if none is current */
CUcontext peek_home(void);    /* the current context itself, which may be a green one */
CUresult context_or_current(CUcontext given, CUcontext *ctx); /* NULL: the current one; both may be green ones */
CUresult context_status(CUcontext ctx);   /* the error that sticks to it */
CUresult context_fail(CUcontext ctx, CUresult status); /* sticks to it, with this thread's latest explanation */
CUresult context_new(device *dev, unsigned flags, bool primary, CUcontext *ctx);
void context_delete(CUcontext ctx);
CUresult primary_take(device *dev, CUcontext *ctx); /* a reference to it */
CUresult primary_drop(device *dev, bool all);
CUresult green_get(CUgreenCtx green); /* an error if it is not live */
void greens_end(CUcontext base);      /* before it goes */
/* True if a stream belongs to a context, or to a green context of it. */
static inline bool stream_within(const struct CUstream_st *s, const struct CUctx_st *ctx) {
  return s->ctx == ctx || s->home == ctx;
}

/* --- memory (memory.c, pool.c) */

enum memory_kind { MEMORY_DEVICE, MEMORY_HOST, MEMORY_REGISTERED, MEMORY_MANAGED, MEMORY_GLOBAL };
enum { SEEN_BY_HOST = 1 }; /* flags of MEMORY_GLOBAL: a managed variable */
typedef struct hints { /* managed.c */
  bool read_mostly;
  CUmemLocation preferred, prefetched;
  uint32_t accessed_by; /* a bit for each device, and one for the host */
} hints;
typedef struct allocation {
  uintptr_t base;
  size_t bytes;    /* as the program requested */
  size_t reserved; /* taken from the device */
  enum memory_kind kind;
  unsigned flags;
  device *dev;
  CUcontext ctx;
  CUmemoryPool pool;
  hints *hints;              /* of managed memory; NULL: none yet */
  struct graph_block *graph; /* NULL unless nodes allocate and free it */
  bool mapped;  /* by hand (mapped.c): never freed */
  bool read_only; /* mapped so that kernels and copies cannot write it */
  bool leaving; /* its freeing is queued: only work under way may use it */
  unsigned long long id;
} allocation;

struct CUmemPoolHandle_st {
  handle head;
  device *dev; /* NULL: host memory */
  CUmemPoolProps props;
  uint64_t release_threshold, reserved, reserved_high, used, used_high;
  int reuse[4];
  uint32_t access; /* bit d: device d may use it */
  struct block {
    uintptr_t base;
    size_t bytes;
    struct block *next;
  } *cached;         /* freed, still reserved */
  CUmemoryPool next; /* of all pools */
};

extern pthread_mutex_t memory_lock;
bool memory_find(uintptr_t address, allocation *found);
CUresult memory_check(uintptr_t address, size_t bytes, bool must_be_known);
CUresult memory_check_writable(uintptr_t address, size_t bytes, bool must_be_known);
CUresult memory_add(const allocation *entry);                /* adds a range to the table */
bool memory_remove(uintptr_t base, allocation *removed);     /* by its first byte */
hints *memory_hints_locked(uintptr_t address);               /* of the allocation there; NULL without memory */
CUresult memory_set_mapped(const allocation *entries, size_t count); /* all memory mapped by hand, by base */
bool mapped_is_reserved(uintptr_t address);                         /* by cuMemAddressReserve */
unsigned mapped_handle_types(uintptr_t address);                    /* as which the memory there can be exported */
void memory_disown(uintptr_t base);                          /* no graph owns it any more */
bool memory_leave(uintptr_t base, allocation *leaving);      /* not found by programs, but there until its removal */
CUresult memory_reserve_locked(device *dev, size_t bytes);   /* counts bytes, or CUDA_ERROR_OUT_OF_MEMORY */
CUresult memory_reserve(device *dev, size_t bytes, CUcontext ctx); /* waits for queued frees if that helps */
void memory_unreserve(device *dev, size_t bytes);
CUresult memory_allocate(allocation entry, uintptr_t *base); /* entry has bytes, kind, device, context */
void memory_give_back(const allocation *entry);              /* after memory_remove */
static inline size_t memory_round(size_t bytes) { return (bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1); }
void memory_free_context(CUcontext ctx);
void memory_changed(void); /* ranges that were found before may be gone */
void regions_narrow_locked(uint64_t address, sg_range *range); /* to the bytes that checked code may access */
void regions_forget_locked(uint64_t address, uint64_t bytes);
extern CUmemoryPool host_pool, managed_pool;
CUresult pool_location(CUmemLocation location, device **dev); /* NULL: the host */
CUresult pool_new(const CUmemPoolProps *props, device *dev, CUmemoryPool *pool);
CUresult pool_alloc(CUmemoryPool pool, size_t bytes, CUcontext ctx, CUdeviceptr *address);
void pool_take_back(const allocation *entry);
void pools_release_locked(device *dev);

/* --- where memory comes from (pages.c). bytes: a multiple of ALIGNMENT, the same for both */

uintptr_t pages_take(size_t bytes); /* 0: the host has no memory left */
uintptr_t pages_take_zeros(size_t bytes);
void pages_free(uintptr_t base, size_t bytes);

/* --- kernels (module.c, launch.c) */

typedef struct variant { /* a kernel compiled for one block shape */
  struct variant *next;
  uint64_t module;
  bool checked;
  uint32_t block[3];
  sg_kernel_fn fn;
} variant;

typedef struct library {
  handle head;
  void *image;
  size_t image_bytes; /* 0: text */
  uint32_t kernel_count;
  struct kernel **kernels;
  bool shares_module; /* it has no globals, so that every device uses the first module */
  sg_window *window;  /* its kernels are confined to it; NULL: they are not */
  struct loaded {
    _Atomic bool ready;
    uint64_t module;
    const sg_global_info *globals;
    uint32_t global_count;
  } first, loaded[MAX_DEVICES]; /* by device, since an image's globals exist once on each */
} library;

typedef struct kernel { /* the object of both CUkernel and CUfunction */
  handle head;
  library *lib;
  uint32_t index;
  const sg_kernel_info *info;
  int max_dynamic_shared[MAX_DEVICES];
  int carveout;
  _Atomic(variant *) variants;
} kernel;

CUresult library_module(library *lib, device *dev, uint64_t *module);
/* windows.c: the window of libraries that this thread loads, which stays until the library leaves it; NULL: none. */
sg_window *window_enter(void);
void window_leave(const sg_window *window);

typedef struct kernel_call {
  sg_launch launch; /* fn is NULL until kernel_compile */
  kernel *kern;
  CUcontext ctx; /* as for a stream's home; it may be gone, and with the next, is certainly this one if it has this id */
  unsigned long long ctx_id;
  const sm_set *sms; /* on which it runs; NULL: on all */
} kernel_call;

typedef struct kernel_args {
  void **pointers, **extra;
} kernel_args;

CUresult kernel_get(const void *function, kernel **kern);
size_t param_storage_bytes(const kernel *kern); /* of the parameter buffer, at least 16 */
/* ctx: may be a green one. */
CUresult kernel_prepare(kernel *kern, CUcontext ctx, const uint32_t grid[3], const uint32_t block[3], uint32_t shared,
                        kernel_call *call); /* checks; the parameters are left to kernel_pack */
CUresult kernel_announce(const kernel_call *call); /* its code will be wanted: the compiler may begin */
CUresult kernel_compile(kernel_call *call); /* before it runs: a last check; fills in launch.fn if it is still missing */
CUresult kernel_checked(kernel *kern, device *dev, const uint32_t block[3], sg_kernel_fn *fn); /* for strict mode */
/* Whether the device has room at once for the blocks of a cooperative launch, by its occupancy, and for local memory. */
CUresult kernel_check_resident(const kernel_call *call);
/* What they ask for: *cooperative stays as it is if they do not speak of it. */
CUresult launch_attributes_take(const CUlaunchAttribute *attributes, unsigned count, bool *cooperative);
CUresult kernel_pack(const kernel *kern, kernel_args args, uint8_t *buffer);
/* Memory for packed parameters (copied from params unless NULL), followed by a pointer to each of them. */
CUresult kernel_storage(const kernel *kern, const uint8_t *params, void **storage);
void **kernel_pointers(const kernel *kern, void *storage);

/* Called before and after a kernel's run, and before the names of a library go (running.c). */
void running_begin(device *dev, const kernel *kern);
void running_end(void);
void running_settle(void);

/* --- operations (op.c) */

enum op_kind {
  OP_KERNEL, OP_COPY, OP_FILL, OP_HOST, OP_EMPTY, OP_RECORD, OP_WAIT, OP_CHILD, OP_EXEC, OP_AWAIT, OP_FREE,
  OP_CONDITIONAL, OP_BRANCH, OP_GRAPH_ALLOC, OP_GRAPH_FREE, OP_WAIT_WORD,
  OP_WRITE_WORD
};
typedef struct copy {
  uint8_t *dst;
  const uint8_t *src;
  size_t width, height, depth;
  size_t dst_pitch, dst_slice, src_pitch, src_slice;
  bool staged; /* src may change after the submission of the copy */
} copy;
typedef struct fill {
  uint8_t *dst;
  uint32_t value, element_bytes;
  size_t width, height, pitch; /* width in elements */
} fill;
typedef struct word { /* stream_values.c */
  void *at;
  uint64_t value;
  unsigned bytes, how; /* 4 or 8; CUstreamWaitValue_flags */
} word;
typedef struct op {
  enum op_kind kind;
  union {
    kernel_call kernel;
    copy copy;
    fill fill;
    struct {
      CUhostFn fn;
      void *data;
    } host;
    CUevent event;    /* OP_RECORD, OP_WAIT */
    CUgraph child;    /* OP_CHILD: a node that embeds a graph */
    CUgraphExec exec; /* OP_EXEC: an instance that is launched or embedded */
    allocation freed; /* OP_FREE */
    word word;        /* OP_WAIT_WORD, OP_WRITE_WORD */
    struct graph_block *block;       /* OP_GRAPH_ALLOC, OP_GRAPH_FREE */
    struct conditional *conditional; /* OP_CONDITIONAL: a node, which owns it */
    struct branch *branch;           /* OP_BRANCH: its step in an instance, which owns it */
  };
} op;

/* True if a node with this operation owns the object of the operation. */
static inline bool op_owns(const op *o) {
  return o->kind == OP_CHILD || o->kind == OP_CONDITIONAL || o->kind == OP_GRAPH_ALLOC || o->kind == OP_GRAPH_FREE;
}
const char *op_name(enum op_kind kind); /* for messages; of work that touches memory and is no kernel */
CUresult op_run(const op *o, CUcontext ctx);
CUresult word_wait(const word *w, CUcontext ctx);
CUresult word_write(const word *w);
/* Queues or captures the operation. Parameters, and the source of a staged copy, are copied. wait: until it is done. */
CUresult submit(CUstream s, const op *o, bool wait);
CUresult copy_check(const copy *c, bool src_known, bool dst_known);
CUresult fill_check(const fill *f);
CUresult copy_from_3d(const CUDA_MEMCPY3D *p, copy *c);

/* --- faults (faults.c) */

enum fault_site { FAULT_AT_ALLOCATION, FAULT_AT_KERNEL, FAULT_AT_COPY };
/* The fault that comes now, or CUDA_SUCCESS. name: of a kernel; ctx: of a kernel or copy. Call it if dev->faulty. */
CUresult fault_at(enum fault_site site, device *dev, CUcontext ctx, const char *name);
void faults_let_go(bool all); /* ends all hangs, or only the hangs of dying contexts */

/* --- strict mode (strict.c) */

extern _Atomic bool strict;
uint32_t strict_draw(uint32_t limit);
void strict_poison(uintptr_t base, size_t bytes); /* in strict mode only */
void memory_free(uintptr_t base, size_t bytes);   /* pages_free, in strict mode later */
CUresult pools_look(CUcontext ctx);               /* checks the freed blocks of all pools */
bool strict_order(const struct CUgraphExec_st *exec, uint32_t *order);
CUresult strict_look(CUcontext ctx); /* fails it if freed memory was written */
CUresult strict_look_at(CUcontext ctx, uintptr_t base, size_t bytes);
void strict_note(uintptr_t base, size_t bytes); /* of poison that leaves a pool: for the next check */
void pools_poison(void);
void track_take(CUstream s);
void track_give_back(CUstream s);
void host_learns_all_locked(void);
void race_forget(uintptr_t base, size_t bytes); /* the memory goes back to the C library, which may reuse it */
void race_forget_all(void);

/* --- queues and the threads that run them (work.c, submit.c, workers.c; events: event.c) */

typedef struct fence { /* under work_lock */
  unsigned references;
  bool done;
  CUstream stream; /* the stream that signals it; alive until then */
  int64_t time_ns; /* the time when it was done */
  moment *moment;  /* of the work that signals it; NULL if that was not submitted in strict mode */
  struct fence *next;
} fence;

/* Modelled time (model.c): a clock in each thread that runs work of a device with a model. */
int64_t model_clock(void);
void model_set_clock(int64_t time_ns);
void model_account(struct model *m, const op *o, int64_t began_ns);
void work_keep_pace(const device *dev); /* waits until the clock is not far ahead, or the device's kernels end */
void work_end_sleeps(void);                /* of threads whose device must end its kernels */

extern pthread_mutex_t work_lock;
int64_t now_ns(void);
void fence_drop_locked(fence *f);
void work_run_first_locked(CUstream s);    /* the first must be ready; releases the lock meanwhile */
void work_look_locked(void);               /* called at regular intervals */
CUstream work_find_due_locked(void);       /* a stream with work for a worker; NULL if there is none */
bool work_is_due_locked(const struct CUstream_st *s);
bool work_is_ready_locked(const struct CUstream_st *s);
bool work_any_locked(void);
void workers_wake_locked(void);   /* wakes one more worker now */
void workers_notice_locked(void); /* there is work that is not urgent */
bool frees_awaited(CUcontext ctx); /* true if queued work frees memory; it is done when this returns */
bool stream_idle(CUstream s);    /* for a query of the program: starts the stream's work if it is not started */
bool stream_settled(CUstream s); /* for a query of the driver */
CUresult stream_wait(CUstream s);     /* for all work submitted so far, as the next function */
CUresult context_wait(CUcontext ctx); /* NULL: for all contexts */
void stream_let_go(CUstream s);       /* the last use of a stream */
CUresult event_record(CUevent e, CUstream s);
CUresult event_await(CUstream s, CUevent e);
CUresult event_wait(CUevent e);
bool event_done(CUevent e); /* also if never recorded */
int64_t event_time_ns(CUevent e);
void event_record_now(CUevent e);
void event_wait_now(CUevent e);
void event_expect_locked(CUevent e, fence *launch);
void event_forget(CUevent e);
void event_leave_capture(CUevent e); /* before a record outside of captures */
void context_events_begin(CUcontext home); /* and their end, with a context */
void context_events_end(CUcontext home);
void gate_follow(CUstream s); /* a new stream waits for that for which all others of its context wait */
CUresult exec_wait(CUgraphExec exec);

/* --- streams, events and capture (stream.c, event.c, capture.c) */

struct CUevent_st {
  handle head;
  CUcontext ctx;
  unsigned flags;
  fence *fence;                  /* under work_lock: its last record; NULL: never recorded */
  unsigned long long capture_id; /* under capture_lock; not 0: last recorded in this capture, at these nodes */
  struct nodes nodes;
};

typedef struct capture {
  unsigned long long id;
  CUgraph graph;
  bool owns_graph, invalid;
  CUstreamCaptureMode mode;
  pthread_t thread;
  CUstream origin, streams;
  struct nodes left; /* tails of streams that were destroyed during the capture */
  struct capture *next;
} capture;

extern pthread_mutex_t capture_lock;
CUresult stream_get(CUstream handle, CUstream *s); /* maps the default streams to the current context's */
CUresult stream_new(CUcontext home, unsigned flags, int priority, CUstream *stream);
void stream_init(CUstream s, CUcontext home, unsigned flags, int priority);
void stream_forget(CUstream s);
CUresult capture_op(CUstream s, const op *o); /* adds o to the stream's capture */
CUresult capture_alloc(CUstream s, CUmemoryPool pool, size_t bytes, CUdeviceptr *address); /* nodes of a graph */
CUresult capture_free(CUstream s, CUdeviceptr address);
CUresult capture_gate(void);          /* refuses a call that is forbidden while this thread or process captures */
CUresult capture_forbids(CUstream s); /* refuses a call on a capturing stream */
CUresult capture_legacy_gate(CUstream s);
CUresult capture_forbids_in(CUcontext ctx, CUevent e); /* if a stream of it captures, or e was recorded in a capture */
void capture_spoil(CUstream s);
CUresult capture_begin(CUstream stream, CUgraph graph, bool owned, const CUgraphNode *needs, size_t count,
                       CUstreamCaptureMode mode);
CUresult capture_end(CUstream s, CUgraph *graph);
CUresult capture_record(CUevent e, CUstream s);
CUresult capture_wait(CUstream s, CUevent e, bool *handled);
bool event_captured(CUevent e);
void capture_drop_stream(CUstream s); /* a capturing stream is being destroyed */

/* --- graphs (graph.c, node.c, exec.c, userobject.c) */

struct CUgraphNode_st {
  handle head;
  CUgraph graph;
  uint32_t index; /* in graph->nodes; never used again */
  op op;
  void *storage; /* a kernel's packed parameters, then the table of pointers to them */
  struct nodes needs, needed_by;
  int priority; /* of a kernel: kept and returned, without effect */
};

/* Conditional nodes (conditions.c). */
typedef struct condition_handle { /* as a graph declares it */
  CUgraphConditionalHandle handle;
  unsigned initial;
  bool has_initial, used; /* used: by a node */
} condition_handle;
typedef struct conditional { /* the operation of a node */
  CUgraphConditionalHandle handle;
  CUgraphConditionalNodeType type;
  unsigned size;
  CUgraph graphs[];
} conditional;
typedef struct branch { /* the same operation in an instance */
  CUgraphConditionalNodeType type;
  unsigned size;
  sg_condition *condition; /* in the outermost instance's table */
  CUgraphExec execs[];
} branch;

/* Memory of graphs (graph_memory.c). */
typedef struct graph_block {
  uintptr_t base;
  size_t bytes, reserved;
  device *dev; /* it counts as memory of this device's graphs */
  CUmemPoolProps props;
  CUmemAccessDesc access[MAX_DEVICES];
  size_t access_count;
  unsigned references; /* of nodes and steps; under memory_lock, as the next */
  bool live;           /* allocated by a launch, and not freed yet */
} graph_block;

typedef struct user_object_ref {
  CUuserObject object;
  unsigned count;
} user_object_ref;
typedef struct user_objects {
  user_object_ref *items;
  size_t count;
} user_objects;

struct CUgraph_st {
  handle head;
  unsigned long long id;
  CUgraphNode parent; /* the node that embeds it, or NULL */
  struct nodes nodes; /* by index, in order of creation; NULL for a destroyed node */
  size_t live;
  user_objects objects;
  struct condition_handles {
    condition_handle *items;
    size_t count;
  } conditions;
  CUgraph cloned_from;
};

typedef struct step {
  op op;
  void *storage;
  bool enabled;
  uint32_t index;                   /* of the node in the source graph */
  uint32_t needs_from, needs_count; /* in exec->needs: indices of the nodes on which it depends */
} step;

struct CUgraphExec_st {
  handle head;
  unsigned long long graph_id, flags;
  step *steps; /* in an order that respects the edges */
  size_t step_count;
  uint32_t *position; /* of each node index in steps; UINT32_MAX: it has no step */
  size_t index_count;
  uint32_t *needs;
  user_objects objects;
  _Atomic unsigned references; /* one of its handle, and one of each launch under way */
  fence *last;                 /* under work_lock: its latest launch; NULL: none */
  bool records;                /* it, or an embedded instance, records an event */
  bool allocates;              /* it allocates or frees memory */
  bool outermost;              /* it owns the conditions */
  sg_conditions *conditions; /* of the outermost instance, shared with its inner instances; NULL: there are none */
};

bool nodes_add(struct nodes *set, CUgraphNode node); /* once each; false without memory */
bool nodes_append(struct nodes *list, CUgraphNode node);
bool nodes_have(const struct nodes *set, CUgraphNode node);
void nodes_drop(struct nodes *set, CUgraphNode node);
bool nodes_copy(struct nodes *to, const struct nodes *from);
void nodes_clear(struct nodes *set);

CUresult graph_new(CUgraph *graph);
void graph_delete(CUgraph graph);
CUresult graph_clone(CUgraph graph, CUgraph *clone);
/* Copies o, and a kernel's parameters with it; an OP_CHILD's graph becomes the node's. */
CUresult graph_add_node(CUgraph graph, const CUgraphNode *needs, size_t count, const op *o, CUgraphNode *node);
void node_delete(CUgraphNode node);
CUresult graph_connect(CUgraphNode from, CUgraphNode to);
CUresult graph_check_nodes(CUgraph graph, const CUgraphNode *nodes, size_t count); /* they must be live and its own */
CUresult graph_order(CUgraph graph, CUgraphNode *order);                           /* live nodes, dependencies first */
CUgraphNodeType node_type(const op *o);
/* Set the operation of a node or a step from CUDA's parameters. o keeps its value if that fails. */
CUresult set_kernel(op *o, void **storage, const CUDA_KERNEL_NODE_PARAMS *p);
CUresult set_copy(op *o, const CUDA_MEMCPY3D *p);
CUresult set_fill(op *o, const CUDA_MEMSET_NODE_PARAMS *p);
CUresult set_host(op *o, const CUDA_HOST_NODE_PARAMS *p);
CUresult set_event(op *o, CUevent event);
CUresult set_any(op *o, void **storage, const CUgraphNodeParams *p); /* all of the above, by o's kind */
CUresult exec_new(CUgraph graph, unsigned long long flags, CUgraphExec *exec);
void exec_delete(CUgraphExec exec); /* drops a reference */
CUresult exec_get(CUgraphExec exec); /* an error if it is not live */
CUresult exec_check_contexts(const struct CUgraphExec_st *exec); /* an error if a kernel's green context is gone */
void exec_launched_locked(CUgraphExec exec, fence *launch);
void exec_follow_locked(CUgraphExec exec, moment *order); /* joins the events for which it waits */
CUresult exec_run(CUgraphExec exec, CUcontext ctx);
CUresult exec_take(CUgraphExec exec, CUgraph graph); /* an embedded instance takes all parameters of graph, or none */
CUresult exec_inside(CUgraph graph, CUgraphExec outer, CUgraphExec *exec); /* an instance that is part of another */
CUresult conditional_new(const CUDA_CONDITIONAL_NODE_PARAMS *p, CUgraph graph, conditional **made);
CUresult conditional_clone(const conditional *from, conditional **made);
void conditional_own(const conditional *c, CUgraphNode node); /* node becomes the parent of its graphs */
void conditional_delete(conditional *c);
CUresult conditions_copy(CUgraph to, const struct CUgraph_st *from);
CUresult conditions_gather(CUgraph graph, sg_conditions **made); /* a table for an instance; NULL: it needs none */
void conditions_begin(sg_conditions *table);                     /* a launch */
void conditions_delete(sg_conditions *table);
CUresult branch_new(const conditional *from, CUgraphExec outer, branch **made);
void branch_delete(branch *b);
CUresult branch_run(const branch *b, CUcontext ctx);
CUgraphExecUpdateResult branch_takes(branch *b, CUgraphNode node, bool apply); /* all of node except its graphs */
CUresult graph_block_new(const CUDA_MEM_ALLOC_NODE_PARAMS *p, CUcontext ctx, graph_block **made);
void graph_block_keep(graph_block *b);
void graph_block_drop(graph_block *b);
CUresult graph_block_at(CUdeviceptr address, graph_block **found);
CUresult graph_block_release(graph_block *b, CUstream stream); /* by the program; NULL: at once */
CUresult graph_memory_launch(const struct CUgraphExec_st *exec);
CUresult set_graph_free(op *o, CUgraph graph, CUdeviceptr address); /* keeps the block */
CUresult objects_copy(user_objects *to, const user_objects *from);
void objects_release(user_objects *list);

#endif

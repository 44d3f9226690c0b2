/* Bad accesses of kernels and copies: the processor's signal ends the work with an error, and not the process.
 *
 * The handlers stay installed, but act only on a thread that runs such work; other signals go to the earlier handlers
 * (Python's faulthandler, Ray's stack traces). Another library may install handlers later, so each thread that launches
 * checks from time to time that ours are still there.
 */
#define _GNU_SOURCE
#include "block.h"
#include "sealed.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

enum { SIGNAL_STACK_BYTES = 64 << 10, PROBE_BYTES = 4096 };
static const int64_t LOOK_EVERY_NS = 10000000; /* the check is a system call, too slow for each short launch */

static const int signals[] = {SIGSEGV, SIGBUS};
enum { SIGNALS = sizeof signals / sizeof *signals };
static struct {
  struct sigaction before[SIGNALS];
  char rest[SEALED_BYTES - SIGNALS * sizeof(struct sigaction)];
} others SEALED;
static pthread_mutex_t installing = PTHREAD_MUTEX_INITIALIZER;
/* Of a thread. Initial-exec: the first use, which may be in a handler, must not allocate. */
#define INITIAL_EXEC __attribute__((tls_model("initial-exec")))
static _Thread_local volatile int passing_on INITIAL_EXEC;
static _Thread_local int64_t looked_ns INITIAL_EXEC;          /* the time when it last checked our signal handlers */
static _Thread_local void **volatile guarded INITIAL_EXEC;    /* where it goes on after a fault in a guarded call */
static _Thread_local volatile uint64_t faulted_at INITIAL_EXEC; /* the address of that fault */

static void die_of(int signal) {
  struct sigaction standard = {.sa_handler = SIG_DFL};
  sigaction(signal, &standard, NULL);
  raise(signal);
}

static void pass_on(int signal, siginfo_t *info, void *context) {
  const struct sigaction *next = &others.before[signal == signals[0] ? 0 : 1];
  int ends_here = !(next->sa_flags & SA_SIGINFO) && (next->sa_handler == SIG_DFL || next->sa_handler == SIG_IGN);
  if (ends_here || passing_on) { /* passing_on: that handler has passed the signal back to ours */
    die_of(signal);
    return;
  }
  passing_on = 1;
  if (next->sa_flags & SA_SIGINFO) next->sa_sigaction(signal, info, context);
  else next->sa_handler(signal);
  passing_on = 0;
}

static uintptr_t stack_pointer(const ucontext_t *at) {
#if defined(__x86_64__)
  return (uintptr_t)at->uc_mcontext.gregs[REG_RSP];
#else
  return (uintptr_t)at->uc_mcontext.sp;
#endif
}

static void on_fault(int signal, siginfo_t *info, void *context) {
  sg_block *block = sg_current_block;
  int is_sent = info->si_code <= 0; /* by kill or a similar call */
  void **escape = guarded;
  if (escape && !is_sent) {
    guarded = NULL;
    faulted_at = (uintptr_t)info->si_addr;
    __builtin_longjmp(escape, 1);
  }
  if (!block || !block->in_kernel || is_sent) {
    pass_on(signal, info, context);
    return;
  }
  block->in_kernel = 0;
  block->faulted = 1;
  block->fault_has_address = info->si_code != SI_KERNEL; /* else the address is invalid for the processor */
  block->fault_address = (uintptr_t)info->si_addr;
  /* all code touches each page of its stack as the stack grows: only the end of a stack faults at the stack pointer */
  block->fault_of_stack = block->fault_address - stack_pointer(context) + PROBE_BYTES < 2 * PROBE_BYTES;
  __builtin_longjmp(block->escape, 1);
}

static void install(void) {
  pthread_mutex_lock(&installing);
  for (int i = 0; i < SIGNALS; i++) {
    struct sigaction now, ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    if (sigaction(signals[i], NULL, &now)) continue;
    if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_fault) continue;
    seal(&others, PROT_READ | PROT_WRITE);
    others.before[i] = now;
    seal(&others, PROT_READ);
    sigaction(signals[i], &ours, NULL);
  }
  pthread_mutex_unlock(&installing);
}

void sg_watch_faults(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  int64_t now = (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
  if (looked_ns && now - looked_ns < LOOK_EVERY_NS) return;
  looked_ns = now;
  install();
}

__attribute__((noinline)) int sg_guarded(void (*body)(void *), void *data, uint64_t *address) {
  void *escape[5];
  sg_watch_faults();
  if (__builtin_setjmp(escape)) {
    *address = faulted_at;
    return 0;
  }
  guarded = escape;
  body(data);
  guarded = NULL;
  return 1;
}

/* --- a stack for the handler: the kernel may have used up its own */

void sg_open_signal_stack(sg_block *block) {
  stack_t present;
  if (sigaltstack(NULL, &present) || !(present.ss_flags & SS_DISABLE)) return;
  void *memory = mmap(NULL, SIGNAL_STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  stack_t ours = {.ss_sp = memory, .ss_size = SIGNAL_STACK_BYTES};
  if (sigaltstack(&ours, NULL)) munmap(memory, SIGNAL_STACK_BYTES);
  else block->signal_stack = memory;
}

void sg_close_signal_stack(sg_block *block) {
  if (!block->signal_stack) return;
  stack_t none = {.ss_flags = SS_DISABLE};
  sigaltstack(&none, NULL);
  munmap(block->signal_stack, SIGNAL_STACK_BYTES);
}

/* --- messages */

sg_place sg_place_of(const sg_warp *warp, uint32_t line) {
  const sg_launch *launch = warp->block->launch;
  const sg_source *source = NULL;
  sg_place place;
  for (uint32_t i = 0; i < launch->source_count && launch->sources[i].ptx_line <= line; i++) source = &launch->sources[i];
  if (source && *source->file)
    snprintf(place.text, sizeof place.text, "%.60s:%u (PTX line %u)", source->file, source->line, line);
  else snprintf(place.text, sizeof place.text, "PTX line %u", line);
  return place;
}

int sg_describe_access(uint64_t address, uint32_t bytes, char *text, size_t text_bytes) {
  sg_range near;
  if (!sg_memory_nearest(address, &near)) return snprintf(text, text_bytes, "there is no device memory");
  return sg_describe_near(address, bytes, &near, text, text_bytes);
}

int sg_describe_near(uint64_t address, uint32_t bytes, const sg_range *near, char *text, size_t text_bytes) {
  uint64_t end = near->address + near->bytes;
  const char *place = "inside";
  uint64_t distance = address - near->address;
  if (address < near->address) {
    place = "before";
    distance = near->address - address;
  } else if (address >= end) {
    place = "behind the end of";
    distance = address - end;
  } else if (address + bytes > end) {
    place = "of them behind the end of";
    distance = address + bytes - end;
  }
  return snprintf(text, text_bytes, "%" PRIu64 " bytes %s the nearest buffer (%s%s%" PRIu64 " bytes at 0x%" PRIx64 ")",
                  distance, place, near->name, *near->name ? ": " : "", near->bytes, near->address);
}

void sg_report_fault(sg_block *block) {
  const uint32_t *at = block->warps[block->running].ctaid;
  char address[64] = "no valid address", near[160] = "";
  block->faulted = 0;
  block->result = ILLEGAL_ADDRESS;
  if (block->fault_has_address) {
    snprintf(address, sizeof address, "0x%" PRIxPTR, block->fault_address);
    near[0] = ',', near[1] = ' ';
    sg_describe_access(block->fault_address, 1, near + 2, sizeof near - 2);
    if (block->fault_of_stack) {
      block->result = LAUNCH_FAILED;
      snprintf(near, sizeof near, ": stack overflow, the kernel needs more than the %d bytes of a warp's stack",
               STACK_BYTES);
    }
  }
  if (!block->error || !block->error_bytes) return;
  snprintf(block->error, block->error_bytes, "illegal access in block (%u, %u, %u), warp %u: %s%s", at[0], at[1], at[2],
           block->running, address, near);
}

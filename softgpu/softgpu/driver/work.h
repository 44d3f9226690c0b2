/* Declarations shared by the queues (work.c), submission to them (submit.c) and events (event.c). */
#ifndef SOFTGPU_WORK_H
#define SOFTGPU_WORK_H
#include "driver.h"

enum { INLINE_BYTES = 256 };

typedef struct work {
  struct work *next;
  op op;
  uint64_t ticket;  /* the number of this work among all work, in order of submission */
  fence *awaits;    /* OP_AWAIT */
  fence *signals;   /* or NULL */
  bool urgent;     /* a worker runs it at once */
  int64_t submitted_ns; /* used if time is modelled */
  moment *moment;       /* in strict mode, else NULL */
  void *storage;    /* of data that does not fit into bytes */
  _Alignas(PARAM_ALIGNMENT) uint8_t bytes[INLINE_BYTES];
} work;

extern pthread_cond_t work_progress; /* some work is done */
extern CUstream work_busy;           /* streams with work; this and the next under work_lock */
extern uint64_t work_last_ticket;
extern _Atomic uint64_t work_pending_frees;
extern _Thread_local work *work_running INITIAL_EXEC; /* the work that this thread runs now */

static inline int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }
static inline bool stream_blocks(const struct CUstream_st *s) { return !(s->flags & CU_STREAM_NON_BLOCKING); }

fence *fence_new_locked(CUstream s);
fence *fence_keep_locked(fence *f);
fence *work_signal_locked(CUstream s, work *w); /* the fence that w signals; NULL without memory */
work *work_append_locked(CUstream s, const op *o);
CUresult work_await_locked(CUstream s, fence *f);
CUresult work_await_tail_locked(CUstream s, CUstream of); /* all work that `of` has now */
CUresult work_await_legacy_locked(CUstream s);
bool work_help_locked(CUstream s);
bool work_help_any_locked(void);
void work_wait_locked(fence *f);
CUresult work_may_wait(void); /* refuses inside a host function */
CUresult work_queue_locked(CUstream s, const op *o, work **made);
void work_ask_locked(CUstream s);

#endif

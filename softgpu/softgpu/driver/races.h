/* Races in strict mode (races.c, order.c): the order of work, and the bytes that each work has touched. */
#ifndef SOFTGPU_RACES_H
#define SOFTGPU_RACES_H
#include "touched.h"
#include "work.h"

enum { HOST_TRACK = 0 };

/* Order (order.c). */
moment *moment_copy(const moment *of); /* NULL without memory */
void moment_join(moment *to, const moment *from);
moment *moment_next_locked(CUstream s); /* of the next work of s; NULL without memory */
moment *moment_of_host_locked(void);    /* of an action of the host now; NULL without memory */
void host_learns_locked(const moment *of); /* the host has waited until then; NULL: nothing new */
bool host_knows_locked(uint32_t track, uint64_t number);

/* The record of the bytes that this thread's work touches; NULL: there is no record. */
extern _Thread_local sg_touched *touching INITIAL_EXEC;
void race_note(const op *o);                                 /* before it runs; a kernel notes its own accesses */
void race_run(work *w, CUstream s);                          /* runs w and compares it with earlier work */
void race_prune_locked(void);                                /* forgets work that can race with nothing any more */
bool race_compare_steps(CUgraphExec exec, const sg_touched *steps); /* false, after fail: two of the steps race */
CUresult race_allocated(CUstream s, uintptr_t base, size_t bytes);
CUresult race_freed_by_host(CUcontext ctx, uintptr_t base, size_t bytes);

#endif

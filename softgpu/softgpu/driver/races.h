/* Races in strict mode (races.c, order.c): what is ordered before what, and who has touched which bytes. */
#ifndef SOFTGPU_RACES_H
#define SOFTGPU_RACES_H
#include "touched.h"
#include "work.h"

enum { HOST_TRACK = 0 };

/* Order (order.c). */
moment *moment_copy(const moment *of); /* NULL without memory */
void moment_join(moment *to, const moment *from);
moment *moment_next_locked(CUstream s); /* of the next work of s; NULL without memory */
moment *moment_of_host_locked(void);    /* of something that the host does now; NULL without memory */
void host_learns_locked(const moment *of); /* somebody has waited until then; NULL: nothing new */
bool host_knows_locked(uint32_t track, uint64_t number);

/* What runs in this thread notes here what it touches; NULL: nobody wants to know. */
extern _Thread_local sg_touched *touching INITIAL_EXEC;
void race_note(const op *o);                                 /* before it runs; a kernel tells the rest itself */
void race_run(work *w, CUstream s);                          /* and compares with what ran before */
void race_prune_locked(void);                                /* forgets what can meet nothing any more */
bool race_compare_steps(CUgraphExec exec, const sg_touched *steps); /* after fail, if false: two of them race */
CUresult race_allocated(CUstream s, uintptr_t base, size_t bytes);
CUresult race_freed_by_host(CUcontext ctx, uintptr_t base, size_t bytes);

#endif

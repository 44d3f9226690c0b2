/* Sets of touched bytes (sg_touched in abi.h). */
#ifndef SOFTGPU_TOUCHED_H
#define SOFTGPU_TOUCHED_H
#include "abi.h"

typedef struct sg_conflict {
  sg_span one, other; /* they overlap */
  uint32_t verbs[2];            /* at least one of the two changes the bytes */
} sg_conflict;

#define HIDDEN __attribute__((visibility("hidden")))
HIDDEN void sg_touched_add_all(sg_touched *to, const sg_touched *from);
HIDDEN void sg_touched_tidy(sg_touched *touched); /* before it is compared */
HIDDEN void sg_touched_free(sg_touched *touched);
HIDDEN void sg_touched_forget(sg_touched *touched, uint64_t address, uint64_t bytes); /* spans that begin there */
HIDDEN int sg_touched_conflict(const sg_touched *a, const sg_touched *b, sg_conflict *found); /* both tidy */
#undef HIDDEN

#endif

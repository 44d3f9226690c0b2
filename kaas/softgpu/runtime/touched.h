/* Sets of touched bytes (kaas_touched in abi.h). */
#ifndef KAAS_SOFTGPU_TOUCHED_H
#define KAAS_SOFTGPU_TOUCHED_H
#include "abi.h"

typedef struct kaas_conflict {
  kaas_span one, other; /* they overlap */
  uint32_t verbs[2];            /* at least one changes what the other touches */
} kaas_conflict;

#define HIDDEN __attribute__((visibility("hidden")))
HIDDEN void kaas_touched_add_all(kaas_touched *to, const kaas_touched *from);
HIDDEN void kaas_touched_tidy(kaas_touched *touched); /* before it is compared */
HIDDEN void kaas_touched_free(kaas_touched *touched);
HIDDEN void kaas_touched_forget(kaas_touched *touched, uint64_t address, uint64_t bytes); /* spans that begin there */
HIDDEN int kaas_touched_conflict(const kaas_touched *a, const kaas_touched *b, kaas_conflict *found); /* both tidy */
#undef HIDDEN

#endif

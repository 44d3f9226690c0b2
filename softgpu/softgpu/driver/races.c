/* Strict mode's races: two pieces of work that touch the same bytes, one changing them, and that nothing orders.
 *
 * After a piece of work has run, its bytes are compared with those of all earlier work that its moment does not include
 * (order.c). Each pair is compared once, so that a race is found in either order. Copies and sets know their bytes, and
 * checked code reports those of kernels. Freeing a block changes it, and so does allocating it from a pool. The context
 * fails, with both names.
 */
#include "races.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct record {
  struct record *next;
  uint32_t track;
  uint64_t number; /* in its track */
  unsigned long long stream;
  moment *when;
  uint64_t settled; /* the next ticket at the time when the host knew that it was done; 0: not yet */
  bool frees, allocates; /* a block of a pool */
  sg_touched touched;
} record;

static pthread_mutex_t race_lock = PTHREAD_MUTEX_INITIALIZER; /* taken last */
static record *records;
_Thread_local sg_touched *touching INITIAL_EXEC;

/* --- names */

/* A permanent pointer for these words, always the same: a library may be unloaded with its names. */
static const char *keep_name(const char *kind, const char *name) {
  static struct kept {
    struct kept *next;
    char text[];
  } *names;
  static const char unknown[] = "something";
  size_t head = strlen(kind);
  pthread_mutex_lock(&race_lock);
  struct kept *at = names;
  while (at != NULL && (strncmp(at->text, kind, head) != 0 || strcmp(at->text + head, name) != 0)) at = at->next;
  if (at == NULL && (at = malloc(sizeof *at + head + strlen(name) + 1)) != NULL) {
    strcpy(at->text, kind);
    strcpy(at->text + head, name);
    at->next = names;
    names = at;
  }
  pthread_mutex_unlock(&race_lock);
  return at != NULL ? at->text : unknown;
}

static const char *const verbs[] = {"reads", "changes", "updates"};

static void explain_race(const sg_conflict *c, const char *where, const char *other_where, const char *missing) {
  uint64_t from = c->one.from > c->other.from ? c->one.from : c->other.from;
  uint64_t to = c->one.to < c->other.to ? c->one.to : c->other.to;
  char near[160];
  sg_describe_access(from, 1, near, sizeof near);
  explain("a race: %s%s %s and %s%s %s %" PRIu64 " bytes at 0x%" PRIx64 ", %s, and %s", c->other.by, other_where,
          verbs[c->verbs[1]], c->one.by, where, verbs[c->verbs[0]], to - from, from, near, missing);
}

/* --- the bytes that work touches */

static void note_rows(uint32_t verb, const uint8_t *first, size_t width, size_t height, size_t pitch) {
  for (size_t y = 0; y < height; y++) sg_touched_add(touching, verb, (uintptr_t)first + y * pitch, width);
}

static void note_copy(const copy *c) {
  for (size_t z = 0; z < c->depth; z++) {
    if (!c->staged) note_rows(SG_READ, c->src + z * c->src_slice, c->width, c->height, c->src_pitch);
    note_rows(SG_WRITE, c->dst + z * c->dst_slice, c->width, c->height, c->dst_pitch);
  }
}

const char *op_name(enum op_kind kind) {
  switch (kind) {
    case OP_COPY: return "a copy";
    case OP_FILL: return "a set";
    case OP_WAIT_WORD: return "a wait for a value";
    case OP_WRITE_WORD: return "a stream's write of a value";
    case OP_GRAPH_ALLOC: return "the allocation";
    case OP_BRANCH: return "a conditional node";
    default: return "the freeing";
  }
}

void race_note(const op *o) {
  touching->by = o->kind == OP_KERNEL ? keep_name("kernel ", o->kernel.kern->info->name) : op_name(o->kind);
  switch (o->kind) {
    case OP_COPY: note_copy(&o->copy); break;
    case OP_FILL:
      note_rows(SG_WRITE, o->fill.dst, o->fill.width * o->fill.element_bytes, o->fill.height, o->fill.pitch);
      break;
    case OP_FREE: sg_touched_add(touching, SG_WRITE, o->freed.base, o->freed.reserved); break;
    case OP_GRAPH_ALLOC:
    case OP_GRAPH_FREE: sg_touched_add(touching, SG_WRITE, o->block->base, o->block->reserved); break;
    case OP_WAIT_WORD:
    case OP_WRITE_WORD: sg_touched_add(touching, SG_UPDATE, (uintptr_t)o->word.at, o->word.bytes); break;
    case OP_BRANCH:
      sg_touched_add(touching, SG_READ, (uintptr_t)&o->branch->condition->value, sizeof(uint32_t));
      break;
    default: break;
  }
}

/* --- records */

static void record_free(record *r) {
  sg_touched_free(&r->touched);
  free(r->when);
  free(r);
}

static void name_stream(const record *r, char *text, size_t bytes) {
  if (r->track == HOST_TRACK) snprintf(text, bytes, " by the host");
  else snprintf(text, bytes, " in stream %llu", r->stream);
}

/* Compares a record with those before, and adds it to them. False, with an explanation, if there is a race. */
static bool add_record(record *made) {
  sg_conflict found;
  bool races = false;
  char where[48], other_where[48];
  sg_touched_tidy(&made->touched);
  name_stream(made, where, sizeof where);
  pthread_mutex_lock(&race_lock);
  for (const record *r = records; r != NULL && !races; r = r->next) {
    bool ordered = r->track == made->track || r->number <= made->when->at[r->track] ||
                   (r->allocates && made->track == HOST_TRACK); /* no use for which the host would have to wait */
    races = !ordered && sg_touched_conflict(&made->touched, &r->touched, &found);
    if (races) name_stream(r, other_where, sizeof other_where);
  }
  made->next = records;
  records = made;
  pthread_mutex_unlock(&race_lock);
  if (races) explain_race(&found, where, other_where, "nothing orders them");
  return !races;
}

static record *record_new(uint32_t track, unsigned long long stream, moment *when) {
  record *made = calloc(1, sizeof *made);
  if (made == NULL) {
    free(when);
    return NULL;
  }
  *made = (record){.track = track, .number = when->at[track], .stream = stream, .when = when};
  return made;
}

/* Compares the bytes of a record and keeps it; takes `touched`. */
static CUresult settle(CUcontext ctx, record *made) {
  if (made == NULL || made->touched.incomplete)
    context_fail(ctx, fail(CUDA_ERROR_OUT_OF_MEMORY, "no host memory to look for races"));
  if (made != NULL && !add_record(made)) return context_fail(ctx, CUDA_ERROR_LAUNCH_FAILED);
  return made != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void race_run(work *w, CUstream s) {
  sg_touched touched = {0};
  touching = &touched;
  (void)op_run(&w->op, s->ctx);
  touching = NULL;
  record *made = record_new(s->track, s->id, w->moment);
  w->moment = NULL;
  if (made != NULL) made->touched = touched;
  else sg_touched_free(&touched);
  if (made != NULL) made->frees = w->op.kind == OP_FREE;
  (void)settle(s->ctx, made);
}

/* Work that the host knows to be done comes before all later submissions; only earlier submissions may race with it. */
void race_prune_locked(void) {
  uint64_t oldest = UINT64_MAX;
  for (CUstream s = work_busy; s != NULL; s = s->next_busy)
    if (s->first->ticket < oldest) oldest = s->first->ticket;
  pthread_mutex_lock(&race_lock);
  for (record **at = &records; *at != NULL;) {
    record *r = *at;
    if (r->settled == 0 && host_knows_locked(r->track, r->number)) r->settled = work_last_ticket + 1;
    if (r->settled != 0 && oldest >= r->settled) {
      *at = r->next;
      record_free(r);
    } else {
      at = &r->next;
    }
  }
  pthread_mutex_unlock(&race_lock);
}

/* Removes bytes from the records of all work: they go back to the C library, which may reuse them. */
void race_forget(uintptr_t base, size_t bytes) {
  pthread_mutex_lock(&race_lock);
  for (record *r = records; r != NULL; r = r->next) sg_touched_forget(&r->touched, base, bytes);
  pthread_mutex_unlock(&race_lock);
}

void race_forget_all(void) {
  pthread_mutex_lock(&race_lock);
  while (records != NULL) {
    record *gone = records;
    records = gone->next;
    record_free(gone);
  }
  pthread_mutex_unlock(&race_lock);
}

/* --- memory that is allocated and freed */

/* CUDA orders a stream that gets a block from a pool after the freeing of the block. */
static void follow_frees_locked(CUstream s, uintptr_t base, size_t bytes) {
  sg_conflict found;
  sg_touched block = {0};
  sg_touched_add(&block, SG_WRITE, base, bytes);
  pthread_mutex_lock(&race_lock);
  for (const record *r = records; r != NULL; r = r->next)
    if (r->frees && sg_touched_conflict(&block, &r->touched, &found)) moment_join(&s->order, r->when);
  pthread_mutex_unlock(&race_lock);
  sg_touched_free(&block);
}

static CUresult take_block(CUcontext ctx, record *made, const char *by, uintptr_t base, size_t bytes) {
  if (made != NULL) {
    made->touched.by = by;
    sg_touched_add(&made->touched, SG_WRITE, base, bytes);
  }
  return settle(ctx, made);
}

CUresult race_allocated(CUstream s, uintptr_t base, size_t bytes) {
  if (!atomic_load_explicit(&strict, memory_order_relaxed)) return CUDA_SUCCESS;
  pthread_mutex_lock(&work_lock);
  follow_frees_locked(s, base, bytes);
  moment *when = moment_next_locked(s);
  pthread_mutex_unlock(&work_lock);
  record *made = when != NULL ? record_new(s->track, s->id, when) : NULL;
  if (made != NULL) made->allocates = true;
  return take_block(s->ctx, made, "the allocation", base, bytes);
}

CUresult race_freed_by_host(CUcontext ctx, uintptr_t base, size_t bytes) {
  if (!atomic_load_explicit(&strict, memory_order_relaxed)) return CUDA_SUCCESS;
  pthread_mutex_lock(&work_lock);
  moment *when = moment_of_host_locked();
  pthread_mutex_unlock(&work_lock);
  return take_block(ctx, when != NULL ? record_new(HOST_TRACK, 0, when) : NULL, "the freeing", base, bytes);
}

/* --- steps of a graph */

enum { WORD = 64 };

/* Steps that step i needs, directly or not, as bits. */
static void gather_needs(const struct CUgraphExec_st *exec, uint64_t *before, size_t words) {
  for (size_t i = 0; i < exec->step_count; i++) {
    const step *s = &exec->steps[i];
    for (uint32_t j = 0; j < s->needs_count; j++) {
      size_t need = exec->position[exec->needs[s->needs_from + j]];
      for (size_t k = 0; k < words; k++) before[i * words + k] |= before[need * words + k];
      before[i * words + need / WORD] |= UINT64_C(1) << need % WORD;
    }
  }
}

bool race_compare_steps(CUgraphExec exec, const sg_touched *steps) {
  sg_conflict found;
  bool races = false;
  size_t count = exec->step_count, words = (count + WORD - 1) / WORD;
  uint64_t *before = calloc(count * words + 1, sizeof *before);
  if (before == NULL) {
    touching->incomplete = 1;
    return true;
  }
  gather_needs(exec, before, words);
  for (size_t i = 0; i < count && !races; i++)
    for (size_t word = 0; word <= i / WORD && !races; word++) {
      uint64_t free_of = ~before[i * words + word];
      if (word == i / WORD) free_of &= (UINT64_C(1) << i % WORD) - 1;
      for (; free_of != 0 && !races; free_of &= free_of - 1)
        races = sg_touched_conflict(&steps[i], &steps[word * WORD + (size_t)__builtin_ctzll(free_of)], &found);
    }
  if (races) explain_race(&found, "", "", "no edges of their graph order them");
  free(before);
  return !races;
}

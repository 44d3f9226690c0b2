/* Sets of touched bytes, as sorted spans. */
#include "touched.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST = 16, TIDY_FROM = 4096 };

static int by_place(const void *left, const void *right) {
  const sg_span *a = left, *b = right;
  return a->from < b->from ? -1 : a->from > b->from;
}

/* Sorts the spans, and joins spans that overlap or are adjacent. */
static void tidy(struct sg_spans *set) {
  if (set->count < 2) return;
  qsort(set->items, set->count, sizeof *set->items, by_place);
  sg_span *last = set->items;
  for (const sg_span *at = last + 1; at < set->items + set->count; at++) {
    if (at->from < last->to || (at->from == last->to && at->by == last->by)) {
      if (at->to > last->to) last->to = at->to;
    } else {
      *++last = *at;
    }
  }
  set->count = (size_t)(last - set->items) + 1;
}

static int make_room(struct sg_spans *set) {
  if (set->count < set->capacity) return 1;
  if (set->count >= TIDY_FROM) tidy(set);
  if (set->count < set->capacity / 2) return 1;
  size_t capacity = set->capacity ? 2 * set->capacity : FIRST;
  sg_span *items = realloc(set->items, capacity * sizeof *items);
  if (!items) return 0;
  set->items = items;
  set->capacity = capacity;
  return 1;
}

static void add(sg_touched *touched, uint32_t verb, sg_span span) {
  struct sg_spans *set = &touched->sets[verb];
  sg_span *last = set->count ? &set->items[set->count - 1] : NULL;
  if (last && last->to == span.from && last->by == span.by) last->to = span.to;
  else if (make_room(set)) set->items[set->count++] = span;
  else touched->incomplete = 1;
}

void sg_touched_add(sg_touched *touched, uint32_t verb, uint64_t address, uint64_t bytes) {
  if (bytes) add(touched, verb, (sg_span){address, address + bytes, touched->by});
}

void sg_touched_add_all(sg_touched *to, const sg_touched *from) {
  for (uint32_t verb = 0; verb < SG_VERBS; verb++)
    for (size_t i = 0; i < from->sets[verb].count; i++) add(to, verb, from->sets[verb].items[i]);
  to->incomplete |= from->incomplete;
}

void sg_touched_tidy(sg_touched *touched) {
  for (uint32_t verb = 0; verb < SG_VERBS; verb++) tidy(&touched->sets[verb]);
}

void sg_touched_free(sg_touched *touched) {
  for (uint32_t verb = 0; verb < SG_VERBS; verb++) free(touched->sets[verb].items);
  memset(touched->sets, 0, sizeof touched->sets);
}

void sg_touched_forget(sg_touched *touched, uint64_t address, uint64_t bytes) {
  for (uint32_t verb = 0; verb < SG_VERBS; verb++) {
    struct sg_spans *set = &touched->sets[verb];
    size_t kept = 0;
    for (size_t i = 0; i < set->count; i++)
      if (set->items[i].from - address >= bytes) set->items[kept++] = set->items[i];
    set->count = kept;
  }
}

static int meet(const struct sg_spans *a, const struct sg_spans *b, sg_conflict *found) {
  for (size_t i = 0, j = 0; i < a->count && j < b->count;) {
    const sg_span *one = &a->items[i], *other = &b->items[j];
    if (one->from < other->to && other->from < one->to) {
      found->one = *one;
      found->other = *other;
      return 1;
    }
    if (one->to <= other->to) i++;
    else j++;
  }
  return 0;
}

int sg_touched_conflict(const sg_touched *a, const sg_touched *b, sg_conflict *found) {
  for (uint32_t i = 0; i < SG_VERBS; i++)
    for (uint32_t j = 0; j < SG_VERBS; j++) {
      int harmless = i == j && i != SG_WRITE; /* two that read, or two that update */
      if (harmless || !meet(&a->sets[i], &b->sets[j], found)) continue;
      found->verbs[0] = i;
      found->verbs[1] = j;
      return 1;
    }
  return 0;
}

/* Sets of touched bytes, as sorted spans. */
#include "touched.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST = 16, TIDY_FROM = 4096 };

static int by_place(const void *left, const void *right) {
  const kaas_span *a = left, *b = right;
  return a->from < b->from ? -1 : a->from > b->from;
}

/* Sorts, and joins what overlaps or follows on. */
static void tidy(struct kaas_spans *set) {
  if (set->count < 2) return;
  qsort(set->items, set->count, sizeof *set->items, by_place);
  kaas_span *last = set->items;
  for (const kaas_span *at = last + 1; at < set->items + set->count; at++) {
    if (at->from < last->to || (at->from == last->to && at->by == last->by)) {
      if (at->to > last->to) last->to = at->to;
    } else {
      *++last = *at;
    }
  }
  set->count = (size_t)(last - set->items) + 1;
}

static int make_room(struct kaas_spans *set) {
  if (set->count < set->capacity) return 1;
  if (set->count >= TIDY_FROM) tidy(set);
  if (set->count < set->capacity / 2) return 1;
  size_t capacity = set->capacity ? 2 * set->capacity : FIRST;
  kaas_span *items = realloc(set->items, capacity * sizeof *items);
  if (!items) return 0;
  set->items = items;
  set->capacity = capacity;
  return 1;
}

static void add(kaas_touched *touched, uint32_t verb, kaas_span span) {
  struct kaas_spans *set = &touched->sets[verb];
  kaas_span *last = set->count ? &set->items[set->count - 1] : NULL;
  if (last && last->to == span.from && last->by == span.by) last->to = span.to;
  else if (make_room(set)) set->items[set->count++] = span;
  else touched->incomplete = 1;
}

void kaas_touched_add(kaas_touched *touched, uint32_t verb, uint64_t address, uint64_t bytes) {
  if (bytes) add(touched, verb, (kaas_span){address, address + bytes, touched->by});
}

void kaas_touched_add_all(kaas_touched *to, const kaas_touched *from) {
  for (uint32_t verb = 0; verb < KAAS_VERBS; verb++)
    for (size_t i = 0; i < from->sets[verb].count; i++) add(to, verb, from->sets[verb].items[i]);
  to->incomplete |= from->incomplete;
}

void kaas_touched_tidy(kaas_touched *touched) {
  for (uint32_t verb = 0; verb < KAAS_VERBS; verb++) tidy(&touched->sets[verb]);
}

void kaas_touched_free(kaas_touched *touched) {
  for (uint32_t verb = 0; verb < KAAS_VERBS; verb++) free(touched->sets[verb].items);
  memset(touched->sets, 0, sizeof touched->sets);
}

void kaas_touched_forget(kaas_touched *touched, uint64_t address, uint64_t bytes) {
  for (uint32_t verb = 0; verb < KAAS_VERBS; verb++) {
    struct kaas_spans *set = &touched->sets[verb];
    size_t kept = 0;
    for (size_t i = 0; i < set->count; i++)
      if (set->items[i].from - address >= bytes) set->items[kept++] = set->items[i];
    set->count = kept;
  }
}

static int meet(const struct kaas_spans *a, const struct kaas_spans *b, kaas_conflict *found) {
  for (size_t i = 0, j = 0; i < a->count && j < b->count;) {
    const kaas_span *one = &a->items[i], *other = &b->items[j];
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

int kaas_touched_conflict(const kaas_touched *a, const kaas_touched *b, kaas_conflict *found) {
  for (uint32_t i = 0; i < KAAS_VERBS; i++)
    for (uint32_t j = 0; j < KAAS_VERBS; j++) {
      int harmless = i == j && i != KAAS_WRITE; /* two that read, or two that update */
      if (harmless || !meet(&a->sets[i], &b->sets[j], found)) continue;
      found->verbs[0] = i;
      found->verbs[1] = j;
      return 1;
    }
  return 0;
}

/* The bytes that a launch touches, from its checked code: a bit for each byte while it runs, spans at its end. */
#include "block.h"

#include <pthread.h>
#include <stdlib.h>

enum { PAGE_BYTES = 4096, WORDS = PAGE_BYTES / 64, BUCKETS = 1024 };

typedef struct page {
  uint64_t number;
  struct page *next; /* in its bucket */
  uint64_t bits[SG_VERBS][WORDS];
} page;

typedef struct sg_pages {
  page *latest;
  page *buckets[BUCKETS];
  int incomplete;
} sg_pages;

struct sg_pages *sg_pages_new(void) { return calloc(1, sizeof(sg_pages)); }

static page *find(sg_pages *pages, uint64_t number) {
  page **bucket = &pages->buckets[number % BUCKETS];
  for (page *at = *bucket; at; at = at->next)
    if (at->number == number) return at;
  page *made = calloc(1, sizeof *made);
  if (!made) return NULL;
  made->number = number;
  made->next = *bucket;
  *bucket = made;
  return made;
}

/* Records an aligned access, whose bytes are in one word of a page. */
void sg_touch(sg_block *block, uint64_t address, uint32_t bytes, uint32_t verb) {
  sg_pages *pages = block->pages;
  uint64_t number = address / PAGE_BYTES, at = address % PAGE_BYTES;
  if (!pages->latest || pages->latest->number != number) pages->latest = find(pages, number);
  if (!pages->latest) {
    pages->incomplete = 1;
    return;
  }
  pages->latest->bits[verb][at / 64] |= ((UINT64_C(1) << bytes) - 1) << at % 64;
}

/* Adds runs of set bits as spans. */
static void add_spans(sg_touched *touched, uint32_t verb, const page *page) {
  const uint64_t *words = page->bits[verb];
  uint64_t base = page->number * PAGE_BYTES, from = 0;
  int inside = 0;
  for (uint64_t at = 0; at < PAGE_BYTES; at++) {
    uint64_t word = words[at / 64];
    if (at % 64 == 0 && word == (inside ? UINT64_MAX : 0)) { /* nothing begins or ends in this word */
      at += 63;
      continue;
    }
    int set = word >> at % 64 & 1;
    if (set && !inside) from = at;
    if (!set && inside) sg_touched_add(touched, verb, base + from, at - from);
    inside = set;
  }
  if (inside) sg_touched_add(touched, verb, base + from, PAGE_BYTES - from);
}

void sg_report_touched(sg_block *block) {
  static pthread_mutex_t reporting = PTHREAD_MUTEX_INITIALIZER;
  sg_touched *touched = block->launch->touched;
  sg_pages *pages = block->pages;
  if (!touched) return;
  pthread_mutex_lock(&reporting);
  if (pages->incomplete) touched->incomplete = 1;
  for (uint32_t i = 0; i < BUCKETS; i++)
    while (pages->buckets[i]) {
      page *gone = pages->buckets[i];
      for (uint32_t verb = 0; verb < SG_VERBS; verb++) add_spans(touched, verb, gone);
      pages->buckets[i] = gone->next;
      free(gone);
    }
  pthread_mutex_unlock(&reporting);
  pages->latest = NULL;
  pages->incomplete = 0;
}

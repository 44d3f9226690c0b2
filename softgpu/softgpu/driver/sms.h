/* Sets of a device's multiprocessors (SMs), by their numbers. */
#ifndef SOFTGPU_SMS_H
#define SOFTGPU_SMS_H
#include <stdbool.h>
#include <stdint.h>

enum { MAX_SMS = 512, SM_WORDS = MAX_SMS / 64 };

typedef struct sm_set {
  uint64_t words[SM_WORDS];
} sm_set;

static inline uint32_t sms_count(const sm_set *set) {
  uint32_t count = 0;
  for (int i = 0; i < SM_WORDS; i++) count += (uint32_t)__builtin_popcountll(set->words[i]);
  return count;
}

static inline void sms_take(sm_set *from, const sm_set *gone) {
  for (int i = 0; i < SM_WORDS; i++) from->words[i] &= ~gone->words[i];
}

static inline void sms_add(sm_set *to, const sm_set *more) {
  for (int i = 0; i < SM_WORDS; i++) to->words[i] |= more->words[i];
}

static inline bool sms_within(const sm_set *inner, const sm_set *outer) {
  for (int i = 0; i < SM_WORDS; i++)
    if (inner->words[i] & ~outer->words[i]) return false;
  return true;
}

static inline bool sms_meet(const sm_set *a, const sm_set *b) {
  for (int i = 0; i < SM_WORDS; i++)
    if (a->words[i] & b->words[i]) return true;
  return false;
}

/* The first of a set, at most `count`. */
static inline sm_set sms_first(const sm_set *of, uint32_t count) {
  sm_set first = {0};
  for (int i = 0; i < SM_WORDS; i++)
    for (uint64_t rest = of->words[i]; rest != 0 && count > 0; rest &= rest - 1, count--)
      first.words[i] |= rest & -rest;
  return first;
}

/* The SMs of a device that has so many. */
static inline sm_set sms_all(uint32_t count) {
  sm_set every;
  for (int i = 0; i < SM_WORDS; i++) every.words[i] = UINT64_MAX;
  return sms_first(&every, count);
}

#endif

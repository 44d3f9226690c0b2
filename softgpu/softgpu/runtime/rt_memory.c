/* Memory accesses of compiled kernels that go lane by lane: gathers, scatters, atomics, and exchange between lanes. */
#include "abi.h"

#include <math.h>
#include <string.h>

typedef uint64_t address;
#define LANES(mask) for (uint32_t left = (mask), lane; left && (lane = (uint32_t)__builtin_ctz(left), 1); left &= left - 1)
#define AT(type, where) ((type *)(uintptr_t)(where))

/* count elements at each address; data holds the first elements of all lanes, then the second, ... */
#define GATHER(type, bits)                                                                                          \
  void sg_rt_gather_b##bits(const address *from, uint32_t count, uint32_t mask, type *out) {                      \
    LANES(mask)                                                                                                     \
    for (uint32_t i = 0; i < count; i++) out[i * SG_WARP + lane] = AT(const type, from[lane])[i];                 \
  }                                                                                                                 \
  void sg_rt_scatter_b##bits(const address *to, uint32_t count, uint32_t mask, const type *data) {                \
    LANES(mask)                                                                                                     \
    for (uint32_t i = 0; i < count; i++) AT(type, to[lane])[i] = data[i * SG_WARP + lane];                        \
  }
GATHER(uint8_t, 8)
GATHER(uint16_t, 16)
GATHER(uint32_t, 32)
GATHER(uint64_t, 64)

/* The addresses extend(base + offsets[i]) * scale + offset of lanes first + i. */
void sg_rt_widen(uint32_t base, const int32_t *offsets, uint32_t is_signed, int64_t scale, int64_t offset,
                   uint32_t first, uint32_t lanes, address *out) {
  for (uint32_t i = 0; i < lanes; i++) {
    uint32_t low = base + (uint32_t)offsets[i];
    int64_t wide = is_signed ? (int64_t)(int32_t)low : (int64_t)low;
    out[first + i] = (address)(wide * scale + offset);
  }
}

/* --- atomics: the lanes in turn, each against all other threads */

#define ATOMIC(name, bits, expression)                                                                               \
  void sg_rt_atom_##name(const address *at, const uint##bits##_t *bs, const uint##bits##_t *cs, uint32_t mask,    \
                           uint##bits##_t *out) {                                                                   \
    LANES(mask) {                                                                                                   \
      uint##bits##_t *where = AT(uint##bits##_t, at[lane]);                                                         \
      uint##bits##_t b = bs[lane], c = cs[lane], old = __atomic_load_n(where, __ATOMIC_RELAXED);                    \
      (void)c;                                                                                                      \
      while (!__atomic_compare_exchange_n(where, &old, (expression), 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {      \
      }                                                                                                             \
      out[lane] = old;                                                                                              \
    }                                                                                                               \
  }
#define DIRECT(name, bits, builtin)                                                                                  \
  void sg_rt_atom_##name##_b##bits(const address *at, const uint##bits##_t *bs, const uint##bits##_t *cs,         \
                                     uint32_t mask, uint##bits##_t *out) {                                          \
    (void)cs;                                                                                                       \
    LANES(mask) out[lane] = builtin(AT(uint##bits##_t, at[lane]), bs[lane], __ATOMIC_ACQ_REL);                      \
  }
#define INTEGER_ATOMICS(bits)                                                                                        \
  DIRECT(add, bits, __atomic_fetch_add)                                                                             \
  DIRECT(and, bits, __atomic_fetch_and)                                                                             \
  DIRECT(or, bits, __atomic_fetch_or)                                                                               \
  DIRECT(xor, bits, __atomic_fetch_xor)                                                                             \
  DIRECT(exch, bits, __atomic_exchange_n)                                                                           \
  ATOMIC(cas_b##bits, bits, old == b ? c : old)                                                                     \
  ATOMIC(inc_b##bits, bits, old >= b ? 0 : old + 1)                                                                 \
  ATOMIC(dec_b##bits, bits, old == 0 || old > b ? b : old - 1)                                                      \
  ATOMIC(min_u##bits, bits, old < b ? old : b)                                                                      \
  ATOMIC(max_u##bits, bits, old > b ? old : b)                                                                      \
  ATOMIC(min_s##bits, bits, (int##bits##_t)old < (int##bits##_t)b ? old : b)                                        \
  ATOMIC(max_s##bits, bits, (int##bits##_t)old > (int##bits##_t)b ? old : b)
INTEGER_ATOMICS(32)
INTEGER_ATOMICS(64)
ATOMIC(cas_b16, 16, old == b ? c : old)
ATOMIC(exch_b16, 16, b)

static inline uint32_t add_f32(uint32_t a, uint32_t b) {
  float x, y;
  memcpy(&x, &a, 4);
  memcpy(&y, &b, 4);
  x += y;
  memcpy(&a, &x, 4);
  return a;
}

static inline uint64_t add_f64(uint64_t a, uint64_t b) {
  double x, y;
  memcpy(&x, &a, 8);
  memcpy(&y, &b, 8);
  x += y;
  memcpy(&a, &x, 8);
  return a;
}

/* Turns a denormal into a zero of its sign. */
static inline uint32_t flush_f32(uint32_t a) { return a & 0x7F800000 ? a : a & 0x80000000; }

ATOMIC(add_f32, 32, add_f32(old, b))
ATOMIC(add_f32_ftz, 32, flush_f32(add_f32(flush_f32(old), flush_f32(b))))
ATOMIC(add_f64, 64, add_f64(old, b))

/* 16-bit kinds, one or a pair: old * 1 + b, rounded once. */
#define ADD_SMALL(name, bits, one)                                                                                   \
  void sg_rt_fma_##name(const uint16_t *a, const uint16_t *b, const uint16_t *c, uint16_t *out, uint32_t lanes);  \
  static inline uint##bits##_t add_##name(uint##bits##_t a, uint##bits##_t b) {                                     \
    uint16_t x[2], y[2], z[2], ones[2] = {one, one};                                                                \
    memcpy(x, &a, sizeof a);                                                                                        \
    memcpy(y, &b, sizeof b);                                                                                        \
    sg_rt_fma_##name(x, ones, y, z, 1);                                                                           \
    memcpy(&a, z, sizeof a);                                                                                        \
    return a;                                                                                                       \
  }                                                                                                                 \
  ATOMIC(add_##name, bits, add_##name(old, b))
ADD_SMALL(f16, 16, 0x3C00)
ADD_SMALL(f16x2, 32, 0x3C00)
ADD_SMALL(bf16, 16, 0x3F80)
ADD_SMALL(bf16x2, 32, 0x3F80)

/* --- between lanes */

#define SHUFFLE(mode, from, in_range)                                                                                \
  uint32_t sg_rt_shfl_##mode(const uint32_t *a, const uint32_t *bs, const uint32_t *cs, uint32_t *out) {          \
    uint32_t fits = 0;                                                                                              \
    for (int32_t lane = 0; lane < SG_WARP; lane++) {                                                              \
      int32_t by = bs[lane] & 31, bound = cs[lane] & 31, segment = cs[lane] >> 8 & 31;                              \
      int32_t low = lane & segment, limit = low | (bound & ~segment), source = from;                                \
      (void)by, (void)low;                                                                                          \
      int ok = in_range;                                                                                            \
      out[lane] = a[ok ? source & 31 : lane];                                                                       \
      fits |= (uint32_t)ok << lane;                                                                                 \
    }                                                                                                               \
    return fits;                                                                                                    \
  }
SHUFFLE(up, lane - by, source >= limit)
SHUFFLE(down, lane + by, source <= limit)
SHUFFLE(bfly, lane ^ by, source <= limit)
SHUFFLE(idx, low | (by & ~segment), source <= limit)

/* For each running lane, the running lanes with the same value. */
#define MATCH(bits)                                                                                                  \
  void sg_rt_match_b##bits(const uint##bits##_t *a, uint32_t running, uint32_t *out) {                            \
    LANES(running) {                                                                                                \
      uint32_t same = 0;                                                                                            \
      for (uint32_t other = 0; other < SG_WARP; other++) same |= (uint32_t)(a[other] == a[lane]) << other;        \
      out[lane] = same & running;                                                                                   \
    }                                                                                                               \
  }
MATCH(32)
MATCH(64)

#define REDUX(name, type, start, expression)                                                                         \
  uint32_t sg_rt_redux_##name(const uint32_t *a, uint32_t members) {                                              \
    type total = start;                                                                                             \
    LANES(members) {                                                                                                \
      type x = (type)a[lane];                                                                                       \
      total = expression;                                                                                           \
    }                                                                                                               \
    return (uint32_t)total;                                                                                         \
  }                                                                                                                 \
  void sg_rt_redux_each_##name(const uint32_t *a, const uint32_t *members, uint32_t running, uint32_t *out) {     \
    LANES(running) out[lane] = sg_rt_redux_##name(a, members[lane]);                                              \
  }
REDUX(add, uint32_t, 0, total + x)
REDUX(and, uint32_t, UINT32_MAX, total & x)
REDUX(or, uint32_t, 0, total | x)
REDUX(xor, uint32_t, 0, total ^ x)
REDUX(min_s32, int32_t, INT32_MAX, x < total ? x : total)
REDUX(max_s32, int32_t, INT32_MIN, x > total ? x : total)
REDUX(min_u32, uint32_t, UINT32_MAX, x < total ? x : total)
REDUX(max_u32, uint32_t, 0, x > total ? x : total)

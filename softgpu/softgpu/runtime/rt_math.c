/* Arithmetic of compiled kernels that has no short form as vector code: name(inputs..., output, lanes). */
#include "abi.h"

#include <fenv.h>
#include <math.h>
#include <string.h>

#define EACH for (uint32_t i = 0; i < lanes; i++)

/* --- 64-bit integers */

#define DIVIDE(name, type, overflows)                                                                                \
  void sg_rt_div_##name(const type *a, const type *b, type *out, uint32_t lanes) {                                \
    EACH out[i] = b[i] == 0 ? (type)-1 : (overflows) ? a[i] : a[i] / b[i];                                          \
  }                                                                                                                 \
  void sg_rt_rem_##name(const type *a, const type *b, type *out, uint32_t lanes) {                                \
    EACH out[i] = b[i] == 0 ? a[i] : (overflows) ? 0 : a[i] % b[i];                                                 \
  }
DIVIDE(u64, uint64_t, 0)
DIVIDE(s64, int64_t, a[i] == INT64_MIN && b[i] == -1)

void sg_rt_mulhi_u64(const uint64_t *a, const uint64_t *b, uint64_t *out, uint32_t lanes) {
  EACH out[i] = (uint64_t)((unsigned __int128)a[i] * b[i] >> 64);
}
void sg_rt_mulhi_s64(const int64_t *a, const int64_t *b, int64_t *out, uint32_t lanes) {
  EACH out[i] = (int64_t)((__int128)a[i] * b[i] >> 64);
}

/* --- bits */

#define FIELD(bits)                                                                                                  \
  void sg_rt_bfe_u##bits(const uint##bits##_t *a, const uint32_t *b, const uint32_t *c, uint##bits##_t *out,      \
                           uint32_t lanes) {                                                                        \
    EACH {                                                                                                          \
      uint32_t start = b[i] & 255, length = c[i] & 255;                                                             \
      uint##bits##_t x = start < bits ? a[i] >> start : 0;                                                          \
      out[i] = length < bits ? x & (((uint##bits##_t)1 << length) - 1) : x;                                         \
    }                                                                                                               \
  }                                                                                                                 \
  void sg_rt_bfe_s##bits(const uint##bits##_t *a, const uint32_t *b, const uint32_t *c, uint##bits##_t *out,      \
                           uint32_t lanes) {                                                                        \
    EACH {                                                                                                          \
      uint32_t start = b[i] & 255, length = c[i] & 255;                                                             \
      uint32_t top = start + length - 1 < bits - 1 ? start + length - 1 : bits - 1;                                 \
      uint##bits##_t sign = length && (a[i] >> top & 1) ? (uint##bits##_t)-1 : 0;                                   \
      uint##bits##_t x = start < bits ? a[i] >> start : 0;                                                          \
      uint32_t have = start < bits ? (bits - start < length ? bits - start : length) : 0;                           \
      uint##bits##_t low = have < bits ? ((uint##bits##_t)1 << have) - 1 : (uint##bits##_t)-1;                      \
      out[i] = (x & low) | (sign & ~low);                                                                           \
    }                                                                                                               \
  }                                                                                                                 \
  void sg_rt_bfi_b##bits(const uint##bits##_t *a, const uint##bits##_t *b, const uint32_t *c, const uint32_t *d,  \
                           uint##bits##_t *out, uint32_t lanes) {                                                   \
    EACH {                                                                                                          \
      uint32_t start = c[i] & 255, length = d[i] & 255;                                                             \
      uint##bits##_t field = length < bits ? ((uint##bits##_t)1 << length) - 1 : (uint##bits##_t)-1;                \
      uint##bits##_t place = start < bits ? field << start : 0;                                                     \
      out[i] = start < bits ? (b[i] & ~place) | (a[i] << start & place) : b[i];                                     \
    }                                                                                                               \
  }
FIELD(32)
FIELD(64)

#define MASK(mode, wrap)                                                                                             \
  static inline uint32_t bmsk_##mode(uint32_t start, uint32_t length) {                                             \
    if (wrap) start &= 31, length &= 31;                                                                            \
    if (start > 31 || !length) return 0;                                                                            \
    return (length > 31 ? UINT32_MAX : (UINT32_C(1) << length) - 1) << start;                                       \
  }
MASK(clamp, 0)
MASK(wrap, 1)

void sg_rt_bmsk_clamp(const uint32_t *a, const uint32_t *b, uint32_t *out, uint32_t lanes) {
  EACH out[i] = bmsk_clamp(a[i], b[i]);
}
void sg_rt_bmsk_wrap(const uint32_t *a, const uint32_t *b, uint32_t *out, uint32_t lanes) {
  EACH out[i] = bmsk_wrap(a[i], b[i]);
}

#define EXTEND(mode, wrap)                                                                                           \
  void sg_rt_szext_##mode##_u32(const uint32_t *a, const uint32_t *b, uint32_t *out, uint32_t lanes) {            \
    EACH {                                                                                                          \
      uint32_t n = wrap ? b[i] & 31 : b[i];                                                                         \
      out[i] = n > 31 ? a[i] : a[i] & ((UINT32_C(1) << n) - 1);                                                     \
    }                                                                                                               \
  }                                                                                                                 \
  void sg_rt_szext_##mode##_s32(const uint32_t *a, const uint32_t *b, uint32_t *out, uint32_t lanes) {            \
    EACH {                                                                                                          \
      uint32_t n = wrap ? b[i] & 31 : b[i];                                                                         \
      out[i] = n > 31 ? a[i] : !n ? 0 : (uint32_t)((int32_t)(a[i] << (32 - n)) >> (32 - n));                        \
    }                                                                                                               \
  }
EXTEND(clamp, 0)
EXTEND(wrap, 1)

void sg_rt_fns_b32(const uint32_t *mask, const uint32_t *base, const uint32_t *offset, uint32_t *out, uint32_t lanes) {
  EACH {
    int32_t left = (int32_t)offset[i], step = left < 0 ? -1 : 1, at = (int32_t)(base[i] & 31);
    out[i] = UINT32_MAX;
    if (left == 0) {
      if (mask[i] >> at & 1) out[i] = (uint32_t)at;
      continue;
    }
    for (left = left < 0 ? -left : left; at >= 0 && at < 32; at += step)
      if (mask[i] >> at & 1 && --left == 0) {
        out[i] = (uint32_t)at;
        break;
      }
  }
}

static inline uint32_t pick(uint64_t bytes, const uint8_t at[4]) {
  uint32_t out = 0;
  for (int k = 0; k < 4; k++) out |= (uint32_t)(bytes >> (8 * (at[k] & 7)) & 255) << (8 * k);
  return out;
}

void sg_rt_prmt_default(const uint32_t *a, const uint32_t *b, const uint32_t *c, uint32_t *out, uint32_t lanes) {
  EACH {
    uint64_t bytes = (uint64_t)b[i] << 32 | a[i];
    uint32_t result = 0;
    for (int k = 0; k < 4; k++) {
      uint32_t choice = c[i] >> (4 * k) & 15, byte = (uint32_t)(bytes >> (8 * (choice & 7)) & 255);
      if (choice & 8) byte = byte & 128 ? 255 : 0;
      result |= byte << (8 * k);
    }
    out[i] = result;
  }
}

#define PERMUTE(mode, b0, b1, b2, b3)                                                                                \
  void sg_rt_prmt_##mode(const uint32_t *a, const uint32_t *b, const uint32_t *c, uint32_t *out, uint32_t lanes) { \
    EACH {                                                                                                          \
      int n = c[i] & 3;                                                                                             \
      uint8_t at[4] = {(uint8_t)(b0), (uint8_t)(b1), (uint8_t)(b2), (uint8_t)(b3)};                                 \
      out[i] = pick((uint64_t)b[i] << 32 | a[i], at);                                                               \
    }                                                                                                               \
  }
#define AT_LEAST(k) (n > (k) ? n : (k))
#define AT_MOST(k) (n < (k) ? n : (k))
PERMUTE(f4e, n, n + 1, n + 2, n + 3)
PERMUTE(b4e, n, n + 7, n + 6, n + 5)
PERMUTE(rc8, n, n, n, n)
PERMUTE(ecl, AT_LEAST(0), AT_LEAST(1), AT_LEAST(2), 3)
PERMUTE(ecr, 0, AT_MOST(1), AT_MOST(2), AT_MOST(3))
PERMUTE(rc16, (n & 1) * 2, (n & 1) * 2 + 1, (n & 1) * 2, (n & 1) * 2 + 1)

#define DOT(ta, sa, tb, sb)                                                                                          \
  void sg_rt_dp4a_##ta##_##tb(const uint32_t *a, const uint32_t *b, const uint32_t *c, uint32_t *out,             \
                                uint32_t lanes) {                                                                   \
    EACH {                                                                                                          \
      uint32_t sum = c[i];                                                                                          \
      for (int k = 0; k < 32; k += 8) sum += (uint32_t)((int32_t)(sa)(a[i] >> k) * (int32_t)(sb)(b[i] >> k));       \
      out[i] = sum;                                                                                                 \
    }                                                                                                               \
  }
DOT(u32, uint8_t, u32, uint8_t)
DOT(u32, uint8_t, s32, int8_t)
DOT(s32, int8_t, u32, uint8_t)
DOT(s32, int8_t, s32, int8_t)

#define DOT2(half, shift, ta, sa, tb, sb)                                                                            \
  void sg_rt_dp2a_##half##_##ta##_##tb(const uint32_t *a, const uint32_t *b, const uint32_t *c, uint32_t *out,    \
                                         uint32_t lanes) {                                                          \
    EACH {                                                                                                          \
      uint32_t sum = c[i];                                                                                          \
      for (int k = 0; k < 2; k++)                                                                                   \
        sum += (uint32_t)((int32_t)(sa)(a[i] >> 16 * k) * (int32_t)(sb)(b[i] >> (shift + 8 * k)));                  \
      out[i] = sum;                                                                                                 \
    }                                                                                                               \
  }
#define DOT2_HALVES(ta, sa, tb, sb) DOT2(lo, 0, ta, sa, tb, sb) DOT2(hi, 16, ta, sa, tb, sb)
DOT2_HALVES(u32, uint16_t, u32, uint8_t)
DOT2_HALVES(u32, uint16_t, s32, int8_t)
DOT2_HALVES(s32, int16_t, u32, uint8_t)
DOT2_HALVES(s32, int16_t, s32, int8_t)

/* --- halves and bytes: the SIMD video instructions */

/* Bits of `how`; the action is above them, as in codegen/video.py. */
enum { SIGNED_RESULT = 1, SIGNED_A = 2, SIGNED_B = 4, SATURATES = 8, ACCUMULATES = 16, HALVES = 32, ACTION_SHIFT = 8 };
enum { V_ADD, V_SUB, V_ABSDIFF, V_MIN, V_MAX, V_AVERAGE, V_EQ, V_NE, V_LT, V_LE, V_GT, V_GE };

static inline int32_t part_of(uint32_t word, int bits, int at, int is_signed) {
  uint32_t top = word << (32 - bits - at);
  return is_signed ? (int32_t)top >> (32 - bits) : (int32_t)(top >> (32 - bits));
}

static int32_t act_on_parts(uint32_t action, int32_t a, int32_t b) {
  switch (action) {
    case V_ADD: return a + b;
    case V_SUB: return a - b;
    case V_ABSDIFF: return a < b ? b - a : a - b;
    case V_MIN: return a < b ? a : b;
    case V_MAX: return a > b ? a : b;
    case V_AVERAGE: return (a + b + (a + b >= 0)) >> 1; /* halves go away from zero */
    case V_EQ: return a == b;
    case V_NE: return a != b;
    case V_LT: return a < b;
    case V_LE: return a <= b;
    case V_GT: return a > b;
    default: return a >= b;
  }
}

void sg_rt_video(const uint32_t *a, const uint32_t *b, const uint32_t *c, const uint32_t *hows, uint32_t *out,
                   uint32_t lanes) {
  uint32_t how = hows[0];
  int bits = how & HALVES ? 16 : 8, is_signed = how & SIGNED_RESULT;
  int32_t least = is_signed ? -(1 << (bits - 1)) : 0, most = is_signed ? (1 << (bits - 1)) - 1 : (1 << bits) - 1;
  EACH {
    uint32_t packed = 0, sum = c[i];
    for (int at = 0; at < 32; at += bits) {
      int32_t x = act_on_parts(how >> ACTION_SHIFT, part_of(a[i], bits, at, how & SIGNED_A),
                               part_of(b[i], bits, at, how & SIGNED_B));
      if (how & SATURATES) x = x < least ? least : x > most ? most : x;
      uint32_t part = (uint32_t)x & ((UINT32_C(1) << bits) - 1);
      packed |= part << at;
      sum += (uint32_t)part_of(part, bits, 0, is_signed);
    }
    out[i] = how & ACCUMULATES ? sum : packed;
  }
}

/* --- directed rounding: the processor's rounding mode, for as long as the loop runs */

/* A barrier for the optimiser, which does not know that the mode changes the results of arithmetic. */
#define OPAQUE(x) __asm__ volatile("" : "+m"(x))
#define WITH_MODE(mode, statement)                                                                                   \
  do {                                                                                                              \
    int before = fegetround();                                                                                      \
    fesetround(mode);                                                                                               \
    EACH { statement }                                                                                              \
    fesetround(before);                                                                                             \
  } while (0)
#define ROUNDED_BINARY(name, symbol, short, mode, type, suffix)                                                      \
  void sg_rt_##name##_##short##_##suffix(const type *a, const type *b, type *out, uint32_t lanes) {               \
    WITH_MODE(mode, type x = a[i]; type y = b[i]; OPAQUE(x); OPAQUE(y); type z = x symbol y; OPAQUE(z); out[i] = z;); \
  }
#define ROUNDED(short, mode, type, suffix, fma_, sqrt_)                                                              \
  ROUNDED_BINARY(add, +, short, mode, type, suffix)                                                                 \
  ROUNDED_BINARY(sub, -, short, mode, type, suffix)                                                                 \
  ROUNDED_BINARY(mul, *, short, mode, type, suffix)                                                                 \
  ROUNDED_BINARY(div, /, short, mode, type, suffix)                                                                 \
  void sg_rt_fma_##short##_##suffix(const type *a, const type *b, const type *c, type *out, uint32_t lanes) {     \
    WITH_MODE(mode, type x = a[i]; OPAQUE(x); type z = fma_(x, b[i], c[i]); OPAQUE(z); out[i] = z;);                \
  }                                                                                                                 \
  void sg_rt_sqrt_##short##_##suffix(const type *a, type *out, uint32_t lanes) {                                  \
    WITH_MODE(mode, type x = a[i]; OPAQUE(x); type z = sqrt_(x); OPAQUE(z); out[i] = z;);                           \
  }                                                                                                                 \
  void sg_rt_cvt_##short##_##suffix##_s64(const int64_t *a, type *out, uint32_t lanes) {                          \
    WITH_MODE(mode, int64_t x = a[i]; OPAQUE(x); type z = (type)x; OPAQUE(z); out[i] = z;);                         \
  }                                                                                                                 \
  void sg_rt_cvt_##short##_##suffix##_u64(const uint64_t *a, type *out, uint32_t lanes) {                         \
    WITH_MODE(mode, out[i] = (type)from_unsigned(a[i], mode, sizeof(type) == 4 ? 24 : 53););                        \
  }

/* Rounds to `digits` bits by hand: compilers convert unsigned numbers in two roundings. The result is exact. */
static long double from_unsigned(uint64_t a, int mode, int digits) {
  int width = a ? 64 - __builtin_clzll(a) : 0;
  int drop = width > digits ? width - digits : 0;
  uint64_t low = drop ? a & ((UINT64_C(1) << drop) - 1) : 0;
  uint64_t whole = a - low;
  long double value = (long double)(whole >> drop) + (long double)(low && mode == FE_UPWARD);
  return ldexpl(value, drop);
}

#define ALL_MODES(type, suffix, fma_, sqrt_)                                                                         \
  ROUNDED(rz, FE_TOWARDZERO, type, suffix, fma_, sqrt_)                                                             \
  ROUNDED(rm, FE_DOWNWARD, type, suffix, fma_, sqrt_)                                                               \
  ROUNDED(rp, FE_UPWARD, type, suffix, fma_, sqrt_)
ALL_MODES(float, f32, fmaf, sqrtf)
ALL_MODES(double, f64, fma, sqrt)

#define NARROW(short, mode)                                                                                          \
  void sg_rt_cvt_##short##_f32_f64(const double *a, float *out, uint32_t lanes) {                                 \
    WITH_MODE(mode, double x = a[i]; OPAQUE(x); float z = (float)x; OPAQUE(z); out[i] = z;);                        \
  }
NARROW(rz, FE_TOWARDZERO)
NARROW(rm, FE_DOWNWARD)
NARROW(rp, FE_UPWARD)

/* --- 16-bit floating point */

typedef enum { NEAREST, ZERO, DOWN, UP } rounding;

static inline uint64_t bits_of(double x) {
  uint64_t bits;
  memcpy(&bits, &x, 8);
  return bits;
}

/* A double as sign, `exponent_bits` and `fraction_bits`, rounded once. */
static uint16_t shrink(double x, int exponent_bits, int fraction_bits, rounding mode) {
  uint64_t bits = bits_of(x), fraction = bits & ((UINT64_C(1) << 52) - 1);
  uint32_t negative = (uint32_t)(bits >> 63);
  int exponent = (int)(bits >> 52 & 0x7FF), bias = (1 << (exponent_bits - 1)) - 1;
  uint32_t infinity = ((UINT32_C(1) << exponent_bits) - 1) << fraction_bits;
  uint32_t sign = negative << (exponent_bits + fraction_bits);
  if (exponent == 0x7FF) return (uint16_t)(fraction ? 0x7FFF : sign | infinity);
  if (exponent == 0 && !fraction) return (uint16_t)sign;
  int scale = exponent - 1023 + bias, drop = 52 - fraction_bits;
  uint64_t whole = exponent ? fraction | UINT64_C(1) << 52 : fraction;
  if (scale < 1) {
    drop += 1 - scale;
    scale = 1;
  }
  if (drop > 60) drop = 60;
  uint64_t kept = whole >> drop, rest = whole & ((UINT64_C(1) << drop) - 1), tie = UINT64_C(1) << (drop - 1);
  int up = mode == NEAREST ? rest > tie || (rest == tie && (kept & 1)) : mode == UP ? rest && !negative : mode == DOWN && rest && negative;
  kept += (uint64_t)up;
  uint64_t result = kept + ((uint64_t)(scale - 1) << fraction_bits);
  if (result >= infinity) {
    int stays = mode == ZERO || (mode == DOWN && !negative) || (mode == UP && negative);
    result = infinity - (uint64_t)stays;
  }
  return (uint16_t)(sign | result);
}

static inline float half_to_float(uint16_t half) {
  uint32_t sign = (uint32_t)(half >> 15) << 31, exponent = half >> 10 & 31, fraction = half & 1023, bits;
  float out;
  if (exponent == 31) {
    bits = sign | 0x7F800000 | fraction << 13 | (fraction ? 0x400000 : 0);
  } else if (exponent) {
    bits = sign | (exponent + 112) << 23 | fraction << 13;
  } else {
    out = (float)fraction * 0x1p-24f;
    return sign ? -out : out;
  }
  memcpy(&out, &bits, 4);
  return out;
}

static inline float bfloat_to_float(uint16_t x) {
  uint32_t bits = (uint32_t)x << 16;
  float out;
  memcpy(&out, &bits, 4);
  return out;
}

void sg_rt_half_to_float(const uint16_t *a, float *out, uint32_t lanes) { EACH out[i] = half_to_float(a[i]); }
void sg_rt_float_to_half(const float *a, uint16_t *out, uint32_t lanes) { EACH out[i] = shrink(a[i], 5, 10, NEAREST); }

#define SHRINK(short, mode)                                                                                          \
  void sg_rt_double_to_half_##short(const double *a, uint16_t *out, uint32_t lanes) {                             \
    EACH out[i] = shrink(a[i], 5, 10, mode);                                                                        \
  }                                                                                                                 \
  void sg_rt_double_to_bfloat_##short(const double *a, uint16_t *out, uint32_t lanes) {                           \
    EACH out[i] = shrink(a[i], 8, 7, mode);                                                                         \
  }
SHRINK(rn, NEAREST)
SHRINK(rz, ZERO)
SHRINK(rm, DOWN)
SHRINK(rp, UP)

/* The sum of two doubles with its last bit set if it is not exact, so that rounding it once more rounds the true sum. */
static inline double sum_to_odd(double a, double b) {
  double sum = a + b, part = sum - a, rest = (a - (sum - part)) + (b - part);
  uint64_t bits = bits_of(sum);
  if (!isfinite(sum) || rest == 0 || bits & 1) return sum;
  bits += (rest > 0) == (sum > 0) ? 1 : UINT64_MAX;
  memcpy(&sum, &bits, 8);
  return sum;
}

/* The products are exact in double. */
static inline uint16_t fma_half(uint16_t a, uint16_t b, uint16_t c) {
  return shrink(sum_to_odd((double)half_to_float(a) * half_to_float(b), half_to_float(c)), 5, 10, NEAREST);
}
static inline uint16_t fma_bfloat(uint16_t a, uint16_t b, uint16_t c) {
  return shrink(sum_to_odd((double)bfloat_to_float(a) * bfloat_to_float(b), bfloat_to_float(c)), 8, 7, NEAREST);
}

#define FMA_SMALL(name, function)                                                                                    \
  void sg_rt_fma_##name(const uint16_t *a, const uint16_t *b, const uint16_t *c, uint16_t *out, uint32_t lanes) { \
    EACH out[i] = function(a[i], b[i], c[i]);                                                                       \
  }                                                                                                                 \
  void sg_rt_fma_##name##x2(const uint16_t *a, const uint16_t *b, const uint16_t *c, uint16_t *out,               \
                              uint32_t lanes) {                                                                     \
    for (uint32_t i = 0; i < 2 * lanes; i++) out[i] = function(a[i], b[i], c[i]);                                   \
  }
FMA_SMALL(f16, fma_half)
FMA_SMALL(bf16, fma_bfloat)

/* --- elementary functions: those of the C library, which are closer than PTX requires */

#define FUNCTION(name, expression)                                                                                   \
  void sg_rt_##name##_f32(const float *a, float *out, uint32_t lanes) {                                           \
    EACH {                                                                                                          \
      float x = a[i];                                                                                               \
      out[i] = expression;                                                                                          \
    }                                                                                                               \
  }
FUNCTION(ex2, exp2f(x))
FUNCTION(lg2, log2f(x))
FUNCTION(sin, sinf(x))
FUNCTION(cos, cosf(x))
FUNCTION(tanh, tanhf(x))

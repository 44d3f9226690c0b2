/* cp.async: the copies of the running lanes from global to shared memory. */
#include "abi.h"

#include <string.h>

/* counts: the bytes that each lane reads, the rest becomes zero; NULL: all. A lane that reads none has no address. */
#define COPY(bits)                                                                                                   \
  void sg_rt_copy_b##bits(const uint64_t *to, const uint64_t *from, const uint32_t *counts, uint32_t lanes) {     \
    for (; lanes; lanes &= lanes - 1) {                                                                             \
      uint32_t lane = (uint32_t)__builtin_ctz(lanes), count = counts ? counts[lane] : bits / 8;                     \
      uint8_t *target = (uint8_t *)(uintptr_t)to[lane];                                                             \
      const uint8_t *source = (const uint8_t *)(uintptr_t)from[lane];                                               \
      if (count >= bits / 8) {                                                                                      \
        memcpy(target, source, bits / 8);                                                                           \
      } else {                                                                                                      \
        memset(target, 0, bits / 8);                                                                                \
        for (uint32_t i = 0; i < count; i++) target[i] = source[i];                                                 \
      }                                                                                                             \
    }                                                                                                               \
  }
COPY(32)
COPY(64)
COPY(128)

/* ldmatrix: tiles of 8 rows of 8 two-byte elements, each tile spread over the lanes of a warp. */
#include "abi.h"

static uint32_t element(uint64_t row, uint32_t column) { return ((const uint16_t *)(uintptr_t)row)[column]; }

/* Lane 8 i + r has the address of row r of tile i. Lane l gets elements 2 (l % 4) and the next of row l / 4, or,
 * turned, of column l / 4; out holds the first tile's elements of all lanes, then the second's, ... A lane
 * that is not in mask has no address. */
void sg_rt_load_matrices(const uint64_t *rows, uint32_t count, uint32_t turned, uint32_t mask, uint32_t *out) {
  for (uint32_t tile = 0; tile < count; tile++)
    for (uint32_t lane = 0; lane < SG_WARP; lane++) {
      uint32_t pair = 2 * (lane % 4), other = lane / 4, both = 0;
      for (uint32_t i = 0; i < 2; i++) {
        uint32_t from = 8 * tile + (turned ? pair + i : other);
        if (mask >> from & 1) both |= element(rows[from], turned ? other : pair + i) << 16 * i;
      }
      out[tile * SG_WARP + lane] = both;
    }
}

// Kernels whose blocks wait for one another, as a cooperative launch lets them.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

// A barrier by hand: in every round each block takes its neighbour's value. `blocks` is how many are to arrive.
extern "C" __global__ void pass_on(unsigned *arrived, unsigned *values, unsigned rounds, unsigned blocks) {
  for (unsigned round = 0; round < rounds; round++) {
    const unsigned *from = values + round % 2 * gridDim.x;
    unsigned *to = values + (round + 1) % 2 * gridDim.x;
    if (threadIdx.x == 0) to[blockIdx.x] = from[(blockIdx.x + 1) % gridDim.x];
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      atomicAdd(arrived, 1);
      while (atomicAdd(arrived, 0) < (round + 1) * blocks) {}
    }
    __syncthreads();
  }
}

// Sums of blocks, the sum of these, and what each block has kept of its own: with two barriers of the grid.
extern "C" __global__ void sums(const unsigned *x, unsigned *partial, unsigned *whole, unsigned *out) {
  __shared__ unsigned mine;
  auto grid = cg::this_grid();
  if (threadIdx.x == 0) mine = 0;
  __syncthreads();
  atomicAdd(&mine, x[grid.thread_rank()]);
  __syncthreads();
  if (threadIdx.x == 0) partial[blockIdx.x] = mine;
  grid.sync();
  if (grid.thread_rank() == 0)
    for (unsigned i = 0; i < gridDim.x; i++) *whole += partial[i];
  grid.sync();
  out[grid.thread_rank()] = *whole - mine;
}

// The last block fails; the others wait for it.
extern "C" __global__ void one_fails(unsigned *flag) {
  if (blockIdx.x == gridDim.x - 1) __trap();
  while (atomicAdd(flag, 0) == 0) {}
}

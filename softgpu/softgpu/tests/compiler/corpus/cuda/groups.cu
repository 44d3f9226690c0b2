// Cooperative groups: tiles of a warp, groups of those who are here, groups by label, and what these do together.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

namespace cg = cooperative_groups;

// each tile sums and scans its own
template <int Size>
__device__ void tile(cg::thread_block block, const int *x, int *out, int at, int n) {
    auto tile = cg::tiled_partition<Size>(block);
    int v = x[at];
    out[at] = cg::reduce(tile, v, cg::plus<int>());
    out[n + at] = cg::inclusive_scan(tile, v) * 2 + cg::exclusive_scan(tile, v) + cg::inclusive_scan(tile, v, cg::greater<int>());
    out[2 * n + at] = tile.shfl_xor(v, Size / 2) + tile.shfl(v, Size - 1) - tile.shfl_down(v, 1);
    out[3 * n + at] = tile.ballot(v & 1) + 64 * tile.meta_group_rank() + tile.thread_rank() + tile.any(v > 90);
}

extern "C" __global__ void tiles(const int *x, int *out, int n) {
    cg::thread_block block = cg::this_thread_block();
    int at = (int)(block.group_index().x * block.size() + block.thread_rank());
    if (blockIdx.x % 4 == 0) tile<4>(block, x, out, at, n);
    else if (blockIdx.x % 4 == 1) tile<8>(block, x, out, at, n);
    else if (blockIdx.x % 4 == 2) tile<16>(block, x, out, at, n);
    else tile<32>(block, x, out, at, n);
}

// who is here counts himself; the first adds for all
extern "C" __global__ void coalesced(const int *x, int *total, int *rank, int *sums, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    if (x[i] > 50) {
        cg::coalesced_group here = cg::coalesced_threads();
        int base = 0;
        if (here.thread_rank() == 0) base = atomicAdd(total, here.size());
        base = here.shfl(base, 0);
        rank[i] = here.thread_rank();
        sums[i] = cg::reduce(here, x[i], cg::plus<int>()) + here.shfl_up(base - base, 1);
    } else if (x[i] & 1) {
        auto same = cg::labeled_partition(cg::coalesced_threads(), x[i] % 3);
        rank[i] = 100 + same.thread_rank();
        sums[i] = cg::reduce(same, x[i], cg::less<int>());
    }
}

// a tile of 32 that parts in two by a value
extern "C" __global__ void halves(const int *x, int *out) {
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    int i = blockIdx.x * blockDim.x + threadIdx.x, v = x[i];
    auto part = cg::binary_partition(warp, v % 5 < 2);
    out[i] = cg::reduce(part, v, cg::bit_xor<int>()) * 32 + part.num_threads();
    warp.sync();
}

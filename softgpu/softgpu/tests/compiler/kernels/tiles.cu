// Parts of a warp that each vote, match and reduce among themselves: member masks that differ between lanes.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

template <int N>
__device__ void among(const int *in, unsigned *out) {
  auto tile = cg::tiled_partition<N>(cg::this_thread_block());
  int i = blockIdx.x * blockDim.x + threadIdx.x, x = in[i];
  unsigned *mine = out + 6 * i;
  mine[0] = tile.ballot(x & 1);
  mine[1] = tile.any(x > 6);
  mine[2] = tile.all(x < 7);
  mine[3] = tile.match_any(x);
  int same;
  mine[4] = tile.match_all(x, same);
  mine[4] += 2 * (same != 0);
  unsigned members = (N == 32 ? ~0u : (1u << N) - 1) << (threadIdx.x % 32 / N * N);
  mine[5] = __reduce_add_sync(members, x) + 1000 * __reduce_max_sync(members, x) +
            100000 * __reduce_min_sync(members, (unsigned)x);
}

extern "C" __global__ void tiles8(const int *in, unsigned *out) { among<8>(in, out); }
extern "C" __global__ void tiles16(const int *in, unsigned *out) { among<16>(in, out); }
extern "C" __global__ void tiles32(const int *in, unsigned *out) { among<32>(in, out); }

// Lanes of odd value only, in the tiles of whole warps' masks.
extern "C" __global__ void parted(const int *in, unsigned *out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, x = in[i];
  unsigned odd = __ballot_sync(~0u, x & 1), members = x & 1 ? odd : ~odd;
  unsigned half = threadIdx.x & 16 ? 0xFFFF0000u : 0xFFFFu;
  out[i] = 0;
  if (x & 1) out[i] = __ballot_sync(members & half, x > 3) + __popc(__activemask());
}

// CUB's passes over whole arrays: sum, one-pass scan, one-sweep radix sort, in which blocks look back at one another.
#include <cub/cub.cuh>
#include <cub/agent/agent_radix_sort_histogram.cuh>
#include <cub/agent/agent_radix_sort_onesweep.cuh>
#include <cub/agent/agent_reduce.cuh>
#include <cub/agent/agent_scan.cuh>

using SumPolicy = cub::AgentReducePolicy<128, 8, float, 4, cub::BLOCK_REDUCE_WARP_REDUCTIONS, cub::LOAD_LDG>;

// a sum for each block
extern "C" __global__ void device_reduce(const float *x, float *sums, int n) {
    using Agent = cub::detail::reduce::AgentReduce<SumPolicy, const float *, float *, int, cuda::std::plus<>, float>;
    __shared__ typename Agent::TempStorage s;
    cub::GridEvenShare<int> share;
    share.DispatchInit(n, gridDim.x, Agent::TILE_ITEMS);
    float sum = Agent(s, x, cuda::std::plus<>{}).ConsumeTiles(share);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

using Tiles = cub::ScanTileState<int>;
using ScanPolicy = cub::AgentScanPolicy<128, 4, int, cub::BLOCK_LOAD_WARP_TRANSPOSE, cub::LOAD_DEFAULT,
                                        cub::BLOCK_STORE_WARP_TRANSPOSE, cub::BLOCK_SCAN_WARP_SCANS>;

extern "C" __global__ void scan_init(void *storage, int tiles) {
    Tiles state;
    state.Init(tiles, storage, 0);
    state.InitializeStatus(tiles);
}

extern "C" __global__ void device_scan(const int *x, int *out, void *storage, int n) {
    using Agent = cub::detail::scan::AgentScan<ScanPolicy, const int *, int *, cuda::std::plus<>, int, int, int>;
    __shared__ typename Agent::TempStorage s;
    Tiles state;
    state.Init(gridDim.x, storage, 0);
    Agent(s, x, out, cuda::std::plus<>{}, 100).ConsumeRange(n, state, 0);
}

using CountPolicy = cub::AgentRadixSortHistogramPolicy<128, 4, 1, unsigned, 6>;
using SweepPolicy =
    cub::AgentRadixSortOnesweepPolicy<128, 4, unsigned, 1, cub::RADIX_RANK_MATCH_EARLY_COUNTS_ANY,
                                      cub::BLOCK_SCAN_WARP_SCANS, cub::RADIX_SORT_STORE_DIRECT, 6>;

// counts of both digits of 12-bit keys
extern "C" __global__ void sort_counts(unsigned *bins, const unsigned *keys, int n) {
    using Agent = cub::detail::radix_sort::AgentRadixSortHistogram<CountPolicy, false, unsigned, unsigned>;
    __shared__ typename Agent::TempStorage s;
    Agent(s, bins, keys, n, 0, 12).Process();
}

extern "C" __global__ void sort_offsets(unsigned *bins) {
    using Scan = cub::BlockScan<unsigned, 64>;
    __shared__ Scan::TempStorage s;
    unsigned v = bins[blockIdx.x * 64 + threadIdx.x];
    Scan(s).ExclusiveSum(v, v);
    bins[blockIdx.x * 64 + threadIdx.x] = v;
}

extern "C" __global__ void sort_sweep(int *look_back, int *ticket, unsigned *ends, const unsigned *starts,
                                      unsigned *keys_out, const unsigned *keys, int *values_out, const int *values,
                                      int n, int bit) {
    using Agent = cub::detail::radix_sort::AgentRadixSortOnesweep<SweepPolicy, false, unsigned, int, unsigned, int>;
    __shared__ typename Agent::TempStorage s;
    Agent(s, look_back, ticket, ends, starts, keys_out, keys, values_out, values, n, bit, 6).Process();
}

// What CUB makes of a block and of a warp.
#include <cub/block/block_shuffle.cuh>
#include <cub/cub.cuh>

template <class T, int Threads, int Items>
using Load = cub::BlockLoad<T, Threads, Items, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
template <class T, int Threads, int Items>
using Store = cub::BlockStore<T, Threads, Items, cub::BLOCK_STORE_WARP_TRANSPOSE>;

extern "C" __global__ void block_scan(const int *x, int *out, int *total, int n) {
    using Scan = cub::BlockScan<int, 128, cub::BLOCK_SCAN_RAKING>;
    __shared__ union {
        Load<int, 128, 4>::TempStorage load;
        Scan::TempStorage scan;
        Store<int, 128, 4>::TempStorage store;
    } s;
    int base = blockIdx.x * 512, v[4], sum;
    Load<int, 128, 4>(s.load).Load(x + base, v, n - base, 0);
    __syncthreads();
    Scan(s.scan).InclusiveSum(v, v, sum);
    __syncthreads();
    Store<int, 128, 4>(s.store).Store(out + base, v, n - base);
    if (threadIdx.x == 0) total[blockIdx.x] = sum;
}

// running maximum, exclusive, by warps
extern "C" __global__ void block_scan_warps(const double *x, double *out) {
    using Scan = cub::BlockScan<double, 96, cub::BLOCK_SCAN_WARP_SCANS>;
    __shared__ Scan::TempStorage s;
    int i = blockIdx.x * 96 + threadIdx.x;
    double v = x[i];
    Scan(s).ExclusiveScan(v, v, -1.0, cuda::maximum<>{});
    out[i] = v;
}

extern "C" __global__ void block_sort(const unsigned *keys, const float *values, unsigned *keys_out, float *values_out, int n) {
    using Sort = cub::BlockRadixSort<unsigned, 128, 4, float>;
    __shared__ Sort::TempStorage s;
    unsigned k[4];
    float v[4];
    int t = threadIdx.x;
    for (int i = 0; i < 4; i++) {
        int at = blockIdx.x * 512 + 4 * t + i;
        k[i] = at < n ? keys[at] : ~0u;
        v[i] = at < n ? values[at] : 0;
    }
    Sort(s).Sort(k, v);
    for (int i = 0; i < 4; i++) {
        int at = blockIdx.x * 512 + 4 * t + i;
        if (at < n) keys_out[at] = k[i], values_out[at] = v[i];
    }
}

extern "C" __global__ void block_sort_down(float *x) {
    using Sort = cub::BlockRadixSort<float, 64, 3>;
    __shared__ Sort::TempStorage s;
    float v[3];
    cub::LoadDirectBlocked(threadIdx.x, x + blockIdx.x * 192, v);
    Sort(s).SortDescendingBlockedToStriped(v);
    cub::StoreDirectStriped<64>(threadIdx.x, x + blockIdx.x * 192, v);
}

struct Less {
    __device__ bool operator()(long long a, long long b) const { return a < b; }
};

extern "C" __global__ void block_merge_sort(long long *x, int n) {
    using Sort = cub::BlockMergeSort<long long, 64, 4>;
    __shared__ Sort::TempStorage s;
    long long v[4];
    int base = blockIdx.x * 256, left = min(n - base, 256);
    cub::LoadDirectBlocked(threadIdx.x, x + base, v, left, (long long)1 << 62);
    Sort(s).StableSort(v, Less{}, left, (long long)1 << 62);
    cub::StoreDirectBlocked(threadIdx.x, x + base, v, left);
}

extern "C" __global__ void block_reduce(const float *x, float *sums, int *most, int n) {
    using Sum = cub::BlockReduce<float, 160, cub::BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY>;
    using Most = cub::BlockReduce<int, 160, cub::BLOCK_REDUCE_WARP_REDUCTIONS>;
    __shared__ Sum::TempStorage s;
    __shared__ Most::TempStorage m;
    int i = blockIdx.x * 160 + threadIdx.x, left = min(n - (int)blockIdx.x * 160, 160);
    float sum = Sum(s).Sum(i < n ? x[i] : 0, left);
    int top = Most(m).Reduce(i < n ? (int)(x[i] * 1000) : -1, cuda::maximum<>{}, left);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum, most[blockIdx.x] = top;
}

extern "C" __global__ void block_histogram(const unsigned char *x, unsigned *bins, unsigned *sorted_bins) {
    using Atomic = cub::BlockHistogram<unsigned char, 64, 4, 32, cub::BLOCK_HISTO_ATOMIC>;
    using Sorted = cub::BlockHistogram<unsigned char, 64, 4, 32, cub::BLOCK_HISTO_SORT>;
    __shared__ union {
        Atomic::TempStorage atomic;
        Sorted::TempStorage sorted;
    } s;
    __shared__ unsigned own[32];
    unsigned char v[4];
    cub::LoadDirectStriped<64>(threadIdx.x, x + blockIdx.x * 256, v);
    Atomic(s.atomic).Histogram(v, own);
    __syncthreads();
    if (threadIdx.x < 32) bins[blockIdx.x * 32 + threadIdx.x] = own[threadIdx.x];
    __syncthreads();
    Sorted(s.sorted).Histogram(v, own);
    __syncthreads();
    if (threadIdx.x < 32) sorted_bins[blockIdx.x * 32 + threadIdx.x] = own[threadIdx.x];
}

// logical warps of 8 and of 32
extern "C" __global__ void warps(const int *x, int *scans, int *sorted, int *heads) {
    using Reduce = cub::WarpReduce<int, 8>;
    using Scan = cub::WarpScan<int>;
    using Sort = cub::WarpMergeSort<int, 2, 16>;
    __shared__ Reduce::TempStorage r[12];
    __shared__ Scan::TempStorage c[3];
    __shared__ Sort::TempStorage m[6];
    int t = threadIdx.x, i = blockIdx.x * 96 + t, v = x[i], total;
    int segment = Reduce(r[t / 8]).HeadSegmentedSum(v, (i & 7) == 3);
    __syncwarp();
    int five = Reduce(r[t / 8]).Sum(v, 5);
    if ((t & 7) == 0) heads[i / 8 * 2] = segment + 1000 * five;
    if ((t & 7) == 3) heads[i / 8 * 2 + 1] = segment;
    Scan(c[t / 32]).ExclusiveSum(v, v, total);
    scans[i] = v + (total << 16);
    int pair[2] = {x[i], x[i] ^ 21};
    Sort(m[t / 16]).Sort(pair, Less{});
    sorted[2 * i] = pair[0], sorted[2 * i + 1] = pair[1];
}

extern "C" __global__ void exchange(const int *x, int *out, int *heads, int *steps) {
    using Exchange = cub::BlockExchange<int, 64, 5>;
    using Heads = cub::BlockDiscontinuity<int, 64>;
    using Steps = cub::BlockAdjacentDifference<int, 64>;
    using Shuffle = cub::BlockShuffle<int, 64>;
    __shared__ union {
        Exchange::TempStorage e;
        Heads::TempStorage h;
        Steps::TempStorage a;
        Shuffle::TempStorage f;
    } s;
    int v[5], flags[5], step[5], shifted[5];
    cub::LoadDirectStriped<64>(threadIdx.x, x, v);
    Exchange(s.e).StripedToBlocked(v, v);
    __syncthreads();
    Heads(s.h).FlagHeads(flags, v, cuda::std::not_equal_to<>{});
    __syncthreads();
    Steps(s.a).SubtractLeft(v, step, cuda::std::minus<>{});
    __syncthreads();
    Shuffle(s.f).Up(v, shifted);
    if (threadIdx.x == 0) shifted[0] = -1;
    cub::StoreDirectBlocked(threadIdx.x, out, shifted);
    cub::StoreDirectBlocked(threadIdx.x, heads, flags);
    cub::StoreDirectBlocked(threadIdx.x, steps, step);
}

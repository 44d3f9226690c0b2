// Prefix sums of a block, in shared memory and in registers, and over blocks that look back at one another.

extern "C" __global__ void hillis_steele(const int *x, int *out, int n) {
    extern __shared__ int both[];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t, from = 0;
    both[t] = i < n ? x[i] : 0;
    __syncthreads();
    for (int d = 1; d < blockDim.x; d *= 2) {
        int to = blockDim.x - from;
        both[to + t] = both[from + t] + (t >= d ? both[from + t - d] : 0);
        from = to;
        __syncthreads();
    }
    if (i < n) out[i] = both[from + t];
}

// exclusive; a block of T threads scans 2 T elements
extern "C" __global__ void blelloch(const int *x, int *out, int n) {
    extern __shared__ int tree[];
    int t = threadIdx.x, m = 2 * blockDim.x, base = blockIdx.x * m, step = 1;
    for (int k = t; k < m; k += blockDim.x) tree[k] = base + k < n ? x[base + k] : 0;
    for (int d = m >> 1; d > 0; d >>= 1, step *= 2) {
        __syncthreads();
        if (t < d) tree[step * (2 * t + 2) - 1] += tree[step * (2 * t + 1) - 1];
    }
    if (t == 0) tree[m - 1] = 0;
    for (int d = 1; d < m; d *= 2) {
        step >>= 1;
        __syncthreads();
        if (t < d) {
            int a = step * (2 * t + 1) - 1, b = step * (2 * t + 2) - 1, held = tree[a];
            tree[a] = tree[b];
            tree[b] += held;
        }
    }
    __syncthreads();
    for (int k = t; k < m; k += blockDim.x)
        if (base + k < n) out[base + k] = tree[k];
}

__device__ int scan_warp(int v) {
    int lane = threadIdx.x & 31;
    for (int d = 1; d < 32; d *= 2) {
        int other = __shfl_up_sync(~0u, v, d);
        if (lane >= d) v += other;
    }
    return v;
}

// inclusive, of a block whose size is a multiple of 32
__device__ int scan_block(int v, int *warps) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, count = blockDim.x >> 5;
    v = scan_warp(v);
    if (lane == 31) warps[warp] = v;
    __syncthreads();
    if (warp == 0) {
        int sum = scan_warp(lane < count ? warps[lane] : 0);
        if (lane < count) warps[lane] = sum;
    }
    __syncthreads();
    return v + (warp ? warps[warp - 1] : 0);
}

extern "C" __global__ void warp_shuffles(const int *x, int *out, int n) {
    __shared__ int warps[32];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int v = scan_block(i < n ? x[i] : 0, warps);
    if (i < n) out[i] = v;
}

// each block takes a ticket, tells its own sum, then what is before it: (state << 32 | value), 1: own sum, 2: prefix
extern "C" __global__ void look_back(const int *x, int *out, int n, unsigned *ticket, unsigned long long *told) {
    __shared__ int warps[32], before, mine;
    if (threadIdx.x == 0) mine = atomicAdd(ticket, 1u);
    __syncthreads();
    int block = mine, i = block * blockDim.x + threadIdx.x;
    int v = scan_block(i < n ? x[i] : 0, warps);
    if (threadIdx.x == blockDim.x - 1) {
        unsigned state = block ? 1 : 2;
        atomicExch(&told[block], (unsigned long long)state << 32 | (unsigned)v);
        int sum = 0;
        for (int k = block - 1; k >= 0;) {
            unsigned long long word = *(volatile unsigned long long *)&told[k];
            if (word >> 32 == 0) continue;
            sum += (int)(unsigned)word;
            if (word >> 32 == 2) break;
            k--;
        }
        before = sum;
        __threadfence();
        atomicExch(&told[block], 2ull << 32 | (unsigned)(sum + v));
    }
    __syncthreads();
    if (i < n) out[i] = before + v;
}

// inclusive over segments that begin where head is set
extern "C" __global__ void segmented(const float *x, const unsigned char *head, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
    float v = i < n ? x[i] : 0;
    unsigned heads = __ballot_sync(~0u, i < n && head[i]) | 1;
    int first = 31 - __clz(heads & (~0u >> (31 - lane)));
    for (int d = 1; d < 32; d *= 2) {
        float other = __shfl_up_sync(~0u, v, d);
        if (lane - d >= first) v += other;
    }
    if (i < n) out[i] = v;
}

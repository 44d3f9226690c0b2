// Sorting in several launches and in one block, and what comes with it: search, merging, compaction.

// --- least digit first, four bits a pass: counts by block, offsets by digit and block, stable scatter

extern "C" __global__ void digit_counts(const unsigned *keys, unsigned *counts, int n, int shift) {
    __shared__ unsigned own[16];
    if (threadIdx.x < 16) own[threadIdx.x] = 0;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&own[keys[i] >> shift & 15], 1u);
    __syncthreads();
    if (threadIdx.x < 16) counts[threadIdx.x * gridDim.x + blockIdx.x] = own[threadIdx.x];
}

// exclusive, in place, by one block whatever the length
extern "C" __global__ void offsets(unsigned *counts, int n) {
    __shared__ unsigned sums[256];
    unsigned before = 0;
    for (int base = 0; base < n; base += blockDim.x) {
        int i = base + threadIdx.x;
        unsigned v = i < n ? counts[i] : 0;
        sums[threadIdx.x] = v;
        for (int d = 1; d < blockDim.x; d <<= 1) {
            __syncthreads();
            unsigned other = threadIdx.x >= d ? sums[threadIdx.x - d] : 0;
            __syncthreads();
            sums[threadIdx.x] += other;
        }
        __syncthreads();
        if (i < n) counts[i] = before + sums[threadIdx.x] - v;
        before += sums[blockDim.x - 1];
        __syncthreads();
    }
}

extern "C" __global__ void scatter(const unsigned *keys, const float *values, unsigned *keys_out, float *values_out,
                                   const unsigned *starts, int n, int shift) {
    __shared__ unsigned digits[16][8];  // by digit and warp
    int t = threadIdx.x, lane = t & 31, warp = t >> 5, i = blockIdx.x * blockDim.x + t;
    for (int k = t; k < 128; k += blockDim.x) digits[k >> 3][k & 7] = 0;
    __syncthreads();
    unsigned digit = i < n ? keys[i] >> shift & 15 : 16, same = __match_any_sync(~0u, digit);
    unsigned rank = __popc(same & ((1u << lane) - 1));
    if (i < n && rank == 0) digits[digit][warp] = __popc(same);
    __syncthreads();
    if (i >= n) return;
    for (int w = 0; w < warp; w++) rank += digits[digit][w];
    unsigned to = starts[digit * gridDim.x + blockIdx.x] + rank;
    keys_out[to] = keys[i];
    values_out[to] = values[i];
}

extern "C" __global__ void bitonic(float *x, int n) {
    extern __shared__ float row[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) row[i] = x[blockIdx.x * n + i];
    for (int size = 2; size <= n; size *= 2)
        for (int step = size / 2; step; step /= 2) {
            __syncthreads();
            for (int k = threadIdx.x; k < n / 2; k += blockDim.x) {
                int a = 2 * k - (k & (step - 1)), b = a + step;
                float p = row[a], q = row[b];
                if ((p > q) == !(a & size)) row[a] = q, row[b] = p;
            }
        }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[blockIdx.x * n + i] = row[i];
}

// one step over global memory
extern "C" __global__ void bitonic_step(long long *x, int step, int size) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, other = i ^ step;
    if (other <= i) return;
    long long a = x[i], b = x[other];
    if ((i & size) == 0 ? a > b : a < b) x[i] = b, x[other] = a;
}

// odd and even neighbours in turn, until nothing changes
extern "C" __global__ void odd_even(int *x, int n, int *rounds) {
    int t = threadIdx.x, changed = 1, round = 0;
    for (; __syncthreads_or(changed); round++) {
        changed = 0;
        for (int odd = 0; odd < 2; odd++) {
            int i = 2 * t + odd;
            if (i + 1 < n && x[i] > x[i + 1]) {
                int held = x[i];
                x[i] = x[i + 1], x[i + 1] = held, changed = 1;
            }
            __syncthreads();
        }
    }
    if (t == 0) *rounds = round;
}

// each thread finds where its diagonal crosses the path of the merge, then merges eight
extern "C" __global__ void merge(const int *a, int na, const int *b, int nb, int *out) {
    int diagonal = min(8 * (int)(blockIdx.x * blockDim.x + threadIdx.x), na + nb);
    int low = max(0, diagonal - nb), high = min(diagonal, na);
    while (low < high) {
        int mid = (low + high) / 2;
        if (a[mid] <= b[diagonal - 1 - mid]) low = mid + 1;
        else high = mid;
    }
    int i = low, j = diagonal - low;
    for (int k = 0; k < 8 && diagonal + k < na + nb; k++)
        out[diagonal + k] = j >= nb || (i < na && a[i] <= b[j]) ? a[i++] : b[j++];
}

// those that pass, in order, within the block; counts by block
extern "C" __global__ void compact(const float *x, float *out, int *counts, int n) {
    __shared__ int warps[8];
    int t = threadIdx.x, lane = t & 31, warp = t >> 5, i = blockIdx.x * blockDim.x + t;
    bool keep = i < n && x[i] > 0.25f && x[i] < 0.75f;
    unsigned kept = __ballot_sync(~0u, keep);
    if (lane == 0) warps[warp] = __popc(kept);
    int total = __syncthreads_count(keep);
    int before = __popc(kept & ((1u << lane) - 1));
    for (int w = 0; w < warp; w++) before += warps[w];
    if (keep) out[blockIdx.x * blockDim.x + before] = x[i];
    int full = __syncthreads_and(i < n);
    if (t == 0) counts[blockIdx.x] = full ? total : -total;
}

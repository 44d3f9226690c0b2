// Kernels that touch memory in different ways, whose time under fences is measured (benchmarks/isolation/patterns.py).
// patterns.ptx is what `nvcc -ptx -arch=sm_80` makes of this file.

constexpr unsigned TILE = 32, BLOCK = 256, SORTED = 32;

// out[i] = x[i]
extern "C" __global__ void copy(const float *x, float *out, unsigned n) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i];
}

// out = x transposed, both side x side; a block of 32 x 8 threads moves a tile through shared memory.
extern "C" __global__ void transpose(const float *x, float *out, unsigned side) {
    __shared__ float tile[TILE][TILE + 1];
    const unsigned left = blockIdx.x * TILE, top = blockIdx.y * TILE;
    for (unsigned y = threadIdx.y; y < TILE; y += blockDim.y)
        tile[y][threadIdx.x] = x[(top + y) * side + left + threadIdx.x];
    __syncthreads();
    for (unsigned y = threadIdx.y; y < TILE; y += blockDim.y)
        out[(left + y) * side + top + threadIdx.x] = tile[threadIdx.x][y];
}

// out[to[i]] = x[from[i]]
extern "C" __global__ void gather_scatter(const float *x, const unsigned *from, const unsigned *to, float *out,
                                          unsigned n) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[to[i]] = x[from[i]];
}

// bins[x[i] % 256] += 1, atomically
extern "C" __global__ void histogram(const unsigned *x, unsigned *bins, unsigned n) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&bins[x[i] % BLOCK], 1u);
}

// sums[b] = the sum of block b's part of x, by a tree in shared memory
extern "C" __global__ void shared_sum(const float *x, float *sums) {
    __shared__ float part[BLOCK];
    const unsigned t = threadIdx.x;
    part[t] = x[blockIdx.x * BLOCK + t];
    for (unsigned half = BLOCK / 2; half > 0; half /= 2) {
        __syncthreads();
        if (t < half) part[t] += part[t + half];
    }
    if (t == 0) sums[blockIdx.x] = part[0];
}

// out = the mean of each element of x, side x side, and its four neighbours; the rim is as it was
extern "C" __global__ void stencil(const float *x, float *out, unsigned side) {
    const unsigned column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    const unsigned i = row * side + column;
    if (row >= side || column >= side) return;
    const bool rim = row == 0 || column == 0 || row == side - 1 || column == side - 1;
    out[i] = rim ? x[i] : (x[i] + x[i - 1] + x[i + 1] + x[i - side] + x[i + side]) / 5;
}

// out[i] = the sum of x from the first element of i's block up to i, by doubling distances in shared memory
extern "C" __global__ void scan(const unsigned *x, unsigned *out) {
    __shared__ unsigned sums[BLOCK];
    const unsigned t = threadIdx.x, i = blockIdx.x * BLOCK + t;
    sums[t] = x[i];
    for (unsigned distance = 1; distance < BLOCK; distance *= 2) {
        __syncthreads();
        const unsigned more = t >= distance ? sums[t - distance] : 0;
        __syncthreads();
        sums[t] += more;
    }
    out[i] = sums[t];
}

// c = a * b, all side x side; a thread for each element
extern "C" __global__ void naive_matmul(const float *a, const float *b, float *c, unsigned side) {
    const unsigned column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= side || column >= side) return;
    float sum = 0;
    for (unsigned k = 0; k < side; ++k) sum += a[row * side + k] * b[k * side + column];
    c[row * side + column] = sum;
}

// y = a * x with a sparse matrix in CSR form; a thread for each row
extern "C" __global__ void sparse_product(const unsigned *starts, const unsigned *columns, const float *values,
                                          const float *x, float *y, unsigned rows) {
    const unsigned row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float sum = 0;
    for (unsigned k = starts[row]; k < starts[row + 1]; ++k) sum += values[k] * x[columns[k]];
    y[row] = sum;
}

// sorts each 32 numbers of x, a thread for each, by insertion into an array of the thread's own
extern "C" __global__ void local_sort(const unsigned *x, unsigned *out, unsigned n) {
    const unsigned first = (blockIdx.x * blockDim.x + threadIdx.x) * SORTED;
    if (first >= n) return;
    unsigned own[SORTED];
#pragma unroll 1
    for (unsigned count = 0; count < SORTED; ++count) {
        const unsigned value = x[first + count];
        unsigned at = count;
        for (; at > 0 && own[at - 1] > value; --at) own[at] = own[at - 1];
        own[at] = value;
    }
#pragma unroll 1
    for (unsigned k = 0; k < SORTED; ++k) out[first + k] = own[k];
}

// x[i] = 3 x[i] + i
extern "C" __global__ void tiny(unsigned *x) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    x[i] = 3 * x[i] + i;
}

// out[i] = i
extern "C" __global__ void numbers(unsigned *out) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = i;
}

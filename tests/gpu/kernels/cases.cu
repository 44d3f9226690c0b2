// Kernels whose results a GPU and the software GPU must agree on: ways to pass arguments, and instruction families.
// cases.ptx is what `nvcc -ptx -arch=sm_80` makes of this file.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct Affine {
    const float *x;  // at byte 0
    float scale;     // 8
    float *y;        // 16
    double offset;   // 24
};

// y[i] = scale * x[i] + offset, everything in one struct
extern "C" __global__ void affine(Affine p, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) p.y[i] = (float)(p.scale * p.x[i] + p.offset);
}

// out[i] = sum of rows[r][i], over a table of pointers
extern "C" __global__ void add_rows(const float *const *rows, unsigned count, float *out, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0.0f;
    for (unsigned r = 0; r < count; ++r) sum += rows[r][i];
    out[i] = sum;
}

// out = every kind of by-value argument as a double
extern "C" __global__ void values(signed char a, short b, int c, long long d, unsigned char e, unsigned short f, unsigned g,
                                  unsigned long long h, __half i, __nv_bfloat16 j, float k, double l, float2 m, double2 n,
                                  bool o, void *null, double *out) {
    const double all[] = {(double)a, (double)b, (double)c, (double)d, (double)e,   (double)f,   (double)g, (double)h, __half2float(i),
                          __bfloat162float(j), k, l, m.x, m.y, n.x, n.y, (double)o, null == nullptr ? 1.0 : 0.0};
    if (threadIdx.x < sizeof all / sizeof all[0]) out[threadIdx.x] = all[threadIdx.x];
}

// bins[v] += occurrences of v in data; bins has 256 entries
extern "C" __global__ void histogram(const unsigned char *data, unsigned *bins, unsigned n) {
    __shared__ unsigned local[256];
    local[threadIdx.x] = 0;
    __syncthreads();
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[data[i]], 1);
    __syncthreads();
    if (local[threadIdx.x]) atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
}

// steps[i] = length of the Collatz sequence from i + 1: every lane leaves the loop at another time
extern "C" __global__ void collatz(unsigned *steps, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned length = 0;
    for (unsigned long long value = i + 1; value != 1; value = value % 2 ? 3 * value + 1 : value / 2) ++length;
    steps[i] = length;
}

// out[block] = sum of the block's integers, by shuffles and one word of shared memory a warp
extern "C" __global__ void block_sum(const int *in, int *out, unsigned n) {
    __shared__ int warps[32];
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    int sum = i < n ? in[i] : 0;
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    sum = threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : 0;
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// out = in backwards, through dynamic shared memory of n floats; one block
extern "C" __global__ void reverse(const float *in, float *out, unsigned n) {
    extern __shared__ float held[];
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) held[i] = in[i];
    __syncthreads();
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) out[i] = held[n - 1 - i];
}

// x[i] = (3 x[i] + 1) mod 2^32 in place, from x on
extern "C" __global__ void advance(unsigned *x, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = 3 * x[i] + 1;
}

// writes where there is nothing: the one fault that costs a device
extern "C" __global__ void stray(unsigned *x) { x[1ull << 44] = 1; }

// Lanes and warps that see each other. warp.ptx: nvcc -ptx -arch=sm_80 of this file.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void reduce(const float *x, float *out, int n) {
    __shared__ float warps[32];
    float s = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) s += x[i];
    for (int o = 16; o > 0; o >>= 1) s += __shfl_down_sync(~0u, s, o);
    int lane = threadIdx.x & 31, w = threadIdx.x >> 5;
    if (lane == 0) warps[w] = s;
    __syncthreads();
    if (w == 0) {
        s = lane < (blockDim.x >> 5) ? warps[lane] : 0;
        for (int o = 16; o > 0; o >>= 1) s += __shfl_down_sync(~0u, s, o);
        if (lane == 0) atomicAdd(out, s);
    }
}

extern "C" __global__ void shuffles(const int *x, int *out, int by) {
    int t = threadIdx.x, v = x[t];
    out[t] = __shfl_up_sync(~0u, v, 3);
    out[32 + t] = __shfl_down_sync(~0u, v, 5, 8);
    out[64 + t] = __shfl_xor_sync(~0u, v, 6);
    out[96 + t] = __shfl_sync(~0u, v, (t * 7) & 31);
    out[128 + t] = __shfl_sync(~0u, v, by, 16);
    out[160 + t] = __shfl_up_sync(~0u, v, by, 8);
    long long wide = ((long long)v << 32) | t;
    out[192 + t] = (int)(__shfl_xor_sync(~0u, wide, 1) >> 32);
}

extern "C" __global__ void votes(const int *x, int *out) {
    int t = threadIdx.x, v = x[t];
    out[t] = __ballot_sync(~0u, v > 3);
    out[32 + t] = __any_sync(~0u, v == 5) + 2 * __all_sync(~0u, v < 100);
    out[64 + t] = __match_any_sync(~0u, v);
    int same;
    __match_all_sync(~0u, v & 0, &same);
    out[96 + t] = same;
    out[128 + t] = __reduce_add_sync(~0u, v);
    out[160 + t] = __reduce_max_sync(~0u, v - 50);
    if (v & 1) out[192 + t] = __activemask();
    out[224 + t] = __popc(__ballot_sync(~0u, v & 1) & ((1u << t) - 1));
    __syncwarp();
}

extern "C" __global__ void histogram(const unsigned char *x, unsigned *h, int n) {
    __shared__ unsigned own[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) own[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&own[x[i]], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&h[i], own[i]);
}

extern "C" __global__ void atomics(int *i, unsigned *u, unsigned long long *l, float *f, double *d, int *old) {
    int t = threadIdx.x + blockIdx.x * blockDim.x;
    old[t] = atomicAdd(&i[0], 1);
    atomicMin(&i[1], t - 50);
    atomicMax(&i[2], t);
    atomicXor(&i[3], t);
    atomicAnd(&u[0], ~(1u << (t & 7)));
    atomicOr(&u[1], 1u << (t & 31));
    atomicInc(&u[2], 99u);
    atomicDec(&u[3], 50u);
    atomicAdd(&l[0], (unsigned long long)t << 20);
    atomicMax(&l[1], (unsigned long long)t * t);
    atomicAdd(&f[0], 0.5f);
    atomicAdd(&d[0], 0.25);
    int seen = i[4], assumed;
    do {
        assumed = seen;
        seen = atomicCAS(&i[4], assumed, assumed + 2);
    } while (seen != assumed);
}

// Each warp waits at barriers for the others; one warp leaves early.
extern "C" __global__ void stages(int *out, int rounds) {
    __shared__ int box[256];
    int t = threadIdx.x;
    box[t] = t;
    __syncthreads();
    if (t >= blockDim.x - 32) return;
    for (int r = 0; r < rounds; r++) {
        int v = box[(t + 32) % (blockDim.x - 32)];
        __syncthreads();
        box[t] = v + 1;
        __syncthreads();
    }
    out[t] = box[t];
}

extern "C" __global__ void counts(const int *x, int *out) {
    int v = x[threadIdx.x];
    int many = __syncthreads_count(v > 3), all = __syncthreads_and(v < 100), any = __syncthreads_or(v == 1234);
    out[threadIdx.x] = many * 4 + (all != 0) * 2 + (any != 0);
}

extern "C" __global__ void halves(const __half *a, const __half *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = __half2float(__hadd(a[i], b[i])) + __half2float(__hmul(a[i], b[i]));
}

extern "C" __global__ void bfloats(const __nv_bfloat16 *a, __nv_bfloat16 *b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) b[i] = __float2bfloat16(__bfloat162float(a[i]) * 3.0f);
}

extern "C" __global__ void fails(int *x) {
    if (x[threadIdx.x] == 13) __trap();
    x[threadIdx.x] = 1;
}

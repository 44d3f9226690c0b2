// Doubles, halves and bfloat16, alone and packed; functions that are exact, and functions that nearly are.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// compensated sums of a block's slices, one a thread; contraction must not take the error away
extern "C" __global__ void kahan(const float *x, float *out, int each) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0, lost = 0;
    for (int k = 0; k < each; k++) {
        float y = x[t * each + k] - lost, next = sum + y;
        lost = (next - sum) - y;
        sum = next;
    }
    out[t] = sum;
}

// Gauss-Jordan with the largest pivot of each column, one block a matrix
extern "C" __global__ void inverse(const double *a, double *out, int n) {
    extern __shared__ double m[];
    __shared__ int pivot;
    int wide = 2 * n, t = threadIdx.x;
    a += (size_t)blockIdx.x * n * n, out += (size_t)blockIdx.x * n * n;
    for (int i = t; i < n * wide; i += blockDim.x) {
        int r = i / wide, c = i % wide;
        m[i] = c < n ? a[r * n + c] : c - n == r;
    }
    for (int k = 0; k < n; k++) {
        __syncthreads();
        if (t == 0) {
            pivot = k;
            for (int r = k + 1; r < n; r++)
                if (fabs(m[r * wide + k]) > fabs(m[pivot * wide + k])) pivot = r;
        }
        __syncthreads();
        if (pivot != k && t < wide) {
            double held = m[k * wide + t];
            m[k * wide + t] = m[pivot * wide + t];
            m[pivot * wide + t] = held;
        }
        __syncthreads();
        double by = 1 / m[k * wide + k];
        __syncthreads();
        if (t < wide) m[k * wide + t] *= by;
        __syncthreads();
        for (int r = 0; r < n; r++) {
            double f = m[r * wide + k];
            __syncthreads();
            if (r != k && t < wide) m[r * wide + t] -= f * m[k * wide + t];
        }
    }
    __syncthreads();
    for (int i = t; i < n * n; i += blockDim.x) out[i] = m[i / n * wide + n + i % n];
}

extern "C" __global__ void halves(const __half *x, const __half *y, __half *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = __hadd(x[i], y[i]);
    out[n + i] = __hmul(x[i], y[i]);
    out[2 * n + i] = __hfma(x[i], y[i], x[i]);
    out[3 * n + i] = __hdiv(x[i], y[i]);
    out[4 * n + i] = hsqrt(__habs(x[i]));
    out[5 * n + i] = __hmax(x[i], y[i]);
    out[6 * n + i] = __hlt(x[i], y[i]) ? __hneg(x[i]) : y[i];
    out[7 * n + i] = __float2half(__half2float(x[i]) * 3.0f);
    out[8 * n + i] = __int2half_rn(__half2int_rz(x[i]) + i);
    out[9 * n + i] = hfloor(__hsub(x[i], y[i]));
}

extern "C" __global__ void packed_halves(const __half2 *x, const __half2 *y, __half2 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = __hadd2(x[i], __lowhigh2highlow(y[i]));
    out[n + i] = __hfma2(x[i], y[i], __hneg2(y[i]));
    out[2 * n + i] = __hmin2(x[i], y[i]);
    out[3 * n + i] = __hgt2(x[i], y[i]);
    out[4 * n + i] = __halves2half2(__high2half(x[i]), __low2half(y[i]));
    out[5 * n + i] = __floats2half2_rn(__low2float(x[i]) * 2, __high2float(y[i]) / 2);
}

extern "C" __global__ void brains(const __nv_bfloat16 *x, const __nv_bfloat16 *y, __nv_bfloat16 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = __hadd(x[i], y[i]);
    out[n + i] = __hmul(x[i], y[i]);
    out[2 * n + i] = __hfma(x[i], y[i], y[i]);
    out[3 * n + i] = __hmin(x[i], y[i]);
    out[4 * n + i] = __float2bfloat16(__bfloat162float(x[i]) + 0.01f);
    __nv_bfloat162 both = __halves2bfloat162(x[i], y[i]), sum = __hadd2(both, both);
    out[5 * n + i] = __high2bfloat16(sum);
    out[6 * n + i] = __low2bfloat16(__hmul2(sum, both));
}

// sums of halves and bfloat16 in memory; small whole numbers, so that order does not matter
extern "C" __global__ void half_atomics(__half2 *h, __half *one, __nv_bfloat162 *b, float *seen) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(h, __floats2half2_rn(1, 2));
    atomicAdd(b, __floats2bfloat162_rn(1, i & 1));
    atomicAdd(&seen[(int)__half2float(atomicAdd(one, __float2half(1)))], 1.0f);
}

extern "C" __global__ void roundings(const double *x, int *i, long long *l, unsigned *u, float *f, double *d, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    double v = x[t];
    float s = (float)v;
    i[t] = __double2int_rn(v), i[n + t] = __double2int_ru(v), i[2 * n + t] = (int)s, i[3 * n + t] = __float2int_rd(s);
    l[t] = (long long)v, l[n + t] = llrint(v), l[2 * n + t] = __float2ll_rn(s);
    u[t] = (unsigned)fabs(v), u[n + t] = __float2uint_ru(fabsf(s));
    f[t] = __double2float_rz(v), f[n + t] = __double2float_ru(v), f[2 * n + t] = (float)(long long)(v * 1e9);
    d[t] = trunc(v), d[n + t] = rint(v), d[2 * n + t] = ceil(v), d[3 * n + t] = floor(v), d[4 * n + t] = fmod(v, 3.7);
    d[5 * n + t] = __dadd_rd(v, 0.1), d[6 * n + t] = __dmul_ru(v, 0.1), d[7 * n + t] = sqrt(fabs(v)), d[8 * n + t] = v / 7;
    f[3 * n + t] = __fadd_rz(s, 0.1f), f[4 * n + t] = __fdiv_rd(s, 7.0f), f[5 * n + t] = sqrtf(fabsf(s)), f[6 * n + t] = s / 7;
    f[7 * n + t] = fmodf(s, 3.7f), f[8 * n + t] = copysignf(2.5f, s);
}

extern "C" __global__ void functions(const float *x, const double *y, float *f, double *d, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    float a = x[t];
    double b = y[t];
    f[t] = expf(a), f[n + t] = logf(fabsf(a) + 0.1f), f[2 * n + t] = sinf(20 * a), f[3 * n + t] = cosf(20 * a);
    f[4 * n + t] = tanhf(a), f[5 * n + t] = atan2f(a, 0.3f), f[6 * n + t] = powf(fabsf(a) + 0.1f, 2.3f), f[7 * n + t] = cbrtf(a);
    d[t] = exp(b), d[n + t] = log(fabs(b) + 0.1), d[2 * n + t] = sin(20 * b), d[3 * n + t] = cos(20 * b);
    d[4 * n + t] = tanh(b), d[5 * n + t] = atan2(b, 0.3), d[6 * n + t] = pow(fabs(b) + 0.1, 2.3), d[7 * n + t] = cbrt(b);
}

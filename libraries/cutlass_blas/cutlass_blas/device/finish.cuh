// What is left to do where one kernel cannot end a product: the slices of a split-K added up, a bias beside beta * C,
// or no product at all (alpha or k is zero).
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace finish {

enum Activation : int { kNone = 0, kRelu = 1, kGelu = 2 };

template <class Real>
struct alignas(2 * sizeof(Real)) Complex {
  Real x, y;
};

template <class Real>
__device__ Complex<Real> operator+(Complex<Real> a, Complex<Real> b) {
  return {a.x + b.x, a.y + b.y};
}
template <class Real>
__device__ Complex<Real> operator*(Complex<Real> a, Complex<Real> b) {
  if (a.y == 0) return {a.x * b.x, a.x * b.y};  // or 0 times an infinity would be a NaN
  return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x};
}

__device__ inline bool is_zero(float value) { return value == 0; }
__device__ inline bool is_zero(double value) { return value == 0; }
template <class Real>
__device__ bool is_zero(Complex<Real> value) {
  return value.x == 0 && value.y == 0;
}

template <class Sum, class Out>
struct Convert {
  __device__ static Sum widen(Out value) { return value; }
  __device__ static Out narrow(Sum value) { return value; }
};
template <>
struct Convert<float, __half> {
  __device__ static float widen(__half value) { return __half2float(value); }
  __device__ static __half narrow(float value) { return __float2half_rn(value); }
};
template <>
struct Convert<float, __nv_bfloat16> {
  __device__ static float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
  __device__ static __nv_bfloat16 narrow(float value) { return __float2bfloat16_rn(value); }
};

__device__ inline float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752440f)); }
__device__ inline double gelu(double x) { return 0.5 * x * (1.0 + erf(x * 0.70710678118654752440)); }

template <class Real>
__device__ Real activated(Real value, int activation) {
  if (activation == kRelu) return value < 0 ? Real(0) : value;  // NaN stays NaN
  return activation == kGelu ? gelu(value) : value;
}
template <class Real>
__device__ Complex<Real> activated(Complex<Real> value, int) {
  return value;
}

// Mirrored in split_k.py.
template <class Sum, class Out>
struct Params {
  Sum const *sums;           // [count][slices][m][n]
  void *c;                   // the first matrix, or a table of them
  Out const *bias;           // n elements, or null
  void const *a, *b;         // never read: they make the operands part of the graph where nothing is read of them
  long long m, n, slices, count, leading, stride;
  int table, activation;
  alignas(16) Sum alpha;
  alignas(16) Sum beta;
};

template <class Sum, class Out>
__device__ void run(Params<Sum, Out> const &p) {
  using To = Convert<Sum, Out>;
  long long const size = p.m * p.n;
  bool const counts = p.slices > 0 && !is_zero(p.alpha), adds = !is_zero(p.beta);
  for (long long batch = blockIdx.y; batch < p.count; batch += gridDim.y) {
    Out *c = p.table ? static_cast<Out *const *>(p.c)[batch] : static_cast<Out *>(p.c) + batch * p.stride;
    Sum const *sums = p.sums + batch * p.slices * size;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < size; i += (long long)gridDim.x * blockDim.x) {
      // a division of 32 bits is several times quicker
      long long const row = size <= 0xffffffffll ? (unsigned)i / (unsigned)p.n : i / p.n;
      long long const column = i - row * p.n;
      Out *const at = c + row * p.leading + column;
      Sum value{};
      if (counts) {
        for (long long slice = 0; slice < p.slices; ++slice) value = value + sums[slice * size + i];
        value = p.alpha * value;
      }
      if (adds) value = value + p.beta * To::widen(*at);
      if (p.bias) value = value + To::widen(p.bias[column]);
      *at = To::narrow(activated(value, p.activation));
    }
  }
}

}  // namespace finish

#define FINISH(name, Sum, Out)                                                           \
  extern "C" __global__ __launch_bounds__(256) void finish_##name(                       \
      const __grid_constant__ finish::Params<Sum, Out> params) {                         \
    static_assert(sizeof params == 128, "as split_k.py packs it");                       \
    finish::run(params);                                                                 \
  }

FINISH(float32, float, float)
FINISH(float16, float, __half)
FINISH(bfloat16, float, __nv_bfloat16)
FINISH(float64, double, double)
FINISH(complex64, finish::Complex<float>, finish::Complex<float>)
FINISH(complex128, finish::Complex<double>, finish::Complex<double>)

// Products of a row-major matrix and a vector, y = alpha op(A) x + beta y, one kernel for each direction in which A is
// summed up; both read A once, coalesced. `gemvs.py` writes their launches down.
//
// CUTLASS has kernels of this kind (cutlass/gemm/kernel/gemv.h), but they take no conjugation; the one for contiguous
// rows wants aligned rows and contiguous vectors, and the other gives a whole column to a single thread.
//
// Sums are the same in each run: every thread adds its part in order, parts are added in a fixed tree, and what several
// blocks have added up goes through a workspace and a kernel that finishes.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace gemv {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kVectorBytes = 16;

using Index = long long;

template <class Real>
struct alignas(2 * sizeof(Real)) Complex {
  Real re, im;
};

// What `gemvs.py` packs; all in elements. Outputs are rows, or columns where the sum runs over rows.
struct Sizes {
  Index rows, columns, leading;  // of A
  Index inc_x, inc_y;
  Index count, stride_a, stride_x, stride_y;  // of the batch
  Index chunk;                                // of the sum's direction that one block adds up
  Index splits;                               // blocks that share a sum; with more than 1, y is left to `finish`
  Index conjugate;                            // whether A is
};

// --- arithmetic in the accumulator's type

template <class T>
struct Accumulator {
  using Type = T;
};
template <>
struct Accumulator<__half> {
  using Type = float;
};
template <>
struct Accumulator<__nv_bfloat16> {
  using Type = float;
};
template <class T>
using Acc = typename Accumulator<T>::Type;

__device__ inline float widen(__half v) { return __half2float(v); }
__device__ inline float widen(__nv_bfloat16 v) { return __bfloat162float(v); }
template <class T>
__device__ T widen(T v) {
  return v;
}

template <class T>
__device__ T narrow(Acc<T> v) {
  return v;
}
template <>
__device__ inline __half narrow<__half>(float v) {
  return __float2half_rn(v);
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}

template <class Real>
__device__ bool is_zero(Real v) {
  return v == Real(0);
}
template <class Real>
__device__ bool is_zero(Complex<Real> v) {
  return v.re == Real(0) && v.im == Real(0);
}

template <class Real>
__device__ Real add(Real a, Real b) {
  return a + b;
}
template <class Real>
__device__ Complex<Real> add(Complex<Real> a, Complex<Real> b) {
  return {a.re + b.re, a.im + b.im};
}

template <class Real>
__device__ void multiply_add(Real &sum, Real a, Real x, bool) {
  sum += a * x;
}
template <class Real>
__device__ void multiply_add(Complex<Real> &sum, Complex<Real> a, Complex<Real> x, bool conjugate) {
  Real im = conjugate ? -a.im : a.im;
  sum.re += a.re * x.re;
  sum.re -= im * x.im;
  sum.im += a.re * x.im;
  sum.im += im * x.re;
}

template <class Real>
__device__ Real scaled(Real scale, Real v) {
  return scale * v;
}
template <class Real>
__device__ Complex<Real> scaled(Complex<Real> scale, Complex<Real> v) {
  if (scale.im == Real(0)) return {scale.re * v.re, scale.re * v.im};  // or 0 times an infinity would be a NaN
  return {scale.re * v.re - scale.im * v.im, scale.re * v.im + scale.im * v.re};
}

template <class Real>
__device__ Real shuffled(Real v, int offset) {
  return __shfl_xor_sync(0xffffffffu, v, offset);
}
template <class Real>
__device__ Complex<Real> shuffled(Complex<Real> v, int offset) {
  return {shuffled(v.re, offset), shuffled(v.im, offset)};
}

// The sum over `lanes` neighbouring lanes, a power of two; every lane of the warp takes part.
template <class T>
__device__ T summed(T v, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) v = add(v, shuffled(v, offset));
  return v;
}

// y as BLAS defines it: where beta is 0 it is not read.
template <class Out>
__device__ void store(Out *y, Acc<Out> sum, Acc<Out> alpha, Acc<Out> beta) {
  Acc<Out> value = is_zero(alpha) ? Acc<Out>{} : scaled(alpha, sum);
  if (!is_zero(beta)) value = add(value, scaled(beta, widen(*y)));
  *y = narrow<Out>(value);
}

// --- loads of 16 bytes

template <class T>
struct alignas(kVectorBytes) Pack {
  static constexpr int kCount = kVectorBytes / sizeof(T);
  T v[kCount];
};

__device__ inline bool aligned(const void *pointer) { return reinterpret_cast<size_t>(pointer) % kVectorBytes == 0; }

// --- contiguous rows: y[i] = sum over j of A[i, j] x[j]

// What one of the `lanes` threads of a row adds up: of columns `begin` to `end`.
template <class T>
__device__ Acc<T> row_part(const T *__restrict__ row, const T *__restrict__ x, Index begin, Index end, int lane,
                           int lanes, Index inc_x, bool conjugate) {
  constexpr int kCount = Pack<T>::kCount;
  Acc<T> sum{};
  if (kCount > 1 && inc_x == 1 && aligned(row + begin) && aligned(x + begin)) {
    Index whole = begin + (end - begin) / kCount * kCount;
#pragma unroll 4
    for (Index j = begin + lane * kCount; j < whole; j += lanes * kCount) {
      Pack<T> a = *reinterpret_cast<const Pack<T> *>(row + j);
      Pack<T> b = *reinterpret_cast<const Pack<T> *>(x + j);
#pragma unroll
      for (int v = 0; v < kCount; ++v) multiply_add(sum, widen(a.v[v]), widen(b.v[v]), conjugate);
    }
    begin = whole;
  }
#pragma unroll 4
  for (Index j = begin + lane; j < end; j += lanes) multiply_add(sum, widen(row[j]), widen(x[j * inc_x]), conjugate);
  return sum;
}

// Blocks of (lanes of a row, rows): up to a warp, or all threads, to a row. Grid: (rows, splits, batch).
template <class T, class Out>
__device__ void rows(const T *__restrict__ a, const T *__restrict__ x, Out *y, Acc<T> *partial, Acc<T> alpha,
                     Acc<T> beta, const Sizes &sizes) {
  __shared__ Acc<T> parts[kThreads / kWarp];
  int lane = threadIdx.x, lanes = blockDim.x;
  Index row = Index(blockIdx.x) * blockDim.y + threadIdx.y;
  if (sizes.columns == 0) alpha = {};  // no product, whatever it is: 0 times an infinity would be a NaN
  Index begin = blockIdx.y * sizes.chunk;
  Index end = is_zero(alpha) ? begin : min(begin + sizes.chunk, sizes.columns);
  for (Index batch = blockIdx.z; batch < sizes.count; batch += gridDim.z) {
    Acc<T> sum{};
    if (row < sizes.rows) {
      sum = row_part(a + batch * sizes.stride_a + row * sizes.leading, x + batch * sizes.stride_x, begin, end, lane,
                     lanes, sizes.inc_x, sizes.conjugate != 0);
    }
    sum = summed(sum, min(lanes, kWarp));
    if (lanes > kWarp) {
      if (lane % kWarp == 0) parts[lane / kWarp] = sum;
      __syncthreads();
      for (int warp = 1; warp < lanes / kWarp && lane == 0; ++warp) sum = add(sum, parts[warp]);
      __syncthreads();
    }
    if (lane != 0 || row >= sizes.rows) continue;
    if (sizes.splits > 1) {
      partial[(batch * sizes.splits + blockIdx.y) * sizes.rows + row] = sum;
    } else {
      store(y + batch * sizes.stride_y + row * sizes.inc_y, sum, alpha, beta);
    }
  }
}

// --- contiguous columns: y[j] = sum over i of A[i, j] x[i]

// Blocks of (lanes, groups of rows); each lane has as many columns as 16 bytes hold. Grid: (columns, splits, batch).
template <class T, class Out>
__device__ void columns(const T *__restrict__ a, const T *__restrict__ x, Out *y, Acc<T> *partial, Acc<T> alpha,
                        Acc<T> beta, const Sizes &sizes) {
  constexpr int kCount = Pack<T>::kCount;
  __shared__ Acc<T> parts[kThreads * kCount];
  int lane = threadIdx.x, lanes = blockDim.x, groups = blockDim.y, width = lanes * kCount;
  Index first = Index(blockIdx.x) * width;
  if (sizes.rows == 0) alpha = {};
  Index begin = blockIdx.y * sizes.chunk;
  Index end = is_zero(alpha) ? begin : min(begin + sizes.chunk, sizes.rows);
  bool conjugate = sizes.conjugate != 0;
  for (Index batch = blockIdx.z; batch < sizes.count; batch += gridDim.z) {
    const T *matrix = a + batch * sizes.stride_a + first;
    const T *vector = x + batch * sizes.stride_x;
    bool wide = kCount > 1 && first + width <= sizes.columns && aligned(matrix) && sizes.leading % kCount == 0;
    Acc<T> sums[kCount] = {};
    if (wide) {
#pragma unroll 4
      for (Index i = begin + threadIdx.y; i < end; i += groups) {
        Pack<T> values = *reinterpret_cast<const Pack<T> *>(matrix + i * sizes.leading + lane * kCount);
        Acc<T> factor = widen(vector[i * sizes.inc_x]);
#pragma unroll
        for (int v = 0; v < kCount; ++v) multiply_add(sums[v], widen(values.v[v]), factor, conjugate);
      }
    } else {
      // columns a block's width apart: neighbouring lanes still read neighbours
      for (Index i = begin + threadIdx.y; i < end; i += groups) {
        Acc<T> factor = widen(vector[i * sizes.inc_x]);
#pragma unroll
        for (int v = 0; v < kCount; ++v) {
          int column = v * lanes + lane;
          if (first + column < sizes.columns) {
            multiply_add(sums[v], widen(matrix[i * sizes.leading + column]), factor, conjugate);
          }
        }
      }
    }
#pragma unroll
    for (int v = 0; v < kCount; ++v) parts[threadIdx.y * width + (wide ? lane * kCount + v : v * lanes + lane)] = sums[v];
    __syncthreads();
    int slot = threadIdx.y * lanes + lane;
    Index column = first + slot;
    if (slot < width && column < sizes.columns) {
      Acc<T> sum = parts[slot];
      for (int group = 1; group < groups; ++group) sum = add(sum, parts[group * width + slot]);
      if (sizes.splits > 1) {
        partial[(batch * sizes.splits + blockIdx.y) * sizes.columns + column] = sum;
      } else {
        store(y + batch * sizes.stride_y + column * sizes.inc_y, sum, alpha, beta);
      }
    }
    __syncthreads();
  }
}

// --- y from the parts of several blocks; `rows` of sizes are the outputs

// Blocks of (lanes of an output, outputs). Grid: (outputs, 1, batch).
template <class Out>
__device__ void finish(const Acc<Out> *__restrict__ partial, Out *y, Acc<Out> alpha, Acc<Out> beta,
                       const Sizes &sizes) {
  Index output = Index(blockIdx.x) * blockDim.y + threadIdx.y;
  for (Index batch = blockIdx.z; batch < sizes.count; batch += gridDim.z) {
    Acc<Out> sum{};
    if (output < sizes.rows) {
      for (Index split = threadIdx.x; split < sizes.splits; split += blockDim.x) {
        sum = add(sum, partial[(batch * sizes.splits + split) * sizes.rows + output]);
      }
    }
    sum = summed(sum, blockDim.x);
    if (threadIdx.x == 0 && output < sizes.rows) {
      store(y + batch * sizes.stride_y + output * sizes.inc_y, sum, alpha, beta);
    }
  }
}

}  // namespace gemv

#define PRODUCTS(NAME, T, OUT)                                                                                     \
  extern "C" __global__ __launch_bounds__(gemv::kThreads) void gemv_rows_##NAME(                                   \
      const T *a, const T *x, OUT *y, gemv::Acc<T> *partial, gemv::Acc<T> alpha, gemv::Acc<T> beta,                \
      const __grid_constant__ gemv::Sizes sizes) {                                                                 \
    gemv::rows<T, OUT>(a, x, y, partial, alpha, beta, sizes);                                                      \
  }                                                                                                                \
  extern "C" __global__ __launch_bounds__(gemv::kThreads) void gemv_columns_##NAME(                                \
      const T *a, const T *x, OUT *y, gemv::Acc<T> *partial, gemv::Acc<T> alpha, gemv::Acc<T> beta,                \
      const __grid_constant__ gemv::Sizes sizes) {                                                                 \
    gemv::columns<T, OUT>(a, x, y, partial, alpha, beta, sizes);                                                   \
  }

#define FINISH(NAME, OUT)                                                                                          \
  extern "C" __global__ __launch_bounds__(gemv::kThreads) void gemv_finish_##NAME(                                 \
      const gemv::Acc<OUT> *partial, OUT *y, gemv::Acc<OUT> alpha, gemv::Acc<OUT> beta,                            \
      const __grid_constant__ gemv::Sizes sizes) {                                                                 \
    gemv::finish<OUT>(partial, y, alpha, beta, sizes);                                                             \
  }

PRODUCTS(s, float, float)
PRODUCTS(d, double, double)
PRODUCTS(c, gemv::Complex<float>, gemv::Complex<float>)
PRODUCTS(z, gemv::Complex<double>, gemv::Complex<double>)
PRODUCTS(h, __half, __half)
PRODUCTS(hs, __half, float)
PRODUCTS(b, __nv_bfloat16, __nv_bfloat16)
PRODUCTS(bs, __nv_bfloat16, float)
FINISH(s, float)
FINISH(d, double)
FINISH(c, gemv::Complex<float>)
FINISH(z, gemv::Complex<double>)
FINISH(h, __half)
FINISH(b, __nv_bfloat16)

// What becomes of a product on its way to memory: act(alpha * product + beta * C), as BLAS has it.
#pragma once
#include <cutlass/array.h>
#include <cutlass/complex.h>
#include <cutlass/cutlass.h>
#include <cutlass/numeric_conversion.h>

namespace blas {

enum Flags : int { kRelu = 1, kNoProduct = 2 };

template <class T>
struct IsComplex {
  static constexpr bool value = false;
};
template <class T>
struct IsComplex<cutlass::complex<T>> {
  static constexpr bool value = true;
};

// NaN stays NaN: what is not below zero is passed on
template <class T>
CUTLASS_HOST_DEVICE T relu(T value) {
  return value < T(0) ? T(0) : value;
}

CUTLASS_HOST_DEVICE float gelu(float x) { return 0.5f * x * (1.0f + ::erff(x * 0.70710678118654752440f)); }
CUTLASS_HOST_DEVICE double gelu(double x) { return 0.5 * x * (1.0 + ::erf(x * 0.70710678118654752440)); }

template <class T>
CUTLASS_HOST_DEVICE T scaled(T scale, T value) {
  return scale * value;
}
template <class T>
CUTLASS_HOST_DEVICE cutlass::complex<T> scaled(cutlass::complex<T> scale, cutlass::complex<T> value) {
  // a real number, or 0 times an infinity would be a NaN
  if (scale.imag() == T(0)) return {scale.real() * value.real(), scale.real() * value.imag()};
  return scale * value;
}

// CUTLASS's concept of an output operator. C is read only if beta is not zero, the product counts only if alpha is not
// zero: a NaN in what BLAS says is not referenced must not come through. GELU is a variant at compile time: unrolled
// over a tile, erf makes a kernel several times as large.
template <class Element, int Count, class Accumulator, bool Gelu>
struct Epilogue {
  using ElementOutput = Element;
  using ElementAccumulator = Accumulator;
  using ElementCompute = Accumulator;
  using ElementScalar = Accumulator;
  using ElementC = Element;
  using ElementD = Element;
  static int const kCount = Count;
  static cutlass::FloatRoundStyle const kRound = cutlass::FloatRoundStyle::round_to_nearest;
  using FragmentOutput = cutlass::Array<Element, Count>;
  using FragmentSource = FragmentOutput;
  using FragmentAccumulator = cutlass::Array<Accumulator, Count>;

  struct Params {
    Accumulator alpha, beta;
    int flags;
  };

  Params const &params;

  CUTLASS_HOST_DEVICE explicit Epilogue(Params const &params) : params(params) {}

  CUTLASS_HOST_DEVICE bool is_source_needed() const { return params.beta != Accumulator(0); }

  CUTLASS_HOST_DEVICE bool is_product_needed() const {
    return params.alpha != Accumulator(0) && !(params.flags & kNoProduct);
  }

  // the slices of a serial split-K; ours are parallel
  CUTLASS_HOST_DEVICE void set_k_partition(int, int) {}

  CUTLASS_HOST_DEVICE Accumulator activated(Accumulator value) const {
    if constexpr (Gelu) return gelu(value);
    if constexpr (!Gelu && !IsComplex<Accumulator>::value) return params.flags & kRelu ? relu(value) : value;
    return value;
  }

  CUTLASS_HOST_DEVICE FragmentOutput operator()(FragmentAccumulator const &product, FragmentOutput const &source) const {
    cutlass::NumericConverter<Element, Accumulator> narrow;
    cutlass::NumericConverter<Accumulator, Element> widen;
    FragmentOutput out;
    bool const counts = is_product_needed();
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Count; ++i) {
      Accumulator const value = counts ? scaled(params.alpha, product[i]) : Accumulator(0);
      out[i] = narrow(activated(value + scaled(params.beta, widen(source[i]))));
    }
    return out;
  }

  CUTLASS_HOST_DEVICE FragmentOutput operator()(FragmentAccumulator const &product) const {
    cutlass::NumericConverter<Element, Accumulator> narrow;
    FragmentOutput out;
    bool const counts = is_product_needed();
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < Count; ++i) out[i] = narrow(activated(counts ? scaled(params.alpha, product[i]) : Accumulator(0)));
    return out;
  }
};

}  // namespace blas

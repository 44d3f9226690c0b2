// One matrix product of CUTLASS for each set of template arguments, as a kernel whose name and parameters are stable.
#pragma once
#include <cutlass/cutlass.h>
#include <cutlass/gemm/kernel/default_gemm_universal.h>

#include "epilogue.cuh"

namespace blas {

using cutlass::gemm::GemmShape;
using Simt = cutlass::arch::OpClassSimt;
using Tensor = cutlass::arch::OpClassTensorOp;

// What a kind of product works with: its elements, what it adds up in, and what one tensor instruction multiplies.
template <char Kind>
struct Elements;
template <>
struct Elements<'s'> {
  using In = float;
  using Accumulator = float;
};
template <>
struct Elements<'d'> {
  using In = double;
  using Accumulator = double;
  using Instruction = GemmShape<8, 8, 4>;
};
template <>
struct Elements<'c'> {
  using In = cutlass::complex<float>;
  using Accumulator = cutlass::complex<float>;
};
template <>
struct Elements<'z'> {
  using In = cutlass::complex<double>;
  using Accumulator = cutlass::complex<double>;
  using Instruction = GemmShape<8, 8, 4>;
};
template <>
struct Elements<'h'> {
  using In = cutlass::half_t;
  using Accumulator = float;
  using Instruction = GemmShape<16, 8, 16>;
};
template <>
struct Elements<'b'> {
  using In = cutlass::bfloat16_t;
  using Accumulator = float;
  using Instruction = GemmShape<16, 8, 16>;
};
// float32 in memory, rounded to tf32 on its way into the tensor cores
template <>
struct Elements<'t'> {
  using In = float;
  using Accumulator = float;
  using Instruction = GemmShape<16, 8, 8>;
};

template <char Kind, class Unit>
struct Instruction {
  using Shape = GemmShape<1, 1, 1>;
};
template <char Kind>
struct Instruction<Kind, Tensor> {
  using Shape = typename Elements<Kind>::Instruction;
};

// All matrices are row-major: what is transposed is read as column-major.
template <char Op>
struct Operand {
  using Layout = cutlass::layout::ColumnMajor;
  static constexpr auto kTransform = Op == 'c' ? cutlass::ComplexTransform::kConjugate : cutlass::ComplexTransform::kNone;
};
template <>
struct Operand<'n'> {
  using Layout = cutlass::layout::RowMajor;
  static constexpr auto kTransform = cutlass::ComplexTransform::kNone;
};

template <char Kind, class Out, char OpA, char OpB, class Unit, class Tile, class Warp, int Stages, int Align, int AlignC,
          bool Gelu>
struct Gemm {
  using In = typename Elements<Kind>::In;
  using Accumulator = typename Elements<Kind>::Accumulator;
  using Math = cutlass::platform::conditional_t<IsComplex<In>::value, cutlass::arch::OpMultiplyAddComplex,
                                                cutlass::arch::OpMultiplyAdd>;
  using Kernel = typename cutlass::gemm::kernel::DefaultGemmUniversal<
      In, typename Operand<OpA>::Layout, Operand<OpA>::kTransform, Align,  //
      In, typename Operand<OpB>::Layout, Operand<OpB>::kTransform, Align,  //
      Out, cutlass::layout::RowMajor, Accumulator, Unit, cutlass::arch::Sm80, Tile, Warp,
      typename Instruction<Kind, Unit>::Shape, Epilogue<Out, AlignC, Accumulator, Gelu>,
      cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, Stages, Math>::GemmKernel;
};

}  // namespace blas

#define BLAS_KERNEL(name, ...)                                                                                \
  using name##_kernel = blas::Gemm<__VA_ARGS__>::Kernel;                                                      \
  extern "C" __global__ __launch_bounds__(name##_kernel::kThreadCount) void name(                             \
      const __grid_constant__ name##_kernel::Params params) {                                                 \
    extern __shared__ __align__(16) char shared[];                                                            \
    name##_kernel kernel;                                                                                     \
    kernel(params, *reinterpret_cast<name##_kernel::SharedStorage *>(shared));                                \
  }

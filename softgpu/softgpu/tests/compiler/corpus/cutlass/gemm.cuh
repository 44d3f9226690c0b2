// Matrix products of CUTLASS, row-major. Without tensor cores and of any size, KIND: 0 float, 1 complex, 2 double, 3 float with
// A and B transposed, 4 float with asynchronous copies. With tensor cores, of sizes that 8 divides: 5 half, with results of float.
#include <cstring>
#include <type_traits>
#include <cutlass/complex.h>
#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm.h>

using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;
using Simt = cutlass::arch::OpClassSimt;
using Tensor = cutlass::arch::OpClassTensorOp;
using Sm80 = cutlass::arch::Sm80;
template <int M, int N, int K>
using Tile = cutlass::gemm::GemmShape<M, N, K>;
using Swizzle = cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<>;

#if KIND == 0
using Element = float;
using Input = Row;
#elif KIND == 1
using Element = cutlass::complex<float>;
using Input = Row;
#elif KIND == 2
using Element = double;
using Input = Row;
#else
using Element = float;
using Input = std::conditional_t<KIND == 3, Column, Row>;
#endif
using Factor = std::conditional_t<KIND == 5, cutlass::half_t, Element>;
constexpr int Stages = KIND < 4 ? 2 : 3, Aligned = KIND == 5 ? 4 : 1;
using Epilogue = cutlass::epilogue::thread::LinearCombination<Element, Aligned, Element, Element>;
#if KIND == 0
// the tile that CUTLASS chooses itself
using Gemm = cutlass::gemm::device::Gemm<Element, Row, Element, Row, Element, Row, Element, Simt, Sm80>;
#elif KIND == 5
using Gemm = cutlass::gemm::device::Gemm<Factor, Row, Factor, Row, Element, Row, Element, Tensor, Sm80, Tile<64, 64, 32>,
                                         Tile<32, 32, 32>, Tile<16, 8, 16>, Epilogue, Swizzle, Stages, 8, 8>;
#else
using Gemm = cutlass::gemm::device::Gemm<Element, Input, Element, Input, Element, Row, Element, Simt, Sm80, Tile<64, 64, 8>,
                                         Tile<32, 32, 8>, Tile<1, 1, 1>, Epilogue, Swizzle, Stages>;
#endif
using Kernel = Gemm::GemmKernel;

#ifdef KERNEL
extern "C" __global__ __launch_bounds__(Kernel::kThreadCount) void KERNEL(const __grid_constant__ Kernel::Params params) {
    extern __shared__ int shared[];
    Kernel kernel;
    kernel(params, *reinterpret_cast<Kernel::SharedStorage *>(shared));
}
#else
// What a launch needs, without a GPU. sizes: bytes of the parameters, of shared memory; threads. grid: of three extents.
extern "C" void launch(int m, int n, int k, int lda, int ldb, Element *alpha, Element *beta, int *sizes, int *grid, void *params) {
    sizes[0] = sizeof(Kernel::Params), sizes[1] = sizeof(Kernel::SharedStorage), sizes[2] = Kernel::kThreadCount;
    Swizzle swizzle;
    cutlass::gemm::GemmCoord size(m, n, k);
    auto tiles = swizzle.get_tiled_shape(size, {Gemm::ThreadblockShape::kM, Gemm::ThreadblockShape::kN, Gemm::ThreadblockShape::kK}, 1);
    // the addresses are marks, which tell where in the parameters pointers stand
    auto mark = [](int i) { return 0x1111111100000000ull + i; };
    auto factor = [&](int i) { return reinterpret_cast<Factor *>(mark(i)); };
    auto sum = [&](int i) { return reinterpret_cast<Element *>(mark(i)); };
    Kernel::Params made(size, tiles, {factor(1), lda}, {factor(2), ldb}, {sum(3), n}, {sum(4), n}, {*alpha, *beta}, nullptr);
    std::memcpy(params, &made, sizeof made);
    dim3 g = swizzle.get_grid_shape(tiles);
    grid[0] = g.x, grid[1] = g.y, grid[2] = g.z;
}
#endif

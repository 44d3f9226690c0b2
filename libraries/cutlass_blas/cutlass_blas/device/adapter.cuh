// The host's side of a kernel: its launch and the bytes of its parameters, computed without a GPU.
#pragma once
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>

#include "gemm.cuh"

// What nvcc has a library do when it is loaded: register device code with a runtime that is not here. This one holds
// no device code that anybody would launch.
extern "C" {
void **__cudaRegisterFatBinary(void *) { return nullptr; }
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}
}

namespace blas {

// Both are mirrored in adapter.py.
struct Facts {
  int32_t params_bytes, block, shared_bytes, a, b, c, d, alpha, beta, align_a, align_b, align_c;
};

struct Exchange {
  int64_t mode, m, n, k, count;
  int64_t batch_strides[4], leading[4];
  int64_t flags;
  char alpha[16], beta[16];
  // answers
  int64_t grid[3];
  alignas(16) char params[1024];
};

enum Refusal : int { kFits = 0, kTooLarge = 1, kMisaligned = 2 };

inline bool is_int(int64_t value) { return value >= 0 && value <= std::numeric_limits<int32_t>::max(); }

template <class Kernel>
Facts facts() {
  typename Kernel::Params const params{};
  // of an object, because offsetof is for simpler classes
  auto const at = [&params](auto const &field) {
    return int32_t(reinterpret_cast<char const *>(&field) - reinterpret_cast<char const *>(&params));
  };
  return {sizeof params,
          Kernel::kThreadCount,
          sizeof(typename Kernel::SharedStorage),
          at(params.ptr_A),
          at(params.ptr_B),
          at(params.ptr_C),
          at(params.ptr_D),
          at(params.output_op.alpha),
          at(params.output_op.beta),
          Kernel::kAlignmentA,
          Kernel::kAlignmentB,
          Kernel::kAlignmentC};
}

template <class Kernel>
int fill(Exchange &x) {
  using Scalars = typename Kernel::EpilogueOutputOp::Params;
  using Mode = cutlass::gemm::GemmUniversalMode;
  static_assert(sizeof(typename Kernel::Params) <= sizeof x.params);
  if (!is_int(x.m) || !is_int(x.n) || !is_int(x.k) || !is_int(x.count)) return kTooLarge;
  if (x.leading[0] % Kernel::kAlignmentA || x.leading[1] % Kernel::kAlignmentB || x.leading[2] % Kernel::kAlignmentC ||
      x.leading[3] % Kernel::kAlignmentC)
    return kMisaligned;
  cutlass::gemm::GemmCoord const size(int(x.m), int(x.n), int(x.k));
  if (Kernel::can_implement(size) != cutlass::Status::kSuccess) return kMisaligned;

  Scalars scalars{};
  std::memcpy(&scalars.alpha, x.alpha, sizeof scalars.alpha);
  std::memcpy(&scalars.beta, x.beta, sizeof scalars.beta);
  // with no k no tile is loaded, and what is added up is not defined
  scalars.flags = int(x.flags) | (x.k == 0 ? kNoProduct : 0);
  typename Kernel::Arguments const arguments(Mode(x.mode), size, int(x.count), scalars, nullptr, nullptr, nullptr,
                                             nullptr, x.batch_strides[0], x.batch_strides[1], x.batch_strides[2],
                                             x.batch_strides[3], x.leading[0], x.leading[1], x.leading[2], x.leading[3]);
  // the number of processors and the occupancy count for stream-K only
  std::memset(x.params, 0, sizeof(typename Kernel::Params));
  auto const params = new (x.params) typename Kernel::Params(arguments, 1, 1);
  // behind the flags a copy may have left what was on the stack: equal products have equal bytes
  auto const end = reinterpret_cast<char *>(&params->output_op + 1);
  auto const behind = reinterpret_cast<char *>(&params->output_op.flags + 1);
  std::memset(behind, 0, end - behind);
  // a grid is at least one block; where there is nothing to do it returns at once
  dim3 const grid = params->get_grid_dims();
  x.grid[0] = grid.x ? grid.x : 1;
  x.grid[1] = grid.y ? grid.y : 1;
  x.grid[2] = grid.z ? grid.z : 1;
  return x.grid[1] > 65535 || x.grid[2] > 65535 ? kTooLarge : kFits;
}

}  // namespace blas

#define BLAS_ADAPTER(name, ...)                                                        \
  using name##_kernel = blas::Gemm<__VA_ARGS__>::Kernel;                               \
  extern "C" void name##_facts(blas::Facts *out) { *out = blas::facts<name##_kernel>(); } \
  extern "C" int name##_fill(blas::Exchange *x) { return blas::fill<name##_kernel>(*x); }

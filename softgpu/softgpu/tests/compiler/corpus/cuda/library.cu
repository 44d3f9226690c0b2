// What device code takes from libraries: sequential algorithms, containers, complex numbers, random numbers.
#include <cuda/std/array>
#include <cuda/std/complex>
#include <cuda/std/optional>
#include <cuda/std/tuple>
#include <thrust/binary_search.h>
#include <thrust/copy.h>
#include <thrust/execution_policy.h>
#include <thrust/extrema.h>
#include <thrust/functional.h>
#include <thrust/merge.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/transform.h>
#include <thrust/unique.h>

// a sorted row for each thread, and the next thread's
extern "C" __global__ void algorithms(const int *x, int *keys, int *sums, int *found, int *merged, int rows, int length) {
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= rows) return;
    const int *row = x + r * length, *other = x + (r + 1) % rows * length;
    int *own = keys + r * length, *both = merged + 2 * r * length;
    thrust::inclusive_scan(thrust::seq, row, row + length, sums + r * length, thrust::plus<int>());
    int *end = thrust::unique_copy(thrust::seq, row, row + length, own);
    found[3 * r] = (int)(end - own);
    found[3 * r + 1] = (int)(thrust::lower_bound(thrust::seq, row, row + length, 10) - row);
    thrust::merge(thrust::seq, row, row + length, other, other + length, both);
    found[3 * r + 2] = thrust::reduce(thrust::seq, row, row + length, 0, thrust::bit_xor<int>());
}

extern "C" __global__ void selections(const double *x, double *out, int *counts, int rows, int length) {
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= rows) return;
    const double *row = x + r * length;
    double *own = out + r * length;
    double *end = thrust::copy_if(thrust::seq, row, row + length, own, [](double v) { return v > 0; });
    counts[2 * r] = (int)(end - own);
    counts[2 * r + 1] = (int)(thrust::max_element(thrust::seq, row, row + length) - row);
    thrust::transform(thrust::seq, own, end, own, [](double v) { return v * 0.5; });
}

__device__ cuda::std::optional<int> root(int v) {
    for (int k = 0; k <= v; k++)
        if (k * k == v) return k;
    return {};
}

extern "C" __global__ void containers(const float2 *z, const int *x, float2 *out, int *roots, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    cuda::std::complex<float> v(z[i].x, z[i].y), w = v * v + cuda::std::conj(v) / cuda::std::complex<float>(2, 1);
    cuda::std::array<cuda::std::tuple<int, float>, 3> a{{{1, 2.f}, {3, 4.f}, {5, 6.f}}};
    auto [k, f] = a[x[i] % 3];
    out[i] = make_float2(w.real() + k, w.imag() * f);
    roots[i] = root(x[i]).value_or(-1);
}

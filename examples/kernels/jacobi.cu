// One sweep of the Jacobi method. jacobi.ptx is what `nvcc -ptx -arch=sm_80` makes of this file.

// next[i] = (b[i] - sum over j != i of a[i][j] * x[j]) / a[i][i], for a of n x n.
//
// One warp a row: its lanes read neighbouring columns, add up in double, and fold their sums by shuffles. Launch with a
// multiple of 32 threads a block and at least 32 * n threads in all.
extern "C" __global__ void jacobi(const float *__restrict__ a, const float *__restrict__ b, const double *__restrict__ x,
                                  double *__restrict__ next, unsigned n) {
    const unsigned row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= n) return;
    const float *line = a + (size_t)row * n;
    double sum = 0.0;
    for (unsigned column = lane; column < n; column += 32) sum = fma((double)line[column], x[column], sum);
#pragma unroll
    for (unsigned distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(0xffffffffu, sum, distance);
    if (lane == 0) {
        const double diagonal = line[row];
        next[row] = (b[row] - (sum - diagonal * x[row])) / diagonal;
    }
}

// One sweep of the Jacobi method over a system of n equations: a warp computes a row, in double precision.
// jacobi.ptx is what `nvcc -ptx -arch=sm_80` makes of this file.
extern "C" __global__ void jacobi_sweep(const float *__restrict__ a, const float *__restrict__ b,
                                        const double *__restrict__ old, double *__restrict__ made, unsigned n) {
    const unsigned row = (blockIdx.x * blockDim.x + threadIdx.x) / warpSize, lane = threadIdx.x % warpSize;
    if (row >= n) return;  // whole warps
    const float *coefficients = a + static_cast<size_t>(row) * n;
    double others = 0.0;
    for (unsigned k = lane; k < n; k += warpSize)
        if (k != row) others += coefficients[k] * old[k];
    for (int half = warpSize / 2; half > 0; half >>= 1) others += __shfl_xor_sync(~0u, others, half);
    if (lane == 0) made[row] = (b[row] - others) / coefficients[row];
}

// The three kernels of the paper's nearest-neighbours search (Algorithm 1): X <- A * (X - V), V <- V + X.
// Matrices lie in C order. nearest_neighbours.ptx is what `nvcc -ptx -arch=sm_80` makes of this file.

// out[i] = x[i] - v[i]
extern "C" __global__ void vsub(const float *__restrict__ x, const float *__restrict__ v, float *__restrict__ out,
                                unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = x[i] - v[i];
}

// v[i] += x[i]
extern "C" __global__ void vadd(float *__restrict__ v, const float *__restrict__ x, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) v[i] += x[i];
}

// c[rows, columns] = a[rows, depth] * b[depth, columns]
//
// A block of 32 x 8 threads makes a 32 x 32 tile of c; each thread makes ROWS elements of one column, so that every value
// of b read from shared memory is used ROWS times. A warp is one row of the block: its reads of a are one address, its
// reads of b are 32 neighbours. Grid: (ceil(columns / 32), ceil(rows / 32)).
constexpr unsigned TILE = 32, WARPS = 8, ROWS = TILE / WARPS;

extern "C" __global__ void __launch_bounds__(TILE *WARPS)
    matmul(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c, unsigned rows,
           unsigned columns, unsigned depth) {
    __shared__ float a_tile[TILE][TILE], b_tile[TILE][TILE];
    const unsigned x = threadIdx.x, y = threadIdx.y;
    const unsigned column = blockIdx.x * TILE + x, top = blockIdx.y * TILE;
    float sum[ROWS] = {};

    for (unsigned start = 0; start < depth; start += TILE) {
#pragma unroll
        for (unsigned r = 0; r < ROWS; ++r) {
            const unsigned line = y + r * WARPS;
            const unsigned a_row = top + line, a_column = start + x, b_row = start + line;
            a_tile[line][x] = a_row < rows && a_column < depth ? a[(size_t)a_row * depth + a_column] : 0.0f;
            b_tile[line][x] = b_row < depth && column < columns ? b[(size_t)b_row * columns + column] : 0.0f;
        }
        __syncthreads();
#pragma unroll 8
        for (unsigned k = 0; k < TILE; ++k) {
            const float value = b_tile[k][x];
#pragma unroll
            for (unsigned r = 0; r < ROWS; ++r) sum[r] = fmaf(a_tile[y + r * WARPS][k], value, sum[r]);
        }
        __syncthreads();
    }
#pragma unroll
    for (unsigned r = 0; r < ROWS; ++r) {
        const unsigned row = top + y + r * WARPS;
        if (row < rows && column < columns) c[(size_t)row * columns + column] = sum[r];
    }
}

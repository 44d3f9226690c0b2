// Kernels whose speed on the software GPU is measured. softgpu.ptx is what `nvcc -ptx -arch=sm_80` makes of this file.

extern "C" __global__ void empty() {}

// c[i] = a[i] + b[i]
extern "C" __global__ void vector_add(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c,
                                      unsigned count) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) c[i] = a[i] + b[i];
}

// out[0] += sum of x, by shuffles within warps, then within the block; one atomic addition a block.
extern "C" __global__ void block_sum(const float *__restrict__ x, float *out, unsigned count) {
    __shared__ float sums[32];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    float sum = 0.0f;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) sum += x[i];
#pragma unroll
    for (unsigned distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(0xffffffffu, sum, distance);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    if (warp > 0) return;
    sum = lane < warps ? sums[lane] : 0.0f;
#pragma unroll
    for (unsigned distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(0xffffffffu, sum, distance);
    if (lane == 0) atomicAdd(out, sum);
}

// c = a * b, all n x n in C order; a block of 16 x 16 threads makes a 16 x 16 tile. The classic of every CUDA course.
extern "C" __global__ void sgemm_tiled(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c,
                                       unsigned n) {
    constexpr unsigned TILE = 16;
    __shared__ float a_tile[TILE][TILE], b_tile[TILE][TILE];
    const unsigned x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0.0f;
    for (unsigned start = 0; start < n; start += TILE) {
        a_tile[y][x] = row < n && start + x < n ? a[row * n + start + x] : 0.0f;
        b_tile[y][x] = start + y < n && column < n ? b[(start + y) * n + column] : 0.0f;
        __syncthreads();
#pragma unroll
        for (unsigned k = 0; k < TILE; ++k) sum += a_tile[y][k] * b_tile[k][x];
        __syncthreads();
    }
    if (row < n && column < n) c[row * n + column] = sum;
}

// c = a * b, all n x n in C order, n a multiple of 128. A block of 256 threads makes a 128 x 128 tile; each thread keeps
// 8 x 8 sums in registers and reads them from shared memory by fours.
extern "C" __global__ void __launch_bounds__(256)
    sgemm_register(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c, unsigned n) {
    constexpr unsigned TILE = 128, DEPTH = 8;
    __shared__ __align__(16) float a_tile[DEPTH][TILE], b_tile[DEPTH][TILE];
    const unsigned thread = threadIdx.x, top = blockIdx.y * TILE, left = blockIdx.x * TILE;
    const unsigned y = thread / 16 * 4, x = thread % 16 * 4;
    const unsigned a_row = thread / 2, a_column = thread % 2 * 4, b_row = thread / 32, b_column = thread % 32 * 4;
    float sum[8][8] = {};
    for (unsigned start = 0; start < n; start += DEPTH) {
        const float4 from_a = *(const float4 *)&a[(top + a_row) * n + start + a_column];
        const float4 from_b = *(const float4 *)&b[(start + b_row) * n + left + b_column];
        a_tile[a_column][a_row] = from_a.x;
        a_tile[a_column + 1][a_row] = from_a.y;
        a_tile[a_column + 2][a_row] = from_a.z;
        a_tile[a_column + 3][a_row] = from_a.w;
        *(float4 *)&b_tile[b_row][b_column] = from_b;
        __syncthreads();
#pragma unroll
        for (unsigned k = 0; k < DEPTH; ++k) {
            float column[8], row[8];
            *(float4 *)column = *(const float4 *)&a_tile[k][y];
            *(float4 *)(column + 4) = *(const float4 *)&a_tile[k][y + TILE / 2];
            *(float4 *)row = *(const float4 *)&b_tile[k][x];
            *(float4 *)(row + 4) = *(const float4 *)&b_tile[k][x + TILE / 2];
#pragma unroll
            for (unsigned i = 0; i < 8; ++i)
#pragma unroll
                for (unsigned j = 0; j < 8; ++j) sum[i][j] += column[i] * row[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) {
        float *line = c + (top + y + i % 4 + i / 4 * (TILE / 2)) * n + left + x;
        *(float4 *)line = make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
        *(float4 *)(line + TILE / 2) = make_float4(sum[i][4], sum[i][5], sum[i][6], sum[i][7]);
    }
}

// The same by smaller tiles: a block of 256 threads makes a 64 x 64 tile, each thread 4 x 4 of it, read one by one.
extern "C" __global__ void __launch_bounds__(256)
    sgemm_register_small(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c, unsigned n) {
    constexpr unsigned TILE = 64, DEPTH = 16;
    __shared__ float a_tile[DEPTH][TILE], b_tile[DEPTH][TILE];
    const unsigned thread = threadIdx.x, top = blockIdx.y * TILE, left = blockIdx.x * TILE;
    const unsigned y = thread / 16, x = thread % 16;
    float sum[4][4] = {};
    for (unsigned start = 0; start < n; start += DEPTH) {
        for (unsigned i = thread; i < TILE * DEPTH; i += 256) {
            a_tile[i % DEPTH][i / DEPTH] = a[(top + i / DEPTH) * n + start + i % DEPTH];
            b_tile[i / TILE][i % TILE] = b[(start + i / TILE) * n + left + i % TILE];
        }
        __syncthreads();
#pragma unroll
        for (unsigned k = 0; k < DEPTH; ++k) {
            float column[4], row[4];
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) column[i] = a_tile[k][y * 4 + i], row[i] = b_tile[k][i * 16 + x];
#pragma unroll
            for (unsigned i = 0; i < 4; ++i)
#pragma unroll
                for (unsigned j = 0; j < 4; ++j) sum[i][j] += column[i] * row[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (unsigned i = 0; i < 4; ++i)
#pragma unroll
        for (unsigned j = 0; j < 4; ++j) c[(top + y * 4 + i) * n + left + j * 16 + x] = sum[i][j];
}

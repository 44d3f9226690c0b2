// Spaces, layouts and widths of memory accesses. memory.ptx: nvcc -ptx -arch=sm_80 of this file.

extern "C" __global__ void vecadd(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

// Unsigned indices that wrap below zero between two lanes.
extern "C" __global__ void stencil(const float *x, float *out, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    float left = 0, right = 0;
    if (i - 3 < n) left = x[i - 3];
    if (i + 3 < n) right = x[i + 3];
    if (i < n) out[i] = left + 2 * right;
}

// 64-bit and 32-bit indices over a matrix, rows apart.
extern "C" __global__ void transpose(const float *in, float *out, int rows, int columns) {
    __shared__ float tile[16][17];
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    if (x < columns && y < rows) tile[threadIdx.y][threadIdx.x] = in[(size_t)y * columns + x];
    __syncthreads();
    x = blockIdx.y * 16 + threadIdx.x;
    y = blockIdx.x * 16 + threadIdx.y;
    if (x < rows && y < columns) out[y * rows + x] = tile[threadIdx.x][threadIdx.y];
}

extern "C" __global__ void sgemm(const float *a, const float *b, float *c, int m, int n, int k) {
    __shared__ float as[16][16], bs[16][16];
    int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * 16 + ty, column = blockIdx.x * 16 + tx;
    float sum = 0;
    for (int t = 0; t < k; t += 16) {
        as[ty][tx] = row < m && t + tx < k ? a[row * k + t + tx] : 0;
        bs[ty][tx] = t + ty < k && column < n ? b[(t + ty) * n + column] : 0;
        __syncthreads();
        for (int i = 0; i < 16; i++) sum += as[ty][i] * bs[i][tx];
        __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = sum;
}

// One thread for a column of four: a block of 32 x 8 makes a tile of 32 x 32.
extern "C" __global__ void sgemm_rows(const float *a, const float *b, float *c, int m, int n, int k) {
    __shared__ float as[32][32], bs[32][32];
    int tx = threadIdx.x, ty = threadIdx.y, column = blockIdx.x * 32 + tx, top = blockIdx.y * 32;
    float sum[4] = {0, 0, 0, 0};
    for (int t = 0; t < k; t += 32) {
        for (int r = 0; r < 4; r++) {
            int line = ty + 8 * r;
            as[line][tx] = top + line < m && t + tx < k ? a[(size_t)(top + line) * k + t + tx] : 0;
            bs[line][tx] = t + line < k && column < n ? b[(size_t)(t + line) * n + column] : 0;
        }
        __syncthreads();
        for (int i = 0; i < 32; i++)
            for (int r = 0; r < 4; r++) sum[r] += as[ty + 8 * r][i] * bs[i][tx];
        __syncthreads();
    }
    for (int r = 0; r < 4; r++)
        if (top + ty + 8 * r < m && column < n) c[(top + ty + 8 * r) * n + column] = sum[r];
}

extern "C" __global__ void vec4(const float4 *a, float4 *b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float4 v = a[i];
        b[i] = make_float4(v.x * 2, v.y + 1, v.z - 1, -v.w);
    }
}

extern "C" __global__ void pairs(const double2 *a, short2 *b, uchar4 *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double2 v = a[i];
    b[i] = make_short2((short)v.x, (short)(v.y * 2));
    c[i] = make_uchar4(i, i + 1, i + 2, (unsigned char)v.x);
}

extern "C" __global__ void bytes(const signed char *a, const unsigned short *b, const bool *p, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] * 3 + (p[i] ? b[i] : -b[i]);
}

extern "C" __global__ void where(int *out) {
    int i = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    out[block * blockDim.x * blockDim.y * blockDim.z + i] =
        threadIdx.x + 10 * threadIdx.y + 100 * threadIdx.z + 1000 * blockIdx.x + 10000 * blockIdx.y + 100000 * blockIdx.z;
}

struct Settings {
    float scale[4];
    int count;
    double offset;
    const float *data;
};

// A struct by value, indexed; an array of each thread's own.
extern "C" __global__ void settings(Settings s, float *out, int k) {
    int i = threadIdx.x;
    float own[8];
    for (int j = 0; j < 8; j++) own[(j * k) & 7] = j + i;
    out[i] = s.scale[i & 3] * s.data[i] + own[(i + k) & 7] + (float)s.offset + s.count;
}

__constant__ float coefficients[4] = {1, 2, 3, 4};
__device__ int counter = 7;
__device__ int *pointer = &counter;
__device__ double table[3] = {0.5, 0.25};

extern "C" __global__ void variables(float *out) {
    int i = threadIdx.x;
    out[i] = coefficients[i & 3] + (float)table[i % 3];
    if (i == 0) {
        atomicAdd(&counter, 1);
        atomicAdd(pointer, 10);
    }
}

extern "C" __global__ void scan(const int *x, int *y) {
    extern __shared__ int s[];
    int t = threadIdx.x;
    s[t] = x[blockIdx.x * blockDim.x + t];
    __syncthreads();
    for (int d = 1; d < blockDim.x; d *= 2) {
        int v = t >= d ? s[t - d] : 0;
        __syncthreads();
        s[t] += v;
        __syncthreads();
    }
    y[blockIdx.x * blockDim.x + t] = s[t];
}

// Static and dynamic shared memory, reached through a pointer that may be either, or global.
extern "C" __global__ void generic(float *x, int which) {
    extern __shared__ float dynamic[];
    __shared__ float fixed[64];
    int t = threadIdx.x;
    fixed[t] = t;
    dynamic[t] = 100 + t;
    __syncthreads();
    float *p = which == 0 ? fixed : which == 1 ? dynamic : x;
    p[t] += p[63 - t] * 0 + 1000;
    __syncthreads();
    x[t] = fixed[t] + dynamic[t] * 2 + (which == 2 ? x[t] : 0);
}

__device__ __noinline__ float polynomial(float x, int degree) {
    float sum = 0;
    for (int i = degree; i >= 0; i--) sum = sum * x + i;
    return sum;
}

__device__ __noinline__ void swap(float *a, float *b) {
    float t = *a;
    *a = *b;
    *b = t;
}

struct Three { float x, y, z; };
__device__ __noinline__ Three turn(Three v, float s) { return Three{v.y * s, v.z * s, v.x * s}; }

extern "C" __global__ void calls(float *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float a = polynomial(x[i], i & 3), b = polynomial(a, 2);
    if (i & 1) swap(&a, &b);
    Three t = turn(Three{a, b, x[i]}, 2);
    x[i] = t.x - 2 * t.y + 3 * t.z;
}

extern "C" __global__ void doubles(const double *x, double *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = sqrt(fabs(x[i])) / (1.0 + x[i] * x[i]) + floor(x[i]);
}

extern "C" __global__ void functions(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = sinf(x[i]) + cosf(2 * x[i]) * expf(-x[i]) + logf(1 + fabsf(x[i])) + tanhf(x[i]) + powf(fabsf(x[i]), 1.5f) + sqrtf(fabsf(x[i]));
}

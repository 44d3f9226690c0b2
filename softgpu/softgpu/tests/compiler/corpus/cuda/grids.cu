// Grids and images: tiles with halos, transposition, divergence by pixel, many early exits, blocks of every form.

extern "C" __global__ void transpose(const double *x, double *out, int rows, int columns) {
    __shared__ double tile[16][17];
    int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y;
    if (r < rows && c < columns) tile[threadIdx.y][threadIdx.x] = x[r * columns + c];
    __syncthreads();
    int oc = blockIdx.y * 16 + threadIdx.x, orow = blockIdx.x * 16 + threadIdx.y;
    if (orow < columns && oc < rows) out[orow * rows + oc] = tile[threadIdx.x][threadIdx.y];
}

// five points; the block's tile has a halo that its edge threads load; the rim of the image is kept
extern "C" __global__ void heat(const float *x, float *out, int rows, int columns) {
    __shared__ float tile[10][34];
    int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 8 + threadIdx.y;
    int i = threadIdx.y + 1, j = threadIdx.x + 1;
    bool inside = r < rows && c < columns;
    if (inside) {
        tile[i][j] = x[r * columns + c];
        if (threadIdx.x == 0 && c > 0) tile[i][0] = x[r * columns + c - 1];
        if (threadIdx.x == 31 && c + 1 < columns) tile[i][33] = x[r * columns + c + 1];
        if (threadIdx.y == 0 && r > 0) tile[0][j] = x[(r - 1) * columns + c];
        if (threadIdx.y == 7 && r + 1 < rows) tile[9][j] = x[(r + 1) * columns + c];
    }
    __syncthreads();
    if (!inside) return;
    bool rim = r == 0 || c == 0 || r == rows - 1 || c == columns - 1;
    float here = tile[i][j];
    out[r * columns + c] = rim ? here : here + 0.125f * (tile[i - 1][j] + tile[i + 1][j] + tile[i][j - 1] + tile[i][j + 1] - 4 * here);
}

// seven points in three dimensions, marching along z with values in registers
extern "C" __global__ void laplace(const float *x, float *out, int nx, int ny, int nz) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
    if (i <= 0 || j <= 0 || i >= nx - 1 || j >= ny - 1) return;
    int layer = nx * ny, at = j * nx + i;
    float below = x[at], here = x[at + layer];
    for (int k = 1; k < nz - 1; k++) {
        at += layer;
        float above = x[at + layer];
        out[at] = below + above + x[at - 1] + x[at + 1] + x[at - nx] + x[at + nx] - 6 * here;
        below = here, here = above;
    }
}

__constant__ int filter[25] = {1, 4, 6, 4, 1, 4, 16, 24, 16, 4, 6, 24, 36, 24, 6, 4, 16, 24, 16, 4, 1, 4, 6, 4, 1};

// 5 x 5, of bytes, clamped at the rim
extern "C" __global__ void convolution(const unsigned char *x, unsigned char *out, int rows, int columns) {
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (r >= rows || c >= columns) return;
    int sum = 128;
    for (int a = -2; a <= 2; a++)
        for (int b = -2; b <= 2; b++) {
            int rr = min(max(r + a, 0), rows - 1), cc = min(max(c + b, 0), columns - 1);
            sum += filter[(a + 2) * 5 + b + 2] * x[rr * columns + cc];
        }
    out[r * columns + c] = sum >> 8;
}

extern "C" __global__ void mandelbrot(int *out, int rows, int columns, int limit) {
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (r >= rows || c >= columns) return;
    double a = -2.2 + 3.0 * c / columns, b = -1.2 + 2.4 * r / rows, x = 0, y = 0;
    int k = 0;
    for (; k < limit; k++) {
        double xx = __dmul_rn(x, x), yy = __dmul_rn(y, y);
        if (__dadd_rn(xx, yy) > 4) break;
        y = __dadd_rn(__dmul_rn(__dmul_rn(2, x), y), b);
        x = __dadd_rn(__dsub_rn(xx, yy), a);
    }
    out[r * columns + c] = k;
}

// where a thread stands, whatever the form of blocks and grid
extern "C" __global__ void places(unsigned *out) {
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] = block << 16 | thread << 5 | lane;
}

// 1,024 threads, most of which end early, between barriers that the rest meets
extern "C" __global__ void survivors(const int *x, int *out, int n) {
    __shared__ int alive;
    int t = threadIdx.x, v = t < n ? x[t] : 0;
    if (t == 0) alive = 0;
    __syncthreads();
    for (int round = 0; round < 10; round++) {
        if (t < n && v > round) atomicAdd(&alive, 1);
        __syncthreads();
        int now = alive;
        if (now == 0) return;
        __syncthreads();
        if (t == 0) alive = 0, out[round] = now;
        __syncthreads();
        if (v == 3 && round == 2) v = 100;
    }
}

// an exit for every reason
extern "C" __global__ void exits(const int *x, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int v = x[i];
    if (v < 0) return;
    out[i] = 1;
    if (v % 2 == 0) {
        if (v % 3 == 0) return;
        out[i] = 2;
        for (int k = 2; k < 40; k++) {
            if (k * k == v) return;
            if (v % (k * 5) == 0) {
                out[i] = 100 + k;
                return;
            }
        }
    } else
        switch (v % 7) {
        case 0: return;
        case 3: out[i] = 3;
        case 4: out[i] += 10; break;
        case 5: out[i] = -v; return;
        default: out[i] = v;
        }
    out[i] *= 2;
}

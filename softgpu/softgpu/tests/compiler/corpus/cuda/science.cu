// Numbers: bodies, sparse rows, graphs, clusters, transforms, random numbers, factorisations, text.

extern "C" __global__ void bodies(const float4 *at, float4 *force, int n, float softening) {
    __shared__ float4 tile[64];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 me = i < n ? at[i] : make_float4(0, 0, 0, 0);
    float3 f = make_float3(0, 0, 0);
    for (int base = 0; base < n; base += blockDim.x) {
        int j = base + threadIdx.x;
        tile[threadIdx.x] = j < n ? at[j] : make_float4(0, 0, 0, 0);
        __syncthreads();
#pragma unroll 4
        for (int k = 0; k < 64; k++) {
            float dx = tile[k].x - me.x, dy = tile[k].y - me.y, dz = tile[k].z - me.z;
            float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + softening);
            float s = tile[k].w * inverse * inverse * inverse;
            f.x += dx * s, f.y += dy * s, f.z += dz * s;
        }
        __syncthreads();
    }
    if (i < n) force[i] = make_float4(f.x, f.y, f.z, me.w);
}

// a warp a row
extern "C" __global__ void spmv(const int *start, const int *column, const double *value, const double *x, double *y, int rows) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) >> 5, lane = threadIdx.x & 31;
    if (row >= rows) return;
    double sum = 0;
    for (int k = start[row] + lane; k < start[row + 1]; k += 32) sum += value[k] * __ldg(&x[column[k]]);
    for (int d = 16; d; d >>= 1) sum += __shfl_down_sync(~0u, sum, d);
    if (lane == 0) y[row] = sum;
}

// one level: who is in the frontier marks its neighbours, and the first to do so puts them in the next
extern "C" __global__ void bfs_level(const int *start, const int *target, int *depth, const int *frontier, const int *size,
                                     int *next, int *next_size, int level) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= *size) return;
    int node = frontier[i];
    for (int k = start[node]; k < start[node + 1]; k++)
        if (atomicCAS(&depth[target[k]], -1, level) == -1) next[atomicAdd(next_size, 1)] = target[k];
}

extern "C" __global__ void kmeans(const float2 *x, const float2 *centre, int *nearest, int *count, int2 *sums, int n, int k) {
    __shared__ int counts[16], sx[16], sy[16];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    if (t < k) counts[t] = sx[t] = sy[t] = 0;
    __syncthreads();
    if (i < n) {
        int best = -1;
        float least = 1e30f;
        for (int c = 0; c < k; c++) {
            float dx = x[i].x - centre[c].x, dy = x[i].y - centre[c].y, d = dx * dx + dy * dy;
            if (d < least) least = d, best = c;
        }
        nearest[i] = best;
        atomicAdd(&counts[best], 1), atomicAdd(&sx[best], (int)x[i].x), atomicAdd(&sy[best], (int)x[i].y);
    }
    __syncthreads();
    if (t < k) atomicAdd(&count[t], counts[t]), atomicAdd(&sums[t].x, sx[t]), atomicAdd(&sums[t].y, sy[t]);
}

// radix 2, a block a row, in shared memory
extern "C" __global__ void fft(const float2 *x, float2 *out, int log, float sign) {
    extern __shared__ float2 row[];
    int n = 1 << log, t = threadIdx.x;
    for (int i = t; i < n; i += blockDim.x) row[__brev(i) >> (32 - log)] = x[blockIdx.x * n + i];
    for (int half = 1; half < n; half *= 2) {
        __syncthreads();
        for (int k = t; k < n / 2; k += blockDim.x) {
            int at = k & (half - 1), a = 2 * k - at, b = a + half;
            float s, c;
            sincospif(sign * at / half, &s, &c);
            float2 p = row[a], q = row[b];
            float2 w = make_float2(q.x * c - q.y * s, q.x * s + q.y * c);
            row[a] = make_float2(p.x + w.x, p.y + w.y);
            row[b] = make_float2(p.x - w.x, p.y - w.y);
        }
    }
    __syncthreads();
    for (int i = t; i < n; i += blockDim.x) out[blockIdx.x * n + i] = row[i];
}

// xorwow: five words and a Weyl sequence
extern "C" __global__ void xorwow(unsigned *state, unsigned *inside, unsigned *last, int rounds) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned x = state[i], y = ~x, z = x * 69069, w = x ^ 0x5bd1e995, v = i + 1, d = 6615241, hits = 0;
    for (int k = 0; k < rounds; k++) {
        float p[2];
        for (int j = 0; j < 2; j++) {
            unsigned t = x ^ (x >> 2);
            x = y, y = z, z = w, w = v;
            v = (v ^ (v << 4)) ^ (t ^ (t << 1));
            d += 362437;
            p[j] = ((v + d) >> 16) * (1.0f / 65536);
        }
        hits += __fmul_rn(p[0], p[0]) + __fmul_rn(p[1], p[1]) < 1.0f;
    }
    state[i] = v + d;
    last[i] = hits;
    hits = __reduce_add_sync(~0u, hits);
    if ((threadIdx.x & 31) == 0) atomicAdd(inside, hits);
}

extern "C" __global__ void philox(uint4 *out, uint2 key, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint4 c = make_uint4(i, 0, 1u << 31, 7);
    for (int round = 0; round < 10; round++) {
        unsigned long long a = 0xD2511F53ull * c.x, b = 0xCD9E8D57ull * c.z;
        c = make_uint4((unsigned)(b >> 32) ^ c.y ^ key.x, (unsigned)b, (unsigned)(a >> 32) ^ c.w ^ key.y, (unsigned)a);
        key.x += 0x9E3779B9, key.y += 0xBB67AE85;
    }
    out[i] = c;
}

// in place, no pivots; a block a matrix
extern "C" __global__ void lu(double *a, int n) {
    a += (size_t)blockIdx.x * n * n;
    int c = threadIdx.x, r0 = threadIdx.y;
    for (int k = 0; k < n - 1; k++) {
        if (c == k)
            for (int r = k + 1 + r0; r < n; r += blockDim.y) a[r * n + k] /= a[k * n + k];
        __syncthreads();
        if (c > k && c < n)
            for (int r = k + 1 + r0; r < n; r += blockDim.y) a[r * n + c] -= a[r * n + k] * a[k * n + c];
        __syncthreads();
    }
}

extern "C" __global__ void cholesky(const float *x, float *out, int n) {
    extern __shared__ float a[];
    int t = threadIdx.x;
    for (int i = t; i < n * n; i += blockDim.x) a[i] = x[blockIdx.x * n * n + i];
    for (int k = 0; k < n; k++) {
        __syncthreads();
        if (t == 0) a[k * n + k] = sqrtf(a[k * n + k]);
        __syncthreads();
        for (int r = k + 1 + t; r < n; r += blockDim.x) a[r * n + k] /= a[k * n + k];
        __syncthreads();
        for (int r = k + 1 + t; r < n; r += blockDim.x)
            for (int c = k + 1; c <= r; c++) a[r * n + c] -= a[r * n + k] * a[c * n + k];
    }
    __syncthreads();
    for (int i = t; i < n * n; i += blockDim.x) out[blockIdx.x * n * n + i] = i % n <= i / n ? a[i] : 0;
}

// where a word stands in a text; '?' is any letter, case does not matter
extern "C" __global__ void find(const char *text, int n, const char *word, int m, int *found, int *count) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i <= n - m; i += gridDim.x * blockDim.x) {
        bool same = true;
        for (int k = 0; k < m; k++) {
            char a = text[i + k], b = word[k];
            if (b == '?') continue;
            if (a >= 'A' && a <= 'Z') a += 32;
            if (a != b) {
                same = false;
                break;
            }
        }
        if (same) found[i] = 1, atomicAdd(count, 1);
    }
}

// edit distance of a pair, along diagonals
extern "C" __global__ void edit_distance(const char *a, const char *b, int na, int nb, int *out) {
    extern __shared__ int rows[];
    int *before = rows, *last = rows + na + 1, *now = last + na + 1, i = threadIdx.x;
    for (int d = 0; d <= na + nb; d++) {
        int j = d - i;
        if (i <= na && j >= 0 && j <= nb) {
            if (i == 0 || j == 0) now[i] = i + j;
            else now[i] = min(min(last[i - 1], last[i]) + 1, before[i - 1] + (a[i - 1] != b[j - 1]));
        }
        __syncthreads();
        int *held = before;
        before = last, last = now, now = held;
    }
    if (i == 0) *out = last[na];
}

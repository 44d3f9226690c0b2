// Atomic updates whose former values are used: whoever gets a number must be the only one.

// olds of every counter are marked in seen: [counter][value]
extern "C" __global__ void tickets(int *i, unsigned *u, unsigned long long *l, float *f, double *d, unsigned *seen, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    seen[atomicAdd(i, 1)] += 1;
    seen[n + atomicAdd(u, 3u) / 3] += 1;
    seen[2 * n + (int)(atomicAdd(l, 1ull << 33) >> 33)] += 1;
    seen[3 * n + (int)atomicAdd(f, 1.0f)] += 1;
    seen[4 * n + (int)(atomicAdd(d, 0.5) * 2)] += 1;
}

extern "C" __global__ void shared_tickets(unsigned *seen, unsigned *total) {
    __shared__ unsigned u;
    __shared__ unsigned long long l;
    __shared__ float f;
    __shared__ double d;
    __shared__ int low, high;
    int t = threadIdx.x, n = blockDim.x;
    if (t == 0) u = 0, l = 1ull << 40, f = 0, d = 0, low = 1 << 30, high = -(1 << 30);
    __syncthreads();
    seen[(blockIdx.x * 4 + 0) * n + atomicAdd(&u, 1u)] = t + 1;
    seen[(blockIdx.x * 4 + 1) * n + (unsigned)(atomicAdd(&l, 1ull) - (1ull << 40))] = t + 1;
    seen[(blockIdx.x * 4 + 2) * n + (int)atomicAdd(&f, 1.0f)] = t + 1;
    seen[(blockIdx.x * 4 + 3) * n + (int)atomicAdd(&d, 1.0)] = t + 1;
    atomicMin(&low, -t);
    atomicMax(&high, t * t);
    __syncthreads();
    if (t == 0) {
        atomicAdd(&total[0], u);
        atomicAdd(&total[1], (unsigned)(high - low));
    }
    for (int b = 0; b < 4; b++)  // every number was given once, whoever got it
        atomicMin(&total[2], seen[(blockIdx.x * 4 + b) * n + t]);
}

extern "C" __global__ void extremes(const int *x, const long long *y, int *s, unsigned *u, long long *l,
                                    unsigned long long *m, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        atomicMin(&s[0], x[i]);
        atomicMax(&s[1], x[i]);
        atomicMin(&u[0], (unsigned)x[i]);
        atomicMax(&u[1], (unsigned)x[i]);
        atomicMin(&l[0], y[i]);
        atomicMax(&l[1], y[i]);
        atomicMin(&m[0], (unsigned long long)y[i]);
        atomicMax(&m[1], (unsigned long long)y[i]);
        atomicAnd(&u[2], (unsigned)x[i] | 0xff00ff00u);
        atomicOr(&u[3], (unsigned)x[i] & 0x0f0f0f0fu);
        atomicXor(&u[4], (unsigned)x[i]);
        atomicAnd(&m[2], (unsigned long long)y[i] | 0xffffffff0000ull);
        atomicOr(&m[3], (unsigned long long)y[i] & 0xf0f0f0f0f0f0f0f0ull);
        atomicXor(&m[4], (unsigned long long)y[i]);
        atomicSub(&s[2], x[i]);
    }
}

// counters that wrap; a value that is handed from thread to thread; sums by compare-and-swap
extern "C" __global__ void swaps(unsigned *inc, unsigned *dec, unsigned *chain, unsigned *wraps, double *product,
                                 float *largest, unsigned short *small, const float *x, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    atomicAdd(&wraps[atomicInc(inc, 6)], 1u);
    atomicAdd(&wraps[8 + atomicDec(dec, 4)], 1u);
    chain[1 + atomicExch(chain, t)] = 1;
    auto *bits = (unsigned long long *)product;
    for (unsigned long long old = *bits, seen;; old = seen) {
        seen = atomicCAS(bits, old, __double_as_longlong(__longlong_as_double(old) * (t & 1 ? 2.0 : 0.5)));
        if (seen == old) break;
    }
    int *word = (int *)largest, old = *word;
    while (__int_as_float(old) < x[t]) {
        int seen = atomicCAS(word, old, __float_as_int(x[t]));
        if (seen == old) break;
        old = seen;
    }
    unsigned short before = *small, found;
    while ((found = atomicCAS(small, before, (unsigned short)(before + 3))) != before) before = found;
}

// a lock that one thread of each warp takes in turn
extern "C" __global__ void locked(int *lock, long long *sum, int rounds) {
    for (int k = 0; k < rounds; k++)
        if ((threadIdx.x & 31) == 0) {
            while (atomicCAS(lock, 0, 1) != 0) {
            }
            __threadfence();
            long long was = *(volatile long long *)sum;
            *(volatile long long *)sum = 3 * was + 1 - 2 * was;
            __threadfence();
            atomicExch(lock, 0);
        }
}

extern "C" __global__ void scoped(int *x) {
    __shared__ int own;
    if (threadIdx.x == 0) own = 0;
    __syncthreads();
    atomicAdd_block(&own, (int)threadIdx.x);
    atomicAdd_system(&x[0], 1);
    atomicMax_system(&x[1], (int)(threadIdx.x * 3 + blockIdx.x));
    __syncthreads();
    if (threadIdx.x == 0) atomicXor_system(&x[2], own + (int)blockIdx.x), atomicCAS_system(&x[3], 7, 8);
}

extern "C" __global__ void histogram_shared(const unsigned char *x, unsigned *bins, int n) {
    __shared__ unsigned own[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) own[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&own[x[i]], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        if (own[i]) atomicAdd(&bins[i], own[i]);
}

extern "C" __global__ void histogram_global(const unsigned char *x, unsigned *bins, int n) {
    int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (i + 3 < n) {
        uchar4 v = *(const uchar4 *)(x + i);
        atomicAdd(&bins[v.x], 1u), atomicAdd(&bins[v.y], 1u), atomicAdd(&bins[v.z], 1u), atomicAdd(&bins[v.w], 1u);
    } else
        for (; i < n; i++) atomicAdd(&bins[x[i]], 1u);
}

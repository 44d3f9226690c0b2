// Control flow in which the lanes of a warp part and meet again. divergence.ptx: nvcc -ptx -arch=sm_80 of this file.

extern "C" __global__ void collatz(int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    long long v = i + 1;
    int steps = 0;
    while (v != 1) {
        v = v & 1 ? 3 * v + 1 : v / 2;
        steps++;
    }
    out[i] = steps;
}

extern "C" __global__ void nested(const int *x, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int total = 0;
    if (i < n) {
        for (int k = 0; k < (x[i] & 15); k++) {
            if (k % 3 == 0) {
                if (x[i] & 16) total += k;
                else total -= 2 * k;
            } else if (k % 3 == 1) {
                for (int j = 0; j < k; j++) total ^= j * i;
            } else {
                if (total > 100) break;
                if (total < -100) continue;
                total += 7;
            }
            total++;
        }
        out[i] = total;
    }
}

extern "C" __global__ void choose(const int *x, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int v = x[i], r = 5;
    switch (v % 9) {
        case 0: r = v * 3; break;
        case 1: r = v - 17; break;
        case 2: r = v ^ 0x55; break;
        case 3: r += v;
        case 4: r += 11; break;
        case 5: r = -v; break;
        case 6: return;
        case 7: r = v << 3; break;
    }
    out[i] = r;
}

// Returns before and after barriers; a value that is uniform on each side of a branch but not behind it.
extern "C" __global__ void early(const int *x, int *out, int n) {
    __shared__ int seen[256];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    int mark;
    if (t & 1) mark = 3;
    else mark = 4;
    seen[t] = i < n ? x[i] : 0;
    __syncthreads();
    if (i >= n) return;
    int value = seen[blockDim.x - 1 - t] + mark;
    if (value % 5 == 0) return;
    out[i] = value;
}

// A loop counter that outlives a loop left at different times.
extern "C" __global__ void outlives(const int *x, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int k = 0;
    while (k < 100 && k * k < x[i]) k++;
    int first = k;
    do { k += 3; } while (k < (x[i] & 63));
    out[i] = first * 1000 + k;
}

extern "C" __global__ void gotos(const int *x, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int a = x[i] & 31, steps = 0;
    if (a & 1) goto odd;
even:
    steps += 1;
    a = a / 2 + 1;
    if (steps > 20) goto done;
    if (a % 3 == 0) goto odd;
    goto even;
odd:
    steps += 100;
    a = a + 3;
    if (steps > 500) goto done;
    if (a % 4 == 0) goto even;
    goto odd;
done:
    out[i] = steps * 64 + a;
}

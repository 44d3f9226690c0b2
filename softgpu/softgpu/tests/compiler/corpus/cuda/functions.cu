// Arrays of a thread's own, module variables, constant tables, and functions that stay functions.

// sorts its own row in local memory
extern "C" __global__ void sort_rows(const int *x, int *out, int rows) {
    int own[24], i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows) return;
    for (int k = 0; k < 24; k++) own[k] = x[i * 24 + k];
    for (int k = 1; k < 24; k++) {
        int v = own[k], j = k;
        while (j > 0 && own[j - 1] > v) own[j] = own[j - 1], j--;
        own[j] = v;
    }
    for (int k = 0; k < 24; k++) out[i * 24 + k] = own[k];
}

// quicksort with a stack of ranges instead of recursion
extern "C" __global__ void quicksort(float *x, int length) {
    float *a = x + (blockIdx.x * blockDim.x + threadIdx.x) * length;
    short stack[64];
    int top = 0;
    stack[top++] = 0, stack[top++] = length - 1;
    while (top) {
        int high = stack[--top], low = stack[--top], i = low, j = high;
        if (low >= high) continue;
        float pivot = a[(low + high) >> 1];
        while (i <= j) {
            while (a[i] < pivot) i++;
            while (a[j] > pivot) j--;
            if (i <= j) {
                float held = a[i];
                a[i++] = a[j], a[j--] = held;
            }
        }
        if (j - low > high - i) {
            stack[top++] = low, stack[top++] = j, stack[top++] = i, stack[top++] = high;
        } else
            stack[top++] = i, stack[top++] = high, stack[top++] = low, stack[top++] = j;
    }
}

// a stack machine: one program for all, its operands differ
extern "C" __global__ void machine(const unsigned char *program, const int *x, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int stack[16], top = 0, at = 0, steps = 0;
    for (;;) {
        if (++steps > 500) break;
        unsigned char op = program[at++];
        switch (op) {
        case 0: goto done;
        case 1: stack[top++] = x[i]; break;
        case 2: stack[top++] = program[at++]; break;
        case 3: top--, stack[top - 1] += stack[top]; break;
        case 4: top--, stack[top - 1] *= stack[top]; break;
        case 5: top--, stack[top - 1] -= stack[top]; break;
        case 6: stack[top] = stack[top - 1], top++; break;
        case 7: { int held = stack[top - 1]; stack[top - 1] = stack[top - 2], stack[top - 2] = held; break; }
        case 8: at = stack[--top] > 0 ? program[at] : at + 1; break;
        case 9: stack[top - 1] = stack[top - 1] & 1; break;
        case 10: stack[top - 1] >>= 1; break;
        default: stack[top - 1] = -stack[top - 1];
        }
    }
done:
    out[i] = stack[top - 1] * 1000 + steps;
}

__device__ int calls = 5;
__device__ double weights[3] = {0.5, -1.25, 3};
__device__ unsigned long long marks[4];
__constant__ short steps[16] = {1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987};
__constant__ struct { float gain; char letter; double offset; } settings = {1.5f, 'k', -0.25};
__device__ const char *const words[3] = {"zero", "eleven", "twenty-two"};
__device__ int *cursor = &calls;

extern "C" __global__ void variables(const unsigned char *pick, double *out, int *seen, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        out[i] = weights[pick[i] % 3] + steps[pick[i] & 15] * settings.gain + settings.offset + settings.letter;
        const char *word = words[pick[i] % 3];
        int length = 0;
        while (word[length]) length++;
        out[i] += 1e4 * length;
        atomicAdd(cursor, 1);
        atomicOr(&marks[pick[i] >> 6], 1ull << (pick[i] & 63));
    }
    __syncthreads();
    if (gridDim.x == 1 && i < 8) seen[i] = (int)(marks[i >> 1] >> 32 * (i & 1));
    if (gridDim.x == 1 && i == 8) seen[8] = calls;
}

__device__ __noinline__ float horner(const float *c, int n, float x) {
    float v = 0;
    for (int k = n - 1; k >= 0; k--) v = v * x + c[k];
    return v;
}

struct Pair {
    double sum, product;
    int count;
};

__device__ __noinline__ Pair both(double a, float b, short c) { return {a + b, a * b, c * 3}; }

__device__ __noinline__ void bump(int *a, int *b) {
    if (*a > *b) *a -= *b;
    else *b -= *a;
}

extern "C" __global__ void functions(const float *x, const float *c, float *out, double *sums, int *gcd, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = horner(c, 2 + i % 4, x[i]);
    Pair p = both(x[i], 2.5f, (short)i);
    sums[i] = i & 1 ? p.sum + p.count : p.product;
    int a = i * 6 + 6, b = 84;
    while (a != b) bump(&a, &b);
    gcd[i] = a;
}

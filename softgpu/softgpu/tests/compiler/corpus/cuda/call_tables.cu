// Calls through tables of functions: pointers in global memory, and virtual functions.

typedef int (*Operation)(int, int);
__device__ int plus(int a, int b) { return a + b; }
__device__ int less(int a, int b) { return a - b; }
__device__ int times(int a, int b) { return a * b; }
__device__ __noinline__ int power(int a, int b) {
    int r = 1;
    for (b &= 7; b; b--) r *= a;
    return r;
}
__device__ Operation table[4] = {plus, less, times, power};

extern "C" __global__ void call_table(const int *op, const int *a, const int *b, int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = table[op[i] & 3](a[i], b[i]);
}

struct Shape {
    __device__ virtual float area() const = 0;
    __device__ virtual int corners() const { return 0; }
};
struct Disc : Shape {
    float r;
    __device__ Disc(float r) : r(r) {}
    __device__ float area() const override { return 3 * r * r; }
};
struct Box : Shape {
    float a, b;
    __device__ Box(float a, float b) : a(a), b(b) {}
    __device__ float area() const override { return a * b; }
    __device__ int corners() const override { return 4; }
};

extern "C" __global__ void virtual_calls(const float *x, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Disc disc(x[i]);
    Box box(x[i], 2);
    Shape *shapes[2] = {&disc, &box};
    out[i] = shapes[(int)x[i] & 1]->area() + shapes[i & 1]->corners();
}

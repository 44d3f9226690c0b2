// Kernels of the tests of pool and API: element-wise steps, one that takes its time, and one that crashes.

extern "C" __global__ void scale(const float *x, float *y, float factor, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = x[i] * factor;
}

extern "C" __global__ void add(const float *a, const float *b, float *c, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        c[i] = a[i] + b[i];
}

// A chain of squares that no compiler shortens: a nanosecond or two a step.
extern "C" __global__ void spin(unsigned *out, long long steps)
{
    unsigned x = 1;
    for (long long i = 0; i < steps; i++)
        x = x * x + 1013904223u;
    *out = x;
}

extern "C" __global__ void crash(int *out)
{
    *(volatile int *)8 = 1;
    *out = 1;
}

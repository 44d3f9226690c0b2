// Kernels of the executor's tests: each element by its own thread, arithmetic that NumPy repeats exactly.
// Built by: nvcc -ptx -arch=sm_80 simple.cu -o simple.ptx

#define INDEX int i = blockIdx.x * blockDim.x + threadIdx.x

// out = a + b
extern "C" __global__ void add(const int *a, const int *b, int *out, int n) {
  INDEX;
  if (i < n) out[i] = a[i] + b[i];
}

// out = a * factor
extern "C" __global__ void scale(const int *a, int *out, int factor, int n) {
  INDEX;
  if (i < n) out[i] = a[i] * factor;
}

// y += a * x
extern "C" __global__ void axpy(int a, const int *x, int *y, int n) {
  INDEX;
  if (i < n) y[i] += a * x[i];
}

// x[0 .. n) = value: writes a part when n is less than the buffer
extern "C" __global__ void fill(int *x, int value, int n) {
  INDEX;
  if (i < n) x[i] = value;
}

// out = a * alpha + beta, in float32
extern "C" __global__ void affine(const float *a, float *out, float alpha, double beta, int n) {
  INDEX;
  if (i < n) out[i] = a[i] * alpha + (float)beta;
}

struct Packed {
  const int *a;
  int factor;
  int n;
  int *out;
  char tag;
};

// out = a * factor + tag
extern "C" __global__ void packed(Packed p) {
  INDEX;
  if (i < p.n) p.out[i] = p.a[i] * p.factor + p.tag;
}

// out = the sum of count arrays
extern "C" __global__ void sum_of(const int *const *arrays, int count, int *out, int n) {
  INDEX;
  if (i < n) {
    int sum = 0;
    for (int k = 0; k < count; k++) sum += arrays[k][i];
    out[i] = sum;
  }
}

// out = a with each block's part reversed, through dynamic shared memory of blockDim.x ints
extern "C" __global__ void reverse(const int *a, int *out) {
  extern __shared__ int part[];
  INDEX;
  part[threadIdx.x] = a[i];
  __syncthreads();
  out[i] = part[blockDim.x - 1 - threadIdx.x];
}

// at most 64 threads in a block
extern "C" __global__ void __launch_bounds__(64) narrow(int *out) {
  INDEX;
  out[i] = i;
}

// ends in a sticky error
extern "C" __global__ void failing(int *out) {
  out[0] = 1;
  __trap();
}

extern "C" __global__ void empty() {}

// Kernels of the end-to-end test: one for each thing that the driver passes on to compiled code.
extern "C" __global__ void vecadd(const float *a, const float *b, float *c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

extern "C" __global__ void scale(float *x, float factor, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= factor;
}

extern "C" __global__ void reverse(int *x) {
  extern __shared__ int copy[];
  copy[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = copy[blockDim.x - 1 - threadIdx.x];
}

__device__ int calls = 5;
extern "C" __global__ void count(int *out) { *out = atomicAdd(&calls, 1); }

extern "C" __global__ void stop() { __trap(); }

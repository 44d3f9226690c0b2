// Kernels with variables in global memory, for the tests of what one client's request leaves behind.
// Built by: nvcc -ptx -arch=sm_80 globals.cu -o globals.ptx

__device__ int calls;
__device__ int limit = 100;
static __device__ double hidden[3] = {0.5, 1.5, 2.5};
__device__ __align__(256) int scratch[64];
__device__ int *pointer = &limit;
__device__ int read_only = 7;

__device__ int ids() {
  static int next = 40;
  return next++;
}

// out = what the variables hold; then changes each of them
extern "C" __global__ void count(int *out) {
  static int local = 1000;
  out[0] = calls++;
  out[1] = (*pointer)--;
  out[2] = (int)(hidden[1] * 2);
  out[3] = scratch[63];
  out[4] = ids();
  out[5] = local++;
  out[6] = read_only;
  hidden[1] += 1;
  scratch[63] = 5;
  if (calls == 3) pointer = &calls;
}

// out = the bytes of the array that other kernels leave their mark in
extern "C" __global__ void peek(int *out) {
  out[threadIdx.x] = scratch[threadIdx.x];
}

// Kernels of test_features.py.
// Built by: nvcc -ptx -arch=sm_80 kernels.cu -o kernels.ptx

struct complex64 { float real, imag; };
struct complex128 { double real, imag; };

// One argument of every width, before, between and behind buffers; out holds them all as doubles.
extern "C" __global__ void widths(signed char a, double *out, short b, int c, long long d, unsigned char e,
                                  unsigned short f, unsigned int g, unsigned long long h, const int *in, float i,
                                  double j, complex64 k, complex128 l, bool m, unsigned short half, const void *null) {
  double all[] = {(double)a, (double)b, (double)c, (double)d, (double)e, (double)f, (double)g, (double)h, (double)in[0],
                  i, j, k.real, k.imag, l.real, l.imag, (double)m, (double)half, null == 0 ? 1.0 : 0.0};
  for (int n = 0; n < 18; n++) out[n] = all[n];
}

// out = in reversed within each block of 1024, by way of 16 ints of dynamic shared memory a thread.
extern "C" __global__ void large_shared(const int *in, int *out) {
  extern __shared__ int part[];
  int base = blockIdx.x * 1024;
  part[16 * threadIdx.x] = in[base + threadIdx.x];
  __syncthreads();
  out[base + threadIdx.x] = part[16 * (1023 - threadIdx.x)];
}

// x += 1 in place
extern "C" __global__ void increment(int *x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += 1;
}

// out = a - b
extern "C" __global__ void subtract(const int *a, const int *b, int *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[i] - b[i];
}

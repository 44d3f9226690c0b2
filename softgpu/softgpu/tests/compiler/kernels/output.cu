// printf and assert, as nvcc compiles them.
#include <assert.h>
#include <stdio.h>

extern "C" __global__ void numbers(int a, unsigned b, long long c, unsigned long long d) {
  printf("%d|%i|%u|%x|%X|%o|%c|%%\n", a, -a, b, b, b, b, 'k');
  printf("%5d|%-5d|%05d|%+d|% d|%#x|%.3d\n", a, a, a, a, a, b, a);
  printf("%lld|%ld|%llu|%llx|%hd|%hhu|%zu\n", c, (long)c, d, d, (short)70000, (unsigned char)300, sizeof c);
  printf("%*d|%-*d|%.*f\n", 6, a, 6, a, 2, 3.14159);
}

extern "C" __global__ void reals(float x, double y) {
  printf("%f|%e|%g|%10.3f|%-10.2e|%G\n", x, y, y, x, y, (double)x);
}

extern "C" __global__ void texts(const char *given) {
  printf("%s|%10s|%-6s|%.2s|%p\n", given, "right", "left", "cut off", (void *)given);
  printf("no arguments\n");
}

extern "C" __global__ void lanes(int *results, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i % 3 == 1 && i < n) results[i] = printf("thread %d: %d\n", i, i * i);
}

__device__ __noinline__ void tell(int i) { printf("told by %d\n", i); }

extern "C" __global__ void twice(int n) {
  for (int i = 0; i < n; i++) {
    tell(i);
    if (i & 1) tell(-i);
  }
}

extern "C" __global__ void checked(const int *x, int *out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  assert(x[i] > 0 && "x is positive");
  out[i] = x[i];
}

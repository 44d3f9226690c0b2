// Kernels that fail for a negative value, each in its way, and else write it.
// Built by: nvcc -ptx -arch=sm_80 faults.cu -o faults.ptx

#include <cassert>

extern "C" __global__ void checked(int *x, int value) {
  assert(value >= 0);
  x[0] = value;
}

extern "C" __global__ void stray(int *x, int value) {
  if (value < 0) x += 1ll << 42;
  x[0] = value;
}

extern "C" __global__ void trapped(int *x, int value) {
  if (value < 0) __trap();
  x[0] = value;
}

// What needs carries: 128-bit integers, and sines of large numbers.

extern "C" __global__ void wide(const unsigned long long *a, const unsigned long long *b, unsigned long long *out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned __int128 x = (unsigned __int128)a[2 * i + 1] << 64 | a[2 * i];
  unsigned __int128 y = (unsigned __int128)b[2 * i + 1] << 64 | b[2 * i];
  unsigned __int128 results[5] = {x + y, x - y, x * y, x / (y | 1), x % (y | 1)};
  for (int k = 0; k < 5; k++) {
    out[10 * i + 2 * k] = (unsigned long long)results[k];
    out[10 * i + 2 * k + 1] = (unsigned long long)(results[k] >> 64);
  }
}

extern "C" __global__ void waves(const double *a, double *out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[3 * i] = sin(a[i]);
  out[3 * i + 1] = cos(a[i]);
  out[3 * i + 2] = tan(a[i]);
}

// Numbers of four 32-bit digits.
extern "C" __global__ void digits(const unsigned *a, const unsigned *b, unsigned *out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned *x = a + 4 * i, *y = b + 4 * i;
  unsigned *d = out + 12 * i;
  asm("add.cc.u32 %0, %4, %8;\n\taddc.cc.u32 %1, %5, %9;\n\taddc.cc.u32 %2, %6, %10;\n\taddc.u32 %3, %7, %11;"
      : "=&r"(d[0]), "=&r"(d[1]), "=&r"(d[2]), "=&r"(d[3])
      : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]), "r"(y[2]), "r"(y[3]));
  asm("sub.cc.u32 %0, %4, %8;\n\tsubc.cc.u32 %1, %5, %9;\n\tsubc.cc.u32 %2, %6, %10;\n\tsubc.u32 %3, %7, %11;"
      : "=&r"(d[4]), "=&r"(d[5]), "=&r"(d[6]), "=&r"(d[7])
      : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]), "r"(y[2]), "r"(y[3]));
  // x * y[0], where the parts of the products overlap.
  asm("mul.lo.u32 %0, %4, %8;\n\tmul.lo.u32 %1, %5, %8;\n\tmul.lo.u32 %2, %6, %8;\n\tmul.lo.u32 %3, %7, %8;\n\t"
      "mad.hi.cc.u32 %1, %4, %8, %1;\n\tmadc.hi.cc.u32 %2, %5, %8, %2;\n\tmadc.hi.u32 %3, %6, %8, %3;"
      : "=&r"(d[8]), "=&r"(d[9]), "=&r"(d[10]), "=&r"(d[11])
      : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]));
}

extern "C" __global__ void quotients(const __int128 *a, const __int128 *b, __int128 *out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned __int128 x = a[i], y = b[i];
  if (!y) y = 7;
  __int128 p = a[i], q = y;
  out[8 * i] = p / q;
  out[8 * i + 1] = p % q;
  out[8 * i + 2] = x / y;
  out[8 * i + 3] = x % y;
  out[8 * i + 4] = p >> (i & 127);
  out[8 * i + 5] = x >> (i & 127);
  out[8 * i + 6] = p << (i & 127);
  out[8 * i + 7] = p < q ? -p : q;
}

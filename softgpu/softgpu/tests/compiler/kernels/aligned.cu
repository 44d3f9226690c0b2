// Shared memory that asks for more alignment than any type has.

extern "C" __global__ void aligned(unsigned long long *out) {
  __shared__ alignas(4) char small[12];
  __shared__ alignas(1024) char large[100];
  extern __shared__ __align__(512) char rest[];
  small[threadIdx.x % 12] = large[threadIdx.x] = rest[threadIdx.x] = 1;
  out[0] = (unsigned long long)large & 1023;
  out[1] = (unsigned long long)rest & 511;
  out[2] = small[1] + large[1] + rest[1];
}

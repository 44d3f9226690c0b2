// Device functions that call each other: same names at each level, parameters narrower than their slots, structs.

struct Pair {
  int a, b;
};

__device__ __noinline__ int third(int a, int b) { return 10 * a + b; }
__device__ __noinline__ int second(int a, int b) { return third(b, a) + 1000 * third(a, b); }
__device__ __noinline__ int first(int a, int b) { return second(a + 1, b) - second(b, a); }

extern "C" __global__ void deep(const int *a, const int *b, int *out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = first(a[i], b[i]) + second(a[i], b[i]);
}

__device__ __noinline__ int narrow(char c, unsigned char u, short s, bool flag) {
  return flag ? c + 1000 * u : s - u;
}

extern "C" __global__ void small_parameters(const int *a, int *out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = narrow((char)a[i], (unsigned char)a[i], (short)a[i], a[i] & 1);
}

__device__ __noinline__ Pair swapped(Pair p) { return {p.b, p.a}; }
__device__ __noinline__ Pair turned(Pair p) {
  Pair q = swapped({p.a + 1, p.b});
  return {q.a, -q.b};
}

extern "C" __global__ void structs(const int *a, const int *b, int *out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  Pair p = turned({a[i], b[i]});
  out[i] = 100 * p.a + p.b;
}

struct Table {
  int v[8];
};
__device__ __noinline__ int look(Table t, int k) { return t.v[k & 7]; }

extern "C" __global__ void addressed(const int *a, int *out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  Table t;
  for (int k = 0; k < 8; k++) t.v[k] = a[i] + k * k;
  out[i] = look(t, a[i]);
}

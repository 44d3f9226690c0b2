// Calls through pointers: tables in constant and global memory, virtual functions, structs, and pointers to nothing;
// memory that a thread takes from its stack; which space an address is in.
#include <new>

using Function = int (*)(int, int);

static __device__ __noinline__ int plus(int a, int b) { return a + b; }
static __device__ __noinline__ int minus(int a, int b) { return a - b; }
static __device__ __noinline__ int times(int a, int b) { return a * b; }

__constant__ Function constants[3] = {plus, minus, times};
__device__ Function variables[3] = {times, plus, minus};
__device__ __managed__ int managed[2] = {7, 8};

static __device__ __noinline__ int apply_twice(Function f, int a, int b) { return f(f(a, b), b); }
__device__ int (*nested)(Function, int, int) = apply_twice;

extern "C" __global__ void tables(const int *choices, int *a, int *b) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  a[i] = constants[choices[i]](a[i], b[i]);
  b[i] = nested(variables[choices[i]], a[i], b[i]);
}

extern "C" __global__ void find(unsigned long long *pointers) {
  for (int i = 0; i < 3; i++) pointers[i] = (unsigned long long)constants[i];
}

extern "C" __global__ void through(Function f, int *a) { a[threadIdx.x] = f(a[threadIdx.x], 3); }

static __device__ __noinline__ int down(int n, int b);
__device__ Function self = down;
static __device__ __noinline__ int down(int n, int b) { return n > 0 ? self(n - 1, b) + 1 : b; }
extern "C" __global__ void recursive(int *a) { a[threadIdx.x] = self(a[threadIdx.x], 1); }

struct Shape {
  float size;
  __device__ Shape(float size) : size(size) {}
  __device__ virtual float area(float scale) const = 0;
  __device__ virtual int corners() const { return 0; }
};
struct Square : Shape {
  __device__ Square(float size) : Shape(size) {}
  __device__ float area(float scale) const override { return size * size * scale; }
  __device__ int corners() const override { return 4; }
};
struct Circle : Shape {
  __device__ Circle(float size) : Shape(size) {}
  __device__ float area(float scale) const override { return 3 * size * size * scale; }
};

extern "C" __global__ void objects(unsigned char *memory, float *areas, int *corners) {
  int i = threadIdx.x;
  void *place = memory + 32 * i;
  if (i % 3) new (place) Square(float(i));
  else new (place) Circle(float(i));
  __syncthreads();
  const Shape *other = (const Shape *)(memory + 32 * (blockDim.x - 1 - i));
  areas[i] = other->area(2);
  corners[i] = other->corners();
}

struct Matrix { float x[4]; };
static __device__ __noinline__ Matrix transposed(Matrix m) { return {{m.x[0], m.x[2], m.x[1], m.x[3]}}; }
static __device__ __noinline__ Matrix doubled(Matrix m) { return {{2 * m.x[0], 2 * m.x[1], 2 * m.x[2], 2 * m.x[3]}}; }
__device__ Matrix (*const volatile actions[2])(Matrix) = {transposed, doubled};
extern "C" __global__ void structs(Matrix *m) { m[threadIdx.x] = actions[threadIdx.x & 1](m[threadIdx.x]); }

static __device__ __noinline__ int reversed_sum(const int *in, int n) {
  int *copy = (int *)__builtin_alloca(n * sizeof(int));
  for (int i = 0; i < n; i++) copy[i] = in[n - 1 - i];
  int sum = 0;
  for (int i = 0; i < n; i++) sum += (i + 1) * copy[i];
  return sum;
}

extern "C" __global__ void stack(const int *in, int n, int *out) {
  int *own = (int *)__builtin_alloca((threadIdx.x + 1) * sizeof(int));
  for (int i = 0; i <= threadIdx.x; i++) own[i] = in[i];
  int sum = reversed_sum(in, n) + reversed_sum(in, n);
  for (int i = 0; i <= threadIdx.x; i++) sum -= own[i];
  out[threadIdx.x] = sum;
}

__constant__ int fixed[4] = {1, 2, 3, 4};
struct Given { int x[16]; };

extern "C" __global__ void spaces(const __grid_constant__ Given given, int *out) {
  __shared__ int shared[32];
  int own[4] = {1, 2, 3, 4};
  own[out[0] & 3] = 5;
  shared[threadIdx.x] = own[out[1] & 3];
  const void *places[] = {out, shared, own, fixed, &given.x[3], managed};
  for (int i = 0; i < 6; i++) {
    const void *volatile place = places[i];
    out[i * 32 + threadIdx.x] = __isGlobal(place) + 2 * __isShared(place) + 4 * __isLocal(place) +
                                8 * __isConstant(place) + 16 * __isGridConstant(place);
  }
}

extern "C" __global__ void shares(int *out) { out[threadIdx.x] = atomicAdd(&managed[threadIdx.x & 1], 2); }

// What a graph's conditions are set by.
extern "C" __global__ void decide(cudaGraphConditionalHandle condition, int *x, int change) {
  int value = x[threadIdx.x] += change;
  if (threadIdx.x == 0) cudaGraphSetConditional(condition, value);
}

extern "C" __global__ void add(int *x, int amount) { x[threadIdx.x] += amount; }

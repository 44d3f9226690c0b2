// The kernel of benchmarks/clients.py: a call counted in a variable that another client must not find.
// Built by: nvcc -ptx -arch=sm_80 clients.cu -o clients.ptx

__device__ int calls;

extern "C" __global__ void count(int *out) { out[0] = calls++; }

// Kernels that end only when told to, each looping in another way. started[0] grows once for each thread that runs.

extern "C" __global__ void together(volatile int *started, volatile int *go) {
  atomicAdd((int *)started, 1);
  while (!*go) {
  }
}

extern "C" __global__ void apart(volatile int *started, volatile int *go) {
  atomicAdd((int *)started, 1);
  while (go[threadIdx.x] == 0 || threadIdx.x % 3 == 1)
    if (go[threadIdx.x] == 2) return;
}

extern "C" __global__ void barriers(volatile int *started, volatile int *go) {
  atomicAdd((int *)started, 1);
  do {
    __syncthreads();
  } while (!*go);
}

extern "C" __global__ void nested(volatile int *started, volatile int *go) {
  atomicAdd((int *)started, 1);
  for (int i = 0; !*go; i++)
    for (int j = 0; j < 100; j++)
      for (int k = j; k < 10 && !go[1]; k++) go[2 + threadIdx.x] += i ^ k;
}

extern "C" __global__ void cases(volatile int *started, volatile int *go) {
  atomicAdd((int *)started, 1);
  for (int state = threadIdx.x % 4;;) switch (state + *go) {
      case 0: state = 2; break;
      case 1: state = 3; break;
      case 2: state = 1; break;
      case 3: state = 0; break;
      case 4: go[3] = 7; state = 5; break;
      case 5: go[4] = 8; state = 4; break;
      default: return;
    }
}

extern "C" __global__ void straight(volatile int *started, volatile int *go) {
  atomicAdd((int *)started, 1);
  go[1] = 1;
}

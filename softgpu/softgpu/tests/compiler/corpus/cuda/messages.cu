// Words that pass from thread to thread: release and acquire, fences, volatile, between blocks and between warps.
#include <cuda/atomic>

// Blocks take tickets, so that whoever waits waits for one that has started. Each adds its number to what the one
// before it has written, after that one's flag.
extern "C" __global__ void relay(int *ticket, int *flags, int *data, int words) {
    __shared__ int mine;
    if (threadIdx.x == 0) {
        cuda::atomic_ref<int, cuda::thread_scope_device> next(*ticket);
        mine = next.fetch_add(1, cuda::std::memory_order_relaxed);
        cuda::atomic_ref<int, cuda::thread_scope_device> flag(flags[mine]);
        while (mine && flag.load(cuda::std::memory_order_acquire) == 0) {
        }
    }
    __syncthreads();
    int *from = data + mine * words, *to = from + words;
    for (int i = threadIdx.x; i < words; i += blockDim.x) to[i] = from[i] * 3 + mine;
    __syncthreads();
    if (threadIdx.x == 0) {
        cuda::atomic_ref<int, cuda::thread_scope_device> flag(flags[mine + 1]);
        flag.store(1, cuda::std::memory_order_release);
    }
}

// the same with fences and volatile
extern "C" __global__ void fenced_relay(int *ticket, volatile int *flags, int *data, int words) {
    __shared__ int mine;
    if (threadIdx.x == 0) {
        mine = atomicAdd(ticket, 1);
        while (mine && !flags[mine]) {
        }
        __threadfence();
    }
    __syncthreads();
    volatile int *from = data + mine * words, *to = data + (mine + 1) * words;
    for (int i = threadIdx.x; i < words; i += blockDim.x) to[i] = from[i] * 3 + mine;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) flags[mine + 1] = 1;
}

// the last block to end sums what all have written
extern "C" __global__ void last_block(const int *x, int *partial, unsigned *done, int *total, int n) {
    __shared__ int sum, last;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&sum, x[i]);
    __syncthreads();
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
        __threadfence();
        last = atomicInc(done, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        int all = 0;
        for (int b = 0; b < gridDim.x; b++) all += *(volatile int *)&partial[b];
        *total = all;
    }
}

// every order and scope, with results; each counter's former values are marked once
extern "C" __global__ void orders(int *a, unsigned long long *b, float *f, int *seen, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    cuda::atomic_ref<int, cuda::thread_scope_device> r(a[0]), s(a[1]), x(a[2]);
    cuda::atomic_ref<int, cuda::thread_scope_system> q(a[3]);
    cuda::atomic_ref<unsigned long long, cuda::thread_scope_device> w(*b);
    cuda::atomic_ref<float, cuda::thread_scope_device> g(*f);
    seen[r.fetch_add(1, cuda::std::memory_order_acq_rel)] += 1;
    seen[n + q.fetch_sub(1, cuda::std::memory_order_seq_cst)] += 1;
    s.fetch_max(t, cuda::std::memory_order_release);
    x.fetch_xor(t, cuda::std::memory_order_acquire);
    w.fetch_or(1ull << (t & 63), cuda::std::memory_order_relaxed);
    g.fetch_add(0.5f, cuda::std::memory_order_relaxed);
}

// a warp makes, another takes, through a ring in shared memory, with a barrier of their own
extern "C" __global__ void ring(const int *x, int *out, int rounds) {
    __shared__ int slot[2][32];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    for (int k = 0; k < rounds; k++) {
        if (warp == 0) slot[k & 1][lane] = x[k * 32 + lane] * 2;
        asm volatile("barrier.sync 1, 64;" ::: "memory");
        if (warp == 1) out[k * 32 + lane] = slot[k & 1][31 - lane];
    }
}

// the taker's warp comes first and waits by looking; the maker's comes second
extern "C" __global__ void watched(const int *x, int *out) {
    __shared__ volatile int ready[4], held[4][32];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (threadIdx.x < 4) ready[threadIdx.x] = 0;
    __syncthreads();
    int pair = warp >> 1;
    if (warp & 1) {
        held[pair][lane] = x[threadIdx.x];
        __threadfence_block();
        __syncwarp();
        if (lane == 0) ready[pair] = 1;
    } else {
        while (!ready[pair]) {
        }
        __threadfence_block();
        out[threadIdx.x] = held[pair][lane ^ 1];
    }
}

// lanes of one warp take a lock in turn: each must go on although others wait
extern "C" __global__ void lanes_lock(int *lock, int *sum) {
    for (bool done = false; !done;)
        if (atomicCAS(lock, 0, 1) == 0) {
            *(volatile int *)sum = *(volatile int *)sum * 2 % 1000003 + 1;
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        }
}

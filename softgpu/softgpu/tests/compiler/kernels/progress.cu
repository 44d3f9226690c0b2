// Threads that wait for others without a barrier: lanes, warps, blocks.

typedef unsigned u32;

// Each thread takes the lock on its own; lanes of a warp too. Then the warp meets.
extern "C" __global__ void lane_lock(u32 *lock, volatile u32 *count, u32 *sums) {
    while (atomicCAS(lock, 0u, 1u) != 0u) {
    }
    count[0] = count[0] + threadIdx.x;
    __threadfence();
    atomicExch(lock, 0u);
    __syncwarp();
    u32 sum = 1;
    for (u32 distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// Lanes wait for the one before them, in three rounds; the last lane begins.
extern "C" __global__ void lane_chain(volatile u32 *turn, u32 *order) {
    const u32 lane = threadIdx.x;
    for (u32 round = 0; round < 3; ++round) {
        while (turn[0] != round * 32 + 31 - lane) {
        }
        order[round * 32 + 31 - lane] = lane;
        turn[0] = turn[0] + 1;
    }
}

// One lane waits for what another does in the other branch.
extern "C" __global__ void branches(volatile u32 *flag, u32 *out) {
    if (threadIdx.x == 0) {
        while (flag[0] == 0) {
        }
        out[0] = flag[0];
    } else if (threadIdx.x == 5) {
        flag[0] = 7;
    }
}

// Warp w waits for warp w + 1, which has not begun when it does.
extern "C" __global__ void warps(u32 *out) {
    __shared__ volatile u32 ready[33];
    const u32 warp = threadIdx.x / 32, count = blockDim.x / 32;
    if (threadIdx.x <= count) ready[threadIdx.x] = threadIdx.x == count;
    __syncthreads();
    while (ready[warp + 1] == 0) {
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = ready[warp + 1];
    __syncwarp();
    if (threadIdx.x % 32 == 0) ready[warp] = ready[warp + 1] + 1;
}

// A queue of four places between two threads.
extern "C" __global__ void queue(u32 *out, u32 items, u32 producer) {
    __shared__ volatile u32 values[4], made, taken;
    if (threadIdx.x == 0) made = taken = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < items; ++i) {
            while (made == i) {
            }
            out[i] = values[i % 4];
            __threadfence_block();
            taken = i + 1;
        }
    } else if (threadIdx.x == producer) {
        for (u32 i = 0; i < items; ++i) {
            while (i - taken == 4) {
            }
            values[i % 4] = i * i;
            __threadfence_block();
            made = i + 1;
        }
    }
}

// Blocks wait for those with earlier tickets and add to what they found.
extern "C" __global__ void look_back(u32 *ticket, volatile u32 *sums, u32 *out) {
    __shared__ u32 mine, before;
    if (threadIdx.x == 0) mine = atomicAdd(ticket, 1u);
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 sum = 0;
        if (mine > 0)
            while ((sum = sums[mine - 1]) == 0) {
            }
        before = sum;
        __threadfence();
        sums[mine] = sum + mine + 1;
    }
    __syncthreads();
    out[mine * blockDim.x + threadIdx.x] = before + threadIdx.x;
}

// Block b waits for block b + 1; each has noted something in its shared memory before.
extern "C" __global__ void look_ahead(volatile u32 *ready, u32 *out) {
    __shared__ u32 mine;
    const u32 block = blockIdx.x;
    if (threadIdx.x == 0) mine = 10 * (gridDim.x - block);
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1) {
        while (ready[block + 1] == 0) {
        }
        mine += ready[gridDim.x];
    }
    __syncthreads();
    out[block * blockDim.x + threadIdx.x] = mine;
    if (threadIdx.x == 0) ready[block] = ready[block + 1] + 1;
}

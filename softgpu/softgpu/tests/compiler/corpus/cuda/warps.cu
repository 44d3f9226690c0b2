// Warp primitives with every width, under masks that leave lanes out, and in branches that part the warp.

#define SENTINEL 0xdeadu

// out[how][width][by][mask][lane]; where the lane that is read is not in the mask, nothing is defined
extern "C" __global__ void shuffles(const unsigned *masks, int count, unsigned *out) {
    int lane = threadIdx.x & 31, how = blockIdx.x, log = blockIdx.y;
    int width = 1 << log, segment = lane & ~(width - 1);
    for (int by = 0; by < 32; by++)
        for (int m = 0; m < count; m++) {
            unsigned mask = masks[m], result = SENTINEL, v = 1000 + 7 * lane + by;
            if (mask >> lane & 1) {
                int from;
                if (how == 0) {
                    result = __shfl_sync(mask, v, by, width);
                    from = segment + (by & (width - 1));
                } else if (how == 1) {
                    result = __shfl_up_sync(mask, v, by, width);
                    from = lane - by >= segment ? lane - by : lane;
                } else if (how == 2) {
                    result = __shfl_down_sync(mask, v, by, width);
                    from = lane + by < segment + width ? lane + by : lane;
                } else {
                    result = __shfl_xor_sync(mask, v, by, width);
                    from = (lane ^ by) < segment + width ? lane ^ by : lane;
                }
                if (!(mask >> from & 1)) result = SENTINEL;
            }
            out[((((how * 6 + log) * 32 + by) * count + m) << 5) + lane] = result;
        }
}

// each lane reads another, by a table; eight bytes, floats and doubles
extern "C" __global__ void shuffle_tables(const int *from, const long long *x, long long *out, double *reals) {
    int t = threadIdx.x + blockIdx.x * blockDim.x;
    out[t] = __shfl_sync(~0u, x[t], from[t]);
    reals[t] = __shfl_sync(~0u, (double)x[t], from[t], 8);
}

// lanes part by v % 3; every branch asks only its own lanes
extern "C" __global__ void votes(const int *x, unsigned *out, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    int v = x[t];
    unsigned mine = 0, three = __match_any_sync(~0u, v % 3);
    out[t] = three;
    if (v % 3 == 0) {
        mine = __ballot_sync(three, v & 1);
        if (__any_sync(three, v > 90)) mine ^= 0x80000000u;
    } else if (v % 3 == 1) {
        mine = __popc(__ballot_sync(three, v & 2)) + 100 * __all_sync(three, v < 95);
    } else {
        int same;
        mine = __match_any_sync(three, v / 30);
        unsigned all = __match_all_sync(three, v / 60, &same);
        mine ^= all ^ (same << 5);
    }
    out[n + t] = mine;
    out[2 * n + t] = __match_any_sync(~0u, (unsigned long long)(v & 3) << 40);
}

extern "C" __global__ void reductions(const int *x, int *out, int n) {
    int t = blockIdx.x * blockDim.x + threadIdx.x, v = x[t];
    unsigned u = v;
    unsigned odd = __ballot_sync(~0u, v & 1), mask = v & 1 ? odd : ~odd;
    if (v & 1) {
        out[t] = __reduce_add_sync(mask, v);
        out[n + t] = __reduce_min_sync(mask, v);
        out[2 * n + t] = __reduce_max_sync(mask, v);
        out[3 * n + t] = __reduce_min_sync(mask, u);
        out[4 * n + t] = __reduce_or_sync(mask, u);
    } else {
        out[t] = __reduce_add_sync(mask, u);
        out[n + t] = __reduce_max_sync(mask, u);
        out[2 * n + t] = __reduce_and_sync(mask, u);
        out[3 * n + t] = __reduce_xor_sync(mask, u);
        out[4 * n + t] = __reduce_min_sync(mask, v);
    }
}

// loops that lanes leave at different times; those that stay ask one another
extern "C" __global__ void leavers(const int *rounds, int *out) {
    int t = threadIdx.x, left = rounds[t], total = 0;
    unsigned alive = ~0u;
    for (;;) {
        alive = __ballot_sync(alive, left > 0);
        if (left <= 0) break;
        total += __popc(alive) + __shfl_sync(alive, t, __ffs(alive) - 1);
        left--;
    }
    __syncwarp();
    out[t] = total;
}

// one atomic a group of equal keys: the lowest lane adds for all, and tells what it found
extern "C" __global__ void aggregated(const unsigned char *key, unsigned *counter, unsigned *seen, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned here = __ballot_sync(~0u, i < n);
    if (i >= n) return;
    unsigned lane = threadIdx.x & 31, group = __match_any_sync(here, key[i]);
    int leader = __ffs(group) - 1;
    unsigned base = 0;
    if (lane == leader) base = atomicAdd(&counter[key[i]], __popc(group));
    base = __shfl_sync(group, base, leader);
    atomicAdd(&seen[key[i] * n + base + __popc(group & ((1u << lane) - 1))], 1u);
}

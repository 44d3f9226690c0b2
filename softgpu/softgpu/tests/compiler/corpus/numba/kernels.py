"""Kernels in Python for numba-cuda; `make.py` compiles them."""

# mypy: ignore-errors

from __future__ import annotations

import math

import numpy as np
from numba import boolean, complex64, cuda, float32, float64, int32
from numba.cuda.random import xoroshiro128p_normal_float32, xoroshiro128p_uniform_float64

TABLE = np.array([2, 3, 5, 7, 11, 13, 17, 19], np.int64)


def strided(x, y, out, a):
    i = cuda.grid(1)
    step = cuda.gridsize(1)
    while i < out.size:
        out[i] = a * x[i] + y[i, 1]
        i += step


def block_sum(x, out):
    shared = cuda.shared.array(128, float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = x[i] if i < x.shape[0] else 0.0
    cuda.syncthreads()
    half = cuda.blockDim.x // 2
    while half:
        if t < half:
            shared[t] += shared[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        cuda.atomic.add(out, 0, shared[0])
        cuda.atomic.max(out, 1, shared[0])


def matmul(a, b, c):
    left, right = cuda.shared.array((8, 8), float32), cuda.shared.array((8, 8), float32)
    column, row = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for tile in range((a.shape[1] + 7) // 8):
        k = tile * 8
        left[ty, tx] = a[row, k + tx] if row < a.shape[0] and k + tx < a.shape[1] else 0
        right[ty, tx] = b[k + ty, column] if k + ty < b.shape[0] and column < b.shape[1] else 0
        cuda.syncthreads()
        for j in range(8):
            total += left[ty, j] * right[j, tx]
        cuda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total


def functions(x, y, f, d):
    i = cuda.grid(1)
    if i < x.size:
        f[0, i], f[1, i], f[2, i] = math.sin(x[i]), math.exp(x[i]), math.tanh(x[i])
        f[3, i], f[4, i] = math.sqrt(abs(x[i])), math.hypot(x[i], float32(2))
        d[0, i], d[1, i], d[2, i] = math.erf(y[i]), math.lgamma(abs(y[i]) + 2.5), abs(y[i]) ** 1.7
        d[3, i], d[4, i], d[5, i] = math.atan2(y[i], 2.0), math.log1p(abs(y[i])), math.fmod(y[i], 0.75)
        d[6, i], d[7, i] = y[i] // 0.5, abs(y[i]) % 0.75


def integers(a, b, out):
    i = cuda.grid(1)
    if i < a.size:
        out[0, i], out[1, i] = a[i] // b[i], a[i] % b[i]
        out[2, i], out[3, i] = a[i] ** 2 << (b[i] & 7), ~a[i] >> 3
        out[4, i] = cuda.popc(a[i]) + cuda.clz(b[i]) + cuda.ffs(b[i])
        out[5, i] = min(a[i], b[i]) if a[i] & 1 else max(a[i], b[i], 4)


@cuda.jit(device=True)
def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
        if steps > 100:
            return -1
    return steps


@cuda.jit(device=True)
def both(a, b):
    return a + b, a - b


def devices(x, out, flags):
    i = cuda.grid(1)
    if i >= x.size:
        return
    total, difference = both(collatz(x[i]), x[i])
    primes = cuda.const.array_like(TABLE)
    out[i] = total * primes[x[i] % 8] + difference
    flags[i] = not (total > 0 and difference < 0)


def local_sort(x):
    i = cuda.grid(1)
    own = cuda.local.array(17, int32)
    if i < x.shape[0]:
        for k in range(17):
            own[k] = x[i, k]
        for k in range(1, 17):
            v, j = own[k], k - 1
            while j >= 0 and own[j] > v:
                own[j + 1] = own[j]
                j -= 1
            own[j + 1] = v
        for k in range(17):
            x[i, 16 - k] = own[k]


def atomics(x, bins, floats, least, swaps):
    i = cuda.grid(1)
    if i < x.size:
        v = x[i]
        old = cuda.atomic.add(bins, v % 16, 1)
        cuda.atomic.add(floats, (v % 4, old % 3), 0.5)
        cuda.atomic.min(least, v % 8, old - v)
        cuda.atomic.cas(swaps, v % 16, 0, v % 16 + 1)
        cuda.atomic.exch(swaps, 16 + v % 16, 3)
        cuda.atomic.xor(swaps, 40, v)
        cuda.atomic.inc(swaps, 41, 6)


def warps(x, out):
    i, lane = cuda.grid(1), cuda.laneid
    v = x[i]
    out[0, i] = cuda.shfl_xor_sync(0xFFFFFFFF, v, 5)
    out[1, i] = cuda.shfl_up_sync(0xFFFFFFFF, v, 3)
    out[2, i] = cuda.ballot_sync(0xFFFFFFFF, v > 0)
    out[3, i] = cuda.all_sync(0xFFFFFFFF, v > -90) + 2 * cuda.any_sync(0xFFFFFFFF, v == lane)
    out[4, i] = cuda.match_any_sync(0xFFFFFFFF, v % 5)


def complexes(z, c, out, power):
    i = cuda.grid(1)
    if i < z.size:
        v = complex64(z[i])
        n = 0
        while abs(v) < 4 and n < 50:
            v = v * v + c
            n += 1
        out[i] = n
        power[i] = z[i] * z[i].conjugate() + 1 / (z[i] + 2)


def dynamic(x, out):
    """Shared memory whose size the launch tells, seen as two arrays of other types."""
    words = cuda.shared.array(0, dtype=int32)
    t = cuda.threadIdx.x
    words[t] = x[t]
    cuda.syncthreads()
    out[t] = words[cuda.blockDim.x - 1 - t] if boolean(t & 1) else words[t]


def records(particles, force, dt):
    """Structs in memory, with holes."""
    i = cuda.grid(1)
    if i < particles.size:
        particles[i]["v"] += force[i] / particles[i]["mass"] * dt
        particles[i]["x"] += particles[i]["v"] * dt
        particles[i]["kind"] += 1


def random_numbers(states, uniform, normal):
    i = cuda.grid(1)
    for k in range(uniform.shape[1]):
        uniform[i, k] = xoroshiro128p_uniform_float64(states, i)
    for k in range(normal.shape[1]):
        normal[i, k] = xoroshiro128p_normal_float32(states, i)

"""Triton kernels without tensor cores, in the style of its tutorials; `make.py` compiles them."""

# mypy: ignore-errors
# ruff: noqa: N803 constants have capitals in this language

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def softmax(x, out, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + at, mask=at < columns, other=-float("inf"))
    top = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + at, top / tl.sum(top, axis=0), mask=at < columns)


@triton.jit
def layer_norm(x, out, weight, bias, mean, scale, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + row * columns + at, mask=at < columns, other=0.0).to(tl.float32)
    m = tl.sum(total, axis=0) / columns
    square = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        off = tl.load(x + row * columns + at, mask=at < columns, other=0.0).to(tl.float32) - m
        square += tl.where(at < columns, off * off, 0.0)
    s = 1 / tl.sqrt(tl.sum(square, axis=0) / columns + epsilon)
    tl.store(mean + row, m)
    tl.store(scale + row, s)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < columns
        value = (tl.load(x + row * columns + at, mask=inside).to(tl.float32) - m) * s
        value = value * tl.load(weight + at, mask=inside) + tl.load(bias + at, mask=inside)
        tl.store(out + row * columns + at, value.to(tl.float16), mask=inside)


@triton.jit
def matmul(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    pid = tl.program_id(0)
    tiles = tl.cdiv(n, N)
    rows = pid // tiles * M + tl.arange(0, M)
    columns = pid % tiles * N + tl.arange(0, N)
    inner = tl.arange(0, K)
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, k, K):
        left = start + inner < k
        x = tl.load(a + rows[:, None] * k + start + inner[None, :], mask=(rows[:, None] < m) & left[None, :], other=0.0)
        y = tl.load(
            b + (start + inner[:, None]) * n + columns[None, :], mask=left[:, None] & (columns[None, :] < n), other=0.0
        )
        total = tl.dot(x, y, total, input_precision="ieee")
    tl.store(c + rows[:, None] * n + columns[None, :], total, mask=(rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def gelu(x, y, out, seed, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    w = tl.load(y + at, mask=at < n)
    exact = 0.5 * v * (1 + tl.erf(v * 0.7071067811865476))
    inner = 0.7978845608028654 * (v + 0.044715 * v * v * v)
    near = v * tl.sigmoid(2 * inner)
    keep = tl.rand(seed, at) > 0.25
    tl.store(out + at, tl.where(keep, exact + tl.exp2(w) - tl.log(near * near + 1.0), 0.0) + tl.cos(w), mask=at < n)


@triton.jit
def reductions(x, sums, most, place, total, rows, columns, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, C)
    inside = (r[:, None] < rows) & (c[None, :] < columns)
    v = tl.load(x + r[:, None] * columns + c[None, :], mask=inside, other=-1000)
    tl.store(most + r, tl.max(v, axis=1), mask=r < rows)
    tl.store(place + r, tl.argmin(tl.where(inside, v, 1000), axis=1), mask=r < rows)
    tl.atomic_add(sums + c, tl.sum(tl.where(inside, v, 0), axis=0), mask=c < columns)
    tl.atomic_max(total, tl.max(tl.max(v, axis=1), axis=0))


@triton.jit
def scan_and_sort(x, out, sums, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    v = tl.load(x + row * n + at, mask=at < n, other=2147483647)
    tl.store(out + row * BLOCK + at, tl.sort(v))
    tl.store(sums + row * n + at, tl.cumsum(tl.where(at < n, v, 0), axis=0), mask=at < n)


@triton.jit
def histogram(x, bins, swaps, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0)
    tl.atomic_add(bins + v, 1, mask=at < n)
    tl.atomic_cas(swaps + v, tl.zeros([BLOCK], tl.int32), v + 5)
    tl.atomic_xchg(swaps + 64 + v, v * 2, mask=at < n)


@triton.jit
def mixed(x, y, half, brain, whole, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    a = tl.load(x + at, mask=inside)
    b = tl.load(y + at, mask=inside)
    tl.store(half + at, (a * b).to(tl.float16), mask=inside)
    tl.store(brain + at, (a.to(tl.float32) + b.to(tl.float32)).to(tl.bfloat16), mask=inside)
    tl.store(whole + at, (a.to(tl.float32) * 10).to(tl.int8), mask=inside)


@triton.jit
def attention(q, k, v, out, n, scale, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    rows = tl.program_id(0) * M + tl.arange(0, M)
    d = tl.arange(0, D)
    query = tl.load(q + rows[:, None] * D + d[None, :], mask=rows[:, None] < n, other=0.0)
    top = tl.full([M], -1e30, tl.float32)
    total = tl.zeros([M], tl.float32)
    mixed = tl.zeros([M, D], tl.float32)
    for start in range(0, n, N):
        at = start + tl.arange(0, N)
        key = tl.load(k + at[:, None] * D + d[None, :], mask=at[:, None] < n, other=0.0)
        value = tl.load(v + at[:, None] * D + d[None, :], mask=at[:, None] < n, other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        score = tl.where(at[None, :] < n, score, -1e30)
        new = tl.maximum(top, tl.max(score, 1))
        power = tl.exp(score - new[:, None])
        fade = tl.exp(top - new)
        total = total * fade + tl.sum(power, 1)
        mixed = mixed * fade[:, None] + tl.dot(power, value, input_precision="ieee")
        top = new
    tl.store(out + rows[:, None] * D + d[None, :], mixed / total[:, None], mask=rows[:, None] < n)


@triton.jit
def doubles(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    tl.store(out + at, tl.sqrt(tl.exp(v)) + tl.log(v * v + 1) + tl.floor(v), mask=at < n)


@triton.jit
def layouts(x, roots, least, turned, gathered, joined, bins, largest, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    own = row * BLOCK + at
    v = tl.load(x + own)
    root = 0
    while root * root < tl.load(x + row):
        root += 1
    tl.store(roots + row, root)
    tl.atomic_min(least + at % 7, v, sem="release", scope="gpu")
    tl.store(turned + own, tl.ravel(tl.flip(tl.reshape(v, (BLOCK // 4, 4)), 1)))
    tl.store(gathered + own, tl.gather(v, at * 7 % BLOCK, 0))
    tl.store(joined + row * 2 * BLOCK + tl.arange(0, 2 * BLOCK), tl.reshape(tl.join(v, at), (2 * BLOCK,)))
    tl.store(bins + row * 16 + tl.arange(0, 16), tl.histogram(v % 16, 16))
    tl.store(largest + row * 4 + tl.arange(0, 4), tl.topk(v, 4))

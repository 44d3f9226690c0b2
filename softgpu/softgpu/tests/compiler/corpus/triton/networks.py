"""Triton kernels of networks: attention, losses, gradients, products without tensor cores; `make.py` compiles them."""

# mypy: ignore-errors
# ruff: noqa: N803 constants have capitals in this language

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def grouped_matmul(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    """Tiles in groups of rows, as they share the cache best; IEEE products, so no tensor cores."""
    pid = tl.program_id(0)
    width = GROUP * tl.cdiv(n, BN)
    first = pid // width * GROUP
    high = min(tl.cdiv(m, BM) - first, GROUP)
    i = (first + pid % width % high) * BM + tl.arange(0, BM)
    j = pid % width // high * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for at in range(0, k, BK):
        r = at + tl.arange(0, BK)
        left = tl.load(a + i[:, None] * k + r[None, :], mask=(i[:, None] < m) & (r[None, :] < k), other=0.0)
        right = tl.load(b + r[:, None] * n + j[None, :], mask=(r[:, None] < k) & (j[None, :] < n), other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    tl.store(c + i[:, None] * n + j[None, :], total, mask=(i[:, None] < m) & (j[None, :] < n))


@triton.jit
def matmul_sums(a, b, c, m, n, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """float16 in, products summed in float32 by a reduction over a third axis."""
    i, j, r = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, K)
    left = tl.load(a + i[:, None] * K + r[None, :], mask=i[:, None] < m, other=0.0).to(tl.float32)
    right = tl.load(b + j[:, None] * K + r[None, :], mask=j[:, None] < n, other=0.0).to(tl.float32)
    total = tl.sum(left[:, None, :] * right[None, :, :], 2)
    tl.store(c + i[:, None] * n + j[None, :], total.to(tl.float16), mask=(i[:, None] < m) & (j[None, :] < n))


@triton.jit
def causal_attention(q, k, v, out, length, scale, HEAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Softmax as it goes along the keys, causal; one head a program of the second axis."""
    i, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, HEAD)
    base = tl.program_id(1) * length * HEAD
    rows = base + i[:, None] * HEAD + d[None, :]
    query = tl.load(q + rows, mask=i[:, None] < length, other=0.0)
    top = tl.full([BM], -float("inf"), tl.float32)
    weight = tl.zeros([BM], tl.float32)
    total = tl.zeros([BM, HEAD], tl.float32)
    for at in tl.range(0, (tl.program_id(0) + 1) * BM, BN, num_stages=1):
        j = at + tl.arange(0, BN)
        cells = base + j[:, None] * HEAD + d[None, :]
        keys = tl.load(k + cells, mask=j[:, None] < length, other=0.0)
        s = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
        s = tl.where((i[:, None] >= j[None, :]) & (j[None, :] < length), s, -float("inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2((s - higher[:, None]) * 1.44269504)
        old = tl.exp2((top - higher) * 1.44269504)
        weight = weight * old + tl.sum(p, 1)
        values = tl.load(v + cells, mask=j[:, None] < length, other=0.0)
        total = tl.dot(p, values, total * old[:, None], input_precision="ieee")
        top = higher
    tl.store(out + rows, total / weight[:, None], mask=i[:, None] < length)


@triton.jit
def layer_norm_backward(
    x, dy, weight, mean, rstd, dx, dw, db, locks, columns, GROUPS: tl.constexpr, BLOCK: tl.constexpr
):
    """Gradients; those of weights are added up in groups of rows, each under a lock."""
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    known = i < columns
    v = (tl.load(x + row * columns + i, mask=known, other=0.0) - tl.load(mean + row)) * tl.load(rstd + row)
    g = tl.load(dy + row * columns + i, mask=known, other=0.0)
    wg = tl.load(weight + i, mask=known, other=0.0) * g
    c = tl.sum(tl.where(known, v, 0.0) * wg, 0) / columns
    d = (wg - (v * c + tl.sum(wg, 0) / columns)) * tl.load(rstd + row)
    tl.store(dx + row * columns + i, d, mask=known)
    group = row % GROUPS
    while tl.atomic_cas(locks + group, 0, 1) == 1:
        pass
    w, b = dw + group * columns + i, db + group * columns + i
    tl.store(w, tl.load(w, mask=known) + g * v, mask=known)
    tl.store(b, tl.load(b, mask=known) + g, mask=known)
    tl.debug_barrier()
    tl.atomic_xchg(locks + group, 0)


@triton.jit
def activations(x, gelu, tanh, silu, softplus, power, trig, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(gelu + i, 0.5 * v * (1 + tl.erf(v * 0.70710678)), mask=i < n)
    tl.store(tanh + i, libdevice.tanh(v), mask=i < n)
    tl.store(silu + i, v * tl.sigmoid(v), mask=i < n)
    tl.store(softplus + i, tl.where(v > 20, v, tl.log(1 + tl.exp(v))), mask=i < n)
    tl.store(power + i, libdevice.pow(tl.abs(v), 1.5) + tl.rsqrt(tl.abs(v) + 1), mask=i < n)
    tl.store(trig + i, tl.sin(v) + 2 * tl.cos(v), mask=i < n)


@triton.jit
def cross_entropy(logits, labels, losses, gradient, classes, smoothing, BLOCK: tl.constexpr):
    """Loss and gradient in double precision; a label of -1 is passed over."""
    row, j = tl.program_id(0), tl.arange(0, BLOCK)
    label = tl.load(labels + row)
    at = row * classes + j
    if label < 0:
        tl.store(losses + row, 0.0)
        tl.store(gradient + at, tl.zeros([BLOCK], tl.float64), mask=j < classes)
        return
    v = tl.load(logits + at, mask=j < classes, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    total = tl.sum(e, 0)
    wanted = tl.where(j == label, 1 - smoothing, 0.0) + smoothing / classes
    logs = v - tl.max(v, 0) - tl.log(total)
    tl.store(losses + row, -tl.sum(tl.where(j < classes, wanted * logs, 0.0), 0))
    tl.store(gradient + at, e / total - wanted, mask=j < classes)


@triton.jit
def softmax_in_turn(x, out, stride, rows, columns, BLOCK: tl.constexpr):
    """Programs take rows in turn."""
    column = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=1):
        v = tl.load(x + row * stride + column, mask=column < columns, other=-float("inf"))
        e = tl.exp(v - tl.max(v, 0))
        tl.store(out + row * stride + column, e / tl.sum(e, 0), mask=column < columns)

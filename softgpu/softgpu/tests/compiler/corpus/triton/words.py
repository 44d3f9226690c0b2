"""Triton kernels of whole numbers, narrow formats, atomics and moves; `make.py` compiles them."""

# mypy: ignore-errors
# ruff: noqa: N803 constants have capitals in this language

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_aligned(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


@triton.jit
def narrow(x, half, brain, eight, n, BLOCK: tl.constexpr):
    """Arithmetic in narrow formats; float8 by bits, as this architecture has none."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    h, b = v.to(tl.float16), v.to(tl.bfloat16)
    tl.store(half + i, tl.maximum(h * h, h + 1), mask=i < n)
    tl.store(brain + i, b * b + b, mask=i < n)
    tl.store(eight + i, v.to(tl.float8e5).to(tl.float32), mask=i < n)


@triton.jit
def row_reductions(x, sums, largest, where, smallest, xors, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Along the other axis for the least; through all for the exclusive or."""
    i, j = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    known = i[:, None] < n
    v = tl.load(x + i[:, None] * COLUMNS + j[None, :], mask=known, other=0)
    tl.store(sums + i, tl.sum(v.to(tl.int64), 1), mask=i < n)
    top, at = tl.max(v, 1, return_indices=True)
    tl.store(largest + i, top, mask=i < n)
    tl.store(where + i, at, mask=i < n)
    tl.atomic_min(smallest + j, tl.min(tl.where(known, v, 2147483647), 0))
    tl.atomic_xor(xors, tl.xor_sum(tl.ravel(v), 0))


@triton.jit
def _compose(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@triton.jit
def scans(a, b, x, recurrence, counts, order, N: tl.constexpr):
    """s[i] = a[i] s[i - 1] + b[i], a running sum backwards, and a sort."""
    i = tl.arange(0, N)
    _, s = tl.associative_scan((tl.load(a + i), tl.load(b + i)), 0, _compose)
    tl.store(recurrence + i, s)
    v = tl.load(x + i)
    tl.store(counts + i, tl.cumsum(v, 0, reverse=True))
    tl.store(order + i, tl.sort(v, descending=True))


@triton.jit
def block_histogram(x, counts, total, halves, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0)
    bins = tl.histogram(v, BINS, mask=i < n)
    tl.atomic_add(counts + tl.arange(0, BINS), bins, sem="relaxed")
    tl.atomic_add(total, tl.sum(tl.where(i < n, v, 0).to(tl.float32), 0))
    tl.atomic_add(halves + v, tl.full([BLOCK], 1.0, tl.float16), mask=i < n)


@triton.jit
def atomics(x, top, low, bits, seen, tickets, n, BLOCK: tl.constexpr):
    """Results of atomics, and float maxima, for which there is no instruction."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    tl.atomic_max(top + (i & 3), v, mask=i < n)
    tl.atomic_min(low + (i & 3), v, mask=i < n)
    tl.atomic_or(bits + (i >> 6 & 1), 1 << (i & 63).to(tl.int64), mask=i < n)
    ticket = tl.atomic_add(tickets, 1)
    tl.store(seen + ticket, 1)


@triton.jit
def shuffles(x, index, flipped, turned, gathered, pairs, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    i, j = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    cells, mirrored = i[:, None] * COLUMNS + j[None, :], j[:, None] * ROWS + i[None, :]
    v = tl.load(x + cells)
    tl.store(flipped + cells, tl.flip(v, 1))
    tl.store(turned + mirrored, tl.trans(v))
    tl.store(gathered + cells, tl.gather(v, tl.load(index + cells), 1))
    low, high = tl.split(tl.reshape(v, (ROWS, COLUMNS // 2, 2)))
    half = i[:, None] * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)[None, :]
    tl.store(pairs + half, low * 3 + high)


@triton.jit
def integers(a, b, quotient, rest, high, collatz, wide, n, BLOCK: tl.constexpr):
    """Divisions of signed numbers, high halves of products, and a loop whose length is in the data."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    u, v = tl.load(a + i, mask=i < n, other=1), tl.load(b + i, mask=i < n, other=1)
    tl.store(quotient + i, u // v, mask=i < n)
    tl.store(rest + i, u % v, mask=i < n)
    tl.store(high + i, tl.umulhi(u.to(tl.uint32, bitcast=True), v.to(tl.uint32, bitcast=True)), mask=i < n)
    long = (u.to(tl.int64) << 20) // (v.to(tl.int64) * 3)
    tl.store(wide + i, long, mask=i < n)
    at, steps = tl.abs(u) % 1000 + 1, tl.zeros([BLOCK], tl.int32)
    while tl.max((at != 1).to(tl.int32), 0) == 1:
        steps += (at != 1).to(tl.int32)
        at = tl.where(at == 1, 1, tl.where(at % 2 == 0, at // 2, 3 * at + 1))
    tl.store(collatz + i, steps, mask=i < n)


@triton.jit
def packed_bytes(x, out, n, BLOCK: tl.constexpr):
    """Four bytes a register, in PTX of the program's own."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0)
    asm: tl.constexpr = (
        "{.reg .b32 t; and.b32 t, $1, 0x7f7f7f7f; shl.b32 t, t, 1; lop3.b32 $0, t, $1, 0x1010101, 0xf8;}"
    )
    v = tl.inline_asm_elementwise(asm, "=r,r", [v], dtype=tl.uint8, is_pure=True, pack=4)
    tl.store(out + i, v, mask=i < n)


@triton.jit(noinline=True)
def _mixed(x, y):
    return x * 2 - y


@triton.jit
def scalars(x, out, longest, n):
    """One number at a time: calls of a function of its own, branches and a loop that ends early."""
    row = tl.program_id(0)
    total, at, bound = 0.0, 0, tl.load(longest)
    while at < n and total < bound:
        v = tl.load(x + row * n + at)
        if v > 0:
            total += _mixed(v, 0.5)
        else:
            total -= _mixed(v, v)
        at += 1
    tl.store(out + row, total)

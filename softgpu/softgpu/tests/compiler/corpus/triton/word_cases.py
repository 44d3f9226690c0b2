"""Triton's kernels of whole numbers, narrow formats, atomics and moves."""

from __future__ import annotations

from functools import partial

import numpy as np

from softgpu.tests.compiler.corpus.case import Array, Arrays, Case, Cases, Close, blocks
from softgpu.tests.compiler.corpus.triton.cases import case, sizes
from softgpu.tests.compiler.corpus.triton.network_cases import like, reals


def add_aligned(n: int) -> Case:
    x, y = reals(1, n), reals(2, n)
    arrays = {"x": x, "y": y, "out": like(x)}
    return case("add_aligned", blocks(n, 512), arrays, [*arrays, *sizes(n)], {"out": x + y})


def bfloat16(x: Array) -> Array:
    """The bits of the nearest bfloat16, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def widened(bits: Array) -> Array:
    """bfloat16 as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrow(n: int) -> Case:
    """Of numbers that float16 holds, so that no conversion rounds twice."""
    x = (np.random.RandomState(n).randint(-500, 500, n) / 64).astype(np.float32)
    half, brain = x.astype(np.float16), widened(bfloat16(x))
    bits = half.view(np.uint16).astype(np.uint32)
    eight = ((bits + 0x7F + (bits >> 8 & 1)) & 0xFF00).astype(np.uint16).view(np.float16)
    expected: Arrays = {
        "half": np.maximum(half * half, half + np.float16(1)),
        "brain": bfloat16(brain * brain + brain),
        "eight": eight.astype(np.float32),
    }
    arrays = {"x": x, **{name: like(value) for name, value in expected.items()}}
    return case("narrow", blocks(n, 256), arrays, [*arrays, *sizes(n)], expected)


def row_reductions(n: int) -> Case:
    x = np.random.RandomState(n).randint(-(10**9), 10**9, (n, 64)).astype(np.int32)
    x[:, 5] = x[:, 40] = x.max(1)  # the first of equals
    expected: Arrays = {
        "sums": x.sum(1, dtype=np.int64),
        "largest": x.max(1),
        "where": x.argmax(1).astype(np.int32),
        "smallest": x.min(0),
        "xors": np.bitwise_xor.reduce(x, None).reshape(1),
    }
    arrays = {"x": x, **{name: like(value) for name, value in expected.items()}}
    arrays |= {"smallest": np.full(64, 2**31 - 1, np.int32), "xors": np.zeros(1, np.int32)}
    return case("row_reductions", blocks(n, 8), arrays, [*arrays, *sizes(n)], expected)


def scans() -> Case:
    a, b = np.abs(reals(1, 256)), reals(2, 256)
    x = np.random.RandomState(3).randint(-99, 99, 256).astype(np.int32)
    s = np.zeros(257)
    for i in range(256):
        s[i] = a[i] * s[i - 1] + b[i]
    expected: Arrays = {
        "recurrence": s[:256].astype(np.float32),
        "counts": x[::-1].cumsum(dtype=np.int32)[::-1],
        "order": np.sort(x)[::-1],
    }
    arrays = {"a": a, "b": b, "x": x, **{name: like(value) for name, value in expected.items()}}
    return case("scans", 1, arrays, list(arrays), expected, Close("sums in another order", atol=1e-6))


def block_histogram(n: int) -> Case:
    x = np.minimum(np.random.RandomState(n).geometric(0.15, n) - 1, 31).astype(np.int32)
    counts = np.bincount(x, minlength=32)
    expected: Arrays = {
        "counts": counts.astype(np.int32),
        "total": np.array([x.sum()], np.float32),
        "halves": counts.astype(np.float16),
    }
    arrays = {"x": x, **{name: np.zeros_like(value) for name, value in expected.items()}}
    return case("block_histogram", blocks(n, 256), arrays, [*arrays, *sizes(n)], expected)


def atomics(n: int) -> Case:
    x, i, count = reals(n, n, within=1e9), np.arange(n), blocks(n, 128)
    bits = np.zeros(128, np.uint8)
    bits[i % 128] = 1
    expected: Arrays = {
        "top": np.array([x[k::4].max() for k in range(4)]),
        "low": np.array([x[k::4].min() for k in range(4)]),
        "bits": np.packbits(bits, bitorder="little").view(np.int64),
        "seen": np.ones(count, np.int32),
        "tickets": np.array([count], np.int32),
    }
    arrays = {"x": x, **{name: np.zeros_like(value) for name, value in expected.items()}}
    arrays |= {"top": np.full(4, -np.inf, np.float32), "low": np.full(4, np.inf, np.float32)}
    return case("atomics", count, arrays, [*arrays, *sizes(n)], expected)


def shuffles() -> Case:
    random = np.random.RandomState(8)
    x = random.randint(-99, 99, (8, 32)).astype(np.float32)
    index = random.randint(0, 32, (8, 32)).astype(np.int32)
    expected: Arrays = {
        "flipped": x[:, ::-1],
        "turned": np.ascontiguousarray(x.T),
        "gathered": np.take_along_axis(x, index, 1),
        "pairs": x[:, ::2] * 3 + x[:, 1::2],
    }
    arrays = {"x": x, "index": index, **{name: like(value) for name, value in expected.items()}}
    return case("shuffles", 1, arrays, list(arrays), expected)


def collatz(x: int) -> int:
    steps = 0
    while x != 1:
        x, steps = (3 * x + 1 if x & 1 else x // 2), steps + 1
    return steps


def integers(n: int) -> Case:
    """Quotients as in C: towards zero."""
    random = np.random.RandomState(n)
    a = random.randint(-(2**31) + 1, 2**31, n).astype(np.int32)
    b = np.where(random.rand(n) < 0.5, random.randint(1, 50, n), random.randint(-(2**31), -1, n)).astype(np.int32)
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    quotient = [abs(p) // abs(q) * (1 if p * q >= 0 else -1) for p, q in pairs]
    wide = [abs(p << 20) // abs(3 * q) * (1 if p * q >= 0 else -1) for p, q in pairs]
    high = (a.view(np.uint32).astype(np.uint64) * b.view(np.uint32).astype(np.uint64)) >> np.uint64(32)
    expected: Arrays = {
        "quotient": np.array(quotient, np.int32),
        "rest": np.array([p - d * q for (p, q), d in zip(pairs, quotient, strict=True)], np.int32),
        "high": high.astype(np.uint32),
        "collatz": np.array([collatz(x) for x in (np.abs(a) % 1000 + 1).tolist()], np.int32),
        "wide": np.array(wide, np.int64),
    }
    arrays = {"a": a, "b": b, **{name: like(value) for name, value in expected.items()}}
    return case("integers", blocks(n, 128), arrays, [*arrays, *sizes(n)], expected)


def packed_bytes(n: int) -> Case:
    x = np.random.RandomState(n).randint(0, 256, n).astype(np.uint8)
    expected = {"out": ((x & 0x7F) << 1 | x & 1).astype(np.uint8)}
    return case("packed_bytes", blocks(n, 512), {"x": x, "out": like(x)}, ["x", "out", *sizes(n)], expected)


def scalars(rows: int, n: int) -> Case:
    """Of multiples of 1/64, whose sums are exact."""
    x = (np.random.RandomState(n).randint(-200, 200, (rows, n)) / 64).astype(np.float32)
    terms = np.where(x > 0, 2 * x - np.float32(0.5), -x)
    sums = terms.cumsum(1, dtype=np.float64)
    longest = np.float32(20)
    last = np.where((sums >= longest).any(1), (sums >= longest).argmax(1), n - 1)
    expected = sums[np.arange(rows), last].astype(np.float32)
    arrays = {"x": x, "out": like(expected), "longest": np.array([longest])}
    return case("scalars", rows, arrays, [*arrays, *sizes(n)], {"out": expected})


CASES: Cases = {
    "add_aligned": partial(add_aligned, 2000),
    "narrow": partial(narrow, 700),
    **{f"row_reductions_{n}": partial(row_reductions, n) for n in (1, 30)},
    "scans": scans,
    **{f"block_histogram_{n}": partial(block_histogram, n) for n in (100, 2500)},
    **{f"atomics_{n}": partial(atomics, n) for n in (100, 777)},
    "shuffles": shuffles,
    "integers": partial(integers, 300),
    "scalars": partial(scalars, 20, 33),
    "packed_bytes": partial(packed_bytes, 1234),
}

"""Atomic updates and their results."""

from __future__ import annotations

from functools import partial

import numpy as np

from softgpu.tests.compiler.corpus.case import Arrays, Case, Cases, Launch, blocks

IMAGE = "cuda/atomics.ptx"


def tickets(n: int, block: int) -> Case:
    arrays: Arrays = {
        "i": np.zeros(1, np.int32), "u": np.zeros(1, np.uint32), "l": np.zeros(1, np.uint64),
        "f": np.zeros(1, np.float32), "d": np.zeros(1), "seen": np.zeros((5, n), np.uint32),
    }  # fmt: skip
    ends = {"i": n, "u": 3 * n, "l": n << 33, "f": n, "d": n / 2}
    expected = {name: np.array([value], arrays[name].dtype) for name, value in ends.items()}
    launch = Launch("tickets", blocks(n, block), block, [*"iulfd", "seen", np.int32(n)])
    return Case(IMAGE, arrays, [launch], expected | {"seen": np.ones((5, n), np.uint32)})


def shared_tickets(grid: int, block: int) -> Case:
    arrays: Arrays = {"seen": np.zeros(grid * 4 * block, np.uint32), "total": np.array([0, 0, 2**32 - 1], np.uint32)}
    total = np.array([grid * block, grid * ((block - 1) ** 2 + block - 1), 1], np.uint32)
    return Case(IMAGE, arrays, [Launch("shared_tickets", grid, block, ["seen", "total"])], {"total": total})


def extremes(n: int) -> Case:
    random = np.random.RandomState(n)
    x = random.randint(-(2**31), 2**31 - 1, n, np.int64).astype(np.int32)
    y = random.randint(-(2**63), 2**63 - 1, n, np.int64)
    top, wide = 2**32 - 1, 2**64 - 1
    arrays: Arrays = {
        "x": x, "y": y, "s": np.array([2**31 - 1, -(2**31), 0], np.int32),
        "u": np.array([top, 0, top, 0, 0], np.uint32), "l": np.array([2**63 - 1, -(2**63)], np.int64),
        "m": np.array([wide, 0, wide, 0, 0], np.uint64),
    }  # fmt: skip
    u, m = x.view(np.uint32), y.view(np.uint64)
    both, either, odd = np.bitwise_and.reduce, np.bitwise_or.reduce, np.bitwise_xor.reduce
    nibbles, halves = np.uint64(0xF0F0F0F0F0F0F0F0), np.uint64(0xFFFFFFFF0000)
    expected = {
        "s": np.array([x.min(), x.max(), (-x.sum(dtype=np.int32)).astype(np.int32)], np.int32),
        "u": np.array([u.min(), u.max(), both(u | 0xFF00FF00), either(u & 0x0F0F0F0F), odd(u)], np.uint32),
        "l": np.array([y.min(), y.max()]),
        "m": np.array([m.min(), m.max(), both(m | halves), either(m & nibbles), odd(m)], np.uint64),
    }
    return Case(IMAGE, arrays, [Launch("extremes", 3, 64, ["x", "y", *"sulm", np.int32(n)])], expected)


def swaps(n: int) -> Case:
    """The chain starts with no thread; exactly one other thread finds each thread's number, except the last one's."""
    x = np.random.RandomState(n).rand(n).astype(np.float32)
    wraps = np.zeros(16, np.uint32)
    wraps[:7] = np.bincount(np.arange(n) % 7, minlength=7)
    wraps[8:13] = np.bincount(-np.arange(n) % 5, minlength=5)
    arrays: Arrays = {
        "inc": np.zeros(1, np.uint32), "dec": np.zeros(1, np.uint32), "chain": np.zeros(n + 2, np.uint32),
        "wraps": np.zeros_like(wraps), "product": np.ones(1), "largest": np.zeros(1, np.float32),
        "small": np.zeros(2, np.uint16), "x": x,
    }  # fmt: skip
    arrays["chain"][0] = n
    expected = {
        "wraps": wraps, "inc": np.array([n % 7], np.uint32), "dec": np.array([-n % 5], np.uint32),
        "product": np.array([0.5 if n % 2 else 1.0]), "largest": x.max(keepdims=True),
        "small": np.array([3 * n % 65536, 0], np.uint16),
    }  # fmt: skip
    names = ["inc", "dec", "chain", "wraps", "product", "largest", "small", "x"]
    return Case(IMAGE, arrays, [Launch("swaps", blocks(n, 64), 64, [*names, np.int32(n)])], expected)


def locked(grid: int, block: int, rounds: int) -> Case:
    arrays: Arrays = {"lock": np.zeros(1, np.int32), "sum": np.zeros(1, np.int64)}
    expected = {"sum": np.array([grid * -(-block // 32) * rounds]), "lock": arrays["lock"]}
    return Case(IMAGE, arrays, [Launch("locked", grid, block, ["lock", "sum", np.int32(rounds)])], expected)


def scoped(grid: int, block: int) -> Case:
    own, every = block * (block - 1) // 2, np.arange(grid)
    x = [grid * block, (block - 1) * 3 + grid - 1, np.bitwise_xor.reduce(own + every), 8]
    start = np.array([0, 0, 0, 7], np.int32)
    return Case(IMAGE, {"x": start}, [Launch("scoped", grid, block, ["x"])], {"x": np.array(x, np.int32)})


def histogram(symbol: str, n: int) -> Case:
    x = np.random.RandomState(n).binomial(255, 0.3, n).astype(np.uint8)
    grid = 3 if symbol == "histogram_shared" else blocks(n, 4 * 128)
    launch = Launch(symbol, grid, 128, ["x", "bins", np.int32(n)])
    expected = np.bincount(x, minlength=256).astype(np.uint32)
    return Case(IMAGE, {"x": x, "bins": np.zeros(256, np.uint32)}, [launch], {"bins": expected})


CASES: Cases = {
    **{f"tickets_{n}": partial(tickets, n, 96) for n in (1, 1000)},
    "shared_tickets": partial(shared_tickets, 3, 100),
    **{f"extremes_{n}": partial(extremes, n) for n in (1, 777)},
    "swaps": partial(swaps, 499),
    "locked": partial(locked, 5, 128, 7),
    "scoped": partial(scoped, 5, 70),
    **{f"histogram_shared_{n}": partial(histogram, "histogram_shared", n) for n in (5, 20_001)},
    **{f"histogram_global_{n}": partial(histogram, "histogram_global", n) for n in (3, 20_001)},
}

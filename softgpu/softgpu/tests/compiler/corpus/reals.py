"""Double precision, halves, bfloat16, conversions with every rounding, functions."""

from __future__ import annotations

from functools import partial

import numpy as np

from softgpu.tests.compiler.corpus.case import EXACT, Array, Arrays, Case, Cases, Close, Exact, Launch, Ulps, blocks

IMAGE = "cuda/reals.ptx"
FUSED = "products are fused into sums, and division is by a reciprocal"
LIBRARY = "CUDA's and NumPy's functions are both good to a few units in the last place"


def each(symbol: str, n: int, arrays: Arrays, outputs: Arrays, tolerance: Exact | Close | Ulps = EXACT) -> Case:
    """One thread for each of n elements; the kernel takes inputs, outputs and n."""
    fresh = {name: np.zeros_like(array) for name, array in outputs.items()}
    launch = Launch(symbol, blocks(n, 64), 64, [*arrays, *outputs, np.int32(n)])
    return Case(IMAGE, arrays | fresh, [launch], outputs, tolerance)


def kahan(threads: int, length: int) -> Case:
    x = np.random.RandomState(4).rand(threads, length).astype(np.float32) * np.float32(1e4)
    total, lost = np.zeros(threads, np.float32), np.zeros(threads, np.float32)
    for column in x.T:
        y = column - lost
        after = total + y
        lost = (after - total) - y
        total = after
    assert (
        np.abs(total - x.sum(1, dtype=np.float64)).max() < np.abs(x.cumsum(1)[:, -1] - x.sum(1, dtype=np.float64)).max()
    )
    arrays: Arrays = {"x": x, "out": np.zeros(threads, np.float32)}
    return Case(IMAGE, arrays, [Launch("kahan", 1, threads, ["x", "out", np.int32(length)])], {"out": total})


def inverse(n: int, count: int) -> Case:
    a = np.random.RandomState(n).standard_normal((count, n, n)) + 3 * np.eye(n)[::-1]
    arrays: Arrays = {"a": a, "out": np.zeros_like(a)}
    launch = Launch("inverse", count, 64, ["a", "out", np.int32(n)], 16 * n * n)
    return Case(IMAGE, arrays, [launch], {"out": np.linalg.inv(a)}, Close("another order of elimination", atol=1e-12))


def some_halves(n: int, seed: int) -> Array:
    random = np.random.RandomState(seed)
    x = (random.standard_normal(n) * np.exp2(random.randint(-6, 7, n))).astype(np.float16)
    x[:6] = [0, -0.0, np.inf, 65504, 6e-8, np.nan]
    return x


def halves(n: int) -> Case:
    x, y = some_halves(n, 1), some_halves(n, 2)
    y[5:] = np.where(y[5:] == 0, 1, y[5:])
    wide, other, i = x.astype(np.float64), y.astype(np.float64), np.arange(n)
    with np.errstate(all="ignore"):
        whole = np.nan_to_num(np.trunc(wide), nan=0, posinf=2**31 - 1).astype(np.int64) + i
        whole = whole.astype(np.int32)
        rows = [
            wide + other, wide * other, wide * other + wide, wide / other, np.sqrt(np.abs(wide)), np.fmax(wide, other),
            np.where(wide < other, -wide, other), wide * 3, whole, np.floor((wide - other).astype(np.float16)),
        ]  # fmt: skip
        expected = np.stack([np.asarray(row).astype(np.float16) for row in rows])
    return each("halves", n, {"x": x, "y": y}, {"out": expected}, Ulps("division is by a reciprocal", 1))


def packed_halves(n: int) -> Case:
    x, y = some_halves(2 * n, 3).reshape(n, 2), some_halves(2 * n, 4).reshape(n, 2)
    a, b = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(all="ignore"):
        rows = [
            a + b[:, ::-1], a * b - b, np.fmin(a, b), a > b, np.stack([a[:, 1], b[:, 0]], 1),
            np.stack([a[:, 0] * 2, b[:, 1] / 2], 1),
        ]  # fmt: skip
        expected = np.stack([np.asarray(row).astype(np.float16) for row in rows])
    return each("packed_halves", n, {"x": x, "y": y}, {"out": expected})


def brain(x: Array) -> Array:
    """bfloat16 nearest to float32, as float32."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def stored(x: Array) -> Array:
    """The bits of bfloat16 numbers."""
    return (np.asarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def brains(n: int) -> Case:
    """Doubles hold the products, and rounding them to float32 first does no harm: their bits are few."""
    random = np.random.RandomState(n)
    x, y = (brain(random.standard_normal(n).astype(np.float32)) for _ in "xy")
    rows = [x + y, x * y, x * y.astype(np.float64) + y, np.minimum(x, y), x + np.float32(0.01), 2 * y, brain(2 * x) * x]
    expected = np.stack([stored(brain(np.asarray(row, np.float32))) for row in rows])
    return each("brains", n, {"x": stored(x), "y": stored(y)}, {"out": expected})


def half_atomics(grid: int, block: int) -> Case:
    n = grid * block
    assert n <= 256  # bfloat16 holds whole numbers to there
    arrays: Arrays = {
        "h": np.zeros(2, np.float16), "one": np.zeros(1, np.float16), "b": np.zeros(2, np.uint16),
        "seen": np.zeros(n, np.float32),
    }  # fmt: skip
    expected = {
        "h": np.array([n, 2 * n], np.float16), "one": np.array([n], np.float16),
        "b": stored(np.array([n, n // 2])), "seen": np.ones(n, np.float32),
    }  # fmt: skip
    return Case(IMAGE, arrays, [Launch("half_atomics", grid, block, list(arrays))], expected)


def directed(exact: Array, found: Array, direction: int) -> Array:
    """found, rounded to nearest of something with sign(exact - found) as told, moved to the given side."""
    side = np.sign(exact)
    towards = np.full_like(found, np.inf * direction)
    return np.where(side * direction > 0, np.nextafter(found, towards), found)


def roundings(n: int) -> Case:
    random = np.random.RandomState(n)
    v = np.concatenate([[0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 1e-3, 0.0], random.standard_normal(n - 8) * 1000])
    s = v.astype(np.float32)
    i = np.stack([np.rint(v), np.ceil(v), np.trunc(s), np.floor(s)]).astype(np.int32)
    whole = np.stack([np.trunc(v), np.rint(v), np.rint(s)]).astype(np.int64)
    u = np.stack([np.trunc(np.abs(v)), np.ceil(np.abs(s))]).astype(np.uint32)
    long = np.longdouble
    near_sum, near_product = v + 0.1, v * 0.1
    d = np.stack([
        np.trunc(v), np.rint(v), np.ceil(v), np.floor(v), np.fmod(v, 3.7),
        directed((v.astype(long) + long(0.1) - near_sum).astype(np.float64), near_sum, -1),
        directed((v.astype(long) * long(0.1) - near_product).astype(np.float64), near_product, 1),
        np.sqrt(np.abs(v)), v / 7,
    ])  # fmt: skip
    zero_sum = s + np.float32(0.1)
    lost = s.astype(np.float64) + np.float64(np.float32(0.1)) - zero_sum
    seventh = s / np.float32(7)
    left = s.astype(long) / 7 - seventh
    f = np.stack([
        np.where(np.abs(s) > np.abs(v), np.nextafter(s, np.float32(0)), s), directed(v - s, s, 1),
        (v * 1e9).astype(np.int64).astype(np.float32),
        np.where(lost * np.sign(zero_sum) < 0, np.nextafter(zero_sum, np.float32(0)), zero_sum),
        directed(left.astype(np.float64), seventh, -1), np.sqrt(np.abs(s)), s / np.float32(7),
        np.fmod(s, np.float32(3.7)), np.copysign(np.float32(2.5), s),
    ])  # fmt: skip
    return each("roundings", n, {"x": v}, {"i": i, "l": whole, "u": u, "f": f.astype(np.float32), "d": d})


def functions(n: int) -> Case:
    random = np.random.RandomState(n)
    x, y = random.uniform(-5, 5, n).astype(np.float32), random.uniform(-5, 5, n)

    def rows(v: Array, twenty: Array, base: Array, over: float, power: float) -> Array:
        wide = v.astype(np.float64)
        return np.stack([
            np.exp(wide), np.log(base), np.sin(twenty), np.cos(twenty), np.tanh(wide), np.arctan2(wide, over),
            np.power(base, power), np.cbrt(wide),
        ])  # fmt: skip

    base = (np.abs(x) + np.float32(0.1)).astype(np.float64)
    f = rows(x, (np.float32(20) * x).astype(np.float64), base, float(np.float32(0.3)), float(np.float32(2.3)))
    d = rows(y, 20 * y, np.abs(y) + 0.1, 0.3, 2.3)
    outputs = {"f": f.astype(np.float32), "d": d}
    return each("functions", n, {"x": x, "y": y}, outputs, Ulps(LIBRARY, 8))


CASES: Cases = {
    "kahan": partial(kahan, 70, 300),
    **{f"inverse_{n}": partial(inverse, n, 3) for n in (1, 7, 32)},
    "halves": partial(halves, 501),
    "packed_halves": partial(packed_halves, 333),
    "brains": partial(brains, 501),
    "half_atomics": partial(half_atomics, 2, 96),
    "roundings": partial(roundings, 500),
    "functions": partial(functions, 400),
}

"""numba-cuda's kernels. An array is passed as words: two that are not used, sizes, address, shape, strides."""

from __future__ import annotations

import json
import math
from functools import partial
from typing import Any

import numpy as np

from softgpu.tests.compiler.corpus.case import (
    EXACT,
    HERE,
    Array,
    Arrays,
    Case,
    Cases,
    Close,
    Extent,
    Launch,
    Ulps,
    blocks,
)
from softgpu.tests.compiler.corpus.numba.records import PARTICLE, STATE

SYMBOLS = json.loads((HERE / "numba" / "kernels.json").read_text())["symbols"]
LIBRARY = "CUDA's and NumPy's functions are both good to a few units in the last place"
FUSED = "products are fused into sums"


def words(name: str, array: Array, strides: tuple[int, ...] = ()) -> list[Any]:
    """The parameters for an array. strides: in bytes, of a view from its first element; none: it is contiguous."""
    counts = [array.size, array.itemsize, 0, *array.shape, *(strides or array.strides)]
    made: list[Any] = [np.uint64(0), np.uint64(0), *(np.int64(count) for count in counts)]
    made[4] = name
    return made


def case(
    name: str,
    grid: Extent,
    block: Extent,
    arrays: Arrays,
    expected: Arrays,
    *,
    args: list[Any] | None = None,
    tolerance: Any = EXACT,
    shared_bytes: int = 0,
) -> Case:
    """args: none for all arrays in order."""
    given = [word for key, array in arrays.items() for word in words(key, array)] if args is None else args
    launch = Launch(SYMBOLS[name], grid, block, given, shared_bytes)
    return Case(f"numba/{name}.ptx", arrays, [launch], expected, tolerance)


def strided(n: int) -> Case:
    """Every second element of x, a table in Fortran's order, and every third place of the result."""
    random = np.random.RandomState(n)
    x, out = random.randint(-99, 99, 2 * n).astype(np.float32), np.full(3 * n, -7, np.float32)
    y = np.asfortranarray(random.randint(-99, 99, (n, 3)).astype(np.float32))
    expected = out.copy()
    expected[::3] = 3 * x[::2] + y[:, 1]
    args = [*words("x", x[::2]), *words("y", y), *words("out", out[::3]), np.float32(3)]
    return case("strided", 2, 64, {"x": x, "y": y.T, "out": out}, {"out": expected}, args=args)


def block_sum(n: int) -> Case:
    x = np.random.RandomState(n).randint(-1000, 1000, n).astype(np.float64) / 4
    sums = np.pad(x, (0, -n % 128)).reshape(-1, 128).sum(1)
    arrays: Arrays = {"x": x, "out": np.array([0, -1e9])}
    return case("block_sum", len(sums), 128, arrays, {"out": np.array([sums.sum(), sums.max()])})


def matmul(m: int, n: int, k: int) -> Case:
    random = np.random.RandomState(m)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    c = (a.astype(np.float64) @ b).astype(np.float32)
    grid = (blocks(n, 8), blocks(m, 8))
    return case("matmul", grid, (8, 8), {"a": a, "b": b, "c": c * 0}, {"c": c}, tolerance=Close(FUSED, atol=1e-6))


def functions(n: int) -> Case:
    random = np.random.RandomState(n)
    x, y = random.uniform(-4, 4, n).astype(np.float32), random.uniform(-4, 4, n)
    v = x.astype(np.float64)
    f = np.stack([np.sin(v), np.exp(v), np.tanh(v), np.sqrt(np.abs(v)), np.hypot(v, 2)]).astype(np.float32)
    size = np.abs(y)
    d = np.stack([
        [math.erf(t) for t in y], [math.lgamma(t + 2.5) for t in size], size**1.7, np.arctan2(y, 2), np.log1p(size),
        np.fmod(y, 0.75), y // 0.5, np.mod(size, 0.75),
    ])  # fmt: skip
    arrays: Arrays = {"x": x, "y": y, "f": f * 0, "d": d * 0 - 1}
    return case("functions", blocks(n, 64), 64, arrays, {"f": f, "d": d}, tolerance=Ulps(LIBRARY, 16))


def integers(n: int) -> Case:
    """Division and remainder are Python's: they round down."""
    random = np.random.RandomState(n)
    a, b = (random.randint(-1000, 1000, n).astype(np.int32) for _ in "ab")
    b[b == 0] = 3
    wide = a.astype(np.int64)
    counts = [bin(int(p) & 0xFFFFFFFF).count("1") + lead(int(q)) + first(int(q)) for p, q in zip(a, b, strict=True)]
    out = np.stack([
        a // b, a % b, wide**2 << (b & 7), ~a >> 3, counts,
        np.where(a & 1, np.minimum(a, b), np.maximum(np.maximum(a, b), 4)),
    ]).astype(np.int64)  # fmt: skip
    return case("integers", blocks(n, 64), 64, {"a": a, "b": b, "out": out * 0}, {"out": out})


def lead(value: int) -> int:
    """Leading zeros of 32 bits."""
    return 32 - (value & 0xFFFFFFFF).bit_length()


def first(value: int) -> int:
    """The place of the lowest set bit, from 1."""
    return (value & -value).bit_length()


def steps(n: int) -> int:
    count = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        count += 1
        if count > 100:
            return -1
    return count


def devices(n: int) -> Case:
    x = np.arange(1, n + 1)
    primes, count = np.array([2, 3, 5, 7, 11, 13, 17, 19]), np.array([steps(int(v)) for v in x])
    out = (count + x) * primes[x % 8] + count - x
    flags = ~((count + x > 0) & (count - x < 0))
    arrays: Arrays = {"x": x, "out": out * 0, "flags": np.ones(n, bool)}
    return case("devices", blocks(n, 64), 64, arrays, {"out": out, "flags": flags})


def local_sort(n: int) -> Case:
    x = np.random.RandomState(n).randint(-99, 99, (n, 17)).astype(np.int32)
    return case("local_sort", blocks(n, 32), 32, {"x": x}, {"x": np.sort(x, 1)[:, ::-1]})


def atomics(n: int) -> Case:
    """In a bin only the order of the former values varies: they are the numbers below its count, each once."""
    x = np.random.RandomState(n).randint(0, 64, n).astype(np.int32)
    bins, floats = np.bincount(x % 16, minlength=16), np.zeros((4, 3))
    least = np.full(8, 2**31 - 1, np.int64)
    for value in range(16):
        floats[value % 4] += 0.5 * np.bincount(np.arange(bins[value]) % 3, minlength=3)
        least[value % 8] = min(least[value % 8], -64)
    swaps = np.zeros(42, np.uint32)
    swaps[:16] = np.where(bins > 0, np.arange(16) + 1, 0)
    swaps[16:32] = np.where(bins > 0, 3, 0)
    swaps[40], swaps[41] = np.bitwise_xor.reduce(x), n % 7
    arrays: Arrays = {"x": x, "bins": np.zeros(16, np.int32), "floats": floats * 0}
    arrays |= {"least": np.full(8, 2**31 - 1, np.int32), "swaps": swaps * 0}
    expected = {"bins": bins.astype(np.int32), "floats": floats, "swaps": swaps}
    return case("atomics", blocks(n, 96), 96, arrays, expected)


def warps() -> Case:
    x = np.random.RandomState(5).randint(-99, 99, (4, 32)).astype(np.int32)
    lane = np.arange(32)
    ballot = ((x > 0).astype(np.int64) << lane).sum(1).astype(np.uint32).view(np.int32)
    either = (x > -90).all(1) + 2 * (x == lane).any(1)
    # the vote on equality is of each lane's own number
    match = np.stack([[((row % 5 == v % 5).astype(np.int64) << lane).sum() for v in row] for row in x])
    rows = [
        x[:, lane ^ 5],
        x[:, np.where(lane < 3, lane, lane - 3)],
        np.repeat(ballot, 32),
        np.repeat(either, 32),
        match,
    ]
    out = np.stack([np.asarray(row).reshape(-1).astype(np.int64).astype(np.uint32).view(np.int32) for row in rows])
    return case("warps", 2, 64, {"x": x.ravel(), "out": out * 0}, {"out": out})


def complexes(n: int) -> Case:
    random = np.random.RandomState(n)
    z = (random.uniform(-1, 1, n) + 1j * random.uniform(-1, 1, n)).astype(np.complex64)
    c = np.complex64(-0.4 + 0.6j)
    out, v = np.zeros(n, np.int32), z.astype(np.complex128)
    alive = np.ones(n, bool)
    for _ in range(50):
        alive &= np.abs(v) < 4
        out += alive
        v = np.where(alive, v * v + complex(c), v)
    wide = z.astype(np.complex128)
    power = (wide * wide.conj() + 1 / (wide + 2)).astype(np.complex64)
    sure = np.abs(np.abs(v) - 4) > 1e-2  # elsewhere the count hangs on the last bits, and no such number is in z
    assert sure.all()
    arrays: Arrays = {"z": z, "out": out * 0, "power": power * 0}
    by_value = [np.float32(c.real), np.float32(c.imag)]
    args = [*words("z", z), *by_value, *words("out", out), *words("power", power)]
    expected = {"out": out, "power": power}
    return case("complexes", blocks(n, 64), 64, arrays, expected, args=args, tolerance=Close(FUSED, atol=1e-6))


def dynamic(block: int) -> Case:
    x = np.random.RandomState(block).randint(0, 99, block).astype(np.int32)
    out = np.where(np.arange(block) & 1, x[::-1], x)
    return case("dynamic", 1, block, {"x": x, "out": out * 0}, {"out": out}, shared_bytes=4 * block)


def records(n: int) -> Case:
    random = np.random.RandomState(n)
    before, force = np.zeros(n, PARTICLE), random.randint(-8, 8, n).astype(np.float32)
    before["mass"], before["v"] = 2.0 ** random.randint(-2, 3, n), random.randint(-9, 9, n)
    after = before.copy()
    after["v"] += force / before["mass"] * 0.5
    after["x"] += after["v"] * 0.5
    after["kind"] += 1
    args = [*words("particles", before), *words("force", force), np.float32(0.5)]
    arrays: Arrays = {"particles": before, "force": force}
    return case("records", blocks(n, 64), 64, arrays, {"particles": after}, args=args)


def random_numbers(threads: int, count: int) -> Case:
    random = np.random.RandomState(threads)
    states = np.zeros(threads, STATE)
    for key in ("s0", "s1"):
        states[key] = random.randint(1, 2**62, threads).astype(np.uint64)
    s0: Array = states["s0"].copy()
    s1: Array = states["s1"].copy()

    def advance() -> Array:
        nonlocal s0, s1
        result = s0 + s1
        s1 = s1 ^ s0
        s0, s1 = (s0 << 55 | s0 >> 9) ^ s1 ^ s1 << 14, s1 << 36 | s1 >> 28
        return np.asarray((result >> 11) * 2.0**-53)

    uniform = np.stack([advance() for _ in range(count)], 1)
    pairs = [(advance(), advance()) for _ in range(count)]
    angle = np.float32(2 * math.pi)
    # Box and Muller's
    radius = [np.sqrt(-2 * np.log(a.astype(np.float32).astype(np.float64))) for a, _ in pairs]
    turn = [np.cos((angle * b.astype(np.float32)).astype(np.float64)) for _, b in pairs]
    normal = np.stack([r * c for r, c in zip(radius, turn, strict=True)], 1).astype(np.float32)
    arrays: Arrays = {"states": states.view(np.uint64), "uniform": uniform * 0, "normal": normal * 0}
    expected = {"states": np.stack([s0, s1], 1), "uniform": uniform, "normal": normal}
    args = [word for key, array in (arrays | {"states": states}).items() for word in words(key, array)]
    tolerance = Close(LIBRARY, rtol=1e-5, atol=1e-6)
    return case("random_numbers", 1, threads, arrays, expected, args=args, tolerance=tolerance)


CASES: Cases = {
    "strided": partial(strided, 300),
    **{f"block_sum_{n}": partial(block_sum, n) for n in (1, 1000)},
    **{f"matmul_{m}x{n}x{k}": partial(matmul, m, n, k) for m, n, k in ((1, 1, 1), (20, 13, 31))},
    "functions": partial(functions, 300),
    "integers": partial(integers, 300),
    "devices": partial(devices, 200),
    "local_sort": partial(local_sort, 70),
    "atomics": partial(atomics, 500),
    "warps": warps,
    "complexes": partial(complexes, 150),
    "dynamic": partial(dynamic, 96),
    "records": partial(records, 100),
    "random_numbers": partial(random_numbers, 64, 5),
}

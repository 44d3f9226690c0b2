"""Images and grids."""

from __future__ import annotations

from functools import partial

import numpy as np

from softgpu.tests.compiler.corpus.case import Array, Case, Cases, Close, Extent, Launch, blocks, triple

IMAGE = "cuda/grids.ptx"
FUSED = Close("products are fused into sums", atol=3e-7)


def image(rows: int, columns: int) -> Array:
    return np.random.RandomState(rows).rand(rows, columns)


def sizes(*values: int) -> list[np.int32]:
    return [np.int32(value) for value in values]


def transpose(rows: int, columns: int) -> Case:
    x = image(rows, columns)
    grid = (blocks(columns, 16), blocks(rows, 16))
    launch = Launch("transpose", grid, (16, 16), ["x", "out", *sizes(rows, columns)])
    return Case(IMAGE, {"x": x, "out": np.zeros((columns, rows))}, [launch], {"out": x.T})


def heat(rows: int, columns: int) -> Case:
    """Two steps, there and back."""
    x = image(rows, columns).astype(np.float32)
    grid, shape = (blocks(columns, 32), blocks(rows, 8)), sizes(rows, columns)
    launches = [Launch("heat", grid, (32, 8), [*names, *shape]) for names in (("x", "out"), ("out", "x"))]
    steps = [x.astype(np.float64)]
    for _ in range(2):
        after, before = steps[-1].copy(), steps[-1]
        around = before[:-2, 1:-1] + before[2:, 1:-1] + before[1:-1, :-2] + before[1:-1, 2:]
        after[1:-1, 1:-1] += 0.125 * (around - 4 * before[1:-1, 1:-1])
        steps.append(after)
    expected = {"out": steps[1].astype(np.float32), "x": steps[2].astype(np.float32)}
    return Case(IMAGE, {"x": x, "out": np.zeros_like(x)}, launches, expected, FUSED)


def laplace(nx: int, ny: int, nz: int) -> Case:
    x = np.random.RandomState(nx).rand(nz, ny, nx).astype(np.float32)
    inner = (slice(1, -1),) * 3
    out, wide = np.zeros_like(x), x.astype(np.float64)
    total = -6 * wide[inner]
    for axis in range(3):
        for by in (-1, 1):
            total = total + np.roll(wide, by, axis)[inner]
    out[inner] = total
    launch = Launch("laplace", (blocks(nx, 16), blocks(ny, 4)), (16, 4), ["x", "out", *sizes(nx, ny, nz)])
    return Case(IMAGE, {"x": x, "out": np.zeros_like(x)}, [launch], {"out": out}, FUSED)


def convolution(rows: int, columns: int) -> Case:
    x = (image(rows, columns) * 256).astype(np.uint8)
    row = np.array([1, 4, 6, 4, 1])
    padded = np.pad(x.astype(int), 2, "edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 5))
    expected = ((windows * np.outer(row, row)).sum((2, 3)) + 128 >> 8).astype(np.uint8)
    grid = (blocks(columns, 32), blocks(rows, 4))
    launch = Launch("convolution", grid, (32, 4), ["x", "out", *sizes(rows, columns)])
    return Case(IMAGE, {"x": x, "out": np.zeros_like(x)}, [launch], {"out": expected})


def mandelbrot(rows: int, columns: int, limit: int) -> Case:
    """Exact: the kernel forbids fusing."""
    b, a = np.mgrid[:rows, :columns].astype(float)
    a, b = -2.2 + 3.0 * a / columns, -1.2 + 2.4 * b / rows
    x, y, out = np.zeros_like(a), np.zeros_like(a), np.zeros(a.shape, np.int32)
    alive = np.ones(a.shape, bool)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(limit):
            xx, yy = x * x, y * y
            alive &= ~(xx + yy > 4)
            out += alive
            x, y = xx - yy + a, 2 * x * y + b
    grid = (blocks(columns, 16), blocks(rows, 8))
    launch = Launch("mandelbrot", grid, (16, 8), ["out", *sizes(rows, columns, limit)])
    return Case(IMAGE, {"out": np.zeros_like(out)}, [launch], {"out": out})


def places(grid: Extent, block: Extent) -> Case:
    threads, count = int(np.prod(triple(block))), int(np.prod(triple(grid)))
    b, t = np.divmod(np.arange(threads * count), threads)
    expected = (b << 16 | t << 5 | t & 31).astype(np.uint32)
    return Case(IMAGE, {"out": np.zeros_like(expected)}, [Launch("places", grid, block, ["out"])], {"out": expected})


def survivors(n: int, most: int) -> Case:
    x = np.random.RandomState(n).randint(0, most, n).astype(np.int32)
    values, out = x.copy(), np.zeros(10, np.int32)
    for k in range(10):
        out[k] = (values > k).sum()
        if not out[k]:
            break
        values[(values == 3) & (k == 2)] = 100
    launch = Launch("survivors", 1, 1024, ["x", "out", np.int32(n)])
    return Case(IMAGE, {"x": x, "out": np.zeros_like(out)}, [launch], {"out": out})


def leave(v: int) -> int:
    """Return the number that `exits` writes for a value; -7 if it writes nothing."""
    if v < 0:
        return -7
    if v % 2 == 0:
        if v % 3 == 0:
            return 1
        for k in range(2, 40):
            if k * k == v:
                return 2
            if v % (k * 5) == 0:
                return 100 + k
        return 4
    match v % 7:
        case 0:
            return 1
        case 3:
            return 26
        case 4:
            return 22
        case 5:
            return -v
        case _:
            return 2 * v


def exits(n: int) -> Case:
    x = np.random.RandomState(n).randint(-100, 2000, n).astype(np.int32)
    expected = np.array([leave(int(v)) for v in x], np.int32)
    launch = Launch("exits", blocks(n, 64), 64, ["x", "out", np.int32(n)])
    return Case(IMAGE, {"x": x, "out": np.full_like(x, -7)}, [launch], {"out": expected})


FORMS: list[tuple[Extent, Extent]] = [((2, 3, 2), (8, 4, 3)), ((1, 1, 5), (1, 7, 9)), (3, 1024), ((1, 4), (32, 32))]
CASES: Cases = {
    **{f"transpose_{r}x{c}": partial(transpose, r, c) for r, c in ((16, 32), (1, 33), (45, 70))},
    **{f"heat_{r}x{c}": partial(heat, r, c) for r, c in ((8, 32), (3, 3), (50, 77))},
    **{f"laplace_{x}x{y}x{z}": partial(laplace, x, y, z) for x, y, z in ((3, 3, 3), (33, 18, 7))},
    **{f"convolution_{r}x{c}": partial(convolution, r, c) for r, c in ((1, 1), (41, 67))},
    "mandelbrot": partial(mandelbrot, 48, 64, 200),
    **{f"places_{i}": partial(places, *form) for i, form in enumerate(FORMS)},
    "survivors_1000": partial(survivors, 1000, 9),
    "survivors_1024": partial(survivors, 1024, 2),
    "exits": partial(exits, 999),
}

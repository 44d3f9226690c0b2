"""CUB's block, warp and device algorithms."""

from __future__ import annotations

from functools import partial

import numpy as np

from softgpu.tests.compiler.corpus.case import Array, Arrays, At, Case, Cases, Close, Launch, blocks

BLOCK = "cuda/cub.ptx"
DEVICE = "cuda/cub_device.ptx"
ORDER = "another order of the sum"


def integers(n: int, low: int = -1000, high: int = 1000) -> Array:
    return np.random.RandomState(n).randint(low, high, n).astype(np.int32)


def block_scan(n: int) -> Case:
    x, grid = integers(n), blocks(n, 512)
    sums = np.pad(x, (0, grid * 512 - n)).reshape(grid, 512).cumsum(1, dtype=np.int32)
    arrays: Arrays = {"x": x, "out": np.full_like(x, -7), "total": np.zeros(grid, np.int32)}
    expected = {"out": sums.ravel()[:n], "total": sums[:, -1]}
    return Case(BLOCK, arrays, [Launch("block_scan", grid, 128, [*arrays, np.int32(n)])], expected)


def block_scan_warps() -> Case:
    x = np.random.RandomState(1).standard_normal((3, 96)) - 1
    before = np.concatenate([np.full((3, 1), -1.0), x[:, :-1]], 1)
    expected = np.maximum.accumulate(before, 1)
    return Case(
        BLOCK, {"x": x, "out": np.zeros_like(x)}, [Launch("block_scan_warps", 3, 96, ["x", "out"])], {"out": expected}
    )


def block_sort(n: int) -> Case:
    """Stable, with a value for each key."""
    keys = np.random.RandomState(n).randint(0, 300, n).astype(np.uint32) << np.uint32(20)
    keys[::7] = 5
    values = np.arange(n, dtype=np.float32)
    order = np.concatenate([k + np.argsort(keys[k : k + 512], kind="stable") for k in range(0, n, 512)])
    arrays: Arrays = {"keys": keys, "values": values, "keys_out": keys * 0, "values_out": values * 0}
    launch = Launch("block_sort", blocks(n, 512), 128, [*arrays, np.int32(n)])
    return Case(BLOCK, arrays, [launch], {"keys_out": keys[order], "values_out": values[order]})


def block_sort_down() -> Case:
    x = np.random.RandomState(2).standard_normal((2, 192)).astype(np.float32)
    return Case(BLOCK, {"x": x}, [Launch("block_sort_down", 2, 64, ["x"])], {"x": np.sort(x, 1)[:, ::-1]})


def block_merge_sort(n: int) -> Case:
    x = np.random.RandomState(n).randint(-(2**61), 2**61, n)
    expected = np.concatenate([np.sort(x[k : k + 256]) for k in range(0, n, 256)])
    return Case(BLOCK, {"x": x}, [Launch("block_merge_sort", blocks(n, 256), 64, ["x", np.int32(n)])], {"x": expected})


def block_reduce(n: int) -> Case:
    """Sums of whole numbers and halves are exact in any order."""
    x, grid = integers(n, 0, 400).astype(np.float32) / 2, blocks(n, 160)
    rows = np.pad(x, (0, grid * 160 - n)).reshape(grid, 160)
    arrays: Arrays = {"x": x, "sums": np.zeros(grid, np.float32), "most": np.zeros(grid, np.int32)}
    expected = {"sums": rows.sum(1), "most": (rows.max(1) * 1000).astype(np.int32)}
    return Case(BLOCK, arrays, [Launch("block_reduce", grid, 160, [*arrays, np.int32(n)])], expected)


def block_histogram() -> Case:
    x = np.random.RandomState(3).binomial(31, 0.3, (2, 256)).astype(np.uint8)
    bins = np.stack([np.bincount(row, minlength=32) for row in x]).astype(np.uint32)
    arrays: Arrays = {"x": x, "bins": bins * 0, "sorted_bins": bins * 0}
    expected = {"bins": bins, "sorted_bins": bins}
    return Case(BLOCK, arrays, [Launch("block_histogram", 2, 64, list(arrays))], expected)


def warps() -> Case:
    """Sums of segments that begin at lane 0 and at lane 3 of eight; they stand at the segments' heads."""
    x = integers(192, 0, 50)
    eight, warp = x.reshape(-1, 8), x.reshape(-1, 32)
    scans = warp.cumsum(1) - warp + (warp.sum(1, keepdims=True) << 16)
    pairs = np.sort(np.stack([x, x ^ 21], 1).reshape(-1, 32), 1)
    arrays: Arrays = {"x": x, "scans": np.zeros_like(x), "sorted": np.zeros(384, np.int32)}
    expected = {"scans": scans.astype(np.int32), "sorted": pairs}
    launch = Launch("warps", 2, 96, [*arrays, "heads"])
    heads = np.stack([eight[:, :3].sum(1) + 1000 * eight[:, :5].sum(1), eight[:, 3:].sum(1)], 1).astype(np.int32)
    return Case(BLOCK, arrays | {"heads": heads * 0}, [launch], expected | {"heads": heads})


def exchange() -> Case:
    x = np.repeat(integers(100), 4)[:320]
    arrays: Arrays = {"x": x, "out": x * 0, "heads": x * 0, "steps": x * 0}
    before = np.concatenate([[-1], x[:-1]]).astype(np.int32)
    heads = np.concatenate([[1], x[1:] != x[:-1]]).astype(np.int32)
    steps = np.concatenate([x[:1], x[1:] - x[:-1]])
    expected = {"out": before, "heads": heads, "steps": steps}
    return Case(BLOCK, arrays, [Launch("exchange", 1, 64, list(arrays))], expected)


def device_reduce(n: int, grid: int) -> Case:
    """Tiles of 1,024 go to the blocks in turn."""
    x = np.random.RandomState(n).rand(n).astype(np.float32)
    tiles = np.pad(x, (0, -n % (1024 * grid))).reshape(-1, grid, 1024)
    sums = tiles.sum((0, 2), dtype=np.float64).astype(np.float32)
    arrays: Arrays = {"x": x, "sums": np.zeros(grid, np.float32)}
    launch = Launch("device_reduce", grid, 128, ["x", "sums", np.int32(n)])
    return Case(DEVICE, arrays, [launch], {"sums": sums}, Close(ORDER, rtol=1e-6))


def device_scan(n: int) -> Case:
    """Exclusive, from 100."""
    x, tiles = integers(n), blocks(n, 512)
    arrays: Arrays = {"x": x, "out": x * 0, "storage": np.full(tiles + 32, 99, np.uint64)}
    launches = [
        Launch("scan_init", blocks(tiles, 128), 128, ["storage", np.int32(tiles)]),
        Launch("device_scan", tiles, 128, [*arrays, np.int32(n)]),
    ]
    return Case(DEVICE, arrays, launches, {"out": 100 + x.cumsum(dtype=np.int32) - x})


def device_sort(n: int) -> Case:
    """Two sweeps of six bits, the second from the first's output."""
    keys, values = integers(n, 0, 4096).astype(np.uint32), np.arange(n, dtype=np.int32)
    tiles = blocks(n, 512)
    arrays: Arrays = {"keys": keys, "values": values, "a": keys * 0, "b": keys * 0, "bins": np.zeros(128, np.uint32)}
    arrays |= {"va": values * 0, "vb": values * 0, "ends": np.zeros(64, np.uint32), "tickets": np.zeros(2, np.int32)}
    arrays |= {"first": np.zeros(tiles * 64, np.int32), "second": np.zeros(tiles * 64, np.int32)}
    size = np.int32(n)
    launches = [
        Launch("sort_counts", 3, 128, ["bins", "keys", size]),
        Launch("sort_offsets", 2, 64, ["bins"]),
        Launch("sort_sweep", tiles, 128, [
            "first", "tickets", "ends", "bins", "a", "keys", "va", "values", size, np.int32(0)
        ]),
        Launch("sort_sweep", tiles, 128, [
            "second", At("tickets", 4), "ends", At("bins", 256), "b", "a", "vb", "va", size, np.int32(6)
        ]),
    ]  # fmt: skip
    order = np.argsort(keys, kind="stable")
    return Case(DEVICE, arrays, launches, {"b": keys[order], "vb": values[order]})


CASES: Cases = {
    **{f"block_scan_{n}": partial(block_scan, n) for n in (1, 1000)},
    "block_scan_warps": block_scan_warps,
    "block_sort": partial(block_sort, 900),
    "block_sort_down": block_sort_down,
    "block_merge_sort": partial(block_merge_sort, 411),
    **{f"block_reduce_{n}": partial(block_reduce, n) for n in (1, 777)},
    "block_histogram": block_histogram,
    "warps": warps,
    "exchange": exchange,
    **{f"device_reduce_{n}": partial(device_reduce, n, 3) for n in (10, 9999)},
    **{f"device_scan_{n}": partial(device_scan, n) for n in (1, 9999)},
    "device_sort": partial(device_sort, 3333),
}

"""Triton's kernels: masked accesses, rows over several warps; two scratch addresses come last, and they leave them."""

from __future__ import annotations

import json
import math
from functools import partial
from typing import Any

import numpy as np

from softgpu.tests.compiler.corpus.case import EXACT, HERE, Arrays, Case, Cases, Close, Exact, Extent, Launch, blocks

KERNELS = json.loads((HERE / "triton" / "kernels.json").read_text())["kernels"]
NOTHING = np.uint64(0)
APPROXIMATE = "powers are ex2.approx of a product that was rounded, division is div.full, sums have another order"
erf = np.vectorize(math.erf, otypes=[np.float64])


def case(
    symbol: str, grid: Extent, arrays: Arrays, args: list[Any], expected: Arrays, tolerance: Exact | Close = EXACT
) -> Case:
    about = KERNELS[symbol]
    launch = Launch(symbol, grid, about["threads"], [*args, NOTHING, NOTHING], about["shared_bytes"])
    return Case(f"triton/{symbol}.ptx", arrays, [launch], expected, tolerance)


def sizes(*values: int) -> list[np.int32]:
    return [np.int32(value) for value in values]


def softmax(rows: int, columns: int) -> Case:
    """From rows that lie further apart than they are long."""
    stride = columns + 3
    x = (np.random.RandomState(rows).standard_normal((rows, stride)) * 4).astype(np.float32)
    power = np.exp(x[:, :columns].astype(np.float64) - x[:, :columns].max(1, keepdims=True))
    out = (power / power.sum(1, keepdims=True)).astype(np.float32)
    args = ["x", "out", *sizes(stride, columns)]
    return case("softmax", rows, {"x": x, "out": out * 0}, args, {"out": out}, Close(APPROXIMATE, rtol=6e-6))


def layer_norm(rows: int, columns: int) -> Case:
    random = np.random.RandomState(columns)
    x = random.standard_normal((rows, columns)).astype(np.float16)
    weight, bias = (random.standard_normal(columns).astype(np.float32) for _ in "wb")
    wide = x.astype(np.float64)
    mean, scale = wide.mean(1), 1 / np.sqrt(wide.var(1) + 1e-5)
    out = ((wide - mean[:, None]) * scale[:, None] * weight + bias).astype(np.float16)
    arrays: Arrays = {"x": x, "out": out * 0, "weight": weight, "bias": bias}
    arrays |= {"mean": np.zeros(rows, np.float32), "scale": np.zeros(rows, np.float32)}
    expected = {"out": out, "mean": mean.astype(np.float32), "scale": scale.astype(np.float32)}
    args = [*arrays, np.int32(columns), np.float32(1e-5)]
    return case("layer_norm", rows, arrays, args, expected, Close("results are halves", rtol=1e-3, atol=1e-4))


def matmul(m: int, n: int, k: int) -> Case:
    random, tile = np.random.RandomState(m), KERNELS["matmul"]["constants"]
    a, b = random.standard_normal((m, k)).astype(np.float32), random.standard_normal((k, n)).astype(np.float32)
    c = (a.astype(np.float64) @ b).astype(np.float32)
    grid = blocks(m, tile["M"]) * blocks(n, tile["N"])
    arrays: Arrays = {"a": a, "b": b, "c": c * 0}
    return case(
        "matmul", grid, arrays, [*arrays, *sizes(m, n, k)], {"c": c}, Close("another order of the sum", atol=1e-6)
    )


def philox(seed: int, counter: Any) -> Any:
    """The first word of four, from ten rounds, for 32-bit counters."""
    low = np.uint64(0xFFFFFFFF)
    x = counter.astype(np.uint64)
    y, z, w = x * 0, x * 0, x * 0
    keys = [seed, 0]
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * x, np.uint64(0xCD9E8D57) * z
        x, y, z, w = b >> 32 ^ y ^ np.uint64(keys[0]), b & low, a >> 32 ^ w ^ np.uint64(keys[1]), a & low
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return x.astype(np.uint32).view(np.int32)


def gelu(n: int, seed: int) -> Case:
    """Triton's random numbers are those of Philox, the sign folded away."""
    random = np.random.RandomState(n)
    x, y = (random.uniform(-4, 4, n).astype(np.float32) for _ in "xy")
    v, w = x.astype(np.float64), y.astype(np.float64)
    exact = 0.5 * v * (1 + erf(v * 0.7071067811865476))
    near = v / (1 + np.exp(-2 * 0.7978845608028654 * (v + 0.044715 * v**3)))
    word = philox(seed, np.arange(n)).astype(np.int64)
    keep = np.where(word < 0, -word - 1, word) * 4.6566127342e-10 > 0.25
    out = np.where(keep, exact + np.exp2(w) - np.log(near**2 + 1), 0) + np.cos(w)
    arrays: Arrays = {"x": x, "y": y, "out": x * 0}
    args = [*arrays, *sizes(seed, n)]
    grid = blocks(n, KERNELS["gelu"]["constants"]["BLOCK"])
    return case("gelu", grid, arrays, args, {"out": out.astype(np.float32)}, Close(APPROXIMATE, atol=2e-6))


def reductions(rows: int, columns: int) -> Case:
    x = np.random.RandomState(rows).randint(-500, 500, (rows, columns)).astype(np.int32)
    arrays: Arrays = {"x": x, "sums": np.zeros(columns, np.int32), "most": np.zeros(rows, np.int32)}
    arrays |= {"place": np.zeros(rows, np.int32), "total": np.full(1, -1000, np.int32)}
    expected = {"sums": x.sum(0, dtype=np.int32), "most": x.max(1), "place": x.argmin(1).astype(np.int32)}
    grid = blocks(rows, KERNELS["reductions"]["constants"]["R"])
    return case(
        "reductions", grid, arrays, [*arrays, *sizes(rows, columns)], expected | {"total": x.max(keepdims=True)[0]}
    )


def scan_and_sort(n: int) -> Case:
    x = np.random.RandomState(n).randint(-1000, 1000, (2, n)).astype(np.int32)
    width = KERNELS["scan_and_sort"]["constants"]["BLOCK"]
    padded = np.pad(x, ((0, 0), (0, width - n)), constant_values=2**31 - 1)
    arrays: Arrays = {"x": x, "out": padded * 0, "sums": x * 0}
    expected = {"out": np.sort(padded, 1), "sums": x.cumsum(1, dtype=np.int32)}
    return case("scan_and_sort", 2, arrays, [*arrays, np.int32(n)], expected)


def histogram(n: int) -> Case:
    """Lanes beyond the end compare and swap at zero."""
    x = np.random.RandomState(n).binomial(30, 0.5, n).astype(np.int32)
    bins, swaps, width = np.bincount(x, minlength=64).astype(np.int32), np.zeros(128, np.int32), np.arange(64)
    swaps[:64] = np.where(bins > 0, width + 5, 0)
    swaps[0] = 5
    swaps[64:] = np.where(bins > 0, 2 * width, 0)
    arrays: Arrays = {"x": x, "bins": bins * 0, "swaps": swaps * 0}
    return case("histogram", blocks(n, 128), arrays, [*arrays, np.int32(n)], {"bins": bins, "swaps": swaps})


def mixed(n: int) -> Case:
    random = np.random.RandomState(n)
    x, y = (random.uniform(-8, 8, n).astype(np.float16) for _ in "xy")
    total = (x.astype(np.float32) + y.astype(np.float32)).view(np.uint32)
    brain = (total + 0x7FFF + (total >> 16 & 1) >> 16).astype(np.uint16)
    expected = {"half": x * y, "brain": brain, "whole": (x.astype(np.float32) * 10).astype(np.int8)}
    arrays: Arrays = {"x": x, "y": y} | {name: value * 0 - 1 for name, value in expected.items()}
    grid = blocks(n, KERNELS["mixed"]["constants"]["BLOCK"])
    return case("mixed", grid, arrays, [*arrays, np.int32(n)], expected)


def attention(n: int) -> Case:
    """With a running maximum, a tile of keys at a time."""
    random = np.random.RandomState(n)
    about = KERNELS["attention"]["constants"]
    q, k, v = (random.standard_normal((n, about["D"])).astype(np.float32) for _ in "qkv")
    score = q.astype(np.float64) @ k.T * 0.3
    power = np.exp(score - score.max(1, keepdims=True))
    out = (power / power.sum(1, keepdims=True) @ v).astype(np.float32)
    arrays: Arrays = {"q": q, "k": k, "v": v, "out": out * 0}
    args = [*arrays, np.int32(n), np.float32(0.3)]
    return case("attention", blocks(n, about["M"]), arrays, args, {"out": out}, Close(APPROXIMATE, atol=3e-6))


def doubles(n: int) -> Case:
    x = np.random.RandomState(n).uniform(-9, 9, n)
    out = np.sqrt(np.exp(x)) + np.log(x * x + 1) + np.floor(x)
    arrays: Arrays = {"x": x, "out": out * 0}
    return case(
        "doubles", blocks(n, 128), arrays, [*arrays, np.int32(n)], {"out": out}, Close("library functions", atol=1e-14)
    )


def layouts(rows: int) -> Case:
    """Moves of values between the threads of a row."""
    width = KERNELS["layouts"]["constants"]["BLOCK"]
    x, at = np.random.RandomState(rows).randint(0, 900, (rows, width)).astype(np.int32), np.arange(width)
    least = np.array([x[:, at % 7 == k].min() for k in range(7)], np.int32)
    bins = np.stack([np.bincount(row % 16, minlength=16) for row in x]).astype(np.int32)
    expected = {
        "roots": np.ceil(np.sqrt(x.ravel()[:rows])).astype(np.int32), "least": least,
        "turned": x.reshape(-1, 4)[:, ::-1], "gathered": x[:, at * 7 % width],
        "joined": np.stack([x, np.broadcast_to(at, x.shape)], 2).astype(np.int32), "bins": bins,
        "largest": np.sort(x, 1)[:, :-5:-1],
    }  # fmt: skip
    arrays: Arrays = {"x": x} | {name: np.full(value.shape, 9999, np.int32) for name, value in expected.items()}
    return case("layouts", rows, arrays, list(arrays), expected)


CASES: Cases = {
    **{f"softmax_{columns}": partial(softmax, 5, columns) for columns in (1, 77, 256)},
    **{f"layer_norm_{columns}": partial(layer_norm, 3, columns) for columns in (64, 300)},
    **{f"matmul_{m}x{n}x{k}": partial(matmul, m, n, k) for m, n, k in ((1, 1, 1), (32, 64, 16), (45, 33, 50))},
    **{f"attention_{n}": partial(attention, n) for n in (1, 41)},
    "doubles": partial(doubles, 300),
    "layouts": partial(layouts, 5),
    "gelu": partial(gelu, 999, 42),
    **{f"reductions_{r}x{c}": partial(reductions, r, c) for r, c in ((1, 1), (37, 50))},
    **{f"scan_and_sort_{n}": partial(scan_and_sort, n) for n in (1, 100, 128)},
    "histogram": partial(histogram, 300),
    "mixed": partial(mixed, 1001),
}

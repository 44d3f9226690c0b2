"""Prefix sums."""

from __future__ import annotations

from functools import partial

import numpy as np

from softgpu.tests.compiler.corpus.case import Arrays, Case, Cases, Launch, blocks

IMAGE = "cuda/scans.ptx"


def numbers(n: int) -> np.ndarray:
    return np.random.RandomState(n).randint(-1000, 1000, n).astype(np.int32)


def in_blocks(x: np.ndarray, size: int, *, inclusive: bool = True) -> np.ndarray:
    padded = np.pad(x, (0, -len(x) % size)).reshape(-1, size)
    sums = padded.cumsum(1, dtype=x.dtype) - (0 if inclusive else padded)
    return sums.reshape(-1)[: len(x)].astype(x.dtype)


def of_block(symbol: str, n: int, block: int) -> Case:
    """A scan of each block by itself."""
    x, per_thread = numbers(n), 2 if symbol == "blelloch" else 1
    expected = in_blocks(x, per_thread * block, inclusive=symbol != "blelloch")
    args = ["x", "out", np.int32(n)]
    shared = 0 if symbol == "warp_shuffles" else 8 * block
    launch = Launch(symbol, blocks(n, per_thread * block), block, args, shared)
    return Case(IMAGE, {"x": x, "out": np.full_like(x, -7)}, [launch], {"out": expected})


def look_back(n: int, block: int) -> Case:
    """Blocks wait for the blocks before them, in one launch."""
    x, count = numbers(n), blocks(n, block)
    arrays: Arrays = {
        "x": x,
        "out": np.zeros_like(x),
        "ticket": np.zeros(1, np.uint32),
        "told": np.zeros(count, np.uint64),
    }
    launch = Launch("look_back", count, block, ["x", "out", np.int32(n), "ticket", "told"])
    sums = x.cumsum(dtype=np.int32)
    words = np.uint64(2 << 32) | sums[np.minimum(np.arange(1, count + 1) * block, n) - 1].view(np.uint32)
    return Case(IMAGE, arrays, [launch], {"out": sums, "told": words, "ticket": np.array([count], np.uint32)})


def segmented(n: int) -> Case:
    """Within a warp, with sums of whole numbers, which floats hold exactly."""
    random = np.random.RandomState(3)
    x, head = random.randint(0, 50, n).astype(np.float32), (random.rand(n) < 0.2).astype(np.uint8)
    expected, total = np.zeros_like(x), 0.0
    for i in range(n):
        total = x[i] if head[i] or i % 32 == 0 else total + x[i]
        expected[i] = total
    launch = Launch("segmented", blocks(n, 64), 64, ["x", "head", "out", np.int32(n)])
    return Case(IMAGE, {"x": x, "head": head, "out": np.zeros_like(x)}, [launch], {"out": expected})


CASES: Cases = {
    **{f"hillis_steele_{n}": partial(of_block, "hillis_steele", n, 128) for n in (1, 128, 1000)},
    **{f"blelloch_{n}": partial(of_block, "blelloch", n, 64) for n in (1, 256, 1001)},
    **{f"warp_shuffles_{n}": partial(of_block, "warp_shuffles", n, 256) for n in (31, 5000)},
    "look_back": partial(look_back, 9999, 128),
    "segmented": partial(segmented, 333),
}

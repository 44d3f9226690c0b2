"""Cooperative groups."""

from __future__ import annotations

from functools import partial

import numpy as np

from softgpu.tests.compiler.corpus.case import Array, Arrays, Case, Cases, Launch, blocks

IMAGE = "cuda/groups.ptx"
WARP = 32


def numbers(n: int) -> Array:
    return np.random.RandomState(n).randint(0, 100, n).astype(np.int32)


def tiles(grid: int) -> Case:
    """Blocks with tiles of 4, 8, 16 and 32 in turn."""
    x = numbers(grid * 64)
    out = np.zeros((4, grid, 64), np.int32)
    for block, own in enumerate(x.reshape(grid, 64)):
        size = (4, 8, 16, 32)[block % 4]
        v, rank = own.reshape(-1, size), np.arange(size)
        sums, number = v.cumsum(1), np.arange(64 // size)[:, None]
        odd = ((v & 1).astype(np.int64) << rank).sum(1, keepdims=True)
        out[0, block] = np.repeat(sums[:, -1], size)
        out[1, block] = (2 * sums + sums - v + np.maximum.accumulate(v, 1)).ravel()
        next_one = v[:, np.minimum(rank + 1, size - 1)]
        out[2, block] = (v[:, rank ^ size // 2] + v[:, -1:] - next_one).ravel()
        votes = odd + 64 * number + rank + (v > 90).any(1, keepdims=True)
        out[3, block] = votes.astype(np.uint32).view(np.int32).ravel()
    launch = Launch("tiles", grid, 64, ["x", "out", np.int32(len(x))])
    return Case(IMAGE, {"x": x, "out": out * 0}, [launch], {"out": out})


def coalesced(n: int) -> Case:
    """Those above 50 count themselves; odd ones below are grouped by their remainder."""
    x = numbers(n)
    rank, sums = np.full(n, -7, np.int32), np.full(n, -7, np.int32)
    for start in range(0, n, WARP):
        own = x[start : start + WARP]
        for label in range(4):
            inside = (own > 50) if label == 3 else (own <= 50) & (own & 1 == 1) & (own % 3 == label)
            at = start + np.flatnonzero(inside)
            if len(at):
                rank[at] = np.arange(len(at)) + (0 if label == 3 else 100)
                sums[at] = x[at].sum() if label == 3 else x[at].min()
    arrays: Arrays = {"x": x, "total": np.zeros(1, np.int32), "rank": np.full_like(x, -7), "sums": np.full_like(x, -7)}
    expected = {"total": (x > 50).sum(keepdims=True, dtype=np.int32), "rank": rank, "sums": sums}
    return Case(IMAGE, arrays, [Launch("coalesced", blocks(n, 96), 96, [*arrays, np.int32(n)])], expected)


def halves(n: int) -> Case:
    x, out = numbers(n), np.zeros(n, np.int32)
    x[:WARP] = 1  # a half that is empty
    for start in range(0, n, WARP):
        own = x[start : start + WARP]
        for half in (own % 5 < 2, own % 5 >= 2):
            out[start : start + WARP][half] = np.bitwise_xor.reduce(own[half]) * 32 + half.sum()
    return Case(IMAGE, {"x": x, "out": out * 0}, [Launch("halves", n // 64, 64, ["x", "out"])], {"out": out})


CASES: Cases = {"tiles": partial(tiles, 8), "coalesced": partial(coalesced, 500), "halves": partial(halves, 256)}

"""Warp primitives."""

from __future__ import annotations

from functools import partial

import numpy as np

from softgpu.tests.compiler.corpus.case import Array, Arrays, Case, Cases, Launch, blocks

IMAGE = "cuda/warps.ptx"
MASKS = (0xFFFFFFFF, 1, 0x80000000, 0x55555555, 0x0FF00FF0, 0x7FFFFFFE, 0x12345678)
LANES = np.arange(32)


def shuffles() -> Case:
    """Every kind, width, distance and mask. Where the source is not in the mask the kernel says so itself."""
    expected = np.full((4, 6, 32, len(MASKS), 32), 0xDEAD, np.uint32)
    for how, log, by in np.ndindex(4, 6, 32):
        width, segment = 1 << log, LANES & -(1 << log)
        lane = (segment + by % width, LANES - by, LANES + by, LANES ^ by)[how]
        reached = (lane >= segment if how == 1 else lane < segment + width) | (how == 0)
        lane = np.where(reached, lane, LANES)
        for number, mask in enumerate(MASKS):
            inside = (mask >> LANES & 1) & (mask >> lane & 1)
            expected[how, log, by, number] = np.where(inside, 1000 + 7 * lane + by, 0xDEAD)
    arrays: Arrays = {"masks": np.array(MASKS, np.uint32), "out": np.zeros_like(expected)}
    return Case(
        IMAGE, arrays, [Launch("shuffles", (4, 6), 32, ["masks", np.int32(len(MASKS)), "out"])], {"out": expected}
    )


def shuffle_tables() -> Case:
    random = np.random.RandomState(1)
    source, x = random.randint(0, 32, 192).astype(np.int32), random.randint(-(2**62), 2**62, 192)
    arrays: Arrays = {"from": source, "x": x, "out": np.zeros_like(x), "reals": np.zeros(192)}
    rows, table = x.reshape(-1, 32), source.reshape(-1, 32)
    by_eight = np.take_along_axis(rows, (LANES & -8) + table % 8, 1).astype(np.float64)
    expected = {"out": np.take_along_axis(rows, table, 1), "reals": by_eight}
    return Case(IMAGE, arrays, [Launch("shuffle_tables", 2, 96, ["from", "x", "out", "reals"])], expected)


def ballot(flags: Array) -> int:
    """flags: one for each lane."""
    return int((flags.astype(np.int64) << LANES).sum())


def votes(n: int) -> Case:
    x = np.random.RandomState(n).randint(0, 100, n).astype(np.int32)
    x[:32] = 3  # one branch only
    out = np.zeros((3, n), np.uint32)
    for t in range(n):
        w, v = x[t & ~31 : (t & ~31) + 32], int(x[t])
        group = w % 3 == v % 3
        out[0, t] = ballot(group)
        if v % 3 == 0:
            out[1, t] = ballot(group & (w & 1 == 1)) ^ (0x80000000 if (w[group] > 90).any() else 0)
        elif v % 3 == 1:
            out[1, t] = (group & (w & 2 == 2)).sum() + 100 * (w[group] < 95).all()
        else:
            same = len(set((w[group] // 60).tolist())) == 1
            out[1, t] = ballot(group & (w // 30 == v // 30)) ^ (ballot(group) if same else 0) ^ (32 if same else 0)
        out[2, t] = ballot(w & 3 == v & 3)
    launch = Launch("votes", n // 64, 64, ["x", "out", np.int32(n)])
    return Case(IMAGE, {"x": x, "out": np.zeros_like(out)}, [launch], {"out": out})


def reductions(n: int) -> Case:
    x = np.random.RandomState(n).randint(-(2**31), 2**31 - 1, n, np.int64).astype(np.int32)
    x[32:64] |= 1  # no lane takes the other branch
    out = np.zeros((5, n), np.int32)
    for t in range(n):
        w = x[t & ~31 : (t & ~31) + 32]
        s = w[w & 1 == x[t] & 1]
        u = s.view(np.uint32)
        added, either, both, odd = s.sum(dtype=np.int32), np.bitwise_or, np.bitwise_and, np.bitwise_xor
        if x[t] & 1:
            out[:, t] = [added, s.min(), s.max(), np.array(u.min()).view(np.int32), either.reduce(s)]
        else:
            out[:, t] = [added, np.array(u.max()).view(np.int32), both.reduce(s), odd.reduce(s), s.min()]
    launch = Launch("reductions", n // 128, 128, ["x", "out", np.int32(n)])
    return Case(IMAGE, {"x": x, "out": np.zeros_like(out)}, [launch], {"out": out})


def leavers() -> Case:
    rounds = np.random.RandomState(2).randint(0, 9, 32).astype(np.int32)
    expected = np.zeros(32, np.int32)
    for k in range(9):
        alive = rounds > k
        expected[alive] += alive.sum() + (np.flatnonzero(alive)[0] if alive.any() else 0)
    arrays: Arrays = {"rounds": rounds, "out": np.zeros(32, np.int32)}
    return Case(IMAGE, arrays, [Launch("leavers", 1, 32, ["rounds", "out"])], {"out": expected})


def aggregated(n: int, block: int) -> Case:
    """Within a group of equal keys every number below its size is given once."""
    key = np.random.RandomState(n).binomial(7, 0.4, n).astype(np.uint8)
    counts = np.bincount(key, minlength=8).astype(np.uint32)
    seen = (np.arange(n) < counts[:, None]).astype(np.uint32)
    arrays: Arrays = {"key": key, "counter": np.zeros(8, np.uint32), "seen": np.zeros((8, n), np.uint32)}
    launch = Launch("aggregated", blocks(n, block), block, ["key", "counter", "seen", np.int32(n)])
    return Case(IMAGE, arrays, [launch], {"counter": counts, "seen": seen})


CASES: Cases = {
    "shuffles": shuffles,
    "shuffle_tables": shuffle_tables,
    "votes": partial(votes, 256),
    "reductions": partial(reductions, 256),
    "leavers": leavers,
    "aggregated_1": partial(aggregated, 1, 64),
    "aggregated_777": partial(aggregated, 777, 64),
}

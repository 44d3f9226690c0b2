"""Sorting, merging and compaction."""

from __future__ import annotations

from functools import partial

import numpy as np

from softgpu.tests.compiler.corpus.case import Arrays, Case, Cases, Launch, blocks

IMAGE = "cuda/sorting.ptx"


def radix_sort(n: int, bits: int, block: int) -> Case:
    """Pairs, stable, by the low bits of their keys; four bits a pass, the passes go there and back."""
    random = np.random.RandomState(n)
    keys, values = random.randint(0, 1 << bits, n, np.int64).astype(np.uint32), np.arange(n, dtype=np.float32)
    grid, size = blocks(n, block), np.int32(n)
    launches: list[Launch] = []
    source, target = "ab"
    for shift in range(0, bits, 4):
        by = np.int32(shift)
        launches += [
            Launch("digit_counts", grid, block, [f"{source}_keys", "counts", size, by]),
            Launch("offsets", 1, 256, ["counts", np.int32(16 * grid)]),
            Launch("scatter", grid, block, [
                f"{source}_keys", f"{source}_values", f"{target}_keys", f"{target}_values", "counts", size, by
            ]),
        ]  # fmt: skip
        source, target = target, source
    arrays: Arrays = {"a_keys": keys, "a_values": values, "counts": np.zeros(16 * grid, np.uint32)}
    arrays |= {"b_keys": np.zeros_like(keys), "b_values": np.zeros_like(values)}
    order = np.argsort(keys, kind="stable")
    return Case(IMAGE, arrays, launches, {f"{source}_keys": keys[order], f"{source}_values": values[order]})


def bitonic(n: int, count: int, block: int) -> Case:
    x = np.random.RandomState(n).standard_normal((count, n)).astype(np.float32)
    return Case(IMAGE, {"x": x}, [Launch("bitonic", count, block, ["x", np.int32(n)], 4 * n)], {"x": np.sort(x, 1)})


def bitonic_steps(n: int) -> Case:
    x = np.random.RandomState(n).randint(-(2**63), 2**63 - 1, n, np.int64)
    steps = [(1 << s, 2 << size) for size in range(n.bit_length() - 1) for s in range(size, -1, -1)]
    launches = [Launch("bitonic_step", n // 64, 64, ["x", np.int32(step), np.int32(size)]) for step, size in steps]
    return Case(IMAGE, {"x": x}, launches, {"x": np.sort(x)})


def odd_even(n: int) -> Case:
    x = np.random.RandomState(n).randint(0, 100, n).astype(np.int32)
    sorted_, rounds = x.copy(), 0
    while True:
        rounds += 1
        before = sorted_.copy()
        for odd in (0, 1):
            pairs = sorted_[odd : odd + (n - odd) // 2 * 2].reshape(-1, 2)
            pairs.sort(1)
        if (sorted_ == before).all():
            break
    arrays: Arrays = {"x": x, "rounds": np.zeros(1, np.int32)}
    launch = Launch("odd_even", 1, 128, ["x", np.int32(n), "rounds"])
    return Case(IMAGE, arrays, [launch], {"x": np.sort(x), "rounds": np.array([rounds], np.int32)})


def merge(na: int, nb: int) -> Case:
    random = np.random.RandomState(na)
    a, b = (np.sort(random.randint(0, 500, n)).astype(np.int32) for n in (na, nb))
    arrays: Arrays = {"a": a, "b": b, "out": np.zeros(na + nb, np.int32)}
    launch = Launch("merge", blocks(na + nb, 8 * 32), 32, ["a", np.int32(na), "b", np.int32(nb), "out"])
    return Case(IMAGE, arrays, [launch], {"out": np.sort(np.concatenate([a, b]))})


def compact(n: int, block: int) -> Case:
    x, grid = np.random.RandomState(n).rand(n).astype(np.float32), blocks(n, block)
    out, counts = np.zeros(grid * block, np.float32), np.zeros(grid, np.int32)
    for k in range(grid):
        part = x[k * block : (k + 1) * block]
        kept = part[(part > 0.25) & (part < 0.75)]
        out[k * block : k * block + len(kept)] = kept
        counts[k] = len(kept) if len(part) == block else -len(kept)
    arrays: Arrays = {"x": x, "out": np.zeros_like(out), "counts": np.zeros_like(counts)}
    launch = Launch("compact", grid, block, ["x", "out", "counts", np.int32(n)])
    return Case(IMAGE, arrays, [launch], {"out": out, "counts": counts})


CASES: Cases = {
    "radix_sort_1": partial(radix_sort, 1, 4, 256),
    "radix_sort_32_bits": partial(radix_sort, 3001, 32, 256),
    "radix_sort_equal_keys": partial(radix_sort, 5000, 4, 256),
    "bitonic": partial(bitonic, 256, 3, 64),
    "bitonic_steps": partial(bitonic_steps, 512),
    "odd_even": partial(odd_even, 201),
    "merge": partial(merge, 333, 1000),
    "merge_with_nothing": partial(merge, 0, 9),
    "compact": partial(compact, 777, 128),
}

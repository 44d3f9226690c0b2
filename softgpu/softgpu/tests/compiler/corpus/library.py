"""Thrust's sequential algorithms and libcu++'s containers, in threads."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from softgpu.tests.compiler.corpus.case import Arrays, Case, Cases, Close, Launch, blocks

IMAGE = "cuda/library.ptx"


def algorithms(rows: int, length: int) -> Case:
    x = np.sort(np.random.RandomState(rows).randint(0, 25, (rows, length)), 1).astype(np.int32)
    keys, found = np.full_like(x, -7), np.zeros((rows, 3), np.int32)
    for row, values in enumerate(x):
        different = np.unique(values)
        keys[row, : len(different)] = different
        found[row] = len(different), (values < 10).sum(), np.bitwise_xor.reduce(values)
    merged = np.sort(np.concatenate([x, np.roll(x, -1, 0)], 1), 1)
    arrays: Arrays = {"x": x, "keys": np.full_like(x, -7), "sums": x * 0, "found": found * 0, "merged": merged * 0}
    launch = Launch("algorithms", blocks(rows, 64), 64, [*arrays, np.int32(rows), np.int32(length)])
    expected = {"keys": keys, "sums": x.cumsum(1, dtype=np.int32), "found": found, "merged": merged}
    return Case(IMAGE, arrays, [launch], expected)


def selections(rows: int, length: int) -> Case:
    x = np.random.RandomState(rows).standard_normal((rows, length))
    out, counts = np.full_like(x, -7), np.zeros((rows, 2), np.int32)
    for row, values in enumerate(x):
        kept = values[values > 0]
        out[row, : len(kept)] = kept / 2
        counts[row] = len(kept), values.argmax()
    arrays: Arrays = {"x": x, "out": np.full_like(x, -7), "counts": counts * 0 - 1}
    launch = Launch("selections", blocks(rows, 32), 32, [*arrays, np.int32(rows), np.int32(length)])
    return Case(IMAGE, arrays, [launch], {"out": out, "counts": counts})


def containers(n: int) -> Case:
    random = np.random.RandomState(n)
    z = (random.uniform(-2, 2, n) + 1j * random.uniform(-2, 2, n)).astype(np.complex64)
    x = random.randint(0, 50, n).astype(np.int32)
    w = z.astype(np.complex128) ** 2 + z.conj() / (2 + 1j)
    out = (w.real + np.array([1, 3, 5])[x % 3] + 1j * w.imag * np.array([2, 4, 6])[x % 3]).astype(np.complex64)
    roots = np.array([math.isqrt(int(v)) if math.isqrt(int(v)) ** 2 == v else -1 for v in x], np.int32)
    arrays: Arrays = {"z": z, "x": x, "out": out * 0, "roots": roots * 0}
    launch = Launch("containers", blocks(n, 64), 64, [*arrays, np.int32(n)])
    tolerance = Close("products are fused into sums", atol=1e-6)
    return Case(IMAGE, arrays, [launch], {"out": out, "roots": roots}, tolerance)


CASES: Cases = {
    **{f"algorithms_{length}": partial(algorithms, 70, length) for length in (1, 40)},
    "selections": partial(selections, 33, 30),
    "containers": partial(containers, 200),
}

"""Algorithms of scientific programs, on small problems."""

from __future__ import annotations

from collections import deque
from functools import partial

import numpy as np

from softgpu.tests.compiler.corpus.case import Array, Arrays, Case, Cases, Close, Launch, blocks

IMAGE = "cuda/science.ptx"


def bodies(n: int) -> Case:
    at = np.random.RandomState(n).standard_normal((n, 4)).astype(np.float32)
    at[:, 3] = np.abs(at[:, 3])
    wide = at.astype(np.float64)
    between = wide[None, :, :3] - wide[:, None, :3]
    strength = wide[None, :, 3] * ((between**2).sum(2) + float(np.float32(0.01))) ** -1.5
    force = np.concatenate([(between * strength[..., None]).sum(1), wide[:, 3:]], 1).astype(np.float32)
    launch = Launch("bodies", blocks(n, 64), 64, ["at", "force", np.int32(n), np.float32(0.01)])
    why = "sums in single precision, and rsqrt.approx is good to two units in the last place"
    return Case(IMAGE, {"at": at, "force": np.zeros_like(at)}, [launch], {"force": force}, Close(why, atol=2e-6))


def spmv(rows: int, columns: int) -> Case:
    """Rows of all lengths, empty ones too."""
    random = np.random.RandomState(rows)
    dense = random.standard_normal((rows, columns)) * (random.rand(rows, columns) < random.rand(rows, 1) ** 3)
    row, column = np.nonzero(dense)
    start = np.searchsorted(row, np.arange(rows + 1)).astype(np.int32)
    x = random.standard_normal(columns)
    arrays: Arrays = {
        "start": start,
        "column": column.astype(np.int32),
        "value": dense[row, column],
        "x": x,
        "y": np.ones(rows),
    }
    launch = Launch("spmv", blocks(32 * rows, 96), 96, [*arrays, np.int32(rows)])
    return Case(IMAGE, arrays, [launch], {"y": dense @ x}, Close("another order of the sum", atol=1e-14))


def bfs(nodes: int, edges: int) -> Case:
    """As many levels as are surely enough; later ones find an empty frontier."""
    random = np.random.RandomState(nodes)
    pairs = np.unique(random.randint(0, nodes, (edges, 2)), axis=0)
    start = np.searchsorted(pairs[:, 0], np.arange(nodes + 1)).astype(np.int32)
    target = pairs[:, 1].astype(np.int32)
    depth, todo = np.full(nodes, -1, np.int32), deque([0])
    depth[0] = 0
    while todo:
        node = todo.popleft()
        for other in target[start[node] : start[node + 1]]:
            if depth[other] < 0:
                depth[other] = depth[node] + 1
                todo.append(other)
    levels = int(depth.max()) + 2
    arrays: Arrays = {"start": start, "target": target, "depth": np.full(nodes, -1, np.int32)}
    arrays["depth"][0] = 0
    for level in range(levels + 1):
        arrays |= {f"frontier{level}": np.zeros(nodes, np.int32), f"size{level}": np.array([level == 0], np.int32)}
    launches = [
        Launch("bfs_level", blocks(nodes, 64), 64, [
            "start", "target", "depth", f"frontier{k}", f"size{k}", f"frontier{k + 1}", f"size{k + 1}", np.int32(k + 1)
        ]) for k in range(levels)
    ]  # fmt: skip
    sizes = {f"size{k}": np.array([(depth == k).sum()], np.int32) for k in range(levels + 1)}
    return Case(IMAGE, arrays, launches, {"depth": depth} | sizes)


def kmeans(n: int, k: int) -> Case:
    """Whole numbers below 100: distances are exact."""
    random = np.random.RandomState(n)
    x, centre = (random.randint(0, 100, (size, 2)).astype(np.float32) for size in (n, k))
    nearest = ((x[:, None] - centre[None]) ** 2).sum(2).argmin(1).astype(np.int32)
    count = np.bincount(nearest, minlength=k).astype(np.int32)
    sums = np.stack([np.bincount(nearest, x[:, axis], k) for axis in (0, 1)], 1).astype(np.int32)
    arrays: Arrays = {"x": x, "centre": centre, "nearest": np.full(n, -1, np.int32), "count": np.zeros_like(count)}
    arrays["sums"] = np.zeros_like(sums)
    launch = Launch("kmeans", blocks(n, 64), 64, [*arrays, np.int32(n), np.int32(k)])
    return Case(IMAGE, arrays, [launch], {"nearest": nearest, "count": count, "sums": sums})


def fft(log: int, count: int) -> Case:
    """Forth, then back: the second launch reads what the first wrote."""
    n, random = 1 << log, np.random.RandomState(log)
    x = (random.standard_normal((count, n)) + 1j * random.standard_normal((count, n))).astype(np.complex64)
    launches = [
        Launch("fft", count, 64, [source, target, np.int32(log), np.float32(sign)], 8 * n)
        for source, target, sign in (("x", "there", -1), ("there", "back", 1))
    ]
    expected = {"there": np.fft.fft(x).astype(np.complex64), "back": x * np.complex64(n)}
    arrays: Arrays = {"x": x, "there": np.zeros_like(x), "back": np.zeros_like(x)}
    return Case(IMAGE, arrays, launches, expected, Close("sums in single precision", atol=3e-6))


def xorwow(threads: int, rounds: int) -> Case:
    state = np.random.RandomState(rounds).randint(0, 2**32, threads, np.int64).astype(np.uint32)
    words: list[Array] = [
        state,
        ~state,
        state * np.uint32(69069),
        state ^ np.uint32(0x5BD1E995),
        np.arange(1, threads + 1, dtype=np.uint32),
    ]
    d, hits = np.uint32(6615241), np.zeros(threads, np.uint32)
    for _ in range(rounds):
        radius = np.zeros(threads, np.float32)
        for _ in range(2):
            t, v = words[0] ^ words[0] >> 2, words[4]
            words = [*words[1:], v ^ v << 4 ^ t ^ t << 1]
            d += np.uint32(362437)
            point = (words[4] + d >> 16).astype(np.float32) / 65536
            radius += point * point
        hits += radius < 1
    arrays: Arrays = {"state": state, "inside": np.zeros(1, np.uint32), "last": np.zeros_like(hits)}
    launch = Launch("xorwow", threads // 64, 64, [*arrays, np.int32(rounds)])
    expected = {"state": words[4] + d, "inside": hits.sum(dtype=np.uint32, keepdims=True), "last": hits}
    return Case(IMAGE, arrays, [launch], expected)


def philox(n: int) -> Case:
    """The counter-based generator that NumPy and curand have too."""
    counter: list[Array] = [np.full(n, v, np.uint64) for v in (0, 0, 1 << 31, 7)]
    x, y, z, w = counter
    x += np.arange(n, dtype=np.uint64)
    key = [0x12345678, 0x9ABCDEF0]
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * x, np.uint64(0xCD9E8D57) * z
        x, y, z, w = b >> 32 ^ y ^ np.uint64(key[0]), b & low, a >> 32 ^ w ^ np.uint64(key[1]), a & low
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    expected = np.stack([x, y, z, w], 1).astype(np.uint32)
    by_value = np.array((0x9ABCDEF0 << 32) | 0x12345678, np.uint64)[()]
    launch = Launch("philox", blocks(n, 128), 128, ["out", by_value, np.int32(n)])
    return Case(IMAGE, {"out": np.zeros_like(expected)}, [launch], {"out": expected})


def factors(a: Array) -> Array:
    """L and U of a matrix in one."""
    m = a.copy()
    for k in range(len(m) - 1):
        m[k + 1 :, k] /= m[k, k]
        m[k + 1 :, k + 1 :] -= np.outer(m[k + 1 :, k], m[k, k + 1 :])
    return m


def lu(n: int, count: int) -> Case:
    a = np.random.RandomState(n).standard_normal((count, n, n)) + 8 * np.eye(n)
    expected = np.stack([factors(one) for one in a])
    launch = Launch("lu", count, (32, 4), ["a", np.int32(n)])
    return Case(IMAGE, {"a": a}, [launch], {"a": expected}, Close("products are fused into sums", atol=1e-14))


def cholesky(n: int, count: int) -> Case:
    x = np.random.RandomState(n).standard_normal((count, n, n))
    a = (x @ x.transpose(0, 2, 1) + n * np.eye(n)).astype(np.float32)
    expected = np.linalg.cholesky(a.astype(np.float64)).astype(np.float32)
    launch = Launch("cholesky", count, 64, ["x", "out", np.int32(n)], 4 * n * n)
    tolerance = Close("sums in single precision", atol=3e-6)
    return Case(IMAGE, {"x": a, "out": np.zeros_like(a)}, [launch], {"out": expected}, tolerance)


def find(n: int, word: bytes) -> Case:
    text = np.random.RandomState(n).choice(np.frombuffer(b"abcABC", np.uint8), n)
    lower, found = np.where(text < 97, text + 32, text), np.zeros(n, np.int32)
    for i in range(n - len(word) + 1):
        found[i] = all(w in (ord("?"), t) for w, t in zip(word, lower[i:].tolist(), strict=False))
    arrays: Arrays = {
        "text": text.astype(np.uint8),
        "word": np.frombuffer(word, np.uint8),
        "found": np.zeros_like(found),
    }
    arrays["count"] = np.zeros(1, np.int32)
    args = ["text", np.int32(n), "word", np.int32(len(word)), "found", "count"]
    expected = {"found": found, "count": found.sum(keepdims=True, dtype=np.int32)}
    return Case(IMAGE, arrays, [Launch("find", 3, 96, args)], expected)


def edit_distance(na: int, nb: int) -> Case:
    a, b = (np.random.RandomState(n).randint(97, 100, n).astype(np.uint8) for n in (na, nb))
    row = list(range(nb + 1))
    for i in range(1, na + 1):
        before, row[0] = row[:], i
        for j in range(1, nb + 1):
            row[j] = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + int(a[i - 1] != b[j - 1]))
    arrays: Arrays = {"a": a, "b": b, "out": np.full(1, -1, np.int32)}
    launch = Launch("edit_distance", 1, 128, ["a", "b", np.int32(na), np.int32(nb), "out"], 12 * (na + 1))
    return Case(IMAGE, arrays, [launch], {"out": np.array([row[nb]], np.int32)})


CASES: Cases = {
    **{f"bodies_{n}": partial(bodies, n) for n in (1, 150)},
    "spmv": partial(spmv, 50, 200),
    "bfs": partial(bfs, 200, 500),
    "kmeans": partial(kmeans, 500, 7),
    **{f"fft_{1 << log}": partial(fft, log, 2) for log in (1, 8)},
    "xorwow": partial(xorwow, 128, 50),
    "philox": partial(philox, 300),
    "lu": partial(lu, 29, 2),
    "cholesky": partial(cholesky, 27, 2),
    "find": partial(find, 999, b"a?cb"),
    "find_anything": partial(find, 3, b"???"),
    "edit_distance": partial(edit_distance, 100, 77),
}

"""N nearest neighbours in a graph (the KaaS paper, Algorithm 1 and Figure 4): a large constant, a small input, N steps.

    python examples/nearest_neighbours.py

A is the graph's adjacency matrix and X marks the vertices to start from, one search a column. Each step is
X ← A·(X − V), V ← V + X; V is the result. A is bound once and stays on the devices; X comes with each request.
"""

from __future__ import annotations

import math

import numpy as np
import ray
from numpy.typing import NDArray

import kaas
from kaas.kernels import library

Matrix = NDArray[np.float32]


def build(vertices: int, searches: int, iterations: int) -> kaas.KTask:
    """Return the kTask: inputs "A" and "X", output "V"."""
    kernels = library("nearest_neighbours")
    a = kaas.Buffer("A", (vertices, vertices), "float32")
    x = kaas.Buffer("X", (vertices, searches), "float32")  # read, then written: each request gets its own copy
    v = kaas.Buffer("V", (vertices, searches), "float32", init="zero")
    difference = kaas.Buffer("difference", (vertices, searches), "float32")  # a temporary: it never leaves the device

    n, k, count = kaas.u32(vertices), kaas.u32(searches), kaas.u32(vertices * searches)
    blocks = math.ceil(vertices * searches / 256)
    tiles = (math.ceil(searches / 32), math.ceil(vertices / 32))
    vsub = kaas.Kernel(kernels, "vsub", blocks, 256, [kaas.In(x), kaas.In(v), kaas.Out(difference), count])
    vadd = kaas.Kernel(kernels, "vadd", blocks, 256, [kaas.InOut(v), kaas.In(x), count])
    matmul = kaas.Kernel(kernels, "matmul", tiles, (32, 8), [kaas.In(a), kaas.In(difference), kaas.Out(x), n, k, n])
    return kaas.KTask([vsub, vadd, matmul], outputs=[v], iterations=iterations, name="nearest_neighbours")


def reference(a: Matrix, x: Matrix, iterations: int) -> Matrix:
    """Return V in NumPy."""
    v = np.zeros_like(x)
    for _ in range(iterations):
        x, v = a @ (x - v), v + x
    return v


def random_graph(vertices: int, neighbours: int, rng: np.random.Generator) -> Matrix:
    """Return an undirected graph's adjacency matrix, scaled so that the values of a step neither grow nor fade."""
    a = (rng.random((vertices, vertices)) < neighbours / vertices / 2).astype(np.float32)
    a = np.maximum(a, a.T)
    return a / np.float32(max(1.0, float(a.sum(axis=1).max())))


def random_starts(vertices: int, searches: int, rng: np.random.Generator) -> Matrix:
    """Return X with one vertex a column."""
    x = np.zeros((vertices, searches), np.float32)
    x[rng.integers(0, vertices, searches), np.arange(searches)] = 1
    return x


def main(vertices: int = 512, searches: int = 32, iterations: int = 6, requests: int = 8) -> None:
    rng = np.random.default_rng(1)
    a = random_graph(vertices, neighbours=8, rng=rng)
    search = kaas.register(build(vertices, searches, iterations), constants={"A": a})

    starts = [random_starts(vertices, searches, rng) for _ in range(requests)]
    results = ray.get([search.remote(X=x) for x in starts])  # every call returns a reference at once
    for x, v in zip(starts, results, strict=True):
        np.testing.assert_allclose(v, reference(a, x, iterations), rtol=1e-3, atol=1e-5)
    reached = np.mean([np.count_nonzero(v) / searches for v in results])
    print(f"{requests} × {searches} searches of {iterations} steps reached {reached:.0f} of {vertices} vertices each")


if __name__ == "__main__":
    started = kaas.init()
    main()
    if started:
        kaas.shutdown()

"""The paper's micro-benchmark: three chained products of 1024 × 1024 float32 matrices, three of the four constant.

    python examples/chained_matmul.py

Y = ((X·A)·B)·C. Only X travels with a request; the products between are temporaries.
"""

from __future__ import annotations

import math
import time

import numpy as np
import ray

import kaas
from kaas.kernels import library

TILE, WARPS = 32, 8


def build(n: int) -> kaas.KTask:
    """Return the kTask: inputs "X", "A", "B" and "C", output "Y"."""
    kernels = library("nearest_neighbours")  # it has a matmul
    x, a, b, c, first, second, y = (
        kaas.Buffer(name, (n, n), "float32") for name in ("X", "A", "B", "C", "XA", "XAB", "Y")
    )

    def product(left: kaas.Buffer, right: kaas.Buffer, result: kaas.Buffer) -> kaas.Kernel:
        tiles, size = math.ceil(n / TILE), kaas.u32(n)
        return kaas.Kernel(
            kernels,
            "matmul",
            grid=(tiles, tiles),
            block=(TILE, WARPS),
            args=[kaas.In(left), kaas.In(right), kaas.Out(result), size, size, size],
        )

    chain = [product(x, a, first), product(first, b, second), product(second, c, y)]
    return kaas.KTask(chain, outputs=[y], name="chained_matmul")


def main(n: int = 1024, requests: int = 2) -> None:
    rng = np.random.default_rng(3)
    x, a, b, c = (rng.uniform(-1, 1, (n, n)).astype(np.float32) for _ in range(4))
    chain = kaas.register(build(n), constants={"A": a, "B": b, "C": c})
    expected = x @ a @ b @ c

    for request in range(requests):
        start = time.perf_counter()
        y = ray.get(chain.remote(X=x))
        elapsed_s = time.perf_counter() - start
        np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-5 * np.abs(expected).max())
        kind = "cold: constants copied, plan made" if request == 0 else "warm"
        print(f"request {request + 1}: {elapsed_s * 1e3:.0f} ms ({kind})")


if __name__ == "__main__":
    started = kaas.init()
    main()
    if started:
        kaas.shutdown()

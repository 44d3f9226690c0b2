"""The Jacobi method: thousands of small launches, one request. A·x = b, A of float32, x of float64.

    python examples/jacobi.py

One pass runs two sweeps, x → y and y → x, so that nothing is copied between them. The number of passes is a Scalar:
each invocation chooses it, without a new plan.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import ray
from numpy.typing import NDArray

import kaas

KERNELS = Path(__file__).parent / "kernels"
WARP, BLOCK = 32, 256


def build(n: int) -> kaas.KTask:
    """Return the kTask: inputs "A" and "b", scalar "passes", output "x"; two sweeps a pass, from x = 0."""
    library = kaas.Library.from_file(KERNELS / "jacobi.ptx")
    a = kaas.Buffer("A", (n, n), "float32")
    b = kaas.Buffer("b", n, "float32")
    x = kaas.Buffer("x", n, "float64", init="zero")
    y = kaas.Buffer("y", n, "float64")

    def sweep(old: kaas.Buffer, new: kaas.Buffer) -> kaas.Kernel:
        return kaas.Kernel(
            library,
            "jacobi",
            grid=math.ceil(n * WARP / BLOCK),
            block=BLOCK,
            args=[kaas.In(a), kaas.In(b), kaas.In(old), kaas.Out(new), kaas.u32(n)],
        )

    return kaas.KTask([sweep(x, y), sweep(y, x)], outputs=[x], iterations=kaas.Scalar("passes", "u32"), name="jacobi")


def system(n: int, seed: int = 2) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return a random A and b.

    The diagonal outweighs its row by only 1 %, so that the error takes 230 sweeps to fall tenfold.
    """
    rng = np.random.default_rng(seed)
    a = rng.uniform(0, 1, (n, n)).astype(np.float32)
    np.fill_diagonal(a, 0)
    np.fill_diagonal(a, a.sum(axis=1) * 1.01)
    return a, rng.uniform(0, 1, n).astype(np.float32)


def main(n: int = 512, sweeps: int = 3000) -> None:
    a, b = system(n)
    x = ray.get(kaas.invoke(build(n), {"A": a, "b": b}, scalars={"passes": sweeps // 2}))
    exact = np.linalg.solve(a.astype(np.float64), b.astype(np.float64))
    error = np.abs(x - exact).max() / np.abs(exact).max()
    assert error < 1e-9, error
    print(f"{sweeps} sweeps over {n} unknowns: off by {error:.1e} of the largest")


if __name__ == "__main__":
    started = kaas.init()
    main()
    if started:
        kaas.shutdown()

"""The KaaS paper's cGEMM (section 5.3): a narrow complex matrix that comes with each request, times a large constant.

    python examples/cgemm.py

100 × 10,000 by 10,000 × 25,000 of complex64 on a GPU, where the constant takes 2 GB and stays; on the software GPU the
constant has a hundredth of each side. The kernel is the BLAS library's: this program sends its name and no code.
"""

from __future__ import annotations

import numpy as np
import ray
from numpy.typing import NDArray

import cutlass_blas
import kaas

Matrix = NDArray[np.complex64]

ROWS = 100
PAPER = (10_000, 25_000)


def build(rows: int, inner: int, columns: int) -> kaas.KTask:
    """Return the kTask: inputs "A", which changes, and "B", output "C"."""
    a = kaas.Buffer("A", (rows, inner), "complex64")
    b = kaas.Buffer("B", (inner, columns), "complex64")
    c = kaas.Buffer("C", (rows, columns), "complex64")
    return kaas.KTask(cutlass_blas.gemm(a, b, c), outputs=[c], name="cgemm")


def random(rows: int, columns: int, seed: int) -> Matrix:
    parts = np.random.default_rng(seed).random((rows, columns, 2), np.float32) - np.float32(0.5)
    return parts.view(np.complex64)[..., 0]


def main(requests: int = 3) -> None:
    on_gpu = kaas.status().devices[0].kind == "gpu"
    inner, columns = PAPER if on_gpu else (PAPER[0] // 100, PAPER[1] // 100)
    b = random(inner, columns, seed=0)
    multiply = kaas.register(build(ROWS, inner, columns), constants={"B": b})

    narrow = [random(ROWS, inner, seed) for seed in range(1, requests + 1)]
    products = ray.get([multiply.remote(A=a) for a in narrow])
    some = slice(None, None, max(1, columns // 250))  # of the columns: NumPy is slow for all of them
    for a, c in zip(narrow, products, strict=True):
        np.testing.assert_allclose(c[:, some], a @ b[:, some], atol=1e-4 * float(np.abs(c).max()))
    print(f"{requests} × ({ROWS} × {inner:,} by {inner:,} × {columns:,}) of complex64, as NumPy has them")


if __name__ == "__main__":
    started = kaas.init()
    main()
    if started:
        kaas.shutdown()

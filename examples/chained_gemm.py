"""Matrix products of the BLAS library in a chain: a kTask, an ordinary Ray task, a kTask. Only references pass through.

    python examples/chained_gemm.py

Each kTask is the feed-forward block of a transformer, two products: y = gelu(x·w1 + b1)·w2 + b2. Biases and GELU are
fused into the products' kernels, and the matrix between the two never leaves the device. Between the blocks the task
`normalise`, which needs no device, gives every row mean 0 and variance 1.
"""

from __future__ import annotations

import math

import numpy as np
import ray
from numpy.typing import NDArray

import cutlass_blas
import kaas
from cutlass_blas import Epilogue

Matrix = NDArray[np.float32]


def build(rows: int, width: int, hidden: int) -> kaas.KTask:
    """Return the kTask: inputs "x", "w1", "b1", "w2", "b2", output "y"."""
    x = kaas.Buffer("x", (rows, width), "float32")
    w1, b1 = kaas.Buffer("w1", (width, hidden), "float32"), kaas.Buffer("b1", hidden, "float32")
    w2, b2 = kaas.Buffer("w2", (hidden, width), "float32"), kaas.Buffer("b2", width, "float32")
    h = kaas.Buffer("h", (rows, hidden), "float32")  # a temporary
    y = kaas.Buffer("y", (rows, width), "float32")
    up = cutlass_blas.gemm(x, w1, h, epilogue=Epilogue(bias=b1, activation="gelu"))
    down = cutlass_blas.gemm(h, w2, y, epilogue=Epilogue(bias=b2))
    return kaas.KTask([*up, *down], outputs=[y], name="feed_forward")


def weights(width: int, hidden: int, seed: int) -> dict[str, Matrix]:
    rng, scale = np.random.default_rng(seed), np.float32(1 / math.sqrt(hidden))
    shapes = {"w1": (width, hidden), "b1": (hidden,), "w2": (hidden, width), "b2": (width,)}
    return {name: scale * rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def normalised(x: Matrix) -> Matrix:
    result: Matrix = (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)
    return result


@ray.remote
def normalise(x: Matrix) -> Matrix:
    return normalised(x)


def reference(x: Matrix, given: dict[str, Matrix]) -> Matrix:
    """Return the result of a block in NumPy."""
    h = (x @ given["w1"] + given["b1"]).astype(np.float64)
    gelu = h * (1 + np.vectorize(math.erf)(h / math.sqrt(2))) / 2
    result: Matrix = gelu.astype(np.float32) @ given["w2"] + given["b2"]
    return result


def main(rows: int = 64, width: int = 96, hidden: int = 256) -> None:
    block = build(rows, width, hidden)
    first, second = weights(width, hidden, seed=1), weights(width, hidden, seed=2)
    x = np.random.default_rng(3).standard_normal((rows, width), np.float32)

    between = normalise.remote(kaas.invoke(block, {"x": x, **first}))
    y = ray.get(kaas.invoke(block, {"x": between, **second}))
    np.testing.assert_allclose(y, reference(normalised(reference(x, first)), second), rtol=1e-4, atol=1e-4)
    print(f"two blocks of {len(block.kernels)} kernels each on {rows} × {width}, normalised between: as NumPy has it")


if __name__ == "__main__":
    started = kaas.init()
    main()
    if started:
        kaas.shutdown()

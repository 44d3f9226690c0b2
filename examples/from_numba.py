"""A Python function, compiled by numba-cuda: the nearest of some centres for each point.

    python examples/from_numba.py

The kernel takes a buffer for each array of the function: shape and strides are the buffer's. Needs numba-cuda and its
compiler (numba-cuda[cu13]); no GPU.
"""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

import kaas

BLOCK = 128


def nearest(points: Any, centres: Any, found: Any, reach: Any) -> None:
    """Set found[p] to the centre nearest to point p, or to -1 if none is within reach."""
    p = cuda.grid(1)
    if p < points.shape[0]:
        best, least = -1, reach * reach
        for c in range(centres.shape[0]):
            distance = 0.0
            for axis in range(points.shape[1]):
                step = points[p, axis] - centres[c, axis]
                distance += step * step
            if distance < least:
                best, least = c, distance
        found[p] = best


def build(points: int, centres: int, axes: int, reach: float) -> kaas.KTask:
    """Return the kTask: inputs "points" and "centres", output "found"."""
    library = kaas.Library.from_numba(nearest, "void(float64[:, ::1], float64[:, ::1], int32[::1], float64)")
    where = kaas.Buffer("points", (points, axes), "float64")
    middle = kaas.Buffer("centres", (centres, axes), "float64")
    found = kaas.Buffer("found", points, "int32")
    kernel = library.kernel(
        grid=-(-points // BLOCK), block=BLOCK, args=[kaas.In(where), kaas.In(middle), kaas.Out(found), reach]
    )
    return kaas.KTask([kernel], outputs=[found], name="nearest")


def main(points: int = 1000, centres: int = 7, axes: int = 3, reach: float = 0.6) -> None:
    rng = np.random.default_rng(7)
    where, middle = rng.uniform(size=(points, axes)), rng.uniform(size=(centres, axes))
    found = kaas.run_local(build(points, centres, axes, reach), {"points": where, "centres": middle})["found"]
    distances = np.linalg.norm(where[:, None] - middle, axis=2)
    expected = np.where(distances.min(axis=1) < reach, distances.argmin(axis=1), -1)
    np.testing.assert_array_equal(found, expected)
    print(f"{(found >= 0).sum()} of {points} points are within {reach} of one of {centres} centres")


if __name__ == "__main__":
    main()

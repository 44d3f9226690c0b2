"""A kernel in Python for numba-cuda, the nearest centre of each point, for the software GPU and numba's simulator."""

# mypy: disable-error-code="attr-defined, no-untyped-call"

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from kaas.ktask.arguments import Buffer, In, Out
from kaas.ktask.graph import KTask
from kaas.ktask.library import Library

POINTS, CENTRES, BLOCK = 1024, 8, 128


def nearest(points: Any, centres: Any, found: Any) -> None:
    """Set found[p] to the centre nearest to point p."""
    p = cuda.grid(1)
    if p < points.shape[0]:
        best, least = 0, 1e30
        for c in range(centres.shape[0]):
            dx, dy = points[p, 0] - centres[c, 0], points[p, 1] - centres[c, 1]
            distance = dx * dx + dy * dy
            if distance < least:
                best, least = c, distance
        found[p] = best


def inputs() -> dict[str, np.ndarray[Any, Any]]:
    """Return 1,024 points and 8 centres, float32, two coordinates each."""
    random = np.random.default_rng(7)
    return {name: random.random((count, 2), np.float32) for name, count in (("points", POINTS), ("centres", CENTRES))}


def build() -> KTask:
    """Return the kTask: inputs "points" and "centres", output "found"."""
    library = Library.from_numba(nearest, "void(float32[:, ::1], float32[:, ::1], int32[::1])")
    points, centres = Buffer("points", (POINTS, 2), "float32"), Buffer("centres", (CENTRES, 2), "float32")
    found = Buffer("found", POINTS, "int32")
    kernel = library.kernel(grid=POINTS // BLOCK, block=BLOCK, args=[In(points), In(centres), Out(found)])
    return KTask([kernel], [found])


def interpret() -> np.ndarray[Any, Any]:
    """Return found from numba's simulator. Needs NUMBA_ENABLE_CUDASIM=1."""
    found = np.empty(POINTS, np.int32)
    cuda.jit(nearest)[POINTS // BLOCK, BLOCK](*inputs().values(), found)
    return found

"""The structs that kernels of numba read and write in memory."""

from __future__ import annotations

import numpy as np

PARTICLE = np.dtype([("kind", np.int8), ("mass", np.float32), ("v", np.float32), ("x", np.float64)], align=True)
STATE = np.dtype([("s0", np.uint64), ("s1", np.uint64)])
"""A generator of random numbers: xoroshiro128+."""

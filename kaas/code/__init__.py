"""Libraries of others' kernels: CUDA C++, CuPy, Triton, numba-cuda. Runs in programs; `providers` in executors too.

`kaas.Library.from_cuda` and its like import these modules on use.
"""

from __future__ import annotations

from kaas.ktask.library import IMPORTERS

IMPORTERS.update({name: f"kaas.code.{name}" for name in ("cuda", "cupy", "triton", "numba")})  # each is imported on use

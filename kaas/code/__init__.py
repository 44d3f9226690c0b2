"""Libraries out of kernels of other makers: CUDA C++, CuPy, Triton, numba-cuda. `kaas.Library.from_...` loads these."""

from __future__ import annotations

from kaas.ktask.library import IMPORTERS

IMPORTERS.update({name: f"kaas.code.{name}" for name in ("cuda", "cupy", "triton", "numba")})  # each is imported on use

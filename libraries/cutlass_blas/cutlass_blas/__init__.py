"""The built-in BLAS library of KaaS, on CUTLASS: it makes kernels for shapes, and executors have their code already."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cutlass_blas import errors
from cutlass_blas.errors import AlignmentWarning, BlasError

if TYPE_CHECKING:
    from cutlass_blas.epilogues import Epilogue
    from cutlass_blas.gemms import gemm
    from cutlass_blas.gemvs import gemv
    from cutlass_blas.matmuls import matmul
    from cutlass_blas.operands import Matrix
    from cutlass_blas.tuning import tune
    from cutlass_blas.vectors import Vector

__all__ = ["AlignmentWarning", "BlasError", "Epilogue", "Matrix", "Vector", "errors", "gemm", "gemv", "matmul", "tune"]

_ON_DEMAND = {
    "Epilogue": "epilogues",
    "Matrix": "operands",
    "Vector": "vectors",
    "gemm": "gemms",
    "gemv": "gemvs",
    "matmul": "matmuls",
    "tune": "tuning",
}
"""Modules of names, imported at first use: an executor imports this package, which should be fast."""


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module 'cutlass_blas' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"cutlass_blas.{_ON_DEMAND[name]}"), name)  # kept
    return value

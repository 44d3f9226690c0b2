"""The kernels that ship with KaaS, under the name that programs import: `from kaas.kernels import library`."""

from __future__ import annotations

from kaas.code.kernels import library

__all__ = ["library"]

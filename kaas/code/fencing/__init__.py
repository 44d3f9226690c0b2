"""PTX of tenants who share a GPU's context, rewritten so that its memory accesses stay in a window of addresses."""

from __future__ import annotations

from kaas.code.fencing.module import LEAST_WINDOW_BYTES, Fenced, fence
from kaas.code.fencing.variables import VariableBlock

__all__ = ["LEAST_WINDOW_BYTES", "Fenced", "VariableBlock", "fence"]

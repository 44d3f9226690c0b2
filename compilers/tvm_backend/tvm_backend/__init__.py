"""Models compiled into kTasks by Apache TVM: `compile` makes a `kaas.CompiledModel`, `load` reads a saved one."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["compile", "load"]

_ON_DEMAND = {"compile": "tvm_backend.compiling", "load": "kaas"}
"""Modules imported at first use: TVM takes seconds to import, and the command line reads this module's names only."""


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module 'tvm_backend' has no attribute {name!r}")
    return getattr(import_module(_ON_DEMAND[name]), name)

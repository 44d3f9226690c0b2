"""The operators of a model that TVM cannot lower: each is tried by itself after lowering the model has failed."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from tvm_backend.errors import Place
from tvm_backend.frontends.imported import Imported
from tvm_backend.frontends.parts import bindings, operator_of, origins
from tvm_backend.targets import Target


def culprits(imported: Imported, target: Target) -> list[Place]:
    """Return the places of the first batch size that has some, or none if each operator by itself can be lowered."""
    for entry in imported.functions:
        bound = bindings(imported.module[entry.function])
        places = [
            Place(operator or operator_of(binding.value), where, reason)
            for binding, (operator, where) in zip(bound, origins(bound, imported.origins), strict=True)
            if (reason := _failure(binding.value, target))
        ]
        if places:
            return places
    return []


def _failure(value: Any, target: Target) -> str | None:
    """Return the reason why a call of an operator cannot become a PrimFunc; None if it can, and for other values."""
    if (
        not isinstance(value, tvm.ir.Call)
        or not isinstance(value.op, tvm.ir.Op)
        or relax.analysis.all_global_vars(value)
    ):
        return None
    builder = relax.BlockBuilder()
    with builder.function("main", list(relax.analysis.free_vars(value))):
        builder.emit_func_output(builder.emit(value))
    transform = relax.transform
    try:
        with target.tvm:
            tvm.transform.Sequential([transform.DecomposeOpsForInference(), transform.LegalizeOps()])(builder.get())
    except Exception as error:  # noqa: BLE001 - TVM's, of any kind: a place in the error
        return str(error).strip().partition("\n")[0] or type(error).__name__
    return None

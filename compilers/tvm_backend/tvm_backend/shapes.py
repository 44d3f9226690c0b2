"""Operators whose results have shapes that depend on values: kTasks cannot have them, and TVM fails in many ways."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import ir, relax
from tvm.ir.prim import expr

from tvm_backend.errors import Place
from tvm_backend.outputs import called


def unknown(module: tvm.IRModule) -> list[Place]:
    """Return the places where shapes become unknown, without the places that only follow from these."""
    places: list[Place] = []
    for name, function in sorted((variable.name_hint, function) for variable, function in module.functions.items()):
        if not isinstance(function, relax.Function):
            continue
        open_values = {parameter for parameter in function.params if not _known(parameter.ty)}
        places += [
            Place("an input", f"{name}, {parameter.name}", "has no fixed shape")
            for parameter in function.params
            if parameter in open_values
        ]
        for block in function.body.blocks:
            for binding in block.bindings:
                if _known(binding.var.ty):
                    continue
                open_values.add(binding.var)
                value = binding.value
                if isinstance(value, ir.Call) and not any(variable in open_values for variable in _variables(value)):
                    reason = "the shape of its result depends on values"
                    places.append(Place(called(value), f"{name}, {binding.var.name}", reason))
    return places


def _known(ty: Any) -> bool:
    """Return True if the shape of a type is known: of a tuple, the shapes of all tensors."""
    match ty:
        case relax.TupleType():
            return all(_known(field) for field in ty.fields)
        case relax.TensorType():
            return isinstance(ty.shape, relax.ShapeExpr) and all(
                isinstance(extent, expr.IntImm) for extent in ty.shape.values
            )
    return True


def _variables(call: ir.Call) -> list[Any]:
    found = []
    for argument in call.args:
        parts = argument.fields if isinstance(argument, relax.Tuple) else [argument]
        found += [part for part in parts if isinstance(part, relax.Var)]
    return found

"""Relax modules put together, and what of them cannot become kernels, with its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_backend.errors import InvalidModel, Place, unsupported
from tvm_backend.frontends.imported import EntryPoint

HOST_CALLS = {
    "relax.call_packed", "relax.call_pure_packed", "relax.call_inplace_packed", "relax.call_dps_packed",
    "relax.call_py_func", "relax.invoke_closure", "relax.print", "relax.assert_op",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """The model for one batch size.

    Args:
        module: holds `function` and what it calls.
        origins: by name of a Relax variable the operator and place in the model that it comes from; variables without
            one come from the next that has one.
    """

    batch_size: int
    module: tvm.IRModule
    function: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    origins: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def merged(model: str, parts: Sequence[Part]) -> tuple[tvm.IRModule, tuple[EntryPoint, ...]]:
    """One module of all parts, each under names of its own.

    Raises:
        UnsupportedOperators: parts that hold what cannot become kernels.
    """
    functions: dict[tvm.ir.GlobalVar, Any] = {}
    entries = []
    for part in parts:
        places = list(_places(part))
        if places:
            raise unsupported(model, places)
        suffix = f"_{part.batch_size}" if len(parts) > 1 else ""
        functions.update(_renamed(part.module, suffix))
        entries.append(EntryPoint(part.function + suffix, part.batch_size, part.inputs, part.outputs))
    return tvm.IRModule(functions), tuple(entries)


def _renamed(module: tvm.IRModule, suffix: str) -> dict[tvm.ir.GlobalVar, Any]:
    if not suffix:
        return dict(module.functions.items())
    names = {}
    for variable in module.functions:
        names[variable.name_hint] = tvm.ir.GlobalVar(variable.name_hint + suffix)
        relax.expr._update_type(names[variable.name_hint], variable.ty)
    functions = {}
    for variable, function in module.functions.items():
        renamed = tvm_ffi.structural_map(function, (tvm.ir.GlobalVar, lambda found: names[found.name_hint]))
        if function.attrs is not None and "global_symbol" in function.attrs:
            renamed = renamed.with_attr("global_symbol", variable.name_hint + suffix)
        functions[names[variable.name_hint]] = renamed
    return functions


def tensor_inputs(model: str, parameters: Sequence[relax.Var]) -> None:
    """
    Raises:
        InvalidModel: parameters that are no tensors of known rank and dtype.
    """
    for parameter in parameters:
        kind = parameter.ty
        if not isinstance(kind, relax.TensorType) or kind.shape is None or str(kind.dtype) == "void":
            message = f"{model}: input {parameter.name!r} is {kind}; inputs are tensors whose rank and dtype are known"
            raise InvalidModel(message, model=model, input=parameter.name)


def output_names(kind: Any, given: Sequence[str] = ()) -> tuple[str, ...]:
    """Names of what a function returns, the fields of nested tuples laid flat: `given`, where they are as many."""
    count = _count(kind)
    if len(given) == count:
        return tuple(given)
    return ("output",) if count == 1 else tuple(f"output_{index}" for index in range(count))


def _count(kind: Any) -> int:
    return sum(_count(each) for each in kind.fields) if isinstance(kind, relax.TupleType) else 1


def _places(part: Part) -> Iterator[Place]:
    """What cannot become kernels, each once: where a shape is lost, not everything after it."""
    function = part.module[part.function]
    bound = bindings(function)
    open_variables = {parameter for parameter in function.params if not is_static(parameter.ty)}
    for parameter in (each for each in function.params if each in open_variables):
        yield Place("input", parameter.name, f"its type {parameter.ty} leaves a size open")
    for binding, (operator, where) in zip(bound, origins(bound, part.origins), strict=True):
        reason = _reason(binding)
        inherited = any(variable in open_variables for variable in _variables(binding.value))
        if not is_static(binding.var.ty):
            open_variables.add(binding.var)
        if reason and not inherited:
            yield Place(operator or operator_of(binding.value), where, reason)


def _reason(binding: Any) -> str | None:
    value = binding.value
    operator = operator_of(value)
    if isinstance(value, relax.If):
        return "a branch; a kTask runs the same kernels each time"
    if isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.GlobalVar):
        return "a call of a function that calls itself"
    if operator in HOST_CALLS or (isinstance(value, tvm.ir.Call) and isinstance(value.op, relax.ExternFunc)):
        return "a call of a function on the host"
    if not is_static(binding.var.ty):
        return f"its result {binding.var.ty} depends on the values of its inputs"
    return None


def is_static(kind: Any) -> bool:
    """Whether all shapes of a type are numbers. Types of no tensors that hold no data count as such."""
    if isinstance(kind, relax.TupleType):
        return all(is_static(each) for each in kind.fields)
    if isinstance(kind, relax.ShapeType):
        return kind.values is not None and all(isinstance(size, tirx.IntImm) for size in kind.values)
    if isinstance(kind, relax.TensorType):
        return isinstance(kind.shape, relax.ShapeExpr) and is_static(kind.shape.ty)
    return not isinstance(kind, relax.AnyType)


def bindings(function: relax.Function) -> list[Any]:
    blocks = function.body.blocks if isinstance(function.body, relax.SeqExpr) else ()
    return [binding for block in blocks for binding in block.bindings]


def operator_of(value: Any) -> str:
    if isinstance(value, tvm.ir.Call):
        name = getattr(value.op, "name", None) or getattr(value.op, "name_hint", None)
        return str(name or getattr(value.op, "global_symbol", "call"))
    return "relax." + type(value).__name__


def origins(bound: Sequence[Any], known: Mapping[str, tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Of each binding the operator, if the model tells it, and the place that it comes from; see `Part`."""
    following = ("", "")
    found = []
    for binding in reversed(bound):
        name = binding.var.name
        if known:
            following = known.get(name, following)
            found.append(following)
        else:
            found.append(("", f"binding {name!r}"))
    yield from reversed(found)


def _variables(value: Any) -> list[Any]:
    return list(relax.analysis.free_vars(value))

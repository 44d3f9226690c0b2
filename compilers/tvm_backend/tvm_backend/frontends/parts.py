"""Relax modules merged into one, and the places of the parts that cannot become kernels."""

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
        origins: the operator and the place in the model that each Relax variable comes from, by the variable's name. A
            variable without an entry comes from the place of the next variable with one.
    """

    batch_size: int
    module: tvm.IRModule
    function: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    origins: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def merged(model: str, parts: Sequence[Part]) -> tuple[tvm.IRModule, tuple[EntryPoint, ...]]:
    """Return one module of all parts, whose functions have different names, and its entry points.

    Raises:
        UnsupportedOperators: operators cannot become kernels.
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
    """Check that all parameters are tensors of known rank and dtype.

    Raises:
        InvalidModel: a parameter is not.
    """
    for parameter in parameters:
        kind = parameter.ty
        if not isinstance(kind, relax.TensorType) or kind.shape is None or str(kind.dtype) == "void":
            message = f"{model}: input {parameter.name!r} is {kind}; inputs are tensors whose rank and dtype are known"
            raise InvalidModel(message, model=model, input=parameter.name)


def output_names(kind: Any, given: Sequence[str] = ()) -> tuple[str, ...]:
    """Return names for a function's results, nested tuples laid flat: `given` if their number fits, else numbered."""
    count = _count(kind)
    if len(given) == count:
        return tuple(given)
    return ("output",) if count == 1 else tuple(f"output_{index}" for index in range(count))


def _count(kind: Any) -> int:
    return sum(_count(each) for each in kind.fields) if isinstance(kind, relax.TupleType) else 1


def _places(part: Part) -> Iterator[Place]:
    """Yield the places that cannot become kernels; of unknown shapes only the first place, not those that follow."""
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
    """Return True if all shapes of a type are numbers. Types without tensors count as static, except AnyType."""
    if isinstance(kind, relax.TupleType):
        return all(is_static(each) for each in kind.fields)
    if isinstance(kind, relax.ShapeType):
        return kind.values is not None and all(isinstance(size, tirx.IntImm) for size in kind.values)
    if isinstance(kind, relax.TensorType):
        return isinstance(kind.shape, relax.ShapeExpr) and is_static(kind.shape.ty)
    return not isinstance(kind, relax.AnyType)


def bindings(function: relax.Function) -> list[Any]:
    """Return all bindings of a function, in order."""
    blocks = function.body.blocks if isinstance(function.body, relax.SeqExpr) else ()
    return [binding for block in blocks for binding in block.bindings]


def operator_of(value: Any) -> str:
    """Return the name of a call's callee, or the class of another expression."""
    if isinstance(value, tvm.ir.Call):
        name = getattr(value.op, "name", None) or getattr(value.op, "name_hint", None)
        return str(name or getattr(value.op, "global_symbol", "call"))
    return "relax." + type(value).__name__


def origins(bound: Sequence[Any], known: Mapping[str, tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the operator ("" if the model does not name it) and the place that each binding comes from; see `Part`."""
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

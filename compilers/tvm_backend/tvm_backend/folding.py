"""Constant parts of a model, computed with NumPy: TVM's own folding compiles and loads each operation by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax
from tvm.ir.prim import expr

from tvm_backend.constants import Array, Names

REAL: dict[str, Callable[..., Any]] = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.divide": np.divide,
    "relax.negative": np.negative,
    "relax.sqrt": np.sqrt,
    "relax.rsqrt": lambda a: 1 / np.sqrt(a),
}
"""Operators on floating point numbers that NumPy rounds as a GPU does."""

LAYOUT: dict[str, Callable[[ir.Call, Array, tuple[int, ...]], Array]] = {
    "relax.permute_dims": lambda call, a, _: np.transpose(
        a, None if call.attrs.axes is None else [int(axis) for axis in call.attrs.axes]
    ),
    "relax.reshape": lambda _, a, shape: a.reshape(shape),
    "relax.expand_dims": lambda _, a, shape: a.reshape(shape),
    "relax.squeeze": lambda _, a, shape: a.reshape(shape),
    "relax.flatten": lambda _, a, shape: a.reshape(shape),
    "relax.broadcast_to": lambda _, a, shape: np.broadcast_to(a, shape),
}
"""Operators that move elements of any type: functions of the call, its first argument and the result's shape."""

UNCHANGED = ("relax.broadcast_to", "relax.reshape", "relax.astype", "relax.squeeze", "relax.expand_dims")
"""Operators that do nothing if their result has the type of their argument."""

FLOATS = ("float32", "float64")


def fold(names: Names) -> tvm.transform.Pass:
    """Return a pass that replaces operations on constants by results, and operations without effect by arguments.

    Args:
        names: receives a name for each result: that of the largest constant that the result was computed from.
    """

    @tvm.transform.module_pass(opt_level=0, name="FoldWithNumPy")  # type: ignore[untyped-decorator]
    def run(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        functions = {
            variable: _folded(function, names) if isinstance(function, relax.Function) else function
            for variable, function in module.functions.items()
        }
        return tvm.IRModule(functions, attrs=module.attrs)

    return run


def _folded(function: relax.Function, names: Names) -> relax.Function:
    known: dict[Any, Array] = {}
    blocks = []
    for block in function.body.blocks:
        bindings = [_binding(binding, known, names) for binding in block.bindings]
        blocks.append(type(block)(bindings))
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def _binding(binding: Any, known: dict[Any, Array], names: Names) -> Any:
    value = binding.value
    if not isinstance(binding, relax.VarBinding) or not isinstance(value, ir.Call):
        return binding
    result = _result(value, known, names)
    if result is None:
        unchanged = getattr(value.op, "name", "") in UNCHANGED and _alike(value.args[0].ty, value.ty)
        return relax.VarBinding(binding.var, value.args[0]) if unchanged else binding
    known[binding.var] = result
    return relax.VarBinding(binding.var, relax.const(result, str(value.ty.dtype)))


def _result(call: ir.Call, known: Mapping[Any, Array], names: Names) -> Array | None:
    """Return the result of a call on constants; None if an argument is not constant or the operator is not listed."""
    operator = getattr(call.op, "name", "")
    if operator not in REAL and operator not in LAYOUT:
        return None
    ty = call.ty
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return None
    shape, dtype = tuple(int(extent) for extent in ty.shape.values), str(ty.dtype)
    given = [_array(argument, known, dtype) for argument in call.args[: 1 if operator in LAYOUT else None]]
    arrays = [array for array in given if array is not None]
    if len(arrays) < len(given):
        return None
    if operator in LAYOUT:
        made = LAYOUT[operator](call, arrays[0], shape)
    elif dtype in FLOATS:
        with np.errstate(all="ignore"):
            made = np.asarray(REAL[operator](*arrays), dtype)
    else:
        return None
    made = np.ascontiguousarray(made).reshape(shape)
    names.derived(made, arrays)
    return made


def _alike(one: Any, other: Any) -> bool:
    """Return True if two tensors have the same dtype and the same known shape."""
    shapes = [ty.shape for ty in (one, other) if isinstance(ty, relax.TensorType)]
    if len(shapes) < 2 or not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
        return False
    extents = [[str(extent) for extent in shape.values] for shape in shapes]
    return extents[0] == extents[1] and one.dtype == other.dtype


def _array(value: Any, known: Mapping[Any, Array], dtype: str) -> Array | None:
    match value:
        case relax.Var():
            return known.get(value)
        case ir.GenericConst() if isinstance(value.ty, relax.TensorType):
            array: Array = value.value.numpy()
            return array
        case expr.FloatImm() | expr.IntImm():
            return np.asarray(value.value, dtype)
    return None

"""Indices that are negative or out of bounds: with them TVM's gathers would read memory outside of the tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import ir, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_backend.outputs import called

WITH_NAN = ("float16", "float32", "float64")
"""The types whose NaN TVM's CUDA code generator can write."""
IN_BOUNDS = "clip"
"""TVM's mode that reads the nearest element. TVM warns on stderr about its mode without a check of bounds."""


@tvm.transform.module_pass(opt_level=0, name="IndicesInBounds")  # type: ignore[untyped-decorator]
def in_bounds(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    """Rewrite gathers (as a pass) so that they never read outside of a tensor.

    Negative indices count from the end. An index beyond either end gives NaN, or the nearest element if TVM cannot
    write NaN in the tensor's dtype.
    """
    bounded = _Bounded(module)
    for variable, function in module.functions.items():
        if isinstance(function, relax.Function):
            bounded.builder_.update_func(variable, bounded.visit_expr(function))
    return bounded.builder_.get()


@mutator
class _Bounded(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        match called(call):
            case "relax.take" if call.attrs.mode == "fast":
                return self.take(call)
            case "relax.index_tensor":
                data, indices = call.args
                given = [relax.TupleGetItem(indices, n) for n in range(len(indices.ty.fields))]
                if isinstance(indices, relax.Tuple):
                    given = list(indices.fields)
                sizes = [int(size) for size in data.ty.shape.values]
                return relax.op.index_tensor(data, [self.clamped(*pair) for pair in zip(given, sizes, strict=False)])
        return call

    def take(self, call: Any) -> Any:
        data, indices = call.args
        axis = 0 if call.attrs.axis is None else int(call.attrs.axis)
        size = int(data.ty.shape.values[axis])
        if not isinstance(indices.ty, relax.TensorType):  # a number of the model's own
            return relax.op.take(data, indices, axis, IN_BOUNDS)
        known = _constant(indices, size)
        if known is not None:
            return relax.op.take(data, known, axis, IN_BOUNDS)
        mode = "nan" if str(data.ty.dtype) in WITH_NAN else IN_BOUNDS
        return relax.op.take(data, self.from_start(indices, size), axis, mode)

    def clamped(self, indices: Any, size: int) -> Any:
        known = _constant(indices, size)
        if known is not None:
            return known
        first, last = (relax.const(each, str(indices.ty.dtype)) for each in (0, max(size - 1, 0)))
        found = self.builder_.emit(relax.op.maximum(self.from_start(indices, size), first))
        return self.builder_.emit(relax.op.minimum(found, last))

    def from_start(self, indices: Any, size: int) -> Any:
        dtype = str(indices.ty.dtype)
        if dtype.startswith("uint"):
            return indices
        emit = self.builder_.emit
        negative = emit(relax.op.less(indices, relax.const(0, dtype)))
        return emit(relax.op.where(negative, emit(relax.op.add(indices, relax.const(size, dtype))), indices))


def _constant(indices: Any, size: int) -> Any | None:
    """Return known indices within bounds as non-negative ones; None for all other indices."""
    if not isinstance(indices, ir.GenericConst):
        return None
    values = indices.value.numpy()
    if values.size and not -size <= values.min() <= values.max() < size:
        return None
    return relax.const(np.where(values < 0, values + size, values).astype(values.dtype))

"""Products of flattened stacks of matrices as products of the stacks: operators on the stack then fuse with them."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import ir, relax

ELEMENTWISE = (
    "relax.nn.relu", "relax.nn.gelu", "relax.nn.gelu_tanh", "relax.nn.silu", "relax.tanh", "relax.sigmoid",
    "relax.exp", "relax.negative", "relax.erf",
)  # fmt: skip
"""Operators on single elements."""

BINARY = ("relax.add", "relax.subtract", "relax.multiply", "relax.divide")
"""Operators whose second operand may be a single element or a vector along the last axis."""


@tvm.transform.module_pass(opt_level=0, name="StacksOfMatrices")  # type: ignore[untyped-decorator]
def unflattened(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    """Replace (as a pass) `reshape(f(reshape(x, (m, k)) @ w + b), (…, n))` by `f(x @ w + b)`."""
    functions = {
        variable: _Function().of(function) if isinstance(function, relax.Function) else function
        for variable, function in module.functions.items()
    }
    return tvm.IRModule(functions, attrs=module.attrs)


class _Function:
    """One function's rewriting. `stacks` maps each variable that holds flattened matrices to their stack's variable."""

    def __init__(self) -> None:
        self.builder = relax.BlockBuilder()
        self.stacks: dict[Any, Any] = {}

    def of(self, function: relax.Function) -> relax.Function:
        blocks = [
            type(block)([new for binding in block.bindings for new in self.bindings(binding)])
            for block in function.body.blocks
        ]
        body = relax.SeqExpr(blocks, function.body.body)
        return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)

    def bindings(self, binding: Any) -> list[Any]:
        value = binding.value
        if not isinstance(binding, relax.VarBinding) or not isinstance(value, ir.Call) or not value.args:
            return [binding]
        name, arguments = getattr(value.op, "name", ""), list(value.args)
        if name == "relax.reshape":
            stack = self.stack(arguments[0])
            return [self.reshaped(binding, arguments[0] if stack is None else stack)]
        place = next((place for place, argument in enumerate(arguments) if self.stack(argument) is not None), None)
        if place is None or not keeps_rows(name, arguments, place):
            return [binding]
        arguments[place] = self.stack(arguments[place])
        made = self.builder.normalize(relax.Call(value.op, arguments, value.attrs))
        whole = relax.Var(f"{binding.var.name}_stack", made.ty)
        self.stacks[binding.var] = whole
        flat = self.builder.normalize(relax.op.reshape(whole, value.ty.shape))
        return [relax.VarBinding(whole, made), relax.VarBinding(binding.var, flat)]

    def stack(self, value: Any) -> Any:
        """Return the stack that a value has flattened, or None."""
        return self.stacks.get(value) if isinstance(value, relax.Var) else None

    def reshaped(self, binding: relax.VarBinding, source: Any) -> relax.VarBinding:
        """Return the binding of a reshape, taken from the stack if that gives the same."""
        shape, before = _extents(binding.var.ty), _extents(source.ty)
        if shape is None or before is None:
            return binding
        if shape == before:
            return relax.VarBinding(binding.var, source)
        if _flattened(before, shape) and isinstance(source, relax.Var):
            self.stacks[binding.var] = source
        if source.same_as(binding.value.args[0]):
            return binding
        value = self.builder.normalize(relax.op.reshape(source, binding.var.ty.shape))
        return relax.VarBinding(binding.var, value)


def keeps_rows(name: str, arguments: list[Any], place: int) -> bool:
    """Return True if an operator treats each row of this argument alike, whichever matrix the row belongs to."""
    if name in ELEMENTWISE:
        return True
    others = [_extents(argument.ty) for number, argument in enumerate(arguments) if number != place]
    if len(others) != 1 or others[0] is None:
        return False
    return (name == "relax.matmul" and place == 0 and len(others[0]) == 2) or (name in BINARY and len(others[0]) <= 1)


def _flattened(stack: list[int], matrix: list[int]) -> bool:
    """Return True if a reshape puts a stack's matrices below each other; False for stacks without elements."""
    return len(stack) > 2 == len(matrix) and stack[-1] == matrix[1] and 0 not in stack


def _extents(ty: Any) -> list[int] | None:
    """Return a tensor's shape, or None if it is unknown."""
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return None
    return [int(extent) for extent in ty.shape.values]

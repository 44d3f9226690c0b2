"""Evaluation of the integers that TVM's host code computes: grids, blocks, bounds of loops, offsets."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from tvm import ir
from tvm.ir.prim import expr

Number = int | float


class NotConstant(Exception):
    """An expression whose value is unknown before it runs. Always caught: it becomes one of the error's places."""

    def __init__(self, expression: Any, reason: str) -> None:
        super().__init__(reason)
        called = isinstance(expression, ir.Call) and isinstance(expression.op, ir.Op)
        self.operator = str(expression.op.name) if called else f"tirx.{type(expression).__name__}"


def _divide(a: Number, b: Number) -> Number:
    """Divide as C does: integer quotients are cut off towards zero."""
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: int, b: int) -> int:
    return abs(a) % abs(b) * (-1 if a < 0 else 1)


BINARY: dict[type, Callable[[Any, Any], Number]] = {
    expr.Add: operator.add,
    expr.Sub: operator.sub,
    expr.Mul: operator.mul,
    expr.Div: _divide,
    expr.Mod: _remainder,
    expr.FloorDiv: operator.floordiv,
    expr.FloorMod: operator.mod,
    expr.Min: min,
    expr.Max: max,
    expr.EQ: operator.eq,
    expr.NE: operator.ne,
    expr.LT: operator.lt,
    expr.LE: operator.le,
    expr.GT: operator.gt,
    expr.GE: operator.ge,
    expr.And: lambda a, b: bool(a and b),
    expr.Or: lambda a, b: bool(a or b),
    expr.LShift: operator.lshift,
    expr.RShift: operator.rshift,
    expr.BitwiseAnd: operator.and_,
    expr.BitwiseOr: operator.or_,
    expr.BitwiseXor: operator.xor,
}

CALLS: dict[str, Callable[..., Number]] = {
    "tirx.likely": lambda value: value,
    "tirx.shift_left": operator.lshift,
    "tirx.shift_right": operator.rshift,
    "tirx.bitwise_and": operator.and_,
    "tirx.bitwise_or": operator.or_,
    "tirx.bitwise_xor": operator.xor,
    "tirx.log2": math.log2,
    "tirx.ceil": lambda value: float(math.ceil(value)),
    "tirx.floor": lambda value: float(math.floor(value)),
}


def evaluate(expression: Any, values: Mapping[Any, Number]) -> Number:
    """Return the value of an expression, given the values of its variables.

    Raises:
        NotConstant: the value depends on the run.
    """
    match expression:
        case expr.IntImm() | expr.FloatImm():
            number: Number = expression.value
            return number
        case ir.Var() if expression in values:
            return values[expression]
        case expr.Cast():
            value = evaluate(expression.value, values)
            return float(value) if "float" in str(expression.ty) else int(value)
        case expr.Not():
            return not evaluate(expression.a, values)
        case expr.Select():
            chosen = expression.true_value if evaluate(expression.condition, values) else expression.false_value
            return evaluate(chosen, values)
        case expr.Let():
            return evaluate(expression.body, {**values, expression.var: evaluate(expression.value, values)})
        case ir.Call(op=ir.Op(name="tirx.if_then_else")):
            condition, yes, no = expression.args
            return evaluate(yes if evaluate(condition, values) else no, values)
        case ir.Call(op=ir.Op()) if expression.op.name in CALLS:
            return CALLS[expression.op.name](*(evaluate(argument, values) for argument in expression.args))
        case _ if type(expression) in BINARY:
            return BINARY[type(expression)](evaluate(expression.a, values), evaluate(expression.b, values))
    raise NotConstant(expression, f"{brief(expression)} is not known before it runs")


def integer(expression: Any, values: Mapping[Any, Number]) -> int:
    """Return the value of an expression as an integer; see `evaluate`."""
    return int(evaluate(expression, values))


def brief(node: Any) -> str:
    """Return the last line of a node's text, at most 200 characters; earlier lines only declare names."""
    return str(node).strip().splitlines()[-1].strip()[:200]

"""Atomic operations; they run out of line, lane after lane."""

from __future__ import annotations

from kaas.softgpu.analysis.blocks import Step
from kaas.softgpu.analysis.shapes import VARYING, Shape
from kaas.softgpu.codegen.addresses import address_vector, place
from kaas.softgpu.codegen.emitter import Emitter
from kaas.softgpu.codegen.family import Operation
from kaas.softgpu.codegen.memcheck import Verb, check
from kaas.softgpu.codegen.values import Value
from kaas.softgpu.ptx.model import Register
from kaas.softgpu.ptx.types import Scalar


def varying_shape(_op: Operation, _sources: list[Shape]) -> Shape:
    return VARYING


ATOMIC_OPERATIONS = frozenset({"add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"})


def atomic(e: Emitter, step: Step) -> None:
    """atom.op.type d, [a], b[, c] and red.op.type [a], b. Lanes go one after the other, in lane order."""
    op = step.op
    has_result = op.family.has_result
    operands = step.inst.operands[1:] if has_result else step.inst.operands
    mask, _ = e.active(step)
    where = place(e, op, operands[0])
    scalar = op.type
    check(e, step, where, mask, scalar.bits // 8, Verb.UPDATE)
    bits = f"i{scalar.bits}"
    for slot, operand in zip(("%in0", "%in1"), operands[1:], strict=False):
        e.put(f"store <32 x {bits}> {e.vector(e.read(operand, bits))}, ptr {slot}")
    e.put(f"store <32 x i64> {address_vector(e, where.value)}, ptr %addresses")
    name = next(m for m in op.modifiers if m in ATOMIC_OPERATIONS)
    arguments = [("ptr", "%addresses"), ("ptr", "%in0"), ("ptr", "%in1"), ("i32", mask), ("ptr", "%out")]
    e.call(f"kaas_rt_atom_{name}_{_atomic_type(name, scalar)}", arguments)
    if has_result:
        target = step.inst.operands[0]
        assert isinstance(target, Register)
        e.write(target.name, Value(VARYING, bits, [e.new(f"load <32 x {bits}>, ptr %out")]), step)


def _atomic_type(name: str, scalar: Scalar) -> str:
    """The runner has routines for the types that make a difference."""
    if scalar.kind in "fh" and name in ("add", "min", "max"):
        return scalar.name
    if name in ("min", "max"):
        return f"{'s' if scalar.signed else 'u'}{scalar.bits}"
    return f"b{scalar.bits}"

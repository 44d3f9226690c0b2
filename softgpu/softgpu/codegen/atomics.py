"""Atomic operations; they run out of line, lane after lane."""

from __future__ import annotations

from softgpu.analysis.blocks import Step
from softgpu.analysis.shapes import VARYING, Shape
from softgpu.codegen.addresses import address_vector, place
from softgpu.codegen.emitter import Emitter
from softgpu.codegen.family import Operation
from softgpu.codegen.memcheck import Verb, check
from softgpu.codegen.spaces import in_shared
from softgpu.codegen.values import VECTOR, Value
from softgpu.ptx.model import Register
from softgpu.ptx.types import Scalar


def varying_shape(_op: Operation, _sources: list[Shape]) -> Shape:
    """Return the shape of a result that may differ in every lane."""
    return VARYING


ATOMIC_OPERATIONS = frozenset({"add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"})


def atomic(e: Emitter, step: Step) -> None:
    """Emit atom.op.type d, [a], b[, c] and red.op.type [a], b. Lanes go one after the other, in lane order."""
    op = step.op
    has_result = op.family.has_result
    operands = step.inst.operands[1:] if has_result else step.inst.operands
    mask, _ = e.active(step)
    scalar = op.type
    where = place(e, op, operands[0], scalar.bits // 8)
    check(e, step, where, mask, scalar.bits // 8, Verb.UPDATE)
    bits = f"i{scalar.bits}"
    for slot, operand in zip(("%in0", "%in1"), operands[1:], strict=False):
        e.put(f"store <32 x {bits}> {e.vector(e.read(operand, bits))}, ptr {slot}")
    addresses = address_vector(e, where.value)
    e.put(f"store <32 x i64> {addresses}, ptr %addresses")
    name = next(m for m in op.modifiers if m in ATOMIC_OPERATIONS)
    routine = f"sg_rt_atom_{name}_{_atomic_type(name, scalar)}"
    for ending, lanes in _by_denormals(e, op, mask, addresses) if routine.endswith("add_f32") else [("", mask)]:
        arguments = [("ptr", "%addresses"), ("ptr", "%in0"), ("ptr", "%in1"), ("i32", lanes), ("ptr", "%out")]
        e.call(routine + ending, arguments)
    if has_result:
        target = step.inst.operands[0]
        assert isinstance(target, Register)
        e.write(target.name, Value(VARYING, bits, [e.result(bits)]), step)


def _by_denormals(e: Emitter, op: Operation, mask: str, addresses: str) -> list[tuple[str, str]]:
    """Return (ending of the routine, lanes) of an atomic addition of floats.

    It flushes denormals in global memory, and not in shared memory. Lanes whose generic addresses are in different
    spaces never have the same address, so their order does not matter.
    """
    if any(word.startswith("shared") for word in op.modifiers):
        return [("", mask)]
    if "global" in op.modifiers:
        return [("_ftz", mask)]
    inside = e.new(f"bitcast <32 x i1> {in_shared(e, VECTOR, addresses)} to i32")
    shared = e.new(f"and i32 {mask}, {inside}")
    return [("", shared), ("_ftz", e.new(f"xor i32 {mask}, {shared}"))]


def _atomic_type(name: str, scalar: Scalar) -> str:
    """Return the type in the name of the runner's routine; types that give the same result share a routine."""
    if scalar.kind in "fh" and name in ("add", "min", "max"):
        return scalar.name
    if name in ("min", "max"):
        return f"{'s' if scalar.signed else 'u'}{scalar.bits}"
    return f"b{scalar.bits}"

"""cp.async: copies from global to shared memory. Each copy is done at once, so that waiting for copies does nothing."""

from __future__ import annotations

from collections.abc import Mapping

from softgpu.analysis.blocks import Step
from softgpu.analysis.shapes import WARP
from softgpu.codegen.addresses import address_vector, place
from softgpu.codegen.emitter import Emitter
from softgpu.codegen.family import Operation
from softgpu.codegen.values import VECTOR
from softgpu.ptx.model import Address, Immediate, Operand, Register
from softgpu.ptx.types import SCALARS

SIZES = (4, 8, 16)


def copy(e: Emitter, step: Step) -> None:
    """Emit cp.async [to], [from], bytes[, bytes to read | predicate to ignore the source]. The other bytes are zero."""
    to, source, size, *rest = step.inst.operands
    assert isinstance(size, Immediate)
    mask, _ = e.active(step)
    targets = address_vector(e, place(e, step.op, to, size.value, "shared").value)
    sources = address_vector(e, place(e, step.op, source, size.value, "global").value)
    e.put(f"store <{WARP} x i64> {targets}, ptr %in0")
    e.put(f"store <{WARP} x i64> {sources}, ptr %addresses")
    counts = "null"
    if rest:
        e.put(f"store <{WARP} x i32> {_bytes_to_read(e, rest[0], size.value)}, ptr %in1")
        counts = "%in1"
    arguments = [("ptr", "%in0"), ("ptr", "%addresses"), ("ptr", counts), ("i32", mask)]
    if e.memcheck:
        numbers = [("i32", str(size.value)), ("i32", str(step.inst.line))]
        e.call("sg_rt_check_copy", [("ptr", "%w"), *arguments, *numbers])
    e.call(f"sg_rt_copy_b{8 * size.value}", arguments)


def _bytes_to_read(e: Emitter, operand: Operand, size: int) -> str:
    if _bits(e.kernel.registers, operand) == 32:
        return e.vector(e.read(operand, "i32"))
    ignored = e.vector(e.read(operand, "i1"))
    all_of_it = VECTOR.const("i32", size)
    return e.new(f"select <{WARP} x i1> {ignored}, {VECTOR.of('i32')} zeroinitializer, {VECTOR.of('i32')} {all_of_it}")


def objection(op: Operation, operands: tuple[Operand, ...], registers: Mapping[str, str]) -> str:
    """Return the error in the operands of cp.async; "" if there is none."""
    to, source, size, *rest = operands
    words = op.opcode.split(".")
    if op.modifiers not in (("async", "shared", "global"), ("async", "shared::cta", "global")):
        return "a copy that is not from global to shared memory"
    if not isinstance(to, Address) or not isinstance(source, Address):
        return "a copy without two addresses"
    if ("ca" in words) == ("cg" in words):
        return "a copy that says neither .ca nor .cg, or both"
    if not isinstance(size, Immediate) or size.value not in ((16,) if "cg" in words else SIZES):
        return "no number of bytes that cp.async copies"
    if rest and _bits(registers, rest[0]) not in (1, 32):
        return "operands that do not fit"
    return ""


def objection_to_waiting(_op: Operation, operands: tuple[Operand, ...], _registers: Mapping[str, str]) -> str:
    """Return the error in the operands of a wait; "" if there is none. The number of groups must be a constant."""
    return "" if all(isinstance(one, Immediate) for one in operands) else "no number of groups"


def _bits(registers: Mapping[str, str], operand: Operand) -> int:
    """Return the width of a source in bits; 0 for an operand that is no source."""
    match operand:
        case Register(name):
            return SCALARS[registers[name]].bits
        case Immediate():
            return 32
    return 0

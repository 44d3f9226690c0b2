"""The functions of CUDA without PTX code: printf, failed assertions, and the setting of a graph's conditions."""

from __future__ import annotations

from softgpu.analysis.blocks import Step
from softgpu.analysis.shapes import VARYING
from softgpu.codegen.emitter import Emitter
from softgpu.codegen.values import VECTOR, Value
from softgpu.ptx.model import Operand, Register


def _spill(e: Emitter, slot: str, operand: Operand, element: str) -> tuple[str, str]:
    e.put(f"store {VECTOR.of(element)} {e.vector(e.read(operand, element))}, ptr {slot}")
    return "ptr", slot


def overflow(e: Emitter, step: Step) -> None:
    """Emit the error of an alloca that exceeds the stack."""
    e.call("sg_rt_overflow", [("ptr", "%w"), ("i32", str(step.inst.line))])


def nowhere(e: Emitter, step: Step) -> None:
    """Emit the error of a call through a pointer to none of the functions that it may reach."""
    slot = _spill(e, "%in0", step.inst.operands[0], "i64")
    e.call("sg_rt_nowhere", [("ptr", "%w"), ("i32", str(step.inst.line)), slot, ("i32", e.mask())])


def vprintf(e: Emitter, step: Step) -> None:
    """Emit the call of vprintf, which takes a format and a pointer to the arguments, and returns an int."""
    target, format_, arguments = step.inst.operands
    slots = [_spill(e, "%in0", format_, "i64"), _spill(e, "%in1", arguments, "i64")]
    e.call("sg_rt_vprintf", [("ptr", "%w"), *slots, ("i32", e.mask()), ("ptr", "%out")])
    assert isinstance(target, Register)
    e.write(target.name, Value(VARYING, "i32", [e.result("i32")]), step)


def assert_fail(e: Emitter, step: Step) -> None:
    """Emit void __assertfail(const char *message, const char *file, unsigned line, const char *function, size_t)."""
    kinds = ("i64", "i64", "i32", "i64")
    slots = [
        _spill(e, f"%in{index}", operand, kind)
        for index, (operand, kind) in enumerate(zip(step.inst.operands[:4], kinds, strict=True))
    ]
    e.call("sg_rt_assert", [("ptr", "%w"), *slots, ("i32", e.mask())])


def set_conditional(e: Emitter, step: Step) -> None:
    """Emit the call of void cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned value)."""
    handle, value = step.inst.operands
    slots = [_spill(e, "%in0", handle, "i64"), _spill(e, "%in1", value, "i32")]
    e.call("sg_rt_set_condition", [("ptr", "%w"), *slots, ("i32", e.mask())])

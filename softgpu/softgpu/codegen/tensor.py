"""mma: the product of two small matrices that are spread over a warp, plus a third."""

from __future__ import annotations

from collections.abc import Mapping

from softgpu.analysis.blocks import Step
from softgpu.analysis.shapes import VARYING, WARP
from softgpu.codegen.emitter import Emitter
from softgpu.codegen.family import Operation
from softgpu.codegen.forms import FORMS
from softgpu.codegen.tensor_code import function
from softgpu.codegen.values import SIZES, Value
from softgpu.ptx.model import Immediate, Operand, Register, Vector
from softgpu.ptx.types import SCALARS


def objection(op: Operation, operands: tuple[Operand, ...], registers: Mapping[str, str]) -> str:
    """Return the error in the operands of mma; "" if there is none."""
    form = FORMS[op.opcode]
    for place, (operand, count) in enumerate(zip(operands, form.counts, strict=True)):
        items = _items(operand)
        if len(items) != count:
            return f"operand {place + 1} is no list of {count}"
        wanted = SIZES[form.register(place)]
        for item in items:
            if isinstance(item, Register):
                if item.name != "_" and SCALARS[registers[item.name]].bits != wanted:
                    return f"a register that does not have {wanted} bits"
            elif place == 0 or not isinstance(item, Immediate):
                return f"operand {place + 1} does not fit"
    return ""


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


def need_whole_warp(e: Emitter, step: Step) -> None:
    """End the launch if lanes are missing from an instruction that the whole warp executes together."""
    if not e.is_full:
        e.call("sg_rt_need_warp", [("ptr", "%w"), ("i32", e.mask()), ("i32", str(step.inst.line))])


def multiply(e: Emitter, step: Step) -> None:
    """Emit mma d, a, b, c."""
    form = FORMS[step.op.opcode]
    need_whole_warp(e, step)
    sources = []
    for place, slot in ((1, "%in0"), (2, "%in1"), (3, "%out")):
        kind = form.register(place)
        for index, item in enumerate(_items(step.inst.operands[place])):
            sources.append((slot, index, kind, e.vector(e.read(item, kind))))
    for slot, index, kind, value in sources:
        e.put(f"store <{WARP} x {kind}> {value}, ptr {_register(e, slot, kind, index)}")
    if form.name not in e.functions:
        e.functions[form.name] = function(form, e)
    e.put(f"call void @{form.name}(ptr %in0, ptr %in1, ptr %out)")
    kind = form.register(0)
    for index, item in enumerate(_items(step.inst.operands[0])):
        assert isinstance(item, Register)
        e.write(item.name, Value(VARYING, kind, [e.result(kind, index=index)]), step)


def _register(e: Emitter, slot: str, kind: str, index: int) -> str:
    return e.new(f"getelementptr <{WARP} x {kind}>, ptr {slot}, i64 {index}") if index else slot

"""alloca, stacksave and stackrestore as ordinary instructions on a register that holds the end of the stack."""

from __future__ import annotations

from dataclasses import replace

from softgpu.ptx import limits
from softgpu.ptx.model import Immediate, Instruction, Label, Operand, PtxError, Register, Symbol

AREA = "$stack"
"""The local variable that holds the stack."""

_END, _ALIGNED, _FULL = Register("$stack.end"), Register("$stack.aligned"), Register("$stack.full")


def is_stack(item: Instruction | Label) -> bool:
    """Return True for alloca, stacksave and stackrestore."""
    return isinstance(item, Instruction) and item.opcode.split(".", 1)[0] in ("alloca", "stacksave", "stackrestore")


def start(line: int) -> Instruction:
    """Return the first instruction of a kernel that uses the stack."""
    return Instruction(line, "mov.u64", (_END, Symbol(AREA)), "alloca")


def save(line: int, suffix: str) -> Instruction:
    """Return the instruction that keeps the end for `restore`: a function's stack memory is free after it returns."""
    return Instruction(line, "mov.u64", (Register(_END.name + suffix), _END), "alloca")


def restore(line: int, suffix: str) -> Instruction:
    """Return the instruction that sets the end to the value that `save` has kept."""
    return Instruction(line, "mov.u64", (_END, Register(_END.name + suffix)), "alloca")


def registers(suffix: str = "") -> dict[str, str]:
    """Return the registers that these instructions need, with their types."""
    if suffix:
        return {_END.name + suffix: "b64"}
    return {_END.name: "b64", _ALIGNED.name: "b64", _FULL.name: "pred"}


def expanded(item: Instruction) -> list[Instruction]:
    """Return ordinary instructions for an alloca, stacksave or stackrestore."""

    def make(opcode: str, *operands: Operand) -> Instruction:
        return replace(item, opcode=opcode, operands=operands)

    match item.opcode, item.operands:
        case "stacksave.u64", (Register() as saved,):
            return [make("mov.u64", saved, _END)]
        case "stackrestore.u64", (Register() as saved,):
            return [make("mov.u64", _END, saved)]
        case "alloca.u64", (Register() as place, size, *rest):
            align = rest[0] if rest else Immediate(8)
            if not isinstance(align, Immediate) or align.value < 1 or align.value & (align.value - 1):
                raise PtxError(item.line, f"no alignment in {item.text!r}")
            if align.value > limits.LOCAL_ALIGN:
                raise PtxError(item.line, f"alignment {align.value} of alloca is above {limits.LOCAL_ALIGN}")
            return [
                make("add.u64", _ALIGNED, _END, Immediate(align.value - 1)),
                make("and.b64", _ALIGNED, _ALIGNED, Immediate(-align.value)),
                make("mov.u64", place, _ALIGNED),
                make("add.u64", _END, _ALIGNED, size),
                make("setp.gt.u64", _FULL, _END, Symbol(AREA, limits.STACK_BYTES)),
                make("setp.lt.or.u64", _FULL, _END, _ALIGNED, _FULL),
                replace(make("call overflow"), guard=_FULL, negated=False),
            ]
    raise PtxError(item.line, f"no code for {' '.join(item.text.split())!r}")

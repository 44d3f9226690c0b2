"""Checks a kernel against the table of instructions before anything is compiled."""

from __future__ import annotations

from collections.abc import Iterable

from kaas.softgpu.codegen import special
from kaas.softgpu.codegen.family import Operation
from kaas.softgpu.instructions import CONTROL, operation
from kaas.softgpu.ptx.inline import Kernel
from kaas.softgpu.ptx.model import (
    SINK,
    Address,
    Instruction,
    Label,
    Not,
    Operand,
    Pair,
    PtxError,
    Register,
    Special,
    Symbol,
    Unsupported,
    Vector,
)


def check(kernel: Kernel) -> list[Unsupported]:
    """What in the kernel has no code. Raises PtxError for what is wrong in itself."""
    refusals = []
    labels = {item.name for item in kernel.body if isinstance(item, Label)}
    for item in kernel.body:
        if isinstance(item, Label):
            _check_labels(item.targets, labels, item.line)
            continue
        if item.opcode.split(".", 1)[0] in CONTROL:
            _check_labels([o.name for o in item.operands if isinstance(o, Symbol)], labels, item.line)
            continue
        try:
            _check_operands(kernel, item, operation(item))
        except Unsupported as refusal:
            refusals.append(refusal)
    return refusals


def _check_labels(names: Iterable[str], labels: set[str], line: int) -> None:
    for name in names:
        if name not in labels:
            raise PtxError(line, f"no label {name}")


def _check_operands(kernel: Kernel, inst: Instruction, op: Operation) -> None:
    text = " ".join(inst.text.split())
    least, most = op.family.operands
    if not least <= len(inst.operands) <= most:
        raise PtxError(inst.line, f"{len(inst.operands)} operands in {text!r}")
    if op.family.has_result and not _is_result(inst.operands[0]):
        raise PtxError(inst.line, f"{text!r} writes to what is no register")
    memory = op.base in ("ld", "ldu", "st", "atom", "red")
    if memory and not isinstance(inst.operands[1 if op.family.has_result else 0], Address):
        raise PtxError(inst.line, f"no address in {text!r}")
    if op.base == "lop3" and not hasattr(inst.operands[4], "value"):
        raise PtxError(inst.line, f"no table in {text!r}")
    for operand in inst.operands:
        _check_operand(kernel, inst, operand)


def _is_result(operand: Operand) -> bool:
    return isinstance(operand, Register | Pair) or (
        isinstance(operand, Vector) and all(isinstance(item, Register) for item in operand.items)
    )


def _check_operand(kernel: Kernel, inst: Instruction, operand: Operand) -> None:
    match operand:
        case Special(name):
            if name not in special.NAMES:
                raise Unsupported(inst.line, f"no code for {name}: {' '.join(inst.text.split())}")
        case Address(base, _):
            _check_operand(kernel, inst, base)
        case Vector(items):
            for item in items:
                _check_operand(kernel, inst, item)
        case Symbol(name, _):
            known = name in kernel.shared or name in kernel.local or name in kernel.globals
            if not known and all(p.name != name for p in kernel.parameters):
                raise PtxError(inst.line, f"no variable or register {name} for {' '.join(inst.text.split())!r}")
        case Register() | Pair() | Not():
            if operand != SINK and any(r.name not in kernel.registers for r in _plain(operand)):
                raise PtxError(inst.line, f"undeclared register in {' '.join(inst.text.split())!r}")


def _plain(operand: Register | Pair | Not) -> Iterable[Register]:
    match operand:
        case Register():
            return (operand,)
        case Pair(first, second):
            return tuple(one for one in (first, second) if one != SINK)
        case Not(register):
            return (register,)

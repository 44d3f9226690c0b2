"""Checks a kernel against the table of instructions before anything is compiled."""

from __future__ import annotations

from collections.abc import Iterable

from softgpu import refused
from softgpu.codegen import special
from softgpu.codegen.family import Operation
from softgpu.codegen.values import SIZES
from softgpu.instructions import CONTROL, operation
from softgpu.ptx.kernel import Kernel
from softgpu.ptx.model import (
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
from softgpu.ptx.types import SCALARS


def check(kernel: Kernel) -> list[Unsupported]:
    """Return a refusal for each instruction of the kernel without code.

    Raises:
        PtxError: an instruction is wrong on every GPU.
    """
    refusals = []
    labels = {item.name for item in kernel.body if isinstance(item, Label)}
    tables = {item.name for item in kernel.body if isinstance(item, Label) and item.targets}
    for item in kernel.body:
        if isinstance(item, Label):
            _check_labels(item.targets, labels, item.line)
            continue
        _check_guard(kernel, item)
        if item.opcode.split(".", 1)[0] in CONTROL:
            _check_labels([o.name for o in item.operands if isinstance(o, Symbol)], labels, item.line)
            _check_branch(kernel, item, tables)
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


def _check_guard(kernel: Kernel, inst: Instruction) -> None:
    if inst.guard is not None and kernel.registers.get(inst.guard.name) != "pred":
        raise PtxError(inst.line, f"the guard is no predicate: {_one_line(inst)}")


def _check_branch(kernel: Kernel, inst: Instruction, tables: set[str]) -> None:
    match inst.opcode.split(".", 1)[0], inst.operands:
        case "bra", (Symbol(name),) if name not in tables:
            return
        case "ret" | "exit", ():
            return
        case "brx", (Register(index), Symbol(name)) if name in tables and inst.guard is None:
            if kernel.registers.get(index) in ("b32", "u32", "s32"):
                return
    raise PtxError(inst.line, f"no code for this branch: {_one_line(inst)}")


def _check_operands(kernel: Kernel, inst: Instruction, op: Operation) -> None:
    text = " ".join(inst.text.split())
    least, most = op.family.operands
    if not least <= len(inst.operands) <= most:
        raise PtxError(inst.line, f"{len(inst.operands)} operands in {text!r}")
    if op.family.has_result and not _is_result(inst.operands[0]):
        raise PtxError(inst.line, f"{text!r} writes to what is no register")
    memory = op.base in ("ld", "ldu", "ldmatrix", "st", "atom", "red")
    if memory and not isinstance(inst.operands[1 if op.family.has_result else 0], Address):
        raise PtxError(inst.line, f"no address in {text!r}")
    if op.base == "lop3" and not hasattr(inst.operands[4], "value"):
        raise PtxError(inst.line, f"no table in {text!r}")
    for place, operand in enumerate(inst.operands):
        _check_operand(kernel, inst, operand)
        if (place > 0 or not op.family.has_result) and SINK in _inner(operand):
            raise PtxError(inst.line, f"_ has no value: {text}")
    if op.family.objection is not None:
        wrong = op.family.objection(op, inst.operands, kernel.registers)
        if wrong:
            raise PtxError(inst.line, f"{wrong}: {text}")
        return
    _check_forms(inst, op)
    _check_widths(kernel, inst, op)


# Which operands of an instruction are lists and addresses.
_LISTS = {"mov": (0, 1), "ld": (0,), "ldu": (0,), "ldmatrix": (0,), "st": (1,)}
_ADDRESSES = {"ld": (1,), "ldu": (1,), "atom": (1,), "st": (0,), "red": (0,), "prefetch": (0,), "prefetchu": (0,)}
_ADDRESSES |= {"discard": (0,), "applypriority": (0,), "createpolicy": (1,), "ldmatrix": (1,)}


def _check_forms(inst: Instruction, op: Operation) -> None:
    """Check that addresses, lists and pairs stand exactly where the instruction takes them."""
    lists, addresses = _LISTS.get(op.base, ()), _ADDRESSES.get(op.base, ())
    pairs = (0,) if op.base in ("setp", "shfl", "match", "elect") else ()
    for place, operand in enumerate(inst.operands):
        fits = True
        match operand:
            case Address():
                fits = place in addresses
            case Vector(items):
                fits = place in lists and 0 < len(items) == _lanes_of(op, len(items)) and not _nested(items)
            case Pair():
                fits = place in pairs
            case Not():
                fits = op.base in ("vote", "bar", "barrier", "setp", "set")
        if not fits or (op.base == "elect" and place == 0 and not isinstance(operand, Pair)):
            raise PtxError(inst.line, f"operand {place + 1} does not fit: {_one_line(inst)}")
    if op.base == "ldmatrix" or "v2" in op.modifiers or "v4" in op.modifiers:
        value = inst.operands[lists[0]]
        if not isinstance(value, Vector):
            raise PtxError(inst.line, f"no list of registers: {_one_line(inst)}")
    combines = op.base in ("setp", "set") and bool({"and", "or", "xor"} & set(op.modifiers))
    if op.base in ("setp", "set") and combines != (len(inst.operands) == 4):
        raise PtxError(inst.line, f"{len(inst.operands)} operands: {_one_line(inst)}")
    if op.base == "atom" and ("cas" in op.modifiers) != (len(inst.operands) == 4):
        raise PtxError(inst.line, f"{len(inst.operands)} operands: {_one_line(inst)}")
    if "pack" in op.modifiers:
        if len(inst.operands) != len(op.types) + 1:
            raise PtxError(inst.line, f"{len(inst.operands)} operands: {_one_line(inst)}")
    elif op.base == "cvt" and op.types[0].name.endswith("x2") != (len(inst.operands) == 3):
        raise PtxError(inst.line, f"{len(inst.operands)} operands: {_one_line(inst)}")


def _inner(operand: Operand) -> tuple[Operand, ...]:
    """Return the parts of a source operand that the instruction reads."""
    match operand:
        case Address(base, _):
            return (base,)
        case Vector(items):
            return items
        case Not(register):
            return (register,)
    return (operand,)


def _lanes_of(op: Operation, count: int) -> int:
    """Return the number of items that a list must have."""
    if op.base == "mov":
        return count if count in (2, 4) and op.type.bits // count >= 8 else 0
    return next((n for n in (2, 4) if {f"v{n}", f"x{n}"} & set(op.modifiers)), 1)


def _nested(items: tuple[Operand, ...]) -> bool:
    return any(isinstance(item, Vector | Address | Pair | Not) for item in items)


def _check_widths(kernel: Kernel, inst: Instruction, op: Operation) -> None:
    """Check that registers have the width of their values; loads, stores and conversions may use wider registers."""
    sources = inst.operands[1:] if op.family.has_result else inst.operands
    if op.family.kinds is not None and op.family.result is not None:
        kinds = op.family.kinds(op, len(sources))
        expected = [(inst.operands[0], SIZES[op.family.result(op)])]
        expected += [(operand, SIZES[kind]) for operand, kind in zip(sources, kinds, strict=False)]
    else:
        expected = _other_widths(kernel, inst, op)
    for operand, bits in expected:
        if isinstance(operand, Not):
            operand = operand.register
        if isinstance(operand, Register) and operand != SINK:
            have = SCALARS[kernel.registers[operand.name]].bits
            if have != bits:
                raise PtxError(inst.line, f"a register of {have} bits where {bits} belong: {_one_line(inst)}")
        elif bits == 1 and isinstance(operand, Special | Symbol | Address):
            raise PtxError(inst.line, f"no predicate: {_one_line(inst)}")


def _other_widths(kernel: Kernel, inst: Instruction, op: Operation) -> list[tuple[Operand, int]]:
    operands = inst.operands
    match op.base:
        case "mov":
            out: list[tuple[Operand, int]] = []
            for operand in operands:
                if isinstance(operand, Vector):
                    out += [(item, op.type.bits // len(operand.items)) for item in operand.items]
                else:
                    out.append((operand, op.type.bits))
            return out
        case "setp":
            target = operands[0]
            firsts = (target.first, target.second) if isinstance(target, Pair) else (target,)
            return [*((one, 1) for one in (*firsts, *operands[3:])), *((one, op.type.bits) for one in operands[1:3])]
        case "vote":
            return [(operands[0], 32 if "ballot" in op.modifiers else 1), (operands[1], 1)]
        case "shfl" | "match" | "elect":
            target = operands[0]
            pair: list[tuple[Operand, int]] = (
                [(target.first, 32), (target.second, 1)] if isinstance(target, Pair) else [(target, 32)]
            )
            return pair if op.base == "elect" else [*pair, (operands[1], op.type.bits)]
        case "redux" | "activemask":
            return [(operand, 32) for operand in operands[:2]]
        case "bar" | "barrier" if "red" in op.modifiers:
            return [(operands[0], op.type.bits), *((one, 32) for one in operands[1:-1]), (operands[-1], 1)]
        case "bar" | "barrier":
            return [(one, 32) for one in operands]
        case "atom" | "red":
            return [(one, op.type.bits) for one in operands if not isinstance(one, Address)]
        case "cvta":
            return [(one, 64) for one in operands]
        case "createpolicy":
            return [(operands[0], 64)]
        case "ldmatrix":
            return [(item, 32) for item in _items(operands[0])]
        case "ld" | "ldu" | "st" | "cvt":
            return _wide_enough(kernel, inst, op)
    return []


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


def _wide_enough(kernel: Kernel, inst: Instruction, op: Operation) -> list[tuple[Operand, int]]:
    """Return the widths for loads, stores and conversions: wider registers are right, but predicates hold no number."""
    placed: list[tuple[Operand, int]] = []
    for place, operand in enumerate(inst.operands):
        bits = op.types[0 if place == 0 else -1].bits
        for one in _items(operand):
            if isinstance(one, Register) and one != SINK:
                have = SCALARS[kernel.registers[one.name]].bits
                placed.append((one, max(bits, have) if have > 1 else bits))
    return placed


def _is_result(operand: Operand) -> bool:
    return isinstance(operand, Register | Pair) or (
        isinstance(operand, Vector) and all(isinstance(item, Register) for item in operand.items)
    )


def _check_operand(kernel: Kernel, inst: Instruction, operand: Operand) -> None:
    match operand:
        case Special(name):
            if name not in special.NAMES:
                raise Unsupported(inst.line, f"no code for {refused.register(name)}: {' '.join(inst.text.split())}")
        case Address(base, _):
            _check_operand(kernel, inst, base)
            if base == SINK or (isinstance(base, Register) and kernel.registers[base.name][0] not in "bsu"):
                raise PtxError(inst.line, f"no address in {_one_line(inst)}")
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


def _one_line(inst: Instruction) -> str:
    return " ".join(inst.text.split())


def _plain(operand: Register | Pair | Not) -> Iterable[Register]:
    match operand:
        case Register():
            return (operand,)
        case Pair(first, second):
            return tuple(one for one in (first, second) if one != SINK)
        case Not(register):
            return (register,)

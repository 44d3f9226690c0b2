"""Gives the registers, variables and labels of a function unique names at each place where it is expanded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from softgpu.ptx.model import (
    Address,
    Immediate,
    Instruction,
    Not,
    Operand,
    Pair,
    Register,
    Special,
    Symbol,
    Vector,
)


def renamer(suffix: str, names: dict[str, str]) -> Callable[[Operand], Operand]:
    """Return a function that adds the suffix to registers, and replaces the symbols that are in `names`."""

    def rename(operand: Operand) -> Operand:
        match operand:
            case Register("_"):
                return operand
            case Register(name):
                return Register(name + suffix)
            case Symbol(name, offset):
                return Symbol(names.get(name, name), offset)
            case Address(base, offset):
                inner = rename(base)
                assert isinstance(inner, Register | Symbol | Immediate)
                return Address(inner, offset)
            case Vector(items):
                return Vector(tuple(rename(item) for item in items))
            case Pair(first, second):
                return Pair(_register(rename(first)), _register(rename(second)))
            case Not(register):
                return Not(_register(rename(register)))
            case Special() | Immediate():
                return operand

    return rename


def _register(operand: Operand) -> Register:
    assert isinstance(operand, Register)
    return operand


def renamed(item: Instruction, rename: Callable[[Operand], Operand], suffix: str) -> Instruction:
    """Return the instruction with its operands and its target labels renamed."""
    base = item.opcode.split(".", 1)[0]
    if base in ("bra", "brx"):
        operands = tuple(Symbol(o.name + suffix) if isinstance(o, Symbol) else rename(o) for o in item.operands)
    else:
        operands = tuple(rename(operand) for operand in item.operands)
    guard = None if item.guard is None else _register(rename(item.guard))
    return replace(item, operands=operands, guard=guard)

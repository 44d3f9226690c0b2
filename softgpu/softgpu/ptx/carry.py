"""Arithmetic with a carry (add.cc, addc, sub.cc, subc, mad.cc, madc) as ordinary instructions and a predicate."""

from __future__ import annotations

import re
from dataclasses import replace

from softgpu.ptx.model import Immediate, Instruction, Label, Operand, PtxError, Register

_SUM = re.compile(r"(add|sub)(c?)(\.cc)?\.([us])(32|64)$")
_PRODUCT = re.compile(r"mad(c?)\.(lo|hi)(\.cc)?\.([us])(32|64)$")
_CARRY, _FIRST = Register("carry."), Register("carry.first")


def expand(body: list[Instruction | Label], registers: dict[str, str]) -> list[Instruction | Label]:
    """Return the body without such instructions, and add the registers of their replacements to `registers`."""
    out: list[Instruction | Label] = []
    for item in body:
        if isinstance(item, Label) or not (item.opcode.startswith(("add", "sub", "mad")) and "c" in item.opcode):
            out.append(item)
        else:
            out += _expanded(item, registers)
    return out


def _expanded(item: Instruction, registers: dict[str, str]) -> list[Instruction]:
    found, product = _SUM.match(item.opcode), _PRODUCT.match(item.opcode)
    if found is not None and (found[2] or found[3]):
        _count(item, 3)
        d, a, b = item.operands
        return _sum(item, registers, (found[1], bool(found[2]), bool(found[3]), found[5]), (d, a, b))
    if product is not None and (product[1] or product[3]):
        _count(item, 4)
        d, a, b, c = item.operands
        part = _temporary("product", product[5], registers)
        multiply = replace(item, opcode=f"mul.{product[2]}.{product[4]}{product[5]}", operands=(part, a, b))
        form = ("add", bool(product[1]), bool(product[3]), product[5])
        return [multiply, *_sum(item, registers, form, (d, part, c))]
    return [item]


def _count(item: Instruction, wanted: int) -> None:
    if len(item.operands) != wanted:
        raise PtxError(item.line, f"{len(item.operands)} operands in {' '.join(item.text.split())!r}")


def _temporary(name: str, bits: str, registers: dict[str, str]) -> Register:
    registers[f"carry.{name}{bits}"] = f"b{bits}"
    return Register(f"carry.{name}{bits}")


def _sum(
    item: Instruction,
    registers: dict[str, str],
    form: tuple[str, bool, bool, str],
    operands: tuple[Operand, Operand, Operand],
) -> list[Instruction]:
    """Return a sum or difference with carries. form: add or sub, if it takes a carry, if it gives a carry, bits.

    The carry of sub is set if it borrowed nothing, as on a GPU: CUDA's 128-bit division reads it with an addc.
    """
    name, takes, gives, bits = form
    d, a, b = operands
    kind = f"u{bits}"
    registers |= {_CARRY.name: "pred", _FIRST.name: "pred"}
    total, whole, one = (_temporary(stem, bits, registers) for stem in ("total", "whole", "one"))

    def make(opcode: str, *given: Operand) -> Instruction:
        return replace(item, opcode=opcode, operands=given)

    out = [make(f"{name}.{kind}", total, a, b)]
    adds = name == "add"
    compare, both, over = ("lt", "or", (total, a)) if adds else ("ge", "and", (a, b))
    if not takes:
        out += [make(f"setp.{compare}.{kind}", _CARRY, *over)] if gives else []
        return [*out, make(f"mov.{kind}", d, total)]
    out += [
        make(f"selp.{kind}", one, Immediate(int(adds)), Immediate(int(not adds)), _CARRY),
        make(f"{name}.{kind}", whole, total, one),
    ]
    if gives:
        again = (whole, total) if adds else (total, one)
        out += [
            make(f"setp.{compare}.{kind}", _FIRST, *over),
            make(f"setp.{compare}.{both}.{kind}", _CARRY, *again, _FIRST),
        ]
    return [*out, make(f"mov.{kind}", d, whole)]

"""Reads one PTX instruction and its operands."""

from __future__ import annotations

import re
import struct

from softgpu.ptx.model import (
    SINK,
    Address,
    Immediate,
    Instruction,
    Not,
    Operand,
    Pair,
    PtxError,
    Register,
    Special,
    Symbol,
    Vector,
)

_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,\s{\[(][^,]*")

_ADDRESS = re.compile(r"\[\s*([^\s+\]]+)\s*(?:\+\s*(-?\s*\w+)|(-\s*\w+))?\s*\]$")

_SYMBOL = re.compile(r"([A-Za-z_$%][\w$]*)(?:\s*\+\s*(-?\w+))?$")

_INSTRUCTION = re.compile(r"(?:@(!?)\s*([\w$%]+)\s+)?([a-z][\w.:]*)\s*(.*)$", re.S)

_NUMBER = re.compile(r"(-?)\s*(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")


def number(text: str, line: int) -> Immediate:
    """Return an integer or floating-point constant of PTX."""
    found = _NUMBER.match(text)
    if found:
        digits = found[2]
        octal = len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()
        value = int(digits, 8 if octal else 0)
        return Immediate(-value if found[1] else value)
    try:
        if text[:2] in ("0f", "0F") and len(text) == 10:
            return Immediate(int(text[2:], 16), 32)
        if text[:2] in ("0d", "0D") and len(text) == 18:
            return Immediate(int(text[2:], 16), 64)
        return Immediate(int.from_bytes(struct.pack("<d", float(text)), "little"), 64)
    except ValueError:
        raise PtxError(line, f"not an operand: {text!r}") from None


def instruction(text: str, line: int, scopes: list[dict[str, Operand]], cache: dict[str, Operand]) -> Instruction:
    """Return one instruction; register names are looked up from the innermost scope outwards."""
    found = _INSTRUCTION.match(text)
    if not found:
        raise PtxError(line, f"not an instruction: {' '.join(text.split())[:80]!r}")
    operands = []
    for part in _OPERAND.findall(found[4]):
        part = part.strip()
        value = cache.get(part)
        if value is None:
            value = cache[part] = _operand(part, line, scopes)
        operands.append(value)
    guard = _operand(found[2], line, scopes) if found[2] else None
    if guard is not None and not isinstance(guard, Register):
        raise PtxError(line, f"the guard {found[2]} is no register")
    return Instruction(line, found[3], tuple(operands), text, guard, bool(found[1]))


def _operand(text: str, line: int, scopes: list[dict[str, Operand]]) -> Operand:
    for scope in reversed(scopes):
        if text in scope:
            return scope[text]
    if not text:
        raise PtxError(line, "an operand is missing")
    first = text[0]
    if first in "{(":
        inner = text[1:-1].strip()
        return Vector(tuple(_operand(item.strip(), line, scopes) for item in inner.split(",")) if inner else ())
    if first == "[" and "," in text:  # an operand of textures
        return Vector(tuple(_operand(item.strip(), line, scopes) for item in _OPERAND.findall(text[1:-1])))
    if first == "[":
        return _address(text, line, scopes)
    if first == "!":
        inverted = _operand(text[1:].strip(), line, scopes)
        if isinstance(inverted, Register):
            return Not(inverted)
    if "|" in text:
        one, _, other = text.partition("|")
        left, right = _operand(one.strip(), line, scopes), _operand(other.strip(), line, scopes)
        if isinstance(left, Register) and isinstance(right, Register):
            return Pair(left, right)
    if text == "_":
        return SINK
    if text == "WARP_SZ":
        return Immediate(32)
    if first == "%":
        return Special(text)
    symbol = _SYMBOL.match(text)
    if symbol:
        return Symbol(symbol[1], number(symbol[2], line).value if symbol[2] else 0)
    return number(text, line)


def _address(text: str, line: int, scopes: list[dict[str, Operand]]) -> Address:
    found = _ADDRESS.match(text)
    if not found:
        raise PtxError(line, f"not an address: {text!r}")
    base = _operand(found[1], line, scopes)
    offset = number((found[2] or found[3] or "0").replace(" ", ""), line).value
    if not isinstance(base, Register | Symbol | Immediate):
        raise PtxError(line, f"not an address: {text!r}")
    return Address(base, offset)

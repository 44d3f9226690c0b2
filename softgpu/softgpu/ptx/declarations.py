"""Reads the parameters and variables that PTX declares: layout, sizes, initial bytes."""

from __future__ import annotations

import re
import struct

from softgpu.ptx import limits
from softgpu.ptx.model import Parameter, PtxError, Unsupported, Variable
from softgpu.ptx.operands import number
from softgpu.ptx.types import SCALARS

_VARIABLE = re.compile(r"\.(global|const|shared|local|param)\b((?:\s*\.\w+(?:\s+\d+(?=\s))?)*)\s+(.*)$", re.S)

# Managed and unified memory is memory that host and device both reach, which holds for all memory here.
_ATTRIBUTE = re.compile(r"\.attribute\s*\((?:\s*\.(?:managed|unified)\b(?:\s*\([^)]*\))?\s*,?)*\s*\)")

_DECLARATOR = re.compile(r"([\w$%]+)\s*((?:\[\s*\w*\s*\]\s*)*)(?:=\s*(.*))?$", re.S)


def parameters(text: str, line: int) -> tuple[Parameter, ...]:
    """Return the parameters of a list with their byte offsets, laid out as in CUDA's parameter buffer."""
    out: list[Parameter] = []
    offset = 0
    for item in text.split(","):
        if not item.strip():
            continue
        item = re.sub(r"\.ptr(\s*\.(?!align)\w+)*(\s*\.align\s+\d+)?", " ", item)
        found = re.match(
            r"\s*\.(param|reg)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$%]+)\s*(?:\[\s*(\d*)\s*\])?\s*$", item
        )
        if not found or found[3] not in SCALARS:
            raise PtxError(line, f"not a parameter: {' '.join(item.split())!r}")
        width = max(1, SCALARS[found[3]].bits // 8)
        align = int(found[2] or width)
        if align < 1 or align & (align - 1):
            raise PtxError(line, f"alignment {align} is no power of two")
        size = width * int(found[5]) if found[5] else width
        offset = (offset + align - 1) // align * align
        out.append(Parameter(found[4], found[3], offset, size, found[1] == "reg"))
        offset += size
    return tuple(out)


def variables(text: str, line: int, external: bool) -> list[Variable]:
    """Return the variables of one declaration, with their initial bytes."""
    limits.check_initialiser(text, line)
    attribute = _ATTRIBUTE.search(text)
    managed = attribute is not None and ".managed" in attribute[0]
    found = _VARIABLE.match(_ATTRIBUTE.sub(" ", text))
    if not found:
        raise Unsupported(line, f"no code for {' '.join(text.split())[:80]!r}")
    words = re.findall(r"\.(\w+)(?:\s+(\d+))?", found[2])
    types = [name for name, _ in words if name in SCALARS]
    strange = [name for name, _ in words if name not in SCALARS and name not in ("align", "v2", "v4")]
    if strange or len(types) != 1:
        raise Unsupported(line, f"no code for {' '.join(text.split())[:80]!r}")
    lanes = next((int(name[1]) for name, _ in words if name in ("v2", "v4")), 1)
    width = SCALARS[types[0]].bits // 8 * lanes
    align = next((int(value) for name, value in words if name == "align" and value), width)
    out = []
    for item in _split_top(found[3]):
        declared = _DECLARATOR.match(item.strip())
        if not declared:
            raise PtxError(line, f"not a variable: {' '.join(item.split())[:80]!r}")
        size, unsized = width, False
        for extent in re.findall(r"\[\s*(\w*)\s*\]", declared[2]):
            unsized |= not extent
            size *= number(extent, line).value if extent else 0
        data, pointers = _initial(declared[3] or "", types[0], line)
        if unsized and data:
            size = len(data)
        if len(data) > size:
            raise PtxError(line, f"the initialiser of {declared[1]} is longer than the variable")
        out.append(Variable(declared[1], found[1], size, align, line, data, pointers, external, managed))
    return out


def _split_top(text: str) -> list[str]:
    """Split the text at commas outside braces and parentheses."""
    parts, depth, start = [], 0, 0
    for index, character in enumerate(text):
        depth += (character in "{(") - (character in "})")
        if character == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [*parts, text[start:]]


def _initial(text: str, type_name: str, line: int) -> tuple[bytes, tuple[tuple[int, str, int], ...]]:
    scalar = SCALARS[type_name]
    width = scalar.bits // 8
    data, pointers = bytearray(), []
    for item in text.replace("{", " ").replace("}", " ").split(","):
        item = item.strip()
        if not item:
            continue
        symbol = re.match(r"(?:generic\s*\(\s*([\w$]+)\s*\)|([A-Za-z_$][\w$]*))\s*(?:\+\s*(\d+))?$", item)
        if symbol:
            pointers.append((len(data), symbol[1] or symbol[2], int(symbol[3] or 0)))
            data += bytes(width)
            continue
        value = number(item, line)
        bits = value.value
        if scalar.kind == "f" and value.float_bits == 64 and scalar.bits == 32:
            bits = int.from_bytes(struct.pack("<f", struct.unpack("<d", bits.to_bytes(8, "little"))[0]), "little")
        data += (bits & ((1 << scalar.bits) - 1)).to_bytes(width, "little")
    return bytes(data), tuple(pointers)

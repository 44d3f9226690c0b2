"""The variables of a PTX module: their declarations, and the block of memory into which those of the module move."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

import msgspec

from kaas.code.fencing.statements import INTEGER, NAME, error, integer, refuse

_BLOCK_BYTES = 1 << 30
_IMAGE_BYTES = 64 << 20
_INITIAL_VALUES = 1 << 22
_ALIGNMENT = 1 << 16
_VARIABLE = re.compile(
    rf"\.(global|const|shared|local|param)\b((?:\s*\.(?:align\s+{INTEGER}|[A-Za-z]\w*))*)\s+([A-Za-z_$%].*)$", re.S
)
_ATTRIBUTE = re.compile(r"\.attribute\s*\(\s*\.managed\s*\)")
_WORD = re.compile(rf"\.(\w+)(?:\s+({INTEGER}))?")
_DECLARATOR = re.compile(rf"\s*({NAME})\s*((?:\[\s*(?:{INTEGER})?\s*\]\s*)*)(?:=\s*(.*))?$", re.S)
_EXTENT = re.compile(rf"\[\s*({INTEGER})?\s*\]")
_POINTER = re.compile(rf"(?:generic\s*\(\s*({NAME})\s*\)|({NAME}))\s*(?:([+-])\s*({INTEGER}))?$")
_NUMBER = re.compile(rf"(-?)\s*({INTEGER})$")
_REAL = re.compile(r"-?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?$")

BITS = {f"{kind}{bits}": bits for kind in "bus" for bits in (8, 16, 32, 64)} | {
    "b128": 128, "f16": 16, "f16x2": 32, "bf16": 16, "bf16x2": 32, "tf32": 32, "f32": 32, "f64": 64, "pred": 8,
    "e4m3": 8, "e5m2": 8, "e4m3x2": 16, "e5m2x2": 16, "s16x2": 32, "u16x2": 32, "f32x2": 64,
}  # fmt: skip
"""Types and their sizes."""


class VariableBlock(msgspec.Struct, frozen=True):
    """The memory of a module's variables, which the host allocates and fills once for each tenant.

    Fields:
        size_bytes, alignment: of the block; 0 bytes: the module needs none.
        image: the first bytes of the block; the rest are zeros.
        relocations: (place in the image, offset): at the place stands, as a u64, the address of the block + the offset.
        places: name of a variable -> (offset, size in bytes).
    """

    size_bytes: int
    alignment: int
    image: bytes
    relocations: tuple[tuple[int, int], ...]
    places: dict[str, tuple[int, int]]

    def at(self, address: int) -> bytes:
        """Return the image of a block at this address."""
        content = bytearray(self.image)
        for place, offset in self.relocations:
            content[place : place + 8] = ((address + offset) % (1 << 64)).to_bytes(8, "little")
        return bytes(content)


@dataclass(slots=True, eq=False)
class Declared:
    """A variable. data: its first bytes. pointers: (place in data, name, offset)."""

    name: str
    space: str
    size: int
    align: int
    line: int
    text: str
    data: bytes = b""
    pointers: tuple[tuple[int, str, int], ...] = ()
    moved: bool = False
    offset: int = 0  # in the block, of a variable that moves there


def variables(text: str, line: int) -> list[Declared]:
    """Return the variables of a declaration without linking directives and semicolon."""
    found = _VARIABLE.match(" ".join(_ATTRIBUTE.sub(" ", text).split()))
    if found is None:
        refuse(line, text, "a declaration that is not understood")
    words = _WORD.findall(found[2])
    types = [word for word, _ in words if word in BITS]
    lanes = [int(word[1]) for word, _ in words if word in ("v2", "v4", "v8")]
    others = {word for word, _ in words} - BITS.keys() - {"align", "v2", "v4", "v8"}
    if len(types) != 1 or len(lanes) > 1 or others:
        refuse(line, text, "a declaration of an unknown form")
    width = BITS[types[0]] // 8 * (lanes or [1])[0]
    aligns = [width, *(integer(value, line, text) for word, value in words if word == "align")]
    if any(align < 1 or align & (align - 1) or align > _ALIGNMENT for align in aligns):
        refuse(line, text, f"an alignment of {aligns[-1]} bytes")
    if found[3].count(",") > _INITIAL_VALUES:
        refuse(line, text, "too many initial values")
    return [_variable(part, found[1], types[0], width, max(aligns), line) for part in _split(found[3])]


def _variable(text: str, space: str, kind: str, width: int, align: int, line: int) -> Declared:
    found = _DECLARATOR.match(text)
    if found is None:
        refuse(line, text, "no variable")
    extents = _EXTENT.findall(found[2])
    size = width
    for extent in extents:
        size = min(size * integer(extent, line, text), _BLOCK_BYTES + 1) if extent else 0
    data, pointers = _initial(found[3] or "", kind, line)
    if extents and not extents[0] and data:
        size = len(data)
    if len(data) > size or size > _BLOCK_BYTES:
        refuse(line, text, "more initial values than elements" if len(data) > size else f"over {_BLOCK_BYTES} bytes")
    return Declared(found[1], space, size, align, line, text, data, pointers)


def _split(text: str) -> list[str]:
    """Return the parts between commas outside of braces."""
    if "{" not in text:
        return text.split(",")
    parts, depth, start = [], 0, 0
    for match in re.finditer(r"[{},]", text):
        depth += (match[0] == "{") - (match[0] == "}")
        if match[0] == "," and depth == 0:
            parts.append(text[start : match.start()])
            start = match.end()
    return [*parts, text[start:]]


def _initial(text: str, kind: str, line: int) -> tuple[bytes, tuple[tuple[int, str, int], ...]]:
    """Return the bytes of an initialiser, and its pointers."""
    width = BITS[kind] // 8
    data, pointers = bytearray(), []
    for item in text.translate(_NO_BRACES).split(","):
        item = item.strip()
        if not item:
            continue
        pointer = _POINTER.match(item)
        number = _NUMBER.match(item)
        if pointer is not None:
            if width != 8:
                refuse(line, item, "an address in a variable that is not of 8 bytes")
            addend = integer(pointer[4], line, item) if pointer[4] else 0
            pointers.append((len(data), pointer[1] or pointer[2], -addend if pointer[3] == "-" else addend))
            data += bytes(8)
        elif number is not None and not (kind[0] in "fet" or kind.startswith("bf")):
            value = integer(number[2], line, item) * (-1 if number[1] else 1)
            data += (value % (1 << 8 * width)).to_bytes(width, "little")
        else:
            data += _real(item, kind, line)
    return bytes(data), tuple(pointers)


_NO_BRACES = str.maketrans("{}", "  ")


def _real(text: str, kind: str, line: int) -> bytes:
    """Return the bytes of a floating-point number: 0f3F800000, 0d…, 1.5."""
    width = BITS[kind] // 8 if kind[0] in "bf" else 0
    try:
        if text[:2] in ("0f", "0F") and len(text) == 10 and width == 4:
            return int(text[2:], 16).to_bytes(4, "little")
        if text[:2] in ("0d", "0D") and len(text) == 18 and width == 8:
            return int(text[2:], 16).to_bytes(8, "little")
        if _REAL.match(text) and kind in ("f32", "f64"):
            return struct.pack("<f" if width == 4 else "<d", float(text))
        if text[:2] in ("0x", "0X") and width:
            return int(text, 16).to_bytes(width, "little")
    except (ValueError, OverflowError):
        pass  # refused below
    raise error(line, text, f"no initial value of type {kind}")


@dataclass(slots=True)
class BlockLayout:
    """Gives the variables that move their offsets in the block: those with initial values stand first."""

    functions: dict[str, int]  # the number that stands for the address of a function, by its name
    moved: list[Declared] = field(default_factory=list)

    def add(self, variable: Declared) -> None:
        """Move a variable into the block."""
        variable.moved = True
        self.moved.append(variable)

    def place(self) -> tuple[int, int]:
        """Set the offsets of all variables. Return the size of the block and of its image, in bytes."""
        end = initial = 0
        for variable in sorted(self.moved, key=lambda one: not one.data):
            variable.offset = -(-end // variable.align) * variable.align
            end = variable.offset + variable.size
            if end > _BLOCK_BYTES:
                refuse(variable.line, variable.text, f"more than {_BLOCK_BYTES} bytes of variables")
            if variable.data:
                initial = variable.offset + len(variable.data)
        if initial > _IMAGE_BYTES:
            refuse(1, "", f"more than {_IMAGE_BYTES} bytes of variables with initial values")
        return end, initial

    def block(self, known: dict[str, Declared]) -> VariableBlock:
        """Return the block. known: the module's variables, to which initial values point."""
        size, initial = self.place()
        image = bytearray(initial)
        relocations = []
        for one in self.moved:
            image[one.offset : one.offset + len(one.data)] = one.data
            for place, name, addend in one.pointers:
                if (target := known.get(name)) is not None and target.moved:
                    relocations.append((one.offset + place, target.offset + addend))
                elif name in self.functions and not addend:
                    image[one.offset + place : one.offset + place + 8] = self.functions[name].to_bytes(8, "little")
                else:
                    refuse(one.line, one.text, f"an initial value with the address of {name}")
        alignment = max((one.align for one in self.moved), default=1)
        places = {one.name: (one.offset, one.size) for one in self.moved}
        return VariableBlock(size, alignment, bytes(image), tuple(relocations), places)

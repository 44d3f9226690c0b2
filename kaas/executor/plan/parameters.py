"""A kernel's parameters as PTX has them: their types, and the bytes from which the code takes an address.

A pointer is often a plain `.u64` in PTX, so the code decides: a value that it converts to an address or uses as one is
a pointer. A cubin has only sizes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from kaas.ktask.library import PTX_COMMENT_OR_STRING, Image
from softgpu.image import PTX_KIND, ImageError, entries

Origin = tuple[str, int]
"""A parameter, and the byte in it."""


@dataclass(frozen=True, slots=True)
class PtxParameter:
    """A parameter. type: as in PTX, "u64", or "b8" of an array. pointers: bytes at which the code takes an address."""

    type: str
    pointers: frozenset[int]


@lru_cache(4096)
def parameters_of(images: tuple[Image, ...], symbol: str) -> tuple[PtxParameter, ...] | None:
    """Return the parameters of a kernel from the first image that has it in PTX; None if no image has."""
    for image in images:
        for text in _texts(image):
            found = _entry(text, symbol)
            if found is not None:
                return found
    return None


@lru_cache(8)
def _texts(image: Image) -> tuple[str, ...]:
    """Return the PTX of an image, without comments and strings."""
    return tuple(PTX_COMMENT_OR_STRING.sub(" ", text) for text in _ptx(image))


def _ptx(image: Image) -> Iterator[str]:
    try:
        if image.kind == "ptx":
            yield image.data.decode()
        elif image.kind == "fatbin":
            for entry in entries(image.data):
                if entry.kind == PTX_KIND:
                    yield entry.content().split(b"\0", 1)[0].decode()
    except (ImageError, UnicodeDecodeError):
        return  # the driver reports the mistake


_TYPE = re.compile(r"\.([usbf](?:8|16|32|64|128)|f16x2|bf16x2|bf16|pred)\b")
_NAME = re.compile(r"([\w$%]+)\s*(?:\[\s*\d*\s*\])?\s*\Z")


def _entry(text: str, symbol: str) -> tuple[PtxParameter, ...] | None:
    started = re.search(rf"\.entry\s+{re.escape(symbol)}(?![\w$])\s*(?=[({{])", text)
    if started is None:
        return None
    opened = text.find("{", started.end())
    begin = text.find("(", started.end(), opened)
    declared = text[begin + 1 : text.find(")", begin)].split(",") if begin >= 0 else []
    types: dict[str, str] = {}
    pointers: set[Origin] = set()
    for each in filter(str.strip, declared):
        kind, name = _TYPE.search(each), _NAME.search(each.strip())
        if kind is None or name is None:
            return None
        types[name[1]] = kind[1]
        if re.search(r"\.ptr\b", each):
            pointers.add((name[1], 0))
    pointers |= _taken(_body(text, opened), types)
    return tuple(
        PtxParameter(kind, frozenset(byte for name, byte in pointers if name == own)) for own, kind in types.items()
    )


def _body(text: str, opened: int) -> str:
    depth = 0
    for brace in re.compile(r"[{}]").finditer(text, opened):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[opened + 1 : brace.start()]
    return text[opened + 1 :]


# --- addresses

_INSTRUCTION = re.compile(r"(?:[{}\s]|[\w$%]+:(?!:))*(?:@!?[%\w$]+\s+)?([a-z]\w*(?:\.\w+|::\w+)*)\s+(.*)", re.DOTALL)
"""An instruction after braces of blocks, labels and a predicate."""
_LINE = re.compile(r"^\s*\.loc\b[^\n;]*$", re.MULTILINE)
"""A source line of the code that follows; no semicolon ends it."""
_FROM_PARAMETER = re.compile(r"\[\s*([\w$%]+)\s*(?:\+\s*(\d+)\s*)?\]")
_REGISTER = re.compile(r"%[\w$]+|[A-Za-z_$][\w$]*")
_ADDRESS = re.compile(r"\[\s*(%?[A-Za-z_$][\w$]*)\s*(?:\+\s*-?\w+\s*)?\]")
_NUMBERS = ("mul", "shl", "cvt", "mad", "bfe", "and", "neg")
"""Instructions that make no address. In a sum with their result, the other operand is the base address."""
_NO_ADDRESS = ("ld.param", "st.param", "call", "tex.", "suld", "sust")


def _taken(body: str, types: dict[str, str]) -> set[Origin]:
    """Return the parameters and bytes from which the code takes an address."""
    copies: list[tuple[str, str]] = []  # target, source
    sums: list[tuple[str, str, str]] = []
    made: defaultdict[str, set[str]] = defaultdict(set)
    origins: defaultdict[str, set[Origin]] = defaultdict(set)
    used: list[str] = []
    for statement in _LINE.sub("", body).split(";"):
        found = _INSTRUCTION.match(statement)
        if found is None:
            continue
        opcode, text = found.groups()
        operands = _REGISTER.findall(text)
        first = operands[0] if operands else ""
        made[first].add(opcode.split(".")[0])
        if opcode.startswith("ld.param"):
            _loaded(opcode, text, types, origins)
        elif opcode.startswith(("mov.u64", "mov.b64", "mov.s64")) and len(operands) == 2:
            copies.append((first, operands[1]))
        elif opcode.startswith("cvta") and len(operands) == 2:
            copies.append((first, operands[1]))
            used.append(operands[1])
        elif opcode.startswith(("add.s64", "add.u64", "sub.s64", "sub.u64")):
            parts = [part.strip() for part in text.split(",")]
            if len(parts) == 3:
                sums.append((parts[0], parts[1], parts[2]))
        if not opcode.startswith(_NO_ADDRESS):
            used += _ADDRESS.findall(text)
    for to, left, right in sums:
        for base, offset in ((left, right), (right, left)):
            if offset.lstrip("-").isdigit() or (made[offset] and made[offset] <= set(_NUMBERS)):
                copies.append((to, base))
    _spread(origins, copies)
    return {origin for register in used for origin in origins.get(register, ())}


def _loaded(opcode: str, text: str, types: dict[str, str], origins: dict[str, set[Origin]]) -> None:
    """Note the parameters of which an instruction loads 64 bits into registers."""
    where = _FROM_PARAMETER.search(text)
    if where is None or where[1] not in types or not opcode.endswith("64"):
        return
    for number, register in enumerate(_REGISTER.findall(text[: where.start()])):
        origins[register].add((where[1], int(where[2] or 0) + 8 * number))


def _spread(origins: dict[str, set[Origin]], copies: Iterable[tuple[str, str]]) -> None:
    """Add to each register the origins of its sources, also of those behind several copies. copies: target, source."""
    to: defaultdict[str, list[str]] = defaultdict(list)
    for target, source in copies:
        to[source].append(target)
    pending = list(origins)
    while pending:
        source = pending.pop()
        for target in to[source]:
            if not origins[source] <= origins[target]:
                origins[target] |= origins[source]
                pending.append(target)

"""The names of the variables of a code image that kernels can write. No call of the driver lists them.

PTX text and the symbol table of a cubin have the names; a fatbin has images of these kinds. If an image is not clear,
the result says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kaas.ktask import symbols
from kaas.ktask.library import PTX_COMMENT_OR_STRING, Image
from softgpu.image import CUBIN_KIND, PTX_KIND, ImageError, entries


@dataclass(frozen=True, slots=True, order=True)
class Variable:
    """A variable in global memory. zero: it begins as zeros; managed: the host shares it (`__managed__`)."""

    name: str
    zero: bool
    managed: bool = False


@dataclass(frozen=True, slots=True)
class Variables:
    """The variables of an image. complete: the image has no others that kernels could write."""

    found: tuple[Variable, ...]
    complete: bool = True


def variables_of(image: Image) -> Variables:
    """Return the variables of all code in an image: the driver does not say which entry of a fatbin it chose."""
    match image.kind:
        case "ptx":
            return _of_ptx(image.data.decode())
        case "cubin":
            return _of_cubin(image.data)
        case _:
            return _of_fatbin(image.data)


def _of_fatbin(data: bytes) -> Variables:
    by_kind = {PTX_KIND: lambda content: _of_ptx(content.split(b"\0", 1)[0].decode()), CUBIN_KIND: _of_cubin}
    parts: list[Variables] = []
    try:
        for entry in entries(data):
            read = by_kind.get(entry.kind)
            parts.append(read(entry.content()) if read else Variables((), complete=False))
    except (ImageError, UnicodeDecodeError):
        parts.append(Variables((), complete=False))
    return Variables(_joined(variable for part in parts for variable in part.found), all(p.complete for p in parts))


def _joined(variables: Iterable[Variable]) -> tuple[Variable, ...]:
    """Return each name once. A variable begins as zeros only if it does so in all code."""
    joined: dict[str, Variable] = {}
    for new in variables:
        old = joined.get(new.name, new)
        joined[new.name] = Variable(new.name, old.zero and new.zero, old.managed or new.managed)
    return tuple(joined.values())


# --- PTX

_DECLARES = re.compile(r"(?<![\w$.])\.global(?!\w)")
_BRACKET_OR_DECLARES = re.compile(rf"[{{}}()]|{_DECLARES.pattern}")
_STATEMENT_BEFORE = re.compile(r"(?:[;{}:]\s*|\n[ \t]*|\A\s*)\Z")
_ATTRIBUTE = re.compile(r"\.attribute\s*\(((?:[^()]|\([^()]*\))*)\)")
_QUALIFIERS = re.compile(r"\s*(?:\.align\s+\w+|\.\w+)(?!\w)")
_DECLARED = re.compile(r"\s*([A-Za-z_$%][\w$]*)\s*((?:\[[^\]]*\]\s*)*)(=|\Z)")
_HANDLE = re.compile(r"\.(?:texref|samplerref|surfref)\b")


def _of_ptx(text: str) -> Variables:
    if not _DECLARES.search(text):
        return Variables(())
    text = PTX_COMMENT_OR_STRING.sub(" ", text)
    found: list[Variable] = []
    complete, depth, at = True, 0, 0
    while match := _BRACKET_OR_DECLARES.search(text, at):
        at = match.end()
        if match[0] in "{(":
            depth += 1
        elif match[0] in "})":
            depth -= 1
        elif depth == 0:
            end = text.find(";", at)
            declared = _declared(text[at : end if end >= 0 else len(text)])
            found.extend(declared.found)
            complete &= declared.complete
            at = max(at, end)
        elif _STATEMENT_BEFORE.search(text, max(0, match.start() - 200), match.start()):
            complete = False  # inside a function: the driver gives such a variable another name
    return Variables(_joined(found), complete)


def _declared(text: str) -> Variables:
    """Return the variables of one declaration, without its `.global` and its semicolon."""
    attributes = "".join(_ATTRIBUTE.findall(text))
    text = _ATTRIBUTE.sub(" ", text)
    at = 0
    while qualifier := _QUALIFIERS.match(text, at):
        at = qualifier.end()
    if _HANDLE.search(text, 0, at):
        return Variables(())  # a texture, a sampler or a surface, which no kernel can write
    found: list[Variable] = []
    for declarator in _split_outside_brackets(text[at:]):
        declared = _DECLARED.match(declarator)
        if not declared:
            return Variables(tuple(found), complete=False)
        found.append(Variable(declared[1], zero=not declared[3], managed="managed" in attributes))
    return Variables(tuple(found))


def _split_outside_brackets(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for at, character in enumerate(text):
        depth += (character in "{([") - (character in "})]")
        if character == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


# --- cubin

_OBJECT = 1  # kind of a symbol
_FIRST_RESERVED_SECTION, _ABSOLUTE = 0xFF00, 0xFFF1
_MANAGED = 4  # in a symbol's other byte


def _of_cubin(data: bytes) -> Variables:
    try:
        return _read_cubin(data)
    except symbols.BROKEN:  # the driver may still load it
        return Variables((), complete=False)


def _read_cubin(data: bytes) -> Variables:
    sections = symbols.sections(data)
    written = {at: section for at, section in enumerate(sections) if section.name.startswith(".nv.global")}
    extents: dict[int, list[tuple[int, int]]] = {at: [] for at in written}
    found: list[Variable] = []
    complete = True
    for symbol in symbols.symbols(sections):
        home = symbol.section
        if symbol.kind == _OBJECT and home in written:
            zero = written[home].kind == symbols.NO_BITS
            found.append(Variable(symbol.name, zero, bool(symbol.other & _MANAGED)))
            extents[home].append((symbol.value, symbol.nbytes))
        elif symbol.kind == _OBJECT and home >= _FIRST_RESERVED_SECTION and home != _ABSOLUTE:
            complete = False
    complete &= all(_cover(extents[at], section.nbytes) for at, section in written.items())
    joined = _joined(found)
    return Variables(joined, complete and len(joined) == len(found))  # the driver finds one variable of a name


def _cover(extents: Iterable[tuple[int, int]], nbytes: int) -> bool:
    """Return True if these (offset, bytes) cover a section, except for padding that aligns the next one."""
    end = 0
    for start, length in sorted(extents):
        padding = start - end
        if padding > 0 and start % (1 << padding.bit_length()):
            return False
        end = max(end, start + length)
    return end >= nbytes

"""Joins PTX texts into one, as cuLink joins machine code: a declaration finds the definition in another text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from softgpu.ptx.model import PtxError

_BLANK = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)+", re.S)
_HEADER = re.compile(r"\.(version|target|address_size)\b([^\n]*)")
_TO_LINE_END = re.compile(r"\.(?:file|loc|pragma)\b[^\n]*")
_SECTION = re.compile(r"\.section\b[^{]*\{[^}]*\}")
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/|[{};]', re.S)
_FUNCTION = re.compile(r"\.(?:entry|func)\b\s*(?:\([^)]*\)\s*)?([\w$%]+)")
_VARIABLE = re.compile(r"([\w$%]+)\s*(?:\[[^\]]*\]\s*)*(?:=|;|$)")
_FILE_NUMBER = re.compile(r"(\.(?:file|loc)[ \t]+)(\d+)|(\binlined_at[ \t]+)(\d+)")
_FILES_EACH = 1 << 16  # more than the files of any text


@dataclass(slots=True)
class _Item:
    """A function or a variable of a text. linkage: ".visible" or similar; "": only its own text sees the name."""

    name: str
    text: str
    linkage: str
    is_definition: bool


@dataclass(slots=True)
class _Unit:
    headers: dict[str, str]
    others: list[str]
    items: list[_Item]


def join(texts: Sequence[str]) -> str:
    """Return one text with the content of all. Private names of one text do not clash with those of another.

    Raises:
        PtxError: a text is no PTX, or two texts define the same public name.
    """
    if len(texts) == 1:
        return texts[0]
    units = [_read(_apart(text, number)) for number, text in enumerate(texts)]
    defined: dict[str, _Item] = {}
    for unit in units:
        for item in unit.items:
            known = defined.get(item.name)
            if not item.is_definition or not item.linkage:
                continue
            if known is not None and {item.linkage, known.linkage}.isdisjoint({".weak", ".common"}):
                raise PtxError(0, f"{item.name} is defined by more than one of the inputs")
            if known is None or known.linkage != ".visible":
                defined[item.name] = item
    _rename_private(units)
    lines = [_header(units)]
    declared: set[str] = set()
    for unit in units:
        lines += unit.others
        for item in unit.items:
            if not item.linkage or defined.get(item.name) is item:
                lines.append(item.text)
            elif item.name not in defined and item.name not in declared:
                declared.add(item.name)
                lines.append(item.text)
    return "\n".join(lines) + "\n"


def _apart(text: str, number: int) -> str:
    """Return the text with numbers of source files that no other text has."""

    def moved(found: re.Match[str]) -> str:
        return f"{found[1] or found[3]}{int(found[2] or found[4]) + number * _FILES_EACH}"

    return _FILE_NUMBER.sub(moved, text)


def _read(text: str) -> _Unit:
    unit, position = _Unit({}, [], []), 0
    while True:
        blank = _BLANK.match(text, position)
        position = blank.end() if blank else position
        if position >= len(text):
            return unit
        if found := _HEADER.match(text, position):
            unit.headers.setdefault(found[1], found[2].split("//")[0].strip())
        elif found := _TO_LINE_END.match(text, position):
            unit.others.append(found[0])
        elif not (found := _SECTION.match(text, position)):  # debug sections are dropped: they name places that move
            end = _end(text, position)
            unit.items.append(_item(text[position:end]))
            position = end
            continue
        position = found.end()


def _end(text: str, start: int) -> int:
    """Return the end of the function or variable that begins at `start`."""
    is_function = _FUNCTION.search(text, start, text.find("{", start) if "{" in text[start:] else len(text))
    depth = 0
    for piece in _PIECE.finditer(text, start):
        match piece[0]:
            case "{":
                depth += 1
            case "}":
                depth -= 1
                if not depth and is_function:
                    return piece.end()
            case ";" if not depth:
                return piece.end()
    raise PtxError(text.count("\n", 0, start) + 1, "the text ends inside a directive")


def _item(text: str) -> _Item:
    linkage = next((word for word in (".visible", ".extern", ".weak", ".common") if text.startswith(word)), "")
    function = _FUNCTION.search(text.split("{", 1)[0])
    if function:
        if not linkage and ".entry" in text.split("{", 1)[0]:
            linkage = ".visible"
        return _Item(function[1], text, linkage, "{" in text)
    if text.startswith(".alias"):
        return _Item(text.split()[1].rstrip(","), text, ".visible", True)
    found = _VARIABLE.search(text.split("=", 1)[0].rstrip("; \t\n") + ";")
    if found is None:
        raise PtxError(0, f"what is declared here? {' '.join(text.split())[:80]!r}")
    return _Item(found[1], text, linkage, linkage != ".extern")


def _rename_private(units: Sequence[_Unit]) -> None:
    """Give a private name that another text has too a new name, in all places of its own text."""
    holders: dict[str, int] = {}
    for unit in units:
        for name in {item.name for item in unit.items}:
            holders[name] = holders.get(name, 0) + 1
    for number, unit in enumerate(units):
        clashing = {item.name for item in unit.items if not item.linkage and holders[item.name] > 1}
        if not clashing:
            continue
        names = "|".join(re.escape(name) for name in sorted(clashing, key=len, reverse=True))
        pattern = re.compile(rf"(?<![\w$%.])(?:{names})(?![\w$])")
        for item in unit.items:
            item.text = pattern.sub(rf"\g<0>$in{number}", item.text)
            if item.name in clashing:
                item.name += f"$in{number}"


def _header(units: Iterable[_Unit]) -> str:
    def newest(name: str) -> str:
        return max((unit.headers.get(name, "") for unit in units), key=lambda value: list(_numbers(value)))

    return f".version {newest('version')}\n.target {newest('target')}\n.address_size 64"


def _numbers(value: str) -> Iterator[int]:
    return map(int, re.findall(r"\d+", value))

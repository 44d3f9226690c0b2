"""Cubins as what they are, ELF files: their sections and symbols."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

NO_BITS = 8  # the kind of a section without bytes in the file
BROKEN = (struct.error, IndexError, ValueError, OverflowError)
"""What reading raises where tables lead outside the file, or hold no names."""

_SECTION_TABLE = struct.Struct("<Q")  # at 40 in the header
_SECTIONS = struct.Struct("<HHH")  # at 58: bytes of each entry, their number, which of them holds the names
_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, kind, flags, address, offset, bytes, link, info, align, entry bytes
_SYMBOL = struct.Struct("<IBBHQQ")  # name, type and binding, other, section, value, bytes
_SYMBOL_TABLE = 2  # the kind of a section


@dataclass(frozen=True, slots=True)
class Section:
    """link: the number of another section; of a symbol table, that of its names."""

    name: str
    kind: int
    data: bytes
    nbytes: int
    link: int


class Symbol(NamedTuple):
    """kind: 1 is a variable, 2 a function. other: marks of the CUDA machine. section: the number of that it lies in."""

    name: str
    kind: int
    other: int
    section: int
    value: int
    nbytes: int


def sections(data: bytes) -> list[Section]:
    """Raises: one of BROKEN."""
    (start,) = _SECTION_TABLE.unpack_from(data, 40)
    each, count, names_at = _SECTIONS.unpack_from(data, 58)
    headers = [_SECTION.unpack_from(data, start + number * each) for number in range(count)]
    if not headers:
        return []
    names = data[headers[names_at][4] :][: headers[names_at][5]]
    return [
        Section(_name(names, name), kind, b"" if kind == NO_BITS else data[offset : offset + nbytes], nbytes, link)
        for name, kind, _, _, offset, nbytes, link, _, _, _ in headers
    ]


def symbols(among: list[Section]) -> Iterator[Symbol]:
    """Those of all symbol tables. Raises: one of BROKEN."""
    for table in among:
        if table.kind == _SYMBOL_TABLE:
            names = among[table.link].data
            for name, info, other, home, value, nbytes in _SYMBOL.iter_unpack(table.data):
                yield Symbol(_name(names, name), info & 15, other, home, value, nbytes)


def _name(names: bytes, at: int) -> str:
    return names[at : names.index(b"\0", at)].decode()

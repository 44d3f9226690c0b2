"""The names of kernels in code images, read without a device."""

from __future__ import annotations

import difflib
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from kaas.errors import CorruptImage, UnknownSymbol
from kaas.ktask.images import PTX_COMMENT_OR_STRING, Image

_ENTRY = re.compile(r"\.entry\s+([\w$%.]+)")
LONGEST_NAME = 4096
"""Of a symbol whose name goes on beyond so many characters the whole symbol is shown."""
_LENGTH = re.compile(r"L?([1-9][0-9]{0,3})")
"""The length of a name in a mangled symbol (the Itanium C++ ABI, section 5.1.2); L marks internal linkage."""
_FUNCTION = 2  # the low bits of a symbol's `info`: a function
_KERNEL = 0x10  # a bit of its `other`: a kernel


def kernels_of(images: Iterable[Image]) -> tuple[str, ...]:
    """Return the names of the kernels in PTX and cubins, in their order there.

    Kernels of a fatbin, which may be compressed, and of provided code, which may not be here, are left out.
    """
    return tuple(dict.fromkeys(symbol for image in images for symbol in _kernels(image)))


@lru_cache(16)
def _kernels(image: Image) -> tuple[str, ...]:
    match image.kind:
        case "ptx":
            return tuple(_ENTRY.findall(PTX_COMMENT_OR_STRING.sub("", image.data.decode())))
        case "cubin":
            return tuple(_of_cubin(image.data))
    return ()


def _of_cubin(data: bytes) -> Iterator[str]:
    try:
        for symbol in symbols(sections(data)):
            if symbol.kind == _FUNCTION and symbol.other & _KERNEL:
                yield symbol.name
    except BROKEN as error:
        raise CorruptImage(f"a cubin whose tables lead outside it: {error}") from error


def mangled_start(name: str) -> str:
    """Return the start of the symbol of a C++ function, or of an instance of a template: "ns::k" -> "_ZN2ns1k"."""
    parts = [f"{len(part)}{part}" for part in name.split("::")]
    return f"_ZN{''.join(parts)}" if len(parts) > 1 else f"_Z{parts[0]}"


def source_name(symbol: str) -> str:
    """Return the name of the C++ function that a symbol stands for: "_ZN2ns1kIfEvPT_" -> "ns::k".

    The arguments of a template's instance are left out. Other symbols are returned as they are.
    """
    nested = symbol.startswith("_ZN")
    at, parts = 3 if nested else 2, list[str]()
    while symbol.startswith("_Z") and (length := _LENGTH.match(symbol, at)) and (nested or not parts):
        begin, at = length.end(), length.end() + int(length[1])
        if at > len(symbol) or at > LONGEST_NAME:
            return symbol
        part = symbol[begin:at]
        parts.append("(anonymous namespace)" if part.startswith("_GLOBAL__N") else part)
    if nested and symbol[at : at + 1] not in ("E", "I"):  # more than names: qualifiers, substitutions, operators
        return symbol
    return "::".join(parts) or symbol


def unknown(library: str, symbol: str, known: Iterable[str], missing: str = "") -> UnknownSymbol:
    """Return the error of a kernel that a library, named by its hash, does not have; it names similar kernels.

    missing: why the kernel may be missing, said where no kernel is similar.
    """
    known = sorted(known)
    plain = {name: name.partition("<")[0] for name in known}  # a template's name is near to its kernels' names
    close = difflib.get_close_matches(symbol.partition("<")[0], plain.values())
    near = tuple(name for name in known if plain[name] in close)
    near = near or tuple(name for name in known if symbol in name)
    if near:
        hint = f"did you mean {' or '.join(repr(name) for name in near)}?"
    else:
        hint = f"its kernels are {', '.join(known) or 'none'}{missing}"
    return UnknownSymbol(
        f"library {library[:12]} has no kernel {symbol!r}; {hint}",
        library=library,
        symbol=symbol,
        kernel=symbol,
        near=near,
    )


NO_BITS = 8  # the kind of a section without bytes in the file
BROKEN = (struct.error, IndexError, ValueError, OverflowError)
"""The errors of reading where tables lead outside the file, or hold no names."""

_SECTION_TABLE = struct.Struct("<Q")  # at 40 in the header
_SECTIONS = struct.Struct("<HHH")  # at 58: bytes of each entry, number of entries, number of the entry with the names
_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, kind, flags, address, offset, bytes, link, info, align, entry bytes
_SYMBOL = struct.Struct("<IBBHQQ")  # name, type and binding, other, section, value, bytes
_SYMBOL_TABLE = 2  # the kind of a section


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a cubin. link: the number of another section; of a symbol table, that of its names."""

    name: str
    kind: int
    data: bytes
    nbytes: int
    link: int


class Symbol(NamedTuple):
    """A symbol of a cubin. kind: 1 is a variable, 2 a function. other: CUDA's marks. section: its number."""

    name: str
    kind: int
    other: int
    section: int
    value: int
    nbytes: int


def sections(data: bytes) -> list[Section]:
    """Return the sections of a cubin; raise one of BROKEN if its tables lead outside it."""
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
    """Yield the symbols of all symbol tables; raise one of BROKEN if a table leads outside the file."""
    for table in among:
        if table.kind == _SYMBOL_TABLE:
            names = among[table.link].data
            for name, info, other, home, value, nbytes in _SYMBOL.iter_unpack(table.data):
                yield Symbol(_name(names, name), info & 15, other, home, value, nbytes)


def _name(names: bytes, at: int) -> str:
    return names[at : names.index(b"\0", at)].decode()

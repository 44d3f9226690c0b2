"""The names of kernels in code images, read without a device."""

from __future__ import annotations

import difflib
import re
import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache

from kaas.errors import CorruptImage, UnknownSymbol
from kaas.library import PTX_COMMENT_OR_STRING, Image, Library

_ENTRY = re.compile(r"\.entry\s+([\w$%.]+)")
_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, link, info, alignment, entry bytes
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_SYMBOL_TABLE = 2  # type of a section
_FUNCTION = 2  # in the lower half of a symbol's info
_KERNEL = 0x10  # STO_CUDA_ENTRY, in a symbol's other


def kernels_of(library: Library) -> tuple[str, ...]:
    """The kernels of a library's PTX or cubins, in the order in which they stand there; those of a fatbin, which may be
    compressed, are left out."""
    return tuple(dict.fromkeys(symbol for image in library.images for symbol in _kernels(image)))


@lru_cache(16)
def _kernels(image: Image) -> tuple[str, ...]:
    match image.kind:
        case "ptx":
            return tuple(_ENTRY.findall(PTX_COMMENT_OR_STRING.sub("", image.data.decode())))
        case "cubin":
            try:
                return tuple(_of_cubin(image.data))
            except (struct.error, ValueError) as error:
                raise CorruptImage(f"a cubin whose tables lead outside it: {error}") from error
    return ()


def _of_cubin(data: bytes) -> Iterator[str]:
    """The functions in the symbol table of an ELF file that are marked as kernels."""
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [_SECTION.unpack_from(data, table + number * size) for number in range(count)]
    for _, kind, _, _, offset, length, link, _, _, _ in sections:
        if kind != _SYMBOL_TABLE or link >= count:
            continue
        names = sections[link][4]
        for start in range(offset, offset + length, _SYMBOL.size):
            name, info, other, *_ = _SYMBOL.unpack_from(data, start)
            if info & 0xF == _FUNCTION and other & _KERNEL:
                begin = names + name
                yield data[begin : data.index(b"\0", begin)].decode()


def mangled_start(name: str) -> str:
    """How the symbol of a C++ function, or of what a template makes, starts: "ns::k" -> "_ZN2ns1k"."""
    parts = [f"{len(part)}{part}" for part in name.split("::")]
    return f"_ZN{''.join(parts)}" if len(parts) > 1 else f"_Z{parts[0]}"


def unknown(library: Library, symbol: str, known: Iterable[str]) -> UnknownSymbol:
    """The error of a kernel that a library does not have, with those that may be meant."""
    known = sorted(known)
    near = tuple(difflib.get_close_matches(symbol, known)) or tuple(name for name in known if symbol in name)
    if near:
        hint = f"did you mean {' or '.join(repr(name) for name in near)}?"
    else:
        hint = f"its kernels are {', '.join(known) or 'none'}"
    return UnknownSymbol(
        f"library {library.hash[:12]} has no kernel {symbol!r}; {hint}",
        library=library.hash,
        symbol=symbol,
        kernel=symbol,
        near=near,
    )

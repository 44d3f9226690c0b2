"""The names of kernels in code images, read without a device."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from kaas.errors import CorruptImage, UnknownSymbol
from kaas.ktask import elf
from kaas.ktask.images import PTX_COMMENT_OR_STRING, Image

_ENTRY = re.compile(r"\.entry\s+([\w$%.]+)")
_FUNCTION = 2  # kind of a symbol
_KERNEL = 0x10  # in its other byte


def kernels_of(images: Iterable[Image]) -> tuple[str, ...]:
    """Return the names of the kernels in PTX and cubins, in their order there. Those of a fatbin, which may be
    compressed, and of provided code, which may not be here, are left out."""
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
        for symbol in elf.symbols(elf.sections(data)):
            if symbol.kind == _FUNCTION and symbol.other & _KERNEL:
                yield symbol.name
    except elf.BROKEN as error:
        raise CorruptImage(f"a cubin whose tables lead outside it: {error}") from error


def mangled_start(name: str) -> str:
    """How the symbol of a C++ function, or of what a template makes, starts: "ns::k" -> "_ZN2ns1k"."""
    parts = [f"{len(part)}{part}" for part in name.split("::")]
    return f"_ZN{''.join(parts)}" if len(parts) > 1 else f"_Z{parts[0]}"


def unknown(library: str, symbol: str, known: Iterable[str]) -> UnknownSymbol:
    """Return the error of a kernel that a library, named by its hash, does not have; it names similar kernels."""
    known = sorted(known)
    near = tuple(difflib.get_close_matches(symbol, known)) or tuple(name for name in known if symbol in name)
    if near:
        hint = f"did you mean {' or '.join(repr(name) for name in near)}?"
    else:
        hint = f"its kernels are {', '.join(known) or 'none'}"
    return UnknownSymbol(
        f"library {library[:12]} has no kernel {symbol!r}; {hint}",
        library=library,
        symbol=symbol,
        kernel=symbol,
        near=near,
    )

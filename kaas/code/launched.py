"""The code that an encoded kTask launches, read without checks of the rest: for compilers that run ahead of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from kaas.ktask.images import PROVIDED, Image

ON_SOFTWARE = ("ptx", "fatbin")
"""Images that a software device may run."""


class LaunchedLibrary(NamedTuple):
    """A library of a kTask.

    Fields:
        images: in the order in which a device tries them; a name stands for all images that its provider gives.
        kernels: symbol and block of each.
    """

    images: Sequence[Image]
    kernels: Sequence[tuple[str, tuple[int, int, int]]]


class _EncodedLaunch(msgspec.Struct):
    library: str
    symbol: str
    block: tuple[int, int, int]


class _EncodedEntry(msgspec.Struct):
    kernel: _EncodedLaunch


class _EncodedImage(msgspec.Struct):
    kind: str
    data: bytes


class _EncodedTask(msgspec.Struct):
    kernels: list[_EncodedEntry]
    libraries: dict[str, list[_EncodedImage]]


_decode = msgspec.msgpack.Decoder(_EncodedTask).decode
"""Made here: threads that decode a first kTask at the same time would read a type that msgspec has half prepared."""


def launched(task: bytes) -> list[LaunchedLibrary]:
    """Return the libraries of a kTask (`KTask.to_msgpack`) with images for software devices, or names of such.

    Of a kTask that is written in another way, which `KTask` may understand, none is returned.
    """
    try:
        decoded = _decode(task)
    except msgspec.DecodeError:
        return []
    kernels: dict[str, dict[tuple[str, tuple[int, int, int]], None]] = {name: {} for name in decoded.libraries}
    for step in decoded.kernels:
        kernels[step.kernel.library][step.kernel.symbol, step.kernel.block] = None
    found = []
    for name, codes in decoded.libraries.items():
        images = [Image(code.kind, code.data) for code in codes if code.kind in (*ON_SOFTWARE, PROVIDED)]
        if images:
            found.append(LaunchedLibrary(images, tuple(kernels[name])))
    return found

"""Code whose kernels stay in a window: PTX that is rewritten before the driver gets it, and its variables there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from kaas.code import providers
from kaas.code.fencing import Fenced, fence
from kaas.errors import CannotFence, CorruptImage, UnsupportedCode
from kaas.executor.device.code import LoadedLibrary, VariablesPlace, opened
from kaas.executor.device.device_memory import clear, write
from kaas.executor.device.windows.window import ALIGNMENT_BYTES, Heap
from kaas.ktask.images import described
from kaas.ktask.library import Image
from softgpu.image import INVALID_IMAGE, PTX_KIND, ImageError, entries

KEPT = 64
"""Texts that a process keeps rewritten: each client and each slot loads them for itself."""
_TARGET = re.compile(rb"^\s*\.target\s+sm_(\d+)", re.M)


def ptx_of(image: Image) -> list[Image]:
    """Return the PTX in a library's image, or in the code that it names; that for the newest devices first.

    Raises:
        UnsupportedCode: there is none, or it is compressed in a way that is not known here.
        CorruptImage; Unprovided: there is no code of this name.
    """
    found = [ptx for code in providers.code(image) for ptx in _ptx_in(code)]
    if not found:
        reason = "fences rewrite PTX, and machine code stays as it is: it cannot be confined"
        raise UnsupportedCode(f"{described(image)}, without PTX: {reason}")
    return sorted(found, key=_target, reverse=True)


def _ptx_in(image: Image) -> Iterator[Image]:
    if image.kind == "ptx":
        yield image
    elif image.kind == "fatbin":
        try:
            for entry in entries(image.data):
                if entry.kind == PTX_KIND:
                    yield Image("ptx", entry.content().split(b"\0", 1)[0])
        except ImageError as error:
            raise (CorruptImage if error.result == INVALID_IMAGE else UnsupportedCode)(error.message) from error


def _target(ptx: Image) -> int:
    found = _TARGET.search(ptx.data)
    return int(found[1]) if found else 0


@lru_cache(KEPT)
def fenced(ptx: bytes) -> Fenced:
    """Return PTX whose accesses stay in a window, from a cache.

    Raises:
        CannotFence: an instruction cannot be confined, or a function may store anywhere on its thread's stack, where
            confined addresses lie, and those of callers.
    """
    made = fence(ptx.decode(errors="replace"))
    if made.stacks:
        reason = "it may store anywhere on its thread's stack"
        raise CannotFence(f"the function {made.stacks[0]} cannot be fenced: {reason}", reason=reason)
    return made


class FencedLibrary(LoadedLibrary):
    """A library whose kernels stay in a window, and whose variables lie there.

    Args:
        image: the PTX. fenced: the same, rewritten.
        device: the driver's handle. name: of the device, for errors.
        heap: of the window, for the variables.
        base, nbytes: the addresses of the window.
    """

    def __init__(
        self, image: Image, fenced: Fenced, device: Any, name: str, heap: Heap, base: int, nbytes: int
    ) -> None:
        super().__init__(opened(Image("ptx", fenced.ptx.encode()), name), device, image)
        self._heap = heap
        self._taken: int | None = None
        try:
            block = self._put(fenced, base)
            constant = self.variable(fenced.window)
            if constant is not None:  # else no kernel has an address
                write(constant[0], fenced.values(base, nbytes, block))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unload the library, and free its variables."""
        super().close()
        if self._taken is not None:
            self._heap.free(self._taken)

    def _put(self, fenced: Fenced, base: int) -> int:
        """Put the variables into the window; return their address."""
        variables = fenced.variables
        if not variables.size_bytes:
            self.variables = VariablesPlace(base, 0, 0)
            return base
        self._taken = self._heap.allocate(variables.size_bytes + max(0, variables.alignment - ALIGNMENT_BYTES))
        address = -(-self._taken // variables.alignment) * variables.alignment
        clear(address, variables.size_bytes)
        write(address, variables.at(address))
        self.variables = VariablesPlace(address, len(variables.image), variables.size_bytes)
        return address

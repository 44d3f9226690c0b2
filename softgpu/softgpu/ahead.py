"""Compilation ahead of the first launch, in a process without a device: what it makes, other processes load."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from softgpu import cache_keys
from softgpu.c_interface import CompileError
from softgpu.cache_keys import BlockShape
from softgpu.disk_cache import CACHE_BYTES, DiskCache
from softgpu.errors import SoftgpuError
from softgpu.module_info import MODULES, ModuleInfo, RefusedCode
from softgpu.user_cache import KERNELS, cache_root


class CodeAhead:
    """The code of some kernels of one image.

    Args:
        content: PTX, or a fatbin with PTX.
        kernels: symbol and block of each.
        checked: the code checks every access of memory (memcheck). fenced: it is confined to a window.
    """

    def __init__(
        self, content: bytes, kernels: Iterable[tuple[str, BlockShape]], *, checked: bool = False, fenced: bool = False
    ) -> None:
        self._content, self._kernels = content, tuple(kernels)
        self._checked, self._fenced = checked, fenced

    def known(self, namespace: str) -> ModuleInfo | RefusedCode | None:
        """Return the description of the image in the user's cache, or why it is refused; None if it is not there.

        namespace: of the processes that load it (`namespace`).
        """
        found = _shared().get(cache_keys.module_entry(cache_keys.module_key(namespace, self._content)))
        try:
            return None if found is None else MODULES.decode(found)
        except msgspec.DecodeError:  # the process that made it was led astray
            return None

    def lacks(self, namespace: str) -> bool:
        """Return True if the user's cache lacks code of these kernels: without it a process that loads them compiles.

        namespace: as above.
        """
        known = self.known(namespace)
        if not isinstance(known, ModuleInfo):
            return known is None
        sound, shared = {kernel.name for kernel in known.kernels if not kernel.refusal}, _shared()
        _, *kernels = self.entries(namespace)
        entries = (entry for entry, (symbol, _) in zip(kernels, self._kernels, strict=True) if symbol in sound)
        return any(shared.get(entry) is None for entry in entries)

    def entries(self, namespace: str) -> Iterator[str]:
        """Yield the names of the code in the cache. namespace: of the processes that load it (`namespace`)."""
        module = cache_keys.module_key(namespace, self._content)
        yield cache_keys.module_entry(module)
        for symbol, block in self._kernels:
            yield cache_keys.kernel_entry(module, symbol, block, checked=self._checked, fenced=self._fenced)

    def compile(self, own: Path) -> None:
        """Write the code that the user's cache lacks into a folder.

        Raises:
            SoftgpuError: the image, or one of the kernels, cannot be compiled; the code of others is there.
            MemoryError. OSError: the code cannot be written.
        """
        from softgpu import target
        from softgpu.translation import Translator

        translator = Translator(WrittenCache(own, CACHE_BYTES, cache_root() / KERNELS), target.host())
        try:
            examined = translator.examine(self._content)
            known = {kernel.name: kernel for kernel in examined.info.kernels}
            refusals = []
            for symbol, block in self._kernels:
                if symbol not in known or known[symbol].refusal:
                    refusals.append(f"{symbol}: {known[symbol].refusal if symbol in known else 'no such kernel'}")
                else:
                    translator.compiled(examined, symbol, block, checked=self._checked, fenced=self._fenced)
        except CompileError as error:
            if isinstance(error.__cause__, MemoryError):
                raise MemoryError from error
            raise SoftgpuError(error.message) from error
        if refusals:
            raise SoftgpuError("; ".join(refusals))


class WrittenCache(DiskCache):
    """A cache whose `put` raises OSError if it cannot write: of no use is code that is not kept."""

    def _unwritten(self, error: OSError) -> None:
        raise error


def prepare() -> None:
    """Import the compiler."""
    from softgpu import examination, target
    from softgpu.codegen import kernel

    _ = examination, kernel
    target.host()


def namespace() -> str:
    """Return the part of all names that stands for this compiler and this processor."""
    from softgpu import target, translation

    return translation.namespace(target.host())


def whole(known: ModuleInfo | RefusedCode | None) -> bool:
    """Return True if every kernel of an image can run, or it is not known that one cannot."""
    return known is None or (isinstance(known, ModuleInfo) and not any(kernel.refusal for kernel in known.kernels))


def adopt(own: Path, entries: Iterable[str]) -> None:
    """Copy these entries, as far as they are undamaged, from a folder into the user's cache, and no others.

    Raises:
        OSError: they cannot be written.
    """
    made, shared = DiskCache(own, CACHE_BYTES), WrittenCache(cache_root() / KERNELS, CACHE_BYTES)
    for entry in entries:
        if (payload := made.get(entry)) is not None:
            shared.put(entry, payload)


def _shared() -> DiskCache:
    return DiskCache(cache_root() / KERNELS, CACHE_BYTES)

"""Images, and the code of their kernels without addresses, which any process can load: from the cache, or made here.

The parser and the code generator are imported only if an image is not in the cache: a process that starts again finds
everything in the cache. Refusals of the compiler are kept there too.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

import msgspec

from softgpu import cache_keys, compiling, image, machine_code
from softgpu.c_interface import INVALID_PTX, JIT_DISABLED, CompileError
from softgpu.cache_keys import BlockShape
from softgpu.disk_cache import DiskCache
from softgpu.module_info import MODULES, ModuleInfo, RefusedCode
from softgpu.target import Target

if TYPE_CHECKING:
    from softgpu.ptx.kernel import Kernel

T = TypeVar("T")


class CompiledKernel(msgspec.Struct, frozen=True, tag="kernel"):
    """Code without addresses. imports: names of the runner's functions that it calls."""

    code: bytes
    imports: tuple[str, ...]
    needs_globals: bool


# made here, as MODULES
_KERNELS: msgspec.msgpack.Decoder[CompiledKernel | RefusedCode] = msgspec.msgpack.Decoder(CompiledKernel | RefusedCode)


@dataclass(slots=True)
class ExaminedImage:
    """An image that was checked.

    compiles: what the cache lacks of it may be compiled here. kernels: those of its text, once one of them was.
    """

    key: str
    text: str
    info: ModuleInfo
    compiles: bool
    kernels: dict[str, Kernel] = field(default_factory=dict)
    parsing: threading.Lock = field(default_factory=threading.Lock)


class Translator:
    """Examines images and compiles their kernels. Any thread may call any method; methods raise CompileError."""

    def __init__(self, code_cache: DiskCache, processor: Target) -> None:
        self._cache = code_cache
        self._target = processor
        self._namespace = namespace(processor)

    def examine(self, content: bytes) -> ExaminedImage:
        """Return PTX, or a fatbin with PTX, checked as a whole. Nothing is compiled yet."""
        key, compiles = cache_keys.module_key(self._namespace, content), compiling.is_allowed()
        text = ptx_text(content)
        kernels: dict[str, Kernel] = {}

        def make() -> ModuleInfo:
            info, found = translating(lambda: _examined(text))
            kernels.update(found)
            return info

        info = self._kept(cache_keys.module_entry(key), MODULES, make if compiles else _not_compiled)
        return ExaminedImage(key, text, info, compiles, kernels)

    def compiled(
        self, examined: ExaminedImage, name: str, block: BlockShape, *, checked: bool, fenced: bool
    ) -> CompiledKernel:
        """Return a kernel's code for blocks of this shape.

        Args:
            examined: the image.
            name: of one of its kernels.
            block: threads in x, y and z.
            checked: the code checks every access of memory.
            fenced: the code is confined to a window.
        """

        def make() -> CompiledKernel:
            with examined.parsing:
                if not examined.kernels:
                    _, examined.kernels = translating(lambda: _examined(examined.text))
            kernel = examined.kernels[name]
            return translating(lambda: self._generated(kernel, block, checked=checked, fenced=fenced))

        entry = cache_keys.kernel_entry(examined.key, name, block, checked=checked, fenced=fenced)
        return self._kept(entry, _KERNELS, make if examined.compiles else _not_compiled)

    def _kept(self, entry: str, decoder: msgspec.msgpack.Decoder[T | RefusedCode], make: Callable[[], T]) -> T:
        """Return what the cache has under a name; make and keep it, or the refusal, if the cache has nothing."""
        found: T | RefusedCode
        cached = self._cache.get(entry)
        if cached is None:
            try:
                found = make()
            except CompileError as error:
                if error.result == JIT_DISABLED or isinstance(error.__cause__, MemoryError | OSError):
                    raise  # there may be code, or room, the next time
                found = RefusedCode(error.result, error.message)
            self._cache.put(entry, msgspec.msgpack.encode(found))
        else:
            found = decoder.decode(cached)
        if isinstance(found, RefusedCode):
            raise CompileError(found.result, found.message)
        return found

    def _generated(self, kernel: Kernel, block: BlockShape, *, checked: bool, fenced: bool) -> CompiledKernel:
        from softgpu.codegen import kernel as codegen

        code = codegen.generate(kernel, block, self._target, memcheck=checked, fenced=fenced)
        return CompiledKernel(machine_code.assemble(code.text, self._target), code.imports, code.needs_globals)


@cache
def namespace(processor: Target) -> str:
    """Return the part of all keys that stands for the compiler's sources and the processor.

    After a change of either, older entries of the cache are never found.
    """
    digest, folder = hashlib.blake2b(processor.key.encode(), digest_size=16), Path(__file__).parent
    for path in sorted(folder.rglob("*.py")):
        if folder / "tests" not in path.parents:  # a new test makes no other code
            digest.update(path.read_bytes())
    return digest.hexdigest()


def ptx_text(content: bytes) -> str:
    """Return the PTX of an image."""
    try:
        return image.ptx_of(content)
    except image.ImageError as error:
        raise CompileError(error.result, error.message) from error


def translating(action: Callable[[], T]) -> T:
    """Return the result of a part of the compiler. Each error of it becomes a CompileError."""
    from softgpu.ptx.model import PtxError

    try:
        return action()
    except PtxError as error:
        raise CompileError(INVALID_PTX, f"PTX {error}") from error
    except Exception as error:  # PTX that no check expected must not look like a broken device
        reason = ", ".join([f"{type(error).__name__}: {str(error)[:200]}", *getattr(error, "__notes__", ())])
        raise CompileError(INVALID_PTX, f"a mistake of the software GPU's compiler: {reason}") from error


def _not_compiled() -> NoReturn:
    raise CompileError(JIT_DISABLED, "the cache of compiled code lacks it, and this process compiles nothing")


def _examined(text: str) -> tuple[ModuleInfo, dict[str, Kernel]]:
    from softgpu.examination import examine

    return examine(text)

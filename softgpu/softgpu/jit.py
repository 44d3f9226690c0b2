"""The software GPU's compiler: it turns images into kernels, which are functions of this process (abi.h).

The parser and the code generator are imported only if an image is not in the cache: a process that starts again finds
everything in the cache.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from softgpu import image, machine_code, target
from softgpu.c_interface import (
    INVALID_HANDLE,
    INVALID_PTX,
    INVALID_VALUE,
    OUT_OF_MEMORY,
    CInterface,
    CompileError,
    CompilerTable,
)
from softgpu.disk_cache import DiskCache
from softgpu.module_info import ModuleInfo
from softgpu.user_cache import cache_root

if TYPE_CHECKING:
    from softgpu.ptx.kernel import Kernel

T = TypeVar("T")

CACHE_BYTES = 256 << 20
_GLOBAL_ALIGN = 256


class _CachedKernel(msgspec.Struct, frozen=True):
    """Compiled code in the cache."""

    code: bytes
    imports: tuple[str, ...]
    needs_globals: bool


_Variant = tuple[int, tuple[int, int, int], bool]
"""(place of the kernel in its module, block shape, True if accesses are checked)."""


@dataclass(slots=True)
class LoadedModule:
    """One load of an image, with its own variables and its own copies of the code."""

    key: str
    text: str
    info: ModuleInfo
    memory: ctypes.Array[ctypes.c_char] | None  # of the variables; None: in the window
    base: int
    window: int = 0  # an sg_window, to which its kernels are confined
    kernels: dict[str, Kernel] = field(default_factory=dict)
    examining: threading.Lock = field(default_factory=threading.Lock)
    code: dict[_Variant, Future[machine_code.Loaded]] = field(default_factory=dict)


class Compiler:
    """Loads images and compiles their kernels, one (kernel, block shape) at a time.

    library: the runner, which has the sg_rt_* functions. cache_directory: None for `kernels` below `cache_root`.
    memcheck: the code checks every access of memory. processor: the processor to compile for; None: this machine's.
    own: a folder to write in place of the cache directory, which is then only read.
    Any thread may call any method; methods raise CompileError. Threads wait for each other only for the same code.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        cache_directory: Path | None = None,
        cache_bytes: int = CACHE_BYTES,
        *,
        memcheck: bool = False,
        processor: target.Target | None = None,
        own: str | None = None,
    ) -> None:
        self._library = library
        self._memcheck = memcheck
        shared = cache_directory or cache_root() / "kernels"
        self._cache = DiskCache(Path(own), cache_bytes, shared) if own else DiskCache(shared, cache_bytes)
        self._target = processor or target.host()
        self._modules: dict[int, LoadedModule] = {}
        self._next = 1
        self._lock = threading.Lock()  # guards this object and its modules; nothing is compiled under it
        self._ahead = ThreadPoolExecutor(len(os.sched_getaffinity(0)), "softgpu-compiler")
        self._interface = CInterface(self, library)
        library.sg_window_take.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        library.sg_window_take.restype = ctypes.c_void_p
        library.sg_window_give.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        library.sg_window_give.restype = None

    @property
    def callbacks(self) -> CompilerTable:
        """Return the C functions for softgpu_configure; they live as long as this object."""
        return self._interface.table

    def load(self, content: bytes, window: int = 0) -> int:
        """Return a handle for PTX, or for a fatbin with PTX. It checks the whole image and compiles nothing yet.

        A kernel with an unsupported instruction is refused when the program takes that kernel. An image in which every
        kernel has one is refused now. window: the address of an sg_window, to which its kernels are confined; 0: they
        are not.
        """
        key = hashlib.blake2b(b"\0".join((_sources(), self._target.key.encode(), content)), digest_size=20).hexdigest()
        text = _text(content)
        cached = self._cache.get(f"{key}.module")
        kernels: dict[str, Kernel] = {}
        if cached is None:
            info, kernels = _translating(lambda: _examined(text))
            self._cache.put(f"{key}.module", msgspec.msgpack.encode(info))
        else:
            info = msgspec.msgpack.decode(cached, type=ModuleInfo)
        memory, base = self._variables(info, window)
        module = LoadedModule(key, text, info, memory, base, window, kernels)
        with self._lock:
            handle = self._next
            self._next += 1
            self._modules[handle] = module
            return handle

    def link(self, images: Sequence[tuple[str, bytes]]) -> bytes:
        """Return one image made of several images with PTX (name, content), which then see each other's symbols."""
        texts = []
        for name, content in images:
            try:
                texts.append(_text(content))
            except CompileError as error:
                raise CompileError(error.result, f"{name}: {error.message}") from error
        from softgpu import linking

        return image.fatbin_of(_translating(lambda: linking.join(texts)))

    def describe(self, handle: int) -> tuple[ModuleInfo, int]:
        """Return the module's kernels and variables, and the address from which the variables' offsets count."""
        module = self._module(handle)
        return module.info, module.base

    def announce(self, handle: int, kernel: int, block: tuple[int, int, int], *, checked: bool = False) -> None:
        """Let other threads begin a compilation that `compile` will ask for. Return at once."""
        module = self._module(handle)
        variant = self._variant(module, kernel, block, checked=checked)
        with self._lock:
            if variant not in module.code:
                with suppress(RuntimeError):  # the interpreter ends
                    module.code[variant] = self._ahead.submit(self._made_ahead, module, variant)

    def compile(self, handle: int, kernel: int, block: tuple[int, int, int], *, checked: bool = False) -> int:
        """Return the address of a kernel's sg_kernel_fn for blocks of this shape.

        kernel: its place in the result of `describe`. checked: the code checks every access, as with memcheck, and
        reports it to strict mode.
        """
        module = self._module(handle)
        variant = self._variant(module, kernel, block, checked=checked)
        with self._lock:
            code = module.code.get(variant)
            begun = code is not None and not code.cancel()  # announced but not begun: this thread compiles it
            if code is None or not begun:
                code = module.code[variant] = Future()
                code.set_running_or_notify_cancel()
        if not begun:
            try:
                code.set_result(self._made(module, variant))
            except BaseException as error:  # noqa: BLE001 - raised below, here and in the waiting threads
                code.set_exception(error)
        return code.result().entry

    def unload(self, handle: int) -> None:
        """Free the module's code and variables."""
        module = self._module(handle)
        with self._lock:
            del self._modules[handle]
        begun = [code for code in module.code.values() if not code.cancel()]  # cancel all before waiting for any
        for code in begun:
            if code.exception() is None:
                code.result().close()
        if module.memory is None:
            self._library.sg_window_give(module.window, module.base, len(module.info.data))

    def _module(self, handle: int) -> LoadedModule:
        with self._lock:
            if handle not in self._modules:
                raise CompileError(INVALID_HANDLE, f"no module {handle}")
            return self._modules[handle]

    def _variant(self, module: LoadedModule, kernel: int, block: tuple[int, int, int], *, checked: bool) -> _Variant:
        if not 0 <= kernel < len(module.info.kernels):
            raise CompileError(INVALID_VALUE, f"no kernel {kernel} in this module")
        if module.info.kernels[kernel].refusal:
            raise CompileError(INVALID_PTX, module.info.kernels[kernel].refusal)
        if min(block) < 1 or block[0] * block[1] * block[2] > 1024:
            raise CompileError(INVALID_VALUE, f"no block can be {block[0]} x {block[1]} x {block[2]}")
        return kernel, block, checked or self._memcheck

    def _made_ahead(self, module: LoadedModule, variant: _Variant) -> machine_code.Loaded:
        """Do the work of _made, unless the interpreter ends: it joins these threads and would wait for all of them.

        At that time the executor takes no more work (RuntimeError); its threads recognise the end by this.
        """
        try:
            self._ahead.submit(int)
        except RuntimeError:
            with self._lock:
                module.code.pop(variant, None)  # a later call of `compile` makes it
            raise
        return self._made(module, variant)

    def _made(self, module: LoadedModule, variant: _Variant) -> machine_code.Loaded:
        kernel, block, checked = variant
        entry = self._entry(module, module.info.kernels[kernel].name, block, checked=checked)
        base = module.base if entry.needs_globals else None
        return machine_code.place(entry.code, self._target, self._addresses(entry.imports), base)

    def _entry(self, module: LoadedModule, name: str, block: tuple[int, int, int], *, checked: bool) -> _CachedKernel:
        fenced = module.window != 0
        variant = f"{name}\0{block}" + ("\0memcheck" if checked else "") + ("\0fence" if fenced else "")
        digest = hashlib.blake2b(variant.encode(), digest_size=12).hexdigest()
        key = f"{module.key}.{digest}"
        cached = self._cache.get(key)
        if cached is not None:
            return msgspec.msgpack.decode(cached, type=_CachedKernel)
        with module.examining:
            if not module.kernels:
                _, module.kernels = _translating(lambda: _examined(module.text))
        entry = _translating(lambda: self._compiled(module.kernels[name], block, checked=checked, fenced=fenced))
        self._cache.put(key, msgspec.msgpack.encode(entry))
        return entry

    def _compiled(self, kernel: Kernel, block: tuple[int, int, int], *, checked: bool, fenced: bool) -> _CachedKernel:
        from softgpu.codegen import kernel as codegen

        code = codegen.generate(kernel, block, self._target, memcheck=checked, fenced=fenced)
        return _CachedKernel(machine_code.assemble(code.text, self._target), code.imports, code.needs_globals)

    def _variables(self, info: ModuleInfo, window: int) -> tuple[ctypes.Array[ctypes.c_char] | None, int]:
        """Return initialised memory for the variables, unless it is in the window, and its aligned start."""
        memory = None
        if window and info.data:
            base = self._library.sg_window_take(window, len(info.data))
            if not base:
                raise CompileError(OUT_OF_MEMORY, f"the window has no {len(info.data)} bytes left for variables")
        else:
            memory = ctypes.create_string_buffer(len(info.data) + _GLOBAL_ALIGN)
            base = -(-ctypes.addressof(memory) // _GLOBAL_ALIGN) * _GLOBAL_ALIGN
        ctypes.memmove(base, info.data, len(info.data))
        for place, goal in info.pointers:
            ctypes.c_uint64.from_address(base + place).value = base + goal
        return memory, base

    def _addresses(self, imports: tuple[str, ...]) -> dict[str, int]:
        return {name: ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0 for name in imports}


@cache
def _sources() -> bytes:
    """Return a hash of the compiler's sources: after a change of them, older cache entries are never found."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()


def _text(content: bytes) -> str:
    try:
        return image.ptx_of(content)
    except image.ImageError as error:
        raise CompileError(error.result, error.message) from error


def _examined(text: str) -> tuple[ModuleInfo, dict[str, Kernel]]:
    from softgpu.examination import examine

    return examine(text)


def _translating(action: Callable[[], T]) -> T:
    from softgpu.ptx.model import PtxError

    try:
        return action()
    except PtxError as error:
        raise CompileError(INVALID_PTX, f"PTX {error}") from error
    except Exception as error:  # PTX that no check expected must not look like a broken device
        reason = ", ".join([f"{type(error).__name__}: {str(error)[:200]}", *getattr(error, "__notes__", ())])
        raise CompileError(INVALID_PTX, f"a mistake of the software GPU's compiler: {reason}") from error

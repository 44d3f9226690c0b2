"""The software GPU's compiler: it turns images into kernels, which are functions of this process (abi.h)."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakValueDictionary

from softgpu import host_room, image, machine_code, target
from softgpu.c_interface import (
    INVALID_HANDLE,
    INVALID_PTX,
    INVALID_VALUE,
    OUT_OF_MEMORY,
    CInterface,
    CompileError,
    CompilerTable,
)
from softgpu.disk_cache import CACHE_BYTES, DiskCache
from softgpu.module_info import ModuleInfo
from softgpu.translation import ExaminedImage, Translator, ptx_text, translating
from softgpu.user_cache import KERNELS, cache_root

_Variant = tuple[int, tuple[int, int, int], bool]
"""(place of the kernel in its module, block shape, True if accesses are checked)."""


@dataclass(slots=True)
class LoadedModule:
    """One load of an image, with its own variables and its own copies of the code that has their addresses."""

    image: ExaminedImage
    device: int
    window: int  # an sg_window, to which its kernels are confined; 0: they are not
    base: int  # the address of the variables; 0: there are none
    code: dict[_Variant, Future[machine_code.Loaded]] = field(default_factory=dict)

    @property
    def info(self) -> ModuleInfo:
        """Its kernels and variables."""
        return self.image.info


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
        shared = cache_directory or cache_root() / KERNELS
        code_cache = DiskCache(Path(own), cache_bytes, shared) if own else DiskCache(shared, cache_bytes)
        self._target = processor or target.host()
        self._translator = Translator(code_cache, self._target)
        self._modules: dict[int, LoadedModule] = {}
        self._placed: WeakValueDictionary[tuple[object, ...], machine_code.Loaded] = WeakValueDictionary()
        self._next = 1
        self._lock = threading.Lock()  # guards this object and its modules; nothing is compiled under it
        self._ahead = ThreadPoolExecutor(len(os.sched_getaffinity(0)), "softgpu-compiler")
        self._interface = CInterface(self, library)
        library.sg_variables_take.argtypes = [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t]
        library.sg_variables_take.restype = ctypes.c_void_p
        library.sg_variables_give.argtypes = [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        library.sg_variables_give.restype = None

    @property
    def callbacks(self) -> CompilerTable:
        """Return the C functions for softgpu_configure; they live as long as this object."""
        return self._interface.table

    def load(self, content: bytes, window: int = 0, device: int = 0) -> int:
        """Return a handle for PTX, or for a fatbin with PTX. It checks the whole image and compiles nothing yet.

        A kernel with an unsupported instruction is refused when the program takes that kernel. An image in which every
        kernel has one is refused now. window: the address of an sg_window, to which its kernels are confined; 0: they
        are not. device: the number of the device whose memory has its variables.
        """
        examined = self._translator.examine(content)
        module = LoadedModule(examined, device, window, self._variables(examined.info, window, device))
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
                texts.append(ptx_text(content))
            except CompileError as error:
                raise CompileError(error.result, f"{name}: {error.message}") from error
        from softgpu import linking

        return image.fatbin_of(translating(lambda: linking.join(texts)))

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
        wait(begun)
        if module.base:
            self._library.sg_variables_give(module.device, module.window, module.base, module.info.data_bytes)

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
        """Return code in memory. All modules that have the same code share it, unless it has a variable's address."""
        kernel, block, checked = variant
        name, fenced = module.info.kernels[kernel].name, module.window != 0
        key = (module.image.key, variant, fenced)
        placed = self._placed.get(key)
        if placed is not None:
            return placed
        entry = self._translator.compiled(module.image, name, block, checked=checked, fenced=fenced)
        base = module.base if entry.needs_globals else None
        placed = machine_code.place(entry.code, self._target, self._addresses(entry.imports), base)
        if base is None:
            self._placed[key] = placed
        return placed

    def _variables(self, info: ModuleInfo, window: int, device: int) -> int:
        """Return the address of initialised memory for the variables; 0 if there are none."""
        if not info.data_bytes:
            return 0
        base: int | None = None
        if host_room.allows(info.data_bytes):
            base = self._library.sg_variables_take(device, window, info.data_bytes)
        if not base:
            what = f"{info.data_bytes} bytes left for the variables of a module"
            raise CompileError(OUT_OF_MEMORY, f"device {device}, its host or the window has no {what}")
        for place, initial in info.data:
            ctypes.memmove(base + place, initial, len(initial))
        for place, goal in info.pointers:
            ctypes.c_uint64.from_address(base + place).value = base + goal
        return base

    def _addresses(self, imports: tuple[str, ...]) -> dict[str, int]:
        return {name: ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0 for name in imports}

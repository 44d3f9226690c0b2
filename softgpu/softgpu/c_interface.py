"""The compiler as a table of C functions that the driver calls (sg_compiler in abi.h)."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from softgpu.module_info import ModuleInfo

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_IMAGE, NO_BINARY_FOR_GPU, INVALID_PTX, JIT_DISABLED = (
    0,
    1,
    2,
    200,
    209,
    218,
    223,
)  # CUresult
INVALID_HANDLE, UNKNOWN = 400, 999


class CompileError(Exception):
    """An image cannot be loaded or a kernel cannot be compiled; `result` is a CUresult."""

    def __init__(self, result: int, message: str) -> None:
        super().__init__(result, message)
        self.result, self.message = result, message

    def __str__(self) -> str:
        return self.message


class SourceRecord(ctypes.Structure):
    """The struct sg_source of abi.h."""

    _fields_ = [("ptx_line", ctypes.c_uint32), ("line", ctypes.c_uint32), ("file", ctypes.c_char_p)]


class KernelRecord(ctypes.Structure):
    """The struct sg_kernel_info of abi.h."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("param_count", ctypes.c_uint32),
        ("param_offsets", ctypes.POINTER(ctypes.c_uint32)),
        ("param_sizes", ctypes.POINTER(ctypes.c_uint32)),
        ("param_bytes", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_uint32),
        ("local_bytes", ctypes.c_uint32),
        ("max_threads", ctypes.c_uint32),
        ("registers", ctypes.c_uint32),
        ("const_bytes", ctypes.c_uint32),
        ("refusal", ctypes.c_char_p),
        ("sources", ctypes.POINTER(SourceRecord)),
        ("source_count", ctypes.c_uint32),
    ]


class GlobalRecord(ctypes.Structure):
    """The struct sg_global_info of abi.h."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("managed", ctypes.c_uint32),
    ]


_U32 = ctypes.c_uint32
_LOAD = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, _U32, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64)
)
_DESCRIBE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_uint64,
    ctypes.POINTER(ctypes.POINTER(KernelRecord)),
    ctypes.POINTER(_U32),
    ctypes.POINTER(ctypes.POINTER(GlobalRecord)),
    ctypes.POINTER(_U32),
)
_ANNOUNCE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, _U32, ctypes.POINTER(_U32), _U32)
_COMPILE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_uint64, _U32, ctypes.POINTER(_U32), _U32, ctypes.POINTER(ctypes.c_void_p)
)
_UNLOAD = ctypes.CFUNCTYPE(None, ctypes.c_uint64)
_LINK = ctypes.CFUNCTYPE(
    ctypes.c_int,
    _U32,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.POINTER(ctypes.c_char_p),
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_size_t),
)


class CompilerTable(ctypes.Structure):
    """The struct sg_compiler of abi.h: callbacks that return a CUresult."""

    _fields_ = [
        ("load", _LOAD),
        ("describe", _DESCRIBE),
        ("announce", _ANNOUNCE),
        ("compile", _COMPILE),
        ("unload", _UNLOAD),
        ("link", _LINK),
    ]


class CompilerCalls(Protocol):
    """The methods of `softgpu.jit.Compiler` that the table's functions call. All of them raise CompileError."""

    def load(self, content: bytes, window: int = 0, device: int = 0) -> int:
        """Return a handle for an image, whose kernels are confined to a window if there is one (sg_window).

        device: the number of the device whose memory has its variables.
        """
        ...

    def link(self, images: Sequence[tuple[str, bytes]]) -> bytes:
        """Return one image made of several (name, content)."""
        ...

    def describe(self, handle: int) -> tuple[ModuleInfo, int]:
        """Return the module's kernels and variables, and the address where the variables begin."""
        ...

    def announce(self, handle: int, kernel: int, block: tuple[int, int, int], *, checked: bool = False) -> None:
        """Let other threads begin a compilation that `compile` will ask for."""
        ...

    def compile(self, handle: int, kernel: int, block: tuple[int, int, int], *, checked: bool = False) -> int:
        """Return the address of a kernel's code for blocks of this shape."""
        ...

    def unload(self, handle: int) -> None:
        """Free the module's code and variables."""
        ...


class CInterface:
    """The table, and for each module the arrays that `describe` has handed out and C still reads."""

    def __init__(self, compiler: CompilerCalls, library: ctypes.CDLL) -> None:
        self._compiler, self._library = compiler, library
        self._described: dict[int, tuple[Any, Any, list[Any]]] = {}
        self._linked = threading.local()
        self.table = CompilerTable(
            _LOAD(self._load),
            _DESCRIBE(self._describe),
            _ANNOUNCE(self._announce),
            _COMPILE(self._compile),
            _UNLOAD(self._unload),
            _LINK(self._link),
        )

    def _guarded(self, action: Callable[[], None]) -> int:
        """Run the work of a callback. No exception may reach C: each becomes a CUresult and a message."""
        try:
            action()
        except CompileError as error:
            result, message = error.result, error.message
        except Exception as error:  # noqa: BLE001 - C cannot pass it on
            result, message = UNKNOWN, f"the compiler failed: {type(error).__name__}: {error}"
        else:
            return SUCCESS
        self._library.softgpu_set_last_error(message.encode())
        return result

    def _load(self, content: int, size: int, device: int, window: int | None, handle: Any) -> int:
        def action() -> None:
            if not content:
                raise CompileError(INVALID_VALUE, "no image")
            image = ctypes.string_at(content, size) if size else ctypes.string_at(content)
            handle[0] = self._compiler.load(image, window or 0, device)

        return self._guarded(action)

    def _describe(self, module: int, kernels: Any, kernel_count: Any, variables: Any, variable_count: Any) -> int:
        def action() -> None:
            if module not in self._described:
                info, base = self._compiler.describe(module)
                self._described[module] = _arrays(info, base)
            kernel_array, variable_array, _ = self._described[module]
            kernels[0] = ctypes.cast(kernel_array, ctypes.POINTER(KernelRecord))
            kernel_count[0] = len(kernel_array)
            variables[0] = ctypes.cast(variable_array, ctypes.POINTER(GlobalRecord))
            variable_count[0] = len(variable_array)

        return self._guarded(action)

    def _announce(self, module: int, kernel: int, block: Any, checked: int) -> int:
        def action() -> None:
            shape = (block[0], block[1], block[2])
            self._compiler.announce(module, kernel, shape, checked=checked != 0)

        return self._guarded(action)

    def _compile(self, module: int, kernel: int, block: Any, checked: int, function: Any) -> int:
        def action() -> None:
            shape = (block[0], block[1], block[2])
            function[0] = self._compiler.compile(module, kernel, shape, checked=checked != 0)

        return self._guarded(action)

    def _unload(self, module: int) -> None:
        def action() -> None:
            self._compiler.unload(module)
            self._described.pop(module, None)

        self._guarded(action)

    def _link(self, count: int, images: Any, sizes: Any, names: Any, joined: Any, joined_bytes: Any) -> int:
        def action() -> None:
            given = [(names[i].decode(errors="replace"), ctypes.string_at(images[i], sizes[i])) for i in range(count)]
            made = self._compiler.link(given)
            self._linked.image = ctypes.create_string_buffer(made, len(made))
            joined[0] = ctypes.addressof(self._linked.image)
            joined_bytes[0] = len(made)

        return self._guarded(action)


def _arrays(info: ModuleInfo, base: int) -> tuple[Any, Any, list[Any]]:
    """Return the C view of a module, and the arrays that it points into."""
    keep: list[Any] = []
    kernels = (KernelRecord * len(info.kernels))()
    records = [SourceRecord(at, line, file.encode()) for at, file, line in info.sources]
    sources = (SourceRecord * len(records))(*records)
    keep.append(sources)
    for place, kernel in zip(kernels, info.kernels, strict=False):
        count = len(kernel.parameters)
        offsets = (_U32 * count)(*(offset for offset, _ in kernel.parameters))
        sizes = (_U32 * count)(*(size for _, size in kernel.parameters))
        keep += [offsets, sizes]
        place.name = kernel.name.encode()
        place.param_count, place.param_offsets, place.param_sizes = count, offsets, sizes
        place.param_bytes = max((offset + size for offset, size in kernel.parameters), default=0)
        place.shared_bytes, place.local_bytes = kernel.shared_bytes, kernel.local_bytes
        place.max_threads, place.registers = kernel.max_threads, kernel.registers
        place.const_bytes = kernel.const_bytes
        place.refusal = kernel.refusal.encode() or None
        place.sources, place.source_count = sources, len(sources)
    variables = (GlobalRecord * len(info.globals))()
    for slot, variable in zip(variables, info.globals, strict=False):
        slot.name, slot.managed = variable.name.encode(), variable.managed
        slot.address, slot.bytes = base + variable.offset, variable.size
    return kernels, variables, keep

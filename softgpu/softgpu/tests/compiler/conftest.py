"""Builds the block runner by itself and launches compiled kernels on NumPy arrays, without the driver."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softgpu.jit import Compiler
from softgpu.target import Target
from softgpu.user_cache import cache_root, is_own_file

SOURCES = Path(__file__).parents[2] / "runtime"
STUB = Path(__file__).with_name("driver_stub.c")


class Launch(ctypes.Structure):
    """sg_launch of abi.h."""

    _fields_ = [
        ("fn", ctypes.c_void_p),
        ("params", ctypes.c_void_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("static_shared_bytes", ctypes.c_uint32),
        ("dynamic_shared_bytes", ctypes.c_uint32),
        ("local_bytes", ctypes.c_uint32),
        ("param_bytes", ctypes.c_uint32),
        ("device", ctypes.c_uint32),
        ("stop", ctypes.c_void_p),
        ("touched", ctypes.c_void_p),
        ("conditions", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("sources", ctypes.c_void_p),
        ("source_count", ctypes.c_uint32),
        ("cooperative", ctypes.c_uint32),
        ("window", ctypes.c_void_p),
    ]


class Window(ctypes.Structure):
    """sg_window of window.h."""

    _fields_ = [
        ("base", ctypes.c_uint64),
        ("mask", ctypes.c_uint64),
        ("room", ctypes.c_void_p),
        ("number", ctypes.c_uint64),
    ]


class Span(ctypes.Structure):
    """sg_span of abi.h."""

    _fields_ = [("start", ctypes.c_uint64), ("end", ctypes.c_uint64), ("by", ctypes.c_char_p)]


class Spans(ctypes.Structure):
    _fields_ = [("items", ctypes.POINTER(Span)), ("count", ctypes.c_size_t), ("capacity", ctypes.c_size_t)]


class Touched(ctypes.Structure):
    """sg_touched of abi.h: what a launch reads, writes and updates."""

    _fields_ = [("sets", Spans * 3), ("by", ctypes.c_char_p), ("incomplete", ctypes.c_int)]

    def bytes_of(self, verb: int) -> set[int]:
        spans = self.sets[verb]
        return {at for i in range(spans.count) for at in range(spans.items[i].start, spans.items[i].end)}


def triple(extent: int | tuple[int, ...]) -> tuple[int, int, int]:
    given = (extent,) if isinstance(extent, int) else extent
    x, y, z = (*given, 1, 1, 1)[:3]
    return x, y, z


class Gpu:
    """The compiler and the runner, as a test wants them.

    fenced: kernels are confined to a window, in which they find the arrays; these get what the kernels leave there.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        directory: Path,
        *,
        memcheck: bool = False,
        processor: Target | None = None,
        fenced: bool = False,
    ) -> None:
        self.library, self.memcheck = library, memcheck
        self.window: Any = library.sg_window_new(1 << 30) if fenced else None
        self.moved: dict[int, tuple[np.ndarray, int]] = {}  # arrays and their places in the window, by their addresses
        library.sg_run.argtypes = [ctypes.POINTER(Launch), ctypes.c_char_p, ctypes.c_size_t]
        self.compiler = Compiler(library, directory, memcheck=memcheck, processor=processor)
        self.loaded: dict[str, int] = {}

    def load(self, text: str) -> int:
        if text not in self.loaded:
            window = ctypes.addressof(self.window.contents) if self.window else 0
            self.loaded[text] = self.compiler.load(text.encode(), window)
        return self.loaded[text]

    def forget(self) -> None:
        """Unloads all modules."""
        for handle in self.loaded.values():
            self.compiler.unload(handle)
        self.loaded.clear()

    def run(
        self,
        text: str,
        name: str,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        *arguments: Any,
        dynamic: int = 0,
        reached: tuple[np.ndarray, ...] = (),
        stop: np.ndarray | None = None,
        touched: Touched | None = None,
        cooperative: bool = False,
    ) -> None:
        """Arguments: arrays (their address is passed), NumPy scalars and bytes (a struct by value).

        stop: a uint32 that ends the launch once not 0. With memcheck the kernel may touch the arrays, the module's
        variables, and what is reached from there; touched receives what it did.
        """
        module = self.load(text)
        info, base = self.compiler.describe(module)
        if self.memcheck:
            variables = [(base + variable.offset, variable.size) for variable in info.globals]
            self.know(*variables, *(a for a in arguments if isinstance(a, np.ndarray)), *reached)
        index = [kernel.name for kernel in info.kernels].index(name)
        kernel = info.kernels[index]
        assert len(arguments) == len(kernel.parameters)
        end = max((offset + size for offset, size in kernel.parameters), default=0)
        buffer = ctypes.create_string_buffer(end + 16)
        for argument, (offset, size) in zip(arguments, kernel.parameters, strict=False):
            content = self.address(argument).to_bytes(8, "little") if _is_array(argument) else _bytes_of(argument)
            assert len(content) == size, (len(content), size)
            ctypes.memmove(ctypes.addressof(buffer) + offset, content, size)
        shape = triple(block)
        function = self.compiler.compile(module, index, shape)
        launch = Launch(
            function,
            ctypes.addressof(buffer),
            triple(grid),
            shape,
            kernel.shared_bytes,
            dynamic,
            kernel.local_bytes,
            end,
            0,
            None if stop is None else stop.ctypes.data,
            None if touched is None else ctypes.addressof(touched),
            None,
            name.encode(),
            cooperative=cooperative,
            window=ctypes.addressof(self.window.contents) if self.window else None,
        )
        error = ctypes.create_string_buffer(400)
        result = self.library.sg_run(ctypes.byref(launch), error, len(error))
        for array, place in self.moved.values():
            ctypes.memmove(array.ctypes.data, place, array.nbytes)
            self.library.sg_window_give(self.window, place, array.nbytes)
        self.moved.clear()
        if result:
            raise RuntimeError(f"{result}: {error.value.decode()}")

    def address(self, array: np.ndarray) -> int:
        """Return the address at which the next kernel finds an array."""
        address = int(array.ctypes.data)
        if not self.window:
            return address
        if address not in self.moved:
            place: int = self.library.sg_window_take(self.window, array.nbytes)
            ctypes.memmove(place, address, array.nbytes)
            self.moved[address] = array, place
        return self.moved[address][1]

    def know(self, *ranges: tuple[int, int] | np.ndarray) -> None:
        """These are the live ranges of memory, as (address, bytes) or arrays, and no others."""
        self.library.sg_test_know(0, 0)
        for one in ranges:
            address, size = (one.ctypes.data, one.nbytes) if isinstance(one, np.ndarray) else one
            self.library.sg_test_know(address, size)

    def printed(self) -> str:
        """Return the output of kernels since the last call."""
        buffer = ctypes.create_string_buffer(1 << 16)
        self.library.sg_test_printed(buffer, len(buffer))
        return buffer.value.decode()

    def read_global(self, text: str, name: str, dtype: Any, count: int = 1) -> Any:
        info, base = self.compiler.describe(self.load(text))
        variable = next(variable for variable in info.globals if variable.name == name)
        return np.frombuffer(ctypes.string_at(base + variable.offset, variable.size), dtype, count)


def _is_array(argument: Any) -> bool:
    return isinstance(argument, np.ndarray)


def _bytes_of(argument: Any) -> bytes:
    if isinstance(argument, bytes):
        return argument
    return bytes(argument.tobytes())


def build_runner(directory: Path) -> Path:
    """Return the runner in a folder, compiled there unless the folder has one of the same sources."""
    files = [str(path) for path in (*sorted(SOURCES.glob("*.c")), STUB)]
    digest = hashlib.blake2b(digest_size=16)
    for path in (STUB, Path(__file__), *sorted(SOURCES.iterdir())):
        digest.update(path.read_bytes() if path.is_file() else b"")
    output = directory / f"runner-{digest.hexdigest()}.so"
    if is_own_file(output):
        return output
    handle, draft = tempfile.mkstemp(dir=directory, suffix=".so")
    os.close(handle)
    command = [
        "cc",
        "-O2",
        "-fPIC",
        "-fstack-clash-protection",
        "-shared",
        "-pthread",
        "-Wl,-Bsymbolic",  # where this process has the driver too
        "-I",
        str(SOURCES),
        "-o",
        draft,
        *files,
        "-lm",
    ]
    subprocess.run(command, check=True)
    os.replace(draft, output)  # another process of tests finds a whole one
    return output


def load_runner(path: str | Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    library.sg_test_know.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
    library.sg_window_new.argtypes = [ctypes.c_uint64]
    library.sg_window_new.restype = ctypes.POINTER(Window)
    library.sg_window_take.argtypes = [ctypes.POINTER(Window), ctypes.c_size_t]
    library.sg_window_take.restype = ctypes.c_void_p
    library.sg_window_give.argtypes = [ctypes.POINTER(Window), ctypes.c_void_p, ctypes.c_size_t]
    return library


@pytest.fixture(scope="session")
def compiled() -> Path:
    """A folder of the user's cache: what one run of the tests compiles, other processes and later runs find.

    The names of entries are made of the sources of compiler and runner, so no change of these finds older code.
    """
    folder = cache_root() / "tests"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def runner(compiled: Path) -> ctypes.CDLL:
    return load_runner(build_runner(compiled))


@pytest.fixture(scope="session")
def gpu(runner: ctypes.CDLL, compiled: Path) -> Gpu:
    return Gpu(runner, compiled / "plain")


@pytest.fixture(scope="session")
def fenced_gpu(runner: ctypes.CDLL, compiled: Path) -> Gpu:
    """With a window."""
    return Gpu(runner, compiled / "fenced", fenced=True)


@pytest.fixture(scope="session")
def checked_gpu(runner: ctypes.CDLL, compiled: Path) -> Gpu:
    """With memcheck."""
    return Gpu(runner, compiled / "memcheck", memcheck=True)

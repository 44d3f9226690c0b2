"""Libraries, which are sets of code images under the hash of their content, and launches of their kernels."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from kaas.errors import CorruptImage, InvalidGraph
from kaas.ktask.arguments import (
    ARGUMENTS,
    Access,
    Argument,
    Buffer,
    Scalar,
    accesses,
    check_name,
    integer,
    items,
    scalars_of,
)
from kaas.ktask.images import ELF, FATBIN, PTX_COMMENT_OR_STRING, Image, Provided, check
from kaas.ktask.launch import KnownLibrary, complete, extent
from kaas.ktask.signature import KernelSignature, shown_name

__all__ = ["PTX_COMMENT_OR_STRING", "Image", "Kernel", "Library"]

_LISTS = (list, tuple)


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Library:
    """A content-hashed set of code images of the same kernels.

    Two tenants' `a.cubin` never collide: a library is its `hash` (SHA-256, hex), never a file name.

    Fields:
        entries: the signatures of its kernels, as the compiler gave them. log: the output of the compiler. Both help
            to write launches: they count neither in the hash nor in equality, and an encoded kTask leaves them out.
    """

    images: tuple[Image, ...] = field(repr=False)
    hash: str
    entries: tuple[KernelSignature, ...] = field(repr=False)
    log: str = field(repr=False)

    def __init__(self, images: tuple[Image, ...], *, entries: Iterable[KernelSignature] = (), log: str = "") -> None:
        """Check the images, and hash them.

        Raises:
            CorruptImage: no image, or one whose bytes are not of its kind or end too early.
        """
        if not images:
            raise CorruptImage("a library needs at least one code image")
        for image in images:
            check(image)
        digest = hashlib.sha256()
        for image in images:
            digest.update(f"{image.kind}:{len(image.data)}:".encode())
            digest.update(image.data)
        object.__setattr__(self, "images", tuple(images))
        object.__setattr__(self, "hash", digest.hexdigest())
        object.__setattr__(self, "entries", tuple(entries))
        object.__setattr__(self, "log", log)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Library:
        """Return a library from a .ptx, .cubin or .fatbin file; the bytes decide, not the suffix.

        Raises:
            OSError: the file cannot be read.
            CorruptImage: the file holds none of the three, or text was given for a path.
        """
        if isinstance(path, str) and "\n" in path:  # the system's error would say only that the name is too long
            takes = "from_cuda(source) takes CUDA C++, kaas.Library.from_ptx(text) PTX"
            raise CorruptImage(f"from_file takes a path, and this is text of several lines; kaas.Library.{takes}")
        data = Path(path).read_bytes()
        if data.startswith(ELF):
            return cls.from_cubin(data)
        if data.startswith(FATBIN):
            return cls.from_fatbin(data)
        return cls.from_ptx(data)

    @classmethod
    def from_ptx(cls, text: str | bytes) -> Library:
        """Return a library from PTX text (a trailing NUL is dropped)."""
        if not isinstance(text, str | bytes | bytearray | memoryview):
            raise CorruptImage(
                f"PTX is text or bytes, not {type(text).__name__}; kaas.Library.from_file(path) reads a file"
            )
        data = text.encode() if isinstance(text, str) else bytes(text)
        return cls((Image("ptx", data.rstrip(b"\0")),))

    @classmethod
    def from_cubin(cls, data: bytes) -> Library:
        """Return a library from a cubin: an ELF file for the CUDA machine."""
        return cls((Image("cubin", bytes(data)),))

    @classmethod
    def from_fatbin(cls, data: bytes) -> Library:
        """Return a library from a fatbin, as `nvcc -fatbin` writes it."""
        return cls((Image("fatbin", bytes(data)),))

    @classmethod
    def provided(cls, provider: str, name: str, version: str) -> Library:
        """Return a library that is named and not uploaded: an installed package gives its code where it runs.

        The package has an entry point `provider` in the group "kaas.libraries". Here it need not be installed. The
        library's hash is that of the three names. The entry point is a function that takes name and version and returns
        a `Library` of code, or raises kaas.errors.NotProvided for a name that it does not know. An executor calls it
        once, when it first needs the code.

        Raises:
            CorruptImage: a name that is not 1 to 200 visible ASCII characters.
        """
        named = (provider, name, version)
        if not all(isinstance(part, str) for part in named):
            raise CorruptImage(f"provided code is named by three strings, not {named!r}")
        return cls((Provided(*named).image(),))

    @classmethod
    def from_cuda(
        cls,
        source: str,
        arch: str = "sm_80+ptx",
        *,
        names: str | Iterable[str] = (),
        options: str | Iterable[str] = (),
        headers: Mapping[str, str] | None = None,
        include_paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
        name: str = "kernels.cu",
    ) -> Library:
        """Return a library from CUDA C++, compiled by NVRTC (package nvidia-cuda-nvrtc); no GPU is needed.

        A single name, option or folder need not be in a list.

        Args:
            source: CUDA C++.
            arch: "sm_80" is machine code for such devices, "compute_80" PTX for these and newer ones, "ptx" PTX for
                those of the oldest sm_N with it; joined by "+", as "sm_80+sm_90+ptx".
            names: C++ names of kernels, which instantiate templates and by which `kernel` knows them: "scale<float>".
            options: of NVRTC, as "--use_fast_math" or "-DWIDTH=4".
            headers: texts that #include finds first, by name.
            include_paths: folders that #include searches next; the headers of NVRTC come last.
            name: the name of the source in messages.

        Raises:
            InvalidTarget: no such arch, or NVRTC does not know it.
            CompileFailed: with the compiler's log. Warnings are in `log` of the library.
            MissingPackage: no NVRTC.
        """
        made: Library = _importer("cuda").library(
            source,
            arch,
            names=_listed(names),
            options=_listed(options),
            headers=headers or {},
            include_paths=_listed(include_paths),
            name=name,
        )
        return made

    @classmethod
    def from_cupy(cls, kernel: Any, arch: str = "sm_80+ptx") -> Library:
        """Return a library from a cupy.RawKernel or RawModule: its source, options and name expressions.

        NVRTC compiles them as in `from_cuda`, for any device; CuPy itself compiles nothing and needs no GPU. A module
        that was made of a file gives that file.

        Raises:
            CompileFailed: also for a kernel that nvcc must compile, a kernel that is launched as a whole grid (a
                cooperative launch), and any other object.
            InvalidTarget, MissingPackage: see `from_cuda`.
        """
        made: Library = _importer("cupy").library(kernel, arch)
        return made

    @classmethod
    def from_triton(
        cls,
        kernel: Any,
        signature: str | Iterable[str] | Mapping[str, str],
        constants: Mapping[str, Any] | None = None,
        *,
        arch: str = "sm_80+ptx",
        num_warps: int = 4,
        num_stages: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Library:
        """Return a library from a function under @triton.jit, compiled ahead of time; no GPU is needed.

        `kernel` then knows the block, the shared memory, the parameters, and the pointers to scratch memory that Triton
        adds.

        Args:
            kernel: the function.
            signature: a type for each parameter that is no constant, in order or by name: "*fp32" points to float32,
                "i32" is a number; "*fp32:16" and "i32:16" promise that 16 divides the address or the number.
            constants: values of constexpr parameters, where their defaults will not do, and of others that are to be
                fixed.
            arch: one sm_N, with or without "+ptx"; or "ptx", or one compute_N.
            num_warps: Triton's own.
            num_stages: Triton's own.
            options: Triton's own.

        Raises:
            InvalidTarget: several devices at once (join libraries by |), or one that Triton does not know.
            InvalidGraph: signature and constants do not fit the parameters.
            CompileFailed: Triton refuses the kernel or an option, or the kernel needs something that a kTask does not
                have, such as tensor descriptors.
            MissingPackage: no Triton.
        """
        made: Library = _importer("triton").library(
            kernel,
            signature,
            constants or {},
            arch,
            {"num_warps": num_warps, "num_stages": num_stages, **(options or {})},
        )
        return made

    @classmethod
    def from_numba(
        cls, kernel: Any, signature: Any, *, arch: str = "ptx", fastmath: bool = False, launch_bounds: Any = None
    ) -> Library:
        """Return a library from a Python function, compiled to PTX by numba-cuda; no GPU is needed.

        `kernel` then takes a buffer where the function takes an array, and fills in shape and strides.

        Args:
            kernel: the function, under @cuda.jit or not.
            signature: numba's signature, as "void(float32[:, ::1], int32)", or a tuple of its types.
            arch: "ptx" or one compute_N.
            fastmath: numba's own.
            launch_bounds: numba's own.

        Raises:
            InvalidTarget: machine code is asked for.
            CompileFailed: numba refuses the function, or a parameter is of a type that a kTask cannot give it.
            MissingPackage: numba-cuda, or a library that it compiles with, is not installed.
        """
        made: Library = _importer("numba").library(kernel, signature, arch, fastmath, launch_bounds)
        return made

    def kernel(
        self,
        name: str | None = None,
        *,
        grid: int | Sequence[int],
        args: Iterable[Any] | Mapping[str, Any],
        block: int | Sequence[int] | None = None,
        shared_bytes: int | None = None,
    ) -> Kernel:
        """Return a launch of a kernel of this library.

        Facts that the kernel's compiler knows may be left out, and are checked if they are given.

        Args:
            name: a symbol, a name from `from_cuda(names=...)`, that of a Python function, or that of a C++ function
                of which there is one. None: the library holds one kernel.
            grid: as in kaas.Kernel.
            args: as in kaas.Kernel. Where the parameters are known (Triton, numba): those that the function was
                written with but for its constants, in order or by name, and plain numbers will do for numbers.
            block: as in kaas.Kernel; Triton's kernels know theirs.
            shared_bytes: as in kaas.Kernel; Triton's kernels know theirs.

        Raises:
            UnknownSymbol: no kernel of this name, or several.
            InvalidGraph: an argument that does not fit its parameter, or a wrong number of arguments.
        """
        known = KnownLibrary(self.hash, self.entries, self.images)
        launch = complete(known, name, grid, args, block, shared_bytes)
        return Kernel(self, launch.symbol, launch.grid, launch.block, launch.args, launch.shared_bytes)

    def __or__(self, other: Library) -> Library:
        """Return a library of both: `cubin | ptx` runs the cubin where it fits, else the PTX.

        Raises:
            InvalidGraph: a kernel of both that is not launched in the same way.
        """
        for entry in self.entries:
            for same in other.entries:
                if same.symbol == entry.symbol and replace(same, name=entry.name) != entry:
                    raise InvalidGraph(f"kernel {entry.name!r} is not launched in the same way in both libraries")
        return Library(
            tuple(dict.fromkeys(self.images + other.images)),
            entries=dict.fromkeys(self.entries + other.entries),
            log="\n".join(log for log in (self.log, other.log) if log),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all code images."""
        return sum(len(image.data) for image in self.images)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Library) and self.hash == other.hash

    def __hash__(self) -> int:
        return hash(self.hash)


@dataclass(frozen=True, slots=True, init=False)
class Kernel:
    """One launch.

    Args:
        library: the code image set that holds the kernel.
        symbol: its name there (mangled, for C++; `Library.kernel` takes the C++ name).
        grid, block: blocks, and threads in a block, in up to three dimensions; an int is one dimension.
        args: in the kernel's own order.
        shared_bytes: dynamic shared memory of each block.
    """

    library: Library
    symbol: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: tuple[Argument, ...]
    shared_bytes: int

    def __init__(
        self,
        library: Library,
        symbol: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Iterable[Argument],
        shared_bytes: int = 0,
    ) -> None:
        if not isinstance(library, Library):
            raise InvalidGraph(f"kernel {symbol!r}: library is a kaas.Library, not {library!r}", kernel=str(symbol))
        check_name("a kernel's symbol", symbol)
        shown = shown_name(library.entries, symbol)
        args = tuple(args) if isinstance(args, _LISTS) else items(f"kernel {shown!r}", args)
        for position, argument in enumerate(args):
            if not isinstance(argument, ARGUMENTS):
                raise InvalidGraph(
                    f"kernel {shown!r}: argument {position} is {_shown(argument)}; wrap values in kaas.i32, "
                    "kaas.f32, … and buffers in In, Out or InOut (the first argument is 0)",
                    kernel=symbol,
                )
        shared = integer(shared_bytes)
        if shared is None or shared < 0:
            raise InvalidGraph(f"kernel {shown!r}: shared_bytes is {shared_bytes!r}", kernel=symbol)
        put = object.__setattr__
        put(self, "library", library)
        put(self, "symbol", symbol)
        put(self, "grid", extent(symbol, shown, "grid", grid))
        put(self, "block", extent(symbol, shown, "block", block))
        put(self, "args", args)
        put(self, "shared_bytes", shared)

    @property
    def accesses(self) -> tuple[Access, ...]:
        """The reads and writes of the launch, in the order of its arguments."""
        return tuple(access for argument in self.args for access in accesses(argument))

    @property
    def reads(self) -> tuple[Buffer, ...]:
        """The buffers that the launch reads, each once."""
        return tuple(dict.fromkeys(access.buffer for access in self.accesses if access.reads))

    @property
    def writes(self) -> tuple[Buffer, ...]:
        """The buffers that the launch writes, each once."""
        return tuple(dict.fromkeys(access.buffer for access in self.accesses if access.writes))

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        """The scalars that the launch takes."""
        return tuple(scalar for argument in self.args for scalar in scalars_of(argument))


def _listed(values: Any) -> tuple[Any, ...]:
    """Return values as a tuple; a string is one value, not its letters."""
    return (values,) if isinstance(values, str | os.PathLike) else tuple(values)


IMPORTERS: dict[str, str] = {}
"""Kind of kernels ("cuda", "cupy", "triton", "numba") -> the module that makes libraries of them; see `kaas.code`."""


def _importer(name: str) -> Any:
    """Return the module that makes libraries of kernels of this kind; it brings a compiler with it."""
    return import_module(IMPORTERS[name])


def _shown(argument: Any) -> str:
    """Return a value that is no argument, for an error."""
    return f"buffer {argument.name!r}" if isinstance(argument, Buffer) else shortened(argument)

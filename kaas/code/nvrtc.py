"""NVRTC, NVIDIA's compiler of CUDA C++ as a library: one source to PTX and a cubin, without a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from cuda import pathfinder

from kaas.cache_folders import cache_root
from kaas.errors import CompileFailed, InvalidTarget, MissingPackage

_INSTALL = "nvidia-cuda-nvrtc"
_ERROR = re.compile(r"(.*)\((\d+)\): (?:catastrophic )?error: ")
_NAMES = "__nv_name_map"
"""NVRTC's name of the source that it makes of name expressions."""
_NO_HEADER = re.compile(r'(?:could not open|cannot open) source file "([^"]+)"')
_BUNDLED = "what CUDA C++ and CCCL include comes with NVRTC 13.3 and later or a CUDA toolkit, else by include_paths"
_BUILT_IN = ("cuda_runtime.h", "device_launch_parameters.h", "stdio.h", "cstdio", "math.h", "assert.h", "cassert")
"""Headers of nvcc's sources without which NVRTC compiles the same kernels."""
_LEAVE_OUT = "leave the line out: NVRTC has built in what kernels need of it, printf included"


@dataclass(frozen=True, slots=True)
class Compiled:
    """The output of NVRTC for one architecture.

    Fields:
        cubin: empty if only PTX was wanted. names: name expression -> symbol. log: warnings.
    """

    ptx: str
    cubin: bytes
    names: Mapping[str, str]
    log: str


def compiled(
    source: str, arch: str, name: str, options: Sequence[str], headers: Mapping[str, str], names: Sequence[str]
) -> Compiled:
    """Compile a source for one architecture.

    Args:
        source: CUDA C++.
        arch: "sm_80" makes PTX and a cubin, "compute_80" only PTX.
        name: the name of the source in messages.
        options: of NVRTC, but for the architecture.
        headers: name -> text, which `#include` finds before it searches folders.
        names: C++ names whose symbols are wanted; a template's are instantiated: "scale<float>".

    Raises:
        MissingPackage: no NVRTC.
        InvalidTarget: NVRTC does not know the architecture.
        CompileFailed: NVRTC refuses the source, an option or a name.
    """
    nvrtc = _library()
    _check_known(arch)
    texts, titles = [text.encode() for text in headers.values()], [title.encode() for title in headers]
    program = _done(nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), len(texts), texts, titles), name)
    try:
        for expression in names:
            _done(nvrtc.nvrtcAddNameExpression(program, expression.encode()), name)
        flags = [option.encode() for option in (f"--gpu-architecture={arch}", *_no_cache(), *options)]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
        log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).strip()
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise _failed(name, log or str(result))
        lowered = {e: _done(nvrtc.nvrtcGetLoweredName(program, e.encode()), name).decode() for e in names}
        ptx = _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
        cubin = b"" if arch.startswith("compute") else _bytes(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        return Compiled(ptx, cubin, lowered, log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def include_paths() -> tuple[str, ...]:
    """Return folders with NVRTC's headers (cuda_fp16.h, cooperative_groups.h, cuda/std, cub, …).

    They are unpacked once, into KaaS's cache folder. If NVRTC brings none, the CUDA toolkit's are taken.
    """
    nvrtc = _library()
    try:
        if not _done(nvrtc.nvrtcGetBundledHeadersInfo()[:2], "headers").available:
            return _of_toolkit()
        root = cache_root() / "nvrtc-{}.{}".format(*_version())
        _done(nvrtc.nvrtcInstallBundledHeaders(str(root).encode(), 0), f"its headers, of 25 MB, unpacked to {root}")
    except RuntimeError as error:
        if "not found" in str(error):  # this NVRTC, older than 13.3, has no such function
            return _of_toolkit()
        raise
    return str(root), str(root / "cccl")


def _of_toolkit() -> tuple[str, ...]:
    """Return folders with the headers of a CUDA toolkit, in packages or on the machine; none without a toolkit."""
    found = (pathfinder.find_nvidia_header_directory(part) for part in ("cudart", "cccl"))
    return tuple(folder for folder in found if folder is not None)


@cache
def _library() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError):  # cuda.pathfinder's DynamicLibNotFoundError is a RuntimeError
        raise MissingPackage(
            f"compiling CUDA C++ needs NVRTC, which is not here: pip install {_INSTALL}",
            package="NVRTC",
            install=_INSTALL,
        ) from None  # the loader's own error has dozens of lines, and says no more
    return nvrtc


@cache
def _version() -> tuple[int, int]:
    _, major, minor = _library().nvrtcVersion()
    return major, minor


def compiler() -> str:
    """Return the compiler's name and version."""
    return "NVRTC {}.{}".format(*_version())


@cache
def _known() -> tuple[str, ...]:
    return tuple(str(n) for n in _done(_library().nvrtcGetSupportedArchs(), "architectures"))


def _no_cache() -> tuple[str, ...]:
    """Return options that keep NVRTC from searching the driver's cache of compilations, by calls that are private."""
    return ("--no-cache",) if _version() >= (12, 9) else ()


def _check_known(arch: str) -> None:
    capability = arch.partition("_")[2]
    if capability.rstrip("af") not in _known():
        raise InvalidTarget(
            f"{compiler()} compiles nothing for {arch}; it knows {', '.join(_known())}", target=arch, known=_known()
        )


def _failed(source: str, log: str) -> CompileFailed:
    """Return the error of a log: the first error is the message, the whole log a field."""
    first = _ERROR.search(log)
    said = next((line for line in log.splitlines() if "error" in line), log)
    absent = _NO_HEADER.search(log)
    hint = "" if absent is None else f"; {_LEAVE_OUT if absent[1] in _BUILT_IN else _BUNDLED}"
    if first is not None and first[1] == _NAMES:
        hint = "; this is about the C++ names that are wanted"
    fields: dict[str, Any] = {"line": int(first[2])} if first is not None and first[1] == source else {}
    return CompileFailed(
        f"{compiler()} refuses {source}: {said}{hint}", compiler=compiler(), source=source, log=log, **fields
    )


def _done(results: tuple[Any, ...], source: str) -> Any:
    """Return the value of a call after its result code.

    Raises:
        CompileFailed: the result code is an error.
    """
    result, *values = results
    if int(result) != 0:
        raise CompileFailed(
            f"{compiler()}: {_library().nvrtcGetErrorString(result)[1].decode()} with {source}",
            compiler=compiler(),
            source=source,
            log="",
        )
    return values[0] if values else None


def _bytes(size: Callable[[Any], Any], read: Callable[[Any, bytes], Any], program: Any) -> bytes:
    content = bytes(_done(size(program), "output"))
    _done(read(program, content), "output")  # the call writes into these bytes
    return content


def _text(size: Callable[[Any], Any], read: Callable[[Any, bytes], Any], program: Any) -> str:
    return _bytes(size, read, program).rstrip(b"\0").decode(errors="replace")

"""`Library.from_numba`: a Python function compiled to PTX by numba-cuda, without a GPU."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from kaas.code import target
from kaas.code.refusal import missing, refused, title
from kaas.errors import CompileFailed, InvalidGraph, InvalidTarget, MissingPackage
from kaas.ktask.dtypes import DTYPE_BYTES
from kaas.ktask.library import Library
from kaas.ktask.signature import (
    ArrayParameter,
    ComplexParameter,
    KernelSignature,
    NumberParameter,
    Parameter,
    PointerParameter,
)

_INSTALL = "numba-cuda[cu13]"
_COUNTED = re.compile(r"_ZN\w+|_cudapy_\w+")
_PARAMETER = re.compile(r"_param_\d+$")


def library(kernel: Any, signature: Any, arch: str, fastmath: bool, launch_bounds: Any) -> Library:
    """Return the library of `Library.from_numba`."""
    wanted = target.parse(arch)
    if wanted.cubins or wanted.ptx is None:
        raise InvalidTarget(f'numba-cuda compiles to PTX, not for {arch!r}: "ptx" or compute_N', target=arch)
    try:
        import numba_cuda

        cuda: Any = import_module("numba.cuda")
        signatures: Any = import_module("numba.cuda.core.sigutils")
    except (ImportError, RuntimeError) as error:  # cuda.pathfinder's DynamicLibNotFoundError is a RuntimeError
        raise missing("numba-cuda, or a library that it loads,", _INSTALL) from error
    compiler = f"numba-cuda {numba_cuda.__version__}"
    function = getattr(kernel, "py_func", kernel)
    name = title(function)
    if not inspect.isfunction(function):
        raise refused(compiler, name, f"a {type(function).__name__} is no Python function")
    try:
        types, _ = signatures.normalize_signature(signature)
    except Exception as error:
        raise refused(compiler, name, f"{signature!r} is no signature: {error}") from error
    parameters = _parameters(function, types, compiler)
    capability = divmod(int(wanted.ptx.rstrip("af")), 10)
    options = {"fastmath": fastmath, "launch_bounds": launch_bounds}
    try:
        with _as_if_on(capability):
            ptx, _ = cuda.compile(
                function, cuda.types.void(*types), device=False, abi="numba", cc=capability, **options
            )
    except Exception as error:
        raise _failed(compiler, name, error) from error
    symbol = re.sub(r"\W", "_", name, flags=re.ASCII)  # the name of a lambda, for example, is no name for PTX
    images = Library.from_ptx(_named(ptx, symbol)).images
    return Library(images, entries=[KernelSignature(symbol, name, parameters=parameters)])


@contextmanager
def _as_if_on(capability: tuple[int, int]) -> Iterator[None]:
    """Give numba-cuda a device of this capability for a while.

    numba-cuda compiles the device functions that a kernel calls for the device of this process, which need not exist.
    """
    dispatcher: Any = import_module("numba.cuda.dispatcher")
    lock: Any = import_module("numba.cuda.core.compiler_lock")
    with lock.global_compiler_lock:
        real = dispatcher.get_current_device
        dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
        try:
            yield
        finally:
            dispatcher.get_current_device = real


def _named(ptx: str, name: str) -> str:
    """Return the PTX with a name for its kernel, and short ones for all names that numba numbers as it compiles.

    So the same function gives the same code, independent of earlier compilations.
    """
    (kernel,) = re.findall(r"\.entry\s+([\w$]+)", ptx)
    short = {kernel: name}
    for symbol in dict.fromkeys(_PARAMETER.sub("", found) for found in _COUNTED.findall(ptx)):
        short.setdefault(symbol, f"{name}__{len(short)}")

    def renamed(match: re.Match[str]) -> str:
        base = _PARAMETER.sub("", match[0])
        return short[base] + match[0][len(base) :]

    return _COUNTED.sub(renamed, ptx)


def _failed(compiler: str, name: str, error: Exception) -> CompileFailed | MissingPackage:
    """Return numba's error as one of KaaS."""
    log = str(error).strip()
    if type(error).__name__ in ("DynamicLibNotFoundError", "NvvmSupportError"):
        return missing("NVVM, with which numba-cuda compiles,", _INSTALL)
    line = re.search(r"^File .*, line (\d+):", log, re.MULTILINE)
    said = [part for part in log.splitlines() if part and not part.startswith("Failed in")]
    return refused(compiler, name, said[0] if said else type(error).__name__, log, int(line[1]) if line else None)


# --- parameters


def _parameters(function: Any, types: tuple[Any, ...], compiler: str) -> tuple[Parameter, ...]:
    names = list(inspect.signature(function).parameters)
    if len(names) != len(types):
        raise InvalidGraph(
            f"kernel {title(function)!r} has {len(names)} parameters ({', '.join(names) or 'none'}), "
            f"and the signature {len(types)} types",
            kernel=title(function),
        )
    return tuple(_parameter(title(function), name, kind, compiler) for name, kind in zip(names, types, strict=True))


def _parameter(kernel: str, name: str, kind: Any, compiler: str) -> Parameter:
    types: Any = import_module("numba.types")
    match kind:
        case types.Array():
            element = str(kind.dtype)
            if kind.layout == "F":
                raise refused(
                    compiler, kernel, f"array {name!r} lies in Fortran's order, and buffers in C's: declare it so"
                )
            if element in DTYPE_BYTES:
                return ArrayParameter(name, element, kind.ndim)
        case types.CPointer():
            element = str(kind.dtype)
            return PointerParameter(name, element if element in DTYPE_BYTES else None)
        case types.Boolean():
            return NumberParameter(name, "boolean")
        case types.Integer() | types.Float():
            sign = "f" if isinstance(kind, types.Float) else "i" if kind.signed else "u"
            return NumberParameter(name, f"{sign}{kind.bitwidth}")
        case types.Complex():
            return ComplexParameter(name, {"complex64": "c64", "complex128": "c128"}[str(kind)])
    raise refused(compiler, kernel, f"parameter {name!r} is of type {kind}, which no argument of a kTask gives")

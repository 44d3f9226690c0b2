"""The C++ of instances, of their adapters and of other device code, and the version of each."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from cutlass_blas.instances import EXTRAS, Instance, parse

CUTLASS_VERSION: Final = (4, 2)
"""The version of the headers. Kernels and the bytes of their parameters depend on it."""
DEVICE: Final = Path(__file__).resolve().parent / "device"
CORE_ADAPTER: Final = "core"
"""The name of the adapter of all core instances among the built files."""
# one pass through the headers gives PTX, and from it machine code of two architectures, and PTX for newer ones
PTX_FLAGS: Final = ("-std=c++17", "--expt-relaxed-constexpr", "-O3", "-arch=compute_80", "-ptx")
FATBIN_FLAGS: Final = (
    "-gencode", "arch=compute_80,code=[sm_80,sm_90,compute_80]", "-Xfatbin", "-compress-all", "-fatbin"
)  # fmt: skip
# only the host's code is used: no CUDA runtime, and the names that replace it must not resolve to those of a real one
ADAPTER_FLAGS: Final = (
    "-std=c++17", "--expt-relaxed-constexpr", "-O1", "-arch=sm_80", "-shared", "-cudart", "none",
    "-Xcompiler", "-fPIC", "-Xlinker", "-Bsymbolic"
)  # fmt: skip
_LOCAL = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
_TYPES: Final = {
    "float16": "cutlass::half_t",
    "bfloat16": "cutlass::bfloat16_t",
    "float32": "float",
    "float64": "double",
    "complex64": "cutlass::complex<float>",
    "complex128": "cutlass::complex<double>",
}


def kernels_text(name: str) -> str:
    """Return the translation unit of an instance or of other device code.

    Raises:
        UnknownSymbol: no code has this name.
    """
    if name in EXTRAS:
        return f'#include "{EXTRAS[name]}"\n'
    return f'#include "gemm.cuh"\nBLAS_KERNEL({_arguments(parse(name))})\n'


def adapter_text(instances: Sequence[Instance]) -> str:
    """Return the translation unit of the adapter that fills these instances' parameters."""
    lines = (f"BLAS_ADAPTER({_arguments(instance)})\n" for instance in instances)
    return f'#include "adapter.cuh"\n{"".join(lines)}'


def _arguments(x: Instance) -> str:
    tile, warp = ("blas::GemmShape<{}, {}, {}>".format(*shape) for shape in (x.tile, x.warp))
    fields = (
        x.name,
        f"'{x.kind}'",
        _TYPES[x.out],
        f"'{x.op_a}'",
        f"'{x.op_b}'",
        f"blas::{x.unit.capitalize()}",
        tile,
        warp,
        str(x.stages),
        str(x.align),
        str(x.align_c),
        str(x.gelu).lower(),
    )
    return ", ".join(fields)


@lru_cache(maxsize=4096)
def version(name: str) -> str:
    """Return the version of an instance or of other device code: a hash of its sources and of the compiler's flags.

    The version is the same on every machine, with or without nvcc.

    Raises:
        UnknownSymbol: no code has this name.
    """
    return _digest(kernels_text(name), *PTX_FLAGS, *FATBIN_FLAGS)


def adapter_version(instances: Sequence[Instance]) -> str:
    """Return the version of an adapter, which depends on the host's architecture too."""
    return _digest(adapter_text(instances), platform.machine(), *ADAPTER_FLAGS)


def _digest(text: str, *more: str) -> str:
    digest = hashlib.sha256("\0".join((text, *map(str, CUTLASS_VERSION), *more)).encode())
    for file in _included(text):
        digest.update(_contents(file))
    return digest.hexdigest()[:16]


def _included(text: str) -> list[str]:
    """Return the files of `device` that a text includes, directly or through others."""
    found: list[str] = []
    wanted = _LOCAL.findall(text)
    while wanted:
        file = wanted.pop()
        if file not in found:
            found.append(file)
            wanted += _LOCAL.findall(_contents(file).decode())
    return sorted(found)


@cache
def _contents(file: str) -> bytes:
    return (DEVICE / file).read_bytes()

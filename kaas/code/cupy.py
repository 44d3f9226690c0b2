"""`Library.from_cupy`: the source of a RawKernel or RawModule, compiled without CuPy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from kaas.code import cuda
from kaas.code.refusal import refused, title
from kaas.ktask.library import Library

_AS_CUPY = ("-ftz=true", "--device-as-default-execution-space")
"""Options that CuPy gives to NVRTC in addition to those of the kernel."""


def library(kernel: Any, arch: str) -> Library:
    """Return the library of `Library.from_cupy`."""
    cupy: Any = sys.modules.get("cupy")  # loaded if the kernel is one of CuPy's
    compiler = f"CuPy {cupy.__version__}" if cupy else "CuPy"
    if cupy is None or not isinstance(kernel, cupy.RawKernel | cupy.RawModule):
        raise refused(compiler, title(kernel), f"a {type(kernel).__name__} is neither a RawKernel nor a RawModule")
    source = kernel.name if isinstance(kernel, cupy.RawKernel) else "RawModule"
    if kernel.file_path:
        return Library.from_file(kernel.file_path)
    if kernel.backend != "nvrtc":
        raise refused(compiler, source, f"it is to be compiled by {kernel.backend}; KaaS compiles with NVRTC")
    if kernel.enable_cooperative_groups:
        raise refused(compiler, source, "its grid is launched as a whole, which a kTask's kernels are not")
    options = tuple(kernel.options)
    if not any("-std" in option for option in options):
        options += ("--std=c++17",)
    return cuda.library(
        kernel.code,
        arch,
        names=tuple(getattr(kernel, "name_expressions", None) or ()),
        options=(*options, *_AS_CUPY),
        headers={},
        include_paths=(Path(cupy.__file__).parent / "_core" / "include",),
        name=f"{source}.cu",
    )

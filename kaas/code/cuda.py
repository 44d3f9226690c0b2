"""`Library.from_cuda`: CUDA C++ to a library, by NVRTC."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from kaas.code import nvrtc, target
from kaas.code.refusal import refused
from kaas.ktask.library import Image, Library
from kaas.ktask.signature import KernelSignature
from kaas.ktask.symbols import kernels_of

_FILES = (".cu", ".cuh", ".cpp", ".h", ".ptx")
_READ = "; pathlib.Path(path).read_text() reads a file"
_KERNEL = "a kernel is a function that is declared __global__"
_INCLUDE = re.compile(r"^\s*#\s*include\b", re.MULTILINE)


def library(
    source: str,
    arch: str,
    *,
    names: tuple[str, ...],
    options: tuple[str, ...],
    headers: Mapping[str, str],
    include_paths: tuple[str | os.PathLike[str], ...],
    name: str,
) -> Library:
    """Return the library of `Library.from_cuda`. A compilation gives an architecture's machine code and PTX."""
    wanted = target.parse(arch)
    if not isinstance(source, str):
        raise refused("NVRTC", name, f"the source is a string, not {type(source).__name__}{_READ}")
    if "\n" not in source and source.endswith(_FILES):
        raise refused("NVRTC", name, f"{source!r} is the name of a file, not source{_READ}")
    flags = [*options, *(f"--include-path={os.fspath(path)}" for path in include_paths)]
    if any(_INCLUDE.search(text) for text in (source, *headers.values())):
        flags += [f"--include-path={path}" for path in nvrtc.include_paths()]

    def compiled(architecture: str) -> nvrtc.Compiled:
        return nvrtc.compiled(source, architecture, name, flags, headers, names)

    architectures = [f"sm_{capability}" for capability in wanted.cubins]
    if wanted.ptx is not None and wanted.ptx not in wanted.cubins:
        architectures.append(f"compute_{wanted.ptx}")
    with ThreadPoolExecutor(len(architectures)) as threads:  # NVRTC compiles in parallel, and releases the GIL
        made = dict(zip(architectures, threads.map(compiled, architectures), strict=True))
    images = [Image("cubin", made[f"sm_{capability}"].cubin) for capability in wanted.cubins]
    if wanted.ptx is not None:
        has_ptx = f"sm_{wanted.ptx}" if wanted.ptx in wanted.cubins else f"compute_{wanted.ptx}"
        images.append(Image("ptx", made[has_ptx].ptx.encode()))
    first = made[architectures[0]]
    entries = [KernelSignature(symbol, expression) for expression, symbol in first.names.items()]
    made_library = Library(tuple(images), entries=entries, log=first.log)
    if not kernels_of(made_library.images):
        why = "a template makes one when it is named, as names=['scale<float>']" if "template" in source else _KERNEL
        raise refused("NVRTC", name, f"there is no kernel in it; {why}", first.log)
    return made_library

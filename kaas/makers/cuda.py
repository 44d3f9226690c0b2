"""`Library.from_cuda`: CUDA C++ to a library, by NVRTC."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from kaas.entries import Entry
from kaas.library import Image, Library
from kaas.makers import nvrtc, target

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
    """See `Library.from_cuda`. One compilation gives the machine code of its architecture, and its PTX."""
    wanted = target.parse(arch)
    flags = [*options, *(f"--include-path={os.fspath(path)}" for path in include_paths)]
    if any(_INCLUDE.search(text) for text in (source, *headers.values())):
        flags += [f"--include-path={path}" for path in nvrtc.include_paths()]

    def compiled(architecture: str) -> nvrtc.Compiled:
        return nvrtc.compiled(source, architecture, name, flags, headers, names)

    made = {capability: compiled(f"sm_{capability}") for capability in wanted.cubins}
    images = [Image("cubin", made[capability].cubin) for capability in wanted.cubins]
    if wanted.ptx is not None:
        if wanted.ptx not in made:
            made[wanted.ptx] = compiled(f"compute_{wanted.ptx}")
        images.append(Image("ptx", made[wanted.ptx].ptx.encode()))
    first = next(iter(made.values()))
    entries = [Entry(symbol, expression) for expression, symbol in first.names.items()]
    return Library(tuple(images), entries=entries, log=first.log)

"""Kernels that ship with KaaS: CUDA sources, each beside the PTX that nvcc made of it."""

from __future__ import annotations

from pathlib import Path

from kaas.library import Library


def library(name: str) -> Library:
    """The library of a file of this folder, by its stem: library("nearest_neighbours").

    Raises:
        FileNotFoundError: no such file.
    """
    return Library.from_file(Path(__file__).parent / f"{name}.ptx")

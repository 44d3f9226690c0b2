"""Which of the packages that makers need are here, with the libraries that those load."""

from __future__ import annotations

import importlib.util

import kaas
from kaas.errors import MissingPackage


def present(package: str) -> bool:
    """Whether a package is installed and, if it is numba-cuda, finds what it compiles with."""
    if importlib.util.find_spec(package) is None:
        return False
    try:
        return package != "numba_cuda" or bool(kaas.Library.from_numba(lambda: None, "void()"))
    except MissingPackage:
        return False

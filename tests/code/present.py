"""The installed packages of importers, with the libraries that these load."""

from __future__ import annotations

import importlib.util

import kaas
from kaas.errors import MissingPackage


def present(package: str) -> bool:
    """Return True if a package is installed; numba-cuda must also find the libraries with which it compiles."""
    if importlib.util.find_spec(package) is None:
        return False
    try:
        return package != "numba_cuda" or bool(kaas.Library.from_numba(lambda: None, "void()"))
    except MissingPackage:
        return False

"""Kernels that ship with KaaS: CUDA sources, each with the PTX that nvcc made of it."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from kaas.errors import NotProvided
from kaas.ktask.library import Library

_FOLDER = Path(__file__).parent


def library(name: str) -> Library:
    """Return the library of a file in this folder, by its stem, as "nearest_neighbours".

    Raises:
        NotProvided: no such kernels.
    """
    known = sorted(path.stem for path in _FOLDER.glob("*.ptx"))
    if name not in known:
        raise NotProvided(f"KaaS ships no kernels {name!r}; it ships {', '.join(known)}")
    return Library.from_file(_FOLDER / f"{name}.ptx")


def provided(name: str, version_wanted: str) -> Library:
    """Return the code of `kaas.Library.provided("kaas", "nearest_neighbours", kaas' version)`.

    Raises:
        NotProvided: KaaS ships no such kernels, or those of another version.
    """
    found = library(name)
    here = version("kaas-gpu")
    if version_wanted != here:
        raise NotProvided(f"kernels {name!r} of KaaS {version_wanted} are named, and this is {here}", has=(here,))
    return found

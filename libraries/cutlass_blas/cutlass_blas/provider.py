"""The entry point from which executors get this library's code; a client sends only the code's name."""

from __future__ import annotations

import os
from functools import lru_cache

import kaas
from cutlass_blas import sources, store
from kaas import errors

NAME = "cutlass_blas"
"""The name of the entry point."""
BUILD = "KAAS_BUILD_PROVIDED"
"""The environment variable that is "0" in a server's executors: a client's request starts no compiler there."""


@lru_cache(maxsize=1024)
def library(name: str) -> kaas.Library:
    """Return the reference to a kernel's code in this library; no code is uploaded.

    Args:
        name: of an instance, or of other device code in `EXTRAS`.

    Raises:
        UnknownSymbol: no code has this name.
    """
    return kaas.Library.provided(NAME, name, sources.version(name))


def images(name: str, version: str) -> kaas.Library:
    """Return the code, for the process that runs it; it is built now if it is missing.

    Raises:
        NotProvided: no code of this name and version, or it is missing and this process builds nothing.
        MissingPackage, CompileFailed: it is missing and cannot be built.
    """
    try:
        mine = sources.version(name)
    except errors.UnknownSymbol as error:
        raise errors.NotProvided(error.message, has=()) from error
    if version != mine:
        raise errors.NotProvided(f"the BLAS library here has {name} in another version", has=(mine,))
    if os.environ.get(BUILD) == "0" and store.find(store.kernels_file(name)) is None:
        message = f"{name} of the BLAS library is not built here, and this process builds nothing"
        raise errors.NotProvided(message, has=(mine,))
    return kaas.Library.from_fatbin(store.kernels(name))

"""The entry point through which executors get this library's code; a client only names it."""

from __future__ import annotations

import os
from functools import lru_cache

import kaas
from cutlass_blas import sources, store
from kaas import errors

NAME = "cutlass_blas"
"""Of the entry point."""
BUILD = "KAAS_BUILD_PROVIDED"
"""A server's executors have it as "0": there a client's name of an instance starts no compiler."""


@lru_cache(maxsize=1024)
def library(name: str) -> kaas.Library:
    """What a kernel of this library names as its code; nothing of it is uploaded.

    Args:
        name: of an instance, or of other device code in `EXTRAS`.

    Raises:
        UnknownSymbol: there is nothing of this name.
    """
    return kaas.Library.provided(NAME, name, sources.version(name))


def images(name: str, version: str) -> kaas.Library:
    """The code itself, for whoever runs it; built now if it is not there.

    Raises:
        NotProvided: nothing of this name, or not in this version.
        NotProvided: it is not there, and this process builds nothing.
        MissingPackage, CompileFailed: it is not there and cannot be built.
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

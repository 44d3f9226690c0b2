"""The terms in which an eTask and a holder speak of constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

LEASE_BYTES = 16
"""Of the secret under which a process asks for constants."""


class HolderAddress(NamedTuple):
    """A holder: the name of its socket, its actor, and seconds in which it answers, and longer by the bytes."""

    name: str
    actor: Any
    limit_s: float


class HeldEntry(NamedTuple):
    """A value of a tuple of constants, and its place in their memory. dtype, shape: None for plain bytes."""

    at_bytes: int
    nbytes: int
    dtype: str | None
    shape: tuple[int, ...] | None


class HeldTuple(NamedTuple):
    """The memory of a tuple of constants: the values in it, and the bytes of all of it."""

    entries: Sequence[HeldEntry]
    whole_bytes: int


def address_of(name: str) -> str:
    """Return the address of a holder's socket: Linux forgets it with the process."""
    return f"\0kaas-holder-{name}"

"""The host memory that the variables of modules take, which a program can limit."""

from __future__ import annotations

from collections.abc import Callable

_asked: list[Callable[[int], bool]] = []


def limit(asked: Callable[[int], bool]) -> None:
    """Ask this function, in place of an earlier one, whether so many bytes may be taken."""
    _asked[:] = [asked]


def allows(nbytes: int) -> bool:
    """Return True if the variables of a module may take so many bytes."""
    return all(asked(nbytes) for asked in _asked)

"""A model's constants: equal contents are kept once, under the name that the model gives them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kaas import Buffer

Array = np.ndarray[Any, Any]

FOLDED = ".folded"
"""The suffix for the name of an array that was computed from a parameter."""


class Names:
    """The names of constants, by content.

    Args:
        named: the model's parameters.
    """

    def __init__(self, named: Mapping[str, Array]) -> None:
        self._names: dict[bytes, str] = {}
        for name, array in named.items():
            self._names.setdefault(digest(array), name)

    def of(self, content: bytes) -> str | None:
        """Return the name for a content's digest, or None if it has none."""
        return self._names.get(content)

    def derived(self, array: Array, sources: Sequence[Array]) -> None:
        """Name an array that was computed from others after the largest of these that has a name."""
        named = [(source.size, name) for source in sources if (name := self.of(digest(source)))]
        if named:
            name = max(named, key=lambda one: one[0])[1].removesuffix(FOLDED)
            self._names.setdefault(digest(array), name + FOLDED)


class Constants:
    """Constants by name, shared by all functions that are compiled together.

    Args:
        names: the known names. Constants without a name are numbered.
        taken: names of other buffers.
    """

    def __init__(self, names: Names, taken: set[str]) -> None:
        self.arrays: dict[str, Array] = {}
        self._names = names
        self._buffers: dict[bytes, Buffer] = {}
        self._taken = set(taken)

    def buffer(self, array: Array) -> Buffer:
        """Return the buffer of a constant. Equal constants have the same buffer."""
        content = digest(array)
        if content not in self._buffers:
            name = unused(self._names.of(content) or f"constant{len(self._buffers)}", self._taken)
            self._buffers[content] = Buffer(name, array.shape, array.dtype)
            self.arrays[name] = array
        return self._buffers[content]


def unused(name: str, taken: set[str]) -> str:
    """Return the name, with a number behind it if it is taken, and add the result to `taken`."""
    free, number = name, 1
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    taken.add(free)
    return free


def digest(array: Array) -> bytes:
    """Return a hash of an array's dtype, shape and content."""
    hashed = hashlib.sha256(f"{array.dtype.name} {array.shape}".encode())
    hashed.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hashed.digest()

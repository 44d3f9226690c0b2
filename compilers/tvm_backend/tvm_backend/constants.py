"""A model's constants: each content once, under the name that the model gives it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kaas import Buffer

Array = np.ndarray[Any, Any]

FOLDED = ".folded"
"""Ends the name of what was computed from the parameter of that name."""


class Names:
    """Names for constants by what they hold.

    Args:
        named: the model's parameters.
    """

    def __init__(self, named: Mapping[str, Array]) -> None:
        self._names: dict[bytes, str] = {}
        for name, array in named.items():
            self._names.setdefault(digest(array), name)

    def of(self, content: bytes) -> str | None:
        return self._names.get(content)

    def derived(self, array: Array, sources: Sequence[Array]) -> None:
        """Names what was computed from others: after the largest of these that has a name."""
        named = [(source.size, name) for source in sources if (name := self.of(digest(source)))]
        if named:
            name = max(named, key=lambda one: one[0])[1].removesuffix(FOLDED)
            self._names.setdefault(digest(array), name + FOLDED)


class Constants:
    """Constants by name, shared by everything that is compiled together.

    Args:
        names: constants without one are numbered.
        taken: names of other buffers.
    """

    def __init__(self, names: Names, taken: set[str]) -> None:
        self.arrays: dict[str, Array] = {}
        self._names = names
        self._buffers: dict[bytes, Buffer] = {}
        self._taken = set(taken)

    def buffer(self, array: Array) -> Buffer:
        """The buffer of a constant; of equal ones the same."""
        content = digest(array)
        if content not in self._buffers:
            name = unused(self._names.of(content) or f"constant{len(self._buffers)}", self._taken)
            self._buffers[content] = Buffer(name, array.shape, array.dtype)
            self.arrays[name] = array
        return self._buffers[content]


def unused(name: str, taken: set[str]) -> str:
    """The name, or with a number where it is taken; it is then taken."""
    free, number = name, 1
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    taken.add(free)
    return free


def digest(array: Array) -> bytes:
    """Equal for equal dtype, shape and content."""
    hashed = hashlib.sha256(f"{array.dtype.name} {array.shape}".encode())
    hashed.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hashed.digest()

"""A model's constants: each content once, under the name that the model gives it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from kaas import Buffer

Array = np.ndarray[Any, Any]


class Constants:
    """Constants by name, shared by everything that is compiled together.

    Args:
        named: the model's parameters; constants with the same content take their names.
        taken: names of other buffers.
    """

    def __init__(self, named: Mapping[str, Array], taken: set[str]) -> None:
        self.arrays: dict[str, Array] = {}
        self._names: dict[bytes, str] = {}
        self._taken = set(taken)
        self._known = dict[bytes, str]()
        for name, array in named.items():
            self._known.setdefault(_digest(array), name)

    def buffer(self, array: Array) -> Buffer:
        """The buffer of a constant."""
        digest = _digest(array)
        if digest not in self._names:
            name = unused(self._known.get(digest) or f"constant{len(self._names)}", self._taken)
            self._names[digest] = name
            self.arrays[name] = array
        return Buffer(self._names[digest], array.shape, array.dtype)


def unused(name: str, taken: set[str]) -> str:
    """The name, or with a number where it is taken; it is then taken."""
    free, number = name, 1
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    taken.add(free)
    return free


def _digest(array: Array) -> bytes:
    hashed = hashlib.sha256(f"{array.dtype.name} {array.shape}".encode())
    hashed.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hashed.digest()

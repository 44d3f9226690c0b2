"""Which cached objects leave when room is needed: values in, values out."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Protocol


class Eviction(Protocol):
    """Orders the objects of a cache and picks victims among them; the cache tells it what happens."""

    def used(self, key: bytes) -> None:
        """key was added, or used once more."""

    def removed(self, key: bytes) -> None:
        """key is no longer there."""

    def victims(
        self, needed_bytes: int, sizes: Mapping[bytes, int], kept: Container[bytes]
    ) -> tuple[bytes, ...] | None:
        """Objects of at least needed_bytes together, none of them in kept; None if there are not enough.

        Nothing changes by asking: the cache says `removed` for those that really go.
        """


class LeastRecentlyUsed:
    """Victims are those that nobody used for the longest time."""

    __slots__ = ("_order",)

    def __init__(self) -> None:
        self._order: dict[bytes, None] = {}

    def used(self, key: bytes) -> None:
        self._order.pop(key, None)
        self._order[key] = None

    def removed(self, key: bytes) -> None:
        self._order.pop(key, None)

    def victims(
        self, needed_bytes: int, sizes: Mapping[bytes, int], kept: Container[bytes]
    ) -> tuple[bytes, ...] | None:
        chosen: list[bytes] = []
        for key in self._order:
            if needed_bytes <= 0:
                break
            if key not in kept:
                chosen.append(key)
                needed_bytes -= sizes[key]
        return tuple(chosen) if needed_bytes <= 0 else None

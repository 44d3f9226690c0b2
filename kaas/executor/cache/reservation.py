"""The object cache's reply to a request: a reservation, or the obstacle to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

_NOTHING: Mapping[Any, int] = MappingProxyType({})


class Reservation(msgspec.Struct, frozen=True):
    """Room for one request. A Struct, since every request makes one.

    Fields:
        hits: objects of the request that are on the device.
        loads: the other objects of the request: key -> bytes to allocate on the device.
        victims: objects to free on the device first.
        slot: the slot of the request; None: no slot, and no arena.
        arena_bytes, arena_bytes_before: of the slot. If they differ, the arena must be allocated again.
        arenas_freed: idle slots whose arenas must be freed first: slot -> bytes.
        host_hits: loads that are in host memory.
        host_loads: other loads that host memory will keep: key -> bytes to allocate there.
        host_victims: objects to free in host memory first.
    """

    hits: tuple[bytes, ...]
    loads: Mapping[bytes, int]
    victims: tuple[bytes, ...]
    slot: int | None
    arena_bytes: int
    arena_bytes_before: int
    arenas_freed: Mapping[int, int] = _NOTHING
    host_hits: tuple[bytes, ...] = ()
    host_loads: Mapping[bytes, int] = _NOTHING
    host_victims: tuple[bytes, ...] = ()

    @property
    def arenas_before(self) -> dict[int, int]:
        """Bytes before the reservation of the arenas that it changes, by slot."""
        own = {} if self.slot is None else {self.slot: self.arena_bytes_before}
        return own | dict(self.arenas_freed)


@dataclass(frozen=True, slots=True)
class Shortage:
    """The bytes that a request lacks even after all possible evictions. Nothing has changed.

    Fields:
        lasting_bytes: bytes that would be missing even if no other request ran, so that waiting does not help.
    """

    missing_bytes: int
    lasting_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Unsaved:
    """Objects that must be written back before they can leave. Nothing has changed."""

    keys: tuple[bytes, ...]

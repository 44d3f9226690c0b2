"""What a request gets of the object cache: a reservation, or what keeps it from having one."""

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
        loads: objects that are not: key -> bytes to allocate there.
        victims: objects to free on the device first.
        slot: whose request it is; None: no request's, and without an arena.
        arena_bytes, arena_bytes_before: of the slot; the arena must be allocated anew where they differ.
        arenas_freed: other slots, in which nothing runs, with the bytes of their arenas: these must be freed first.
        host_hits: those of loads that are in host memory.
        host_loads: those of the others that host memory will keep: key -> bytes to allocate there.
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
        """The arenas that it changes, as they were."""
        own = {} if self.slot is None else {self.slot: self.arena_bytes_before}
        return own | dict(self.arenas_freed)


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a request would need beyond all that could be freed now. Nothing has changed.

    Fields:
        lasting_bytes: those of them that would be missing even if no other request ran: waiting is no use.
    """

    missing_bytes: int
    lasting_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Unsaved:
    """Objects that would have to leave, and of which there is no other copy yet. Nothing has changed."""

    keys: tuple[bytes, ...]

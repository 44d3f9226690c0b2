"""The object cache of one device: decides who comes and who goes, in two phases, and touches no memory itself.

A request reserves all it needs at once: its objects and the arena of its slot. A reservation names its victims and
fits whole, or says what is missing and changes nothing. The caller frees, allocates and copies, and then commits or
aborts; a committed reservation keeps its objects pinned until it is released.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from kaas.executor.eviction import Eviction, LeastRecentlyUsed

T = TypeVar("T")

GRANULE_BYTES = 512
"""Device memory is counted in these: cuMemAlloc aligns to at least 256 bytes, the software GPU to 512."""


def granules(nbytes: int) -> int:
    """nbytes rounded up; at least one granule, since even an empty object needs an address."""
    return max(GRANULE_BYTES, -(-nbytes // GRANULE_BYTES) * GRANULE_BYTES)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room for one request.

    Fields:
        hits: objects of the request that are there.
        loads: objects that are not: key -> bytes to allocate.
        victims: objects to free first.
        arena_bytes, arena_bytes_before: the arena must be allocated anew where they differ.
    """

    hits: tuple[bytes, ...]
    loads: Mapping[bytes, int]
    victims: tuple[bytes, ...]
    arena_bytes: int
    arena_bytes_before: int


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a request would need beyond all that could be freed now. Nothing has changed."""

    missing_bytes: int


class ObjectCache(Generic[T]):
    """Objects by key, each with a value of the caller's (where it lies), bounded in bytes together with the arena.

    One reservation is open (neither committed nor aborted) at a time; committed ones overlap freely. What they pin
    never leaves.
    """

    def __init__(self, capacity_bytes: int, eviction: Eviction | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.arena_bytes = 0
        self._eviction: Eviction = eviction or LeastRecentlyUsed()
        self._values: dict[bytes, T] = {}
        self._sizes: dict[bytes, int] = {}
        self._object_bytes = 0
        self._pins: dict[bytes, int] = {}
        self._open: Reservation | None = None

    @property
    def used_bytes(self) -> int:
        """Objects, reserved ones included, and arena; never more than capacity_bytes."""
        return self._object_bytes + self.arena_bytes

    @property
    def sizes(self) -> dict[bytes, int]:
        """Key -> bytes of every object that is there."""
        return dict(self._sizes)

    @property
    def pinned(self) -> frozenset[bytes]:
        return frozenset(self._pins)

    def get(self, key: bytes) -> T | None:
        """The value of an object, or None where it is not there. Changes nothing."""
        return self._values.get(key)

    def __getitem__(self, key: bytes) -> T:
        return self._values[key]

    def reserve(self, objects: Mapping[bytes, int], arena_bytes: int) -> Reservation | Shortage:
        """Room for objects (key -> bytes) beside an arena of at least arena_bytes.

        A larger arena stays as it is, unless only its room lets the objects fit.
        """
        if self._open is not None:
            raise ValueError("a reservation is still open")
        hits = tuple(key for key in objects if key in self._values)
        before = self.arena_bytes
        loads: dict[bytes, int] = {}
        victims: tuple[bytes, ...] = ()
        arena = before
        if len(hits) != len(objects) or arena_bytes > before:
            loads = {key: granules(nbytes) for key, nbytes in objects.items() if key not in self._values}
            arena_bytes = granules(arena_bytes) if arena_bytes else 0
            load_bytes = sum(loads.values())
            arena = max(before, arena_bytes)
            chosen = self._victims(load_bytes + arena, objects)
            if chosen is None:
                arena = arena_bytes
                chosen = self._victims(load_bytes + arena, objects)
            if chosen is None:
                return Shortage(load_bytes + arena + self._kept_bytes(objects) - self.capacity_bytes)
            victims = chosen
            self._object_bytes += load_bytes - sum(self._sizes[key] for key in victims)
            self.arena_bytes = arena
        for key in objects:
            self._pins[key] = self._pins.get(key, 0) + 1
        self._open = Reservation(hits, loads, victims, arena, before)
        return self._open

    def commit(self, reservation: Reservation, values: Mapping[bytes, T]) -> None:
        """The victims are gone; what the reservation loads is there, with its values, and counts as used now."""
        self._close(reservation)
        for key in reservation.victims:
            self._forget(key)
        for key, nbytes in reservation.loads.items():
            self._values[key] = values[key]
            self._sizes[key] = nbytes
            self._eviction.used(key)
        for key in reservation.hits:
            self._eviction.used(key)

    def abort(self, reservation: Reservation, *, freed: Collection[bytes] = (), arena_bytes: int | None = None) -> None:
        """Everything as before the reservation, but for the victims that were already freed.

        Args:
            freed: these victims.
            arena_bytes: size of the arena, if it could not stay as it was before.
        """
        self._close(reservation)
        self._object_bytes += sum(self._sizes[key] for key in reservation.victims) - sum(reservation.loads.values())
        self.arena_bytes = reservation.arena_bytes_before if arena_bytes is None else arena_bytes
        for key in freed:
            self._object_bytes -= self._sizes[key]
            self._forget(key)
        self.release(reservation)

    def release(self, reservation: Reservation) -> None:
        """The request has ended: its objects may leave."""
        for key in (*reservation.hits, *reservation.loads):
            self._pins[key] -= 1
            if not self._pins[key]:
                del self._pins[key]

    def _victims(self, needed_bytes: int, objects: Mapping[bytes, int]) -> tuple[bytes, ...] | None:
        excess = self._object_bytes + needed_bytes - self.capacity_bytes
        return self._eviction.victims(excess, self._sizes, self._pins.keys() | objects.keys())

    def _kept_bytes(self, objects: Mapping[bytes, int]) -> int:
        kept = self._pins.keys() | objects.keys()
        return sum(nbytes for key, nbytes in self._sizes.items() if key in kept)

    def _forget(self, key: bytes) -> None:
        del self._values[key]
        del self._sizes[key]
        self._eviction.removed(key)

    def _close(self, reservation: Reservation) -> None:
        if self._open is not reservation:
            raise ValueError("this reservation is not open")
        self._open = None

"""The object cache of one device: decides who comes and who goes, in two phases, and touches no memory itself.

It has two tiers, the device's memory and page-locked host memory. A request reserves all it needs at once: its objects
in both tiers, and the arena of its slot. A reservation names its victims and fits whole, or says what is missing and
changes nothing. The caller frees, allocates and copies, and then commits or aborts; a committed reservation keeps its
objects pinned until it is released.

Objects come to the device through the host tier and stay there too, as long as it has room: what the device has to give
up is then a copy away, not a fetch. An object that the host tier cannot take goes past it; only the device must fit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kaas.executor.eviction import Eviction
from kaas.executor.tiers import Tier, granules

D = TypeVar("D")
H = TypeVar("H")


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room for one request.

    Fields:
        hits: objects of the request that are on the device.
        loads: objects that are not: key -> bytes to allocate there.
        victims: objects to free on the device first.
        arena_bytes, arena_bytes_before: the arena must be allocated anew where they differ.
        host_hits: those of loads that are in host memory.
        host_loads: those of the others that host memory will keep: key -> bytes to allocate there.
        host_victims: objects to free in host memory first.
    """

    hits: tuple[bytes, ...]
    loads: Mapping[bytes, int]
    victims: tuple[bytes, ...]
    arena_bytes: int
    arena_bytes_before: int
    host_hits: tuple[bytes, ...] = ()
    host_loads: Mapping[bytes, int] = field(default_factory=dict)
    host_victims: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Shortage:
    """What a request would need beyond all that could be freed now. Nothing has changed."""

    missing_bytes: int


class ObjectCache(Generic[D, H]):
    """Objects by key, in the device's memory, where the arena lies beside them, and in host memory.

    One reservation is open (neither committed nor aborted) at a time; committed ones overlap freely. What they pin
    leaves neither tier.

    Fields:
        device, host: the tiers. To look at; whoever changes them does it through the methods of the cache.
    """

    def __init__(
        self,
        capacity_bytes: int,
        host_capacity_bytes: int = 0,
        *,
        eviction: Eviction | None = None,
        host_eviction: Eviction | None = None,
    ) -> None:
        self.device: Tier[D] = Tier(capacity_bytes, eviction)
        self.host: Tier[H] = Tier(host_capacity_bytes, host_eviction)
        self.arena_bytes = 0
        self._pins: dict[bytes, int] = {}
        self._held: set[bytes] = set()
        self._open: Reservation | None = None

    @property
    def used_bytes(self) -> int:
        """Objects on the device, reserved ones included, and arena; never more than the device tier's capacity."""
        return self.device.reserved_bytes + self.arena_bytes

    @property
    def sizes(self) -> dict[bytes, int]:
        """Key -> bytes of every object on the device."""
        return dict(self.device.sizes)

    @property
    def pinned(self) -> frozenset[bytes]:
        return frozenset(self._pins)

    def reserve(
        self, objects: Mapping[bytes, int], arena_bytes: int, replaced: Collection[bytes] = ()
    ) -> Reservation | Shortage:
        """Room for objects (key -> bytes) beside an arena of at least arena_bytes.

        A larger arena stays as it is, unless only its room lets the objects fit. What the objects have replaced is
        among the victims, unless it is pinned.
        """
        if self._open is not None:
            raise ValueError("a reservation is still open")
        there = self.device.values
        hits = tuple(key for key in objects if key in there)
        before = self.arena_bytes
        if len(hits) == len(objects) and arena_bytes <= before:
            reservation = Reservation(hits, {}, (), before, before)
        else:
            made = self._make_room(objects, hits, granules(arena_bytes) if arena_bytes else 0, replaced)
            if isinstance(made, Shortage):
                return made
            reservation = made
        for key in objects:
            self._pins[key] = self._pins.get(key, 0) + 1
        self._open = reservation
        return reservation

    def commit(
        self,
        reservation: Reservation,
        values: Mapping[bytes, D],
        host_values: Mapping[bytes, H] | None = None,
        *,
        constants: Collection[bytes] = (),
    ) -> None:
        """The victims are gone; what the reservation loads is there, with its values, and counts as used now.

        Args:
            host_values: of host_loads; what is not among them did not get there.
            constants: those of the request's objects that a function binds.
        """
        self._close(reservation)
        device = self.device
        if reservation.loads or reservation.victims:
            for key in reservation.victims:
                device.forget(key)
            for key, nbytes in reservation.loads.items():
                device.add(key, nbytes, values[key])
            self._commit_host(reservation, host_values or {}, constants)
        device.used((*reservation.hits, *reservation.loads), constants)

    def abort(
        self,
        reservation: Reservation,
        *,
        freed: Iterable[bytes] = (),
        host_freed: Iterable[bytes] = (),
        arena_bytes: int | None = None,
    ) -> None:
        """Everything as before the reservation, but for the victims that were already freed.

        Args:
            freed, host_freed: these victims, on the device and in host memory.
            arena_bytes: size of the arena, if it could not stay as it was before.
        """
        self._close(reservation)
        self.device.take_back(reservation.victims, reservation.loads)
        self.host.take_back(reservation.host_victims, reservation.host_loads)
        self.arena_bytes = reservation.arena_bytes_before if arena_bytes is None else arena_bytes
        for tier, keys in ((self.device, freed), (self.host, host_freed)):
            for key in keys:
                tier.reserved_bytes -= tier.sizes[key]
                tier.forget(key)
        self.release(reservation)

    def release(self, reservation: Reservation) -> None:
        """The request has ended: its objects may leave."""
        for key in (*reservation.hits, *reservation.loads):
            self._unpin(key)

    @property
    def held(self) -> frozenset[bytes]:
        """What `hold` pins."""
        return frozenset(self._held)

    def hold(self, keys: Iterable[bytes]) -> None:
        """Objects that are on the device stay pinned until `let_go`, beyond any request; once more changes nothing."""
        for key in keys:
            if key not in self._held:
                self._held.add(key)
                self._pins[key] = self._pins.get(key, 0) + 1

    def let_go(self, keys: Iterable[bytes]) -> None:
        """The reverse; nothing happens to what is not held."""
        for key in keys:
            if key in self._held:
                self._held.remove(key)
                self._unpin(key)

    def flush(self, keys: Iterable[bytes]) -> tuple[dict[bytes, D], dict[bytes, H]]:
        """Forgets those of these objects that are not pinned; gives what to free of each tier."""
        if self._open is not None:
            raise ValueError("a reservation is still open")
        leaving = [key for key in dict.fromkeys(keys) if key not in self._pins]
        return self.device.drop(leaving), self.host.drop(leaving)

    # --- room

    def _make_room(
        self, objects: Mapping[bytes, int], hits: Collection[bytes], arena_bytes: int, replaced: Collection[bytes]
    ) -> Reservation | Shortage:
        loads = {key: granules(nbytes) for key, nbytes in objects.items() if key not in self.device.values}
        load_bytes = sum(loads.values())
        kept = self._pins.keys() | objects.keys()
        before = self.arena_bytes
        arena = max(before, arena_bytes)
        first = [key for key in replaced if key not in kept]
        victims = self.device.victims(load_bytes + arena, kept, first)
        if victims is None:
            arena = arena_bytes
            victims = self.device.victims(load_bytes + arena, kept, first)
        if victims is None:
            kept_bytes = sum(nbytes for key, nbytes in self.device.sizes.items() if key in kept)
            return Shortage(load_bytes + arena + kept_bytes - self.device.capacity_bytes)
        host_hits = tuple(key for key in loads if key in self.host.values)
        host_loads, host_victims = self._make_host_room(loads, kept, first)
        self.device.exchange(victims, loads)
        self.host.exchange(host_victims, host_loads)
        self.arena_bytes = arena
        return Reservation(tuple(hits), loads, victims, arena, before, host_hits, host_loads, host_victims)

    def _make_host_room(
        self, loads: Mapping[bytes, int], kept: Collection[bytes], first: Collection[bytes]
    ) -> tuple[dict[bytes, int], tuple[bytes, ...]]:
        """As many of the loads as host memory can take beside what is kept, in their order, and who leaves for them."""
        taken: dict[bytes, int] = {}
        victims = self.host.victims(0, kept, first) or ()
        taken_bytes = 0
        for key, nbytes in loads.items():
            if key in self.host.values:
                continue
            enough = self.host.victims(taken_bytes + nbytes, kept, first)
            if enough is not None:
                taken[key] = nbytes
                taken_bytes += nbytes
                victims = enough
        return taken, victims

    def _commit_host(self, reservation: Reservation, values: Mapping[bytes, H], constants: Collection[bytes]) -> None:
        host = self.host
        for key in reservation.host_victims:
            host.forget(key)
        for key, nbytes in reservation.host_loads.items():
            if key in values:
                host.add(key, nbytes, values[key])
            else:
                host.reserved_bytes -= nbytes
        host.used([key for key in reservation.loads if key in host.values], constants)

    def _unpin(self, key: bytes) -> None:
        self._pins[key] -= 1
        if not self._pins[key]:
            del self._pins[key]

    def _close(self, reservation: Reservation) -> None:
        if self._open is not reservation:
            raise ValueError("this reservation is not open")
        self._open = None

"""A slow model of the object cache: a list of the objects, which is sorted for every decision."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from kaas.executor.cache.eviction import IN_USE_REQUESTS
from kaas.executor.cache.reservation import Reservation, Shortage, Unsaved
from kaas.executor.cache.tiers import granules


@dataclass
class Entry:
    """An object of one tier.

    rank: 0 used once, 1 used more often, 2 a constant, -1 used by no request that succeeded. order: breaks ties.
    """

    key: bytes
    nbytes: int
    rank: int
    last: int
    order: int


@dataclass
class TierModel:
    """One tier: its objects as a list."""

    capacity_bytes: int
    entries: list[Entry] = field(default_factory=list)
    requests: int = 0
    uses: int = 0

    def sizes(self) -> dict[bytes, int]:
        return {entry.key: entry.nbytes for entry in self.entries}

    def victims(self, needed_bytes: int, kept: Collection[bytes], first: Collection[bytes]) -> tuple[bytes, ...] | None:
        """Return the victims. Objects in `first` leave in any case."""
        chosen = [key for key in first if key in self.sizes()]
        free_bytes = self.capacity_bytes - sum(entry.nbytes for entry in self.entries if entry.key not in chosen)
        for entry in sorted(self.entries, key=self._leaves):
            if free_bytes >= needed_bytes:
                break
            if entry.nbytes and entry.key not in kept and entry.key not in first:
                chosen.append(entry.key)
                free_bytes += entry.nbytes
        return tuple(chosen) if free_bytes >= needed_bytes else None

    def _leaves(self, entry: Entry) -> tuple[int, int, int]:
        forgotten = entry.rank == 2 and entry.last < self.requests - IN_USE_REQUESTS
        return 1 if forgotten else entry.rank, entry.last, entry.order

    def remove(self, keys: Iterable[bytes]) -> None:
        self.entries = [entry for entry in self.entries if entry.key not in set(keys)]

    def add(self, keys: Iterable[bytes], sizes: Mapping[bytes, int]) -> None:
        self.entries += [Entry(key, sizes[key], -1, 0, 0) for key in keys]

    def new(self) -> set[bytes]:
        return {entry.key for entry in self.entries if entry.rank == -1}

    def use(self, keys: Iterable[bytes], constants: Collection[bytes]) -> None:
        self.requests += 1
        for key in keys:
            self.uses += 1
            used = next(entry for entry in self.entries if entry.key == key)
            used.rank = 2 if key in constants or used.rank == 2 else min(used.rank + 1, 1)
            used.last, used.order = self.requests, self.uses


class CacheModel:
    """Computes the expected result of `ObjectCache.reserve`, and follows the reservation to its end."""

    def __init__(self, capacity_bytes: int, host_bytes: int) -> None:
        self.device = TierModel(capacity_bytes)
        self.host = TierModel(host_bytes)
        self.arenas: dict[int, int] = {}
        self.running: set[int] = set()
        self.pins: list[bytes] = []
        self.held: set[bytes] = set()
        self.unsaved: set[bytes] = set()

    def reserve(
        self,
        objects: Mapping[bytes, int],
        slot: int | None,
        arena_bytes: int,
        replaced: Collection[bytes],
        made: Collection[bytes],
        elsewhere: Collection[bytes],
    ) -> Reservation | Shortage | Unsaved:
        there, on_host = self.device.sizes(), self.host.sizes()
        hits = tuple(key for key in objects if key in there)
        loads = {
            key: 0 if key in elsewhere else granules(nbytes) for key, nbytes in objects.items() if key not in there
        }
        before = 0 if slot is None else self.arenas.get(slot, 0)
        if not loads and arena_bytes <= before:
            self._begin(objects, slot)
            return Reservation(hits, {}, (), slot, before, before)
        kept = {*self.pins, *objects}
        first = [key for key in replaced if key not in kept]
        needed = granules(arena_bytes) if arena_bytes else 0
        others = {other: nbytes for other, nbytes in self.arenas.items() if other != slot}
        for arena, freed in self._choices(others, needed, before):
            left = {other: nbytes for other, nbytes in others.items() if other not in freed}
            victims = self.device.victims(sum(loads.values()) + arena + sum(left.values()), kept, first)
            if victims is not None and set(victims) <= set(first):
                break
        if victims is None:
            return self._shortage(loads | {key: there[key] for key in hits}, needed, sum(left.values()))
        if self.unsaved & set(victims):
            return Unsaved(tuple(key for key in victims if key in self.unsaved))
        host_loads: dict[bytes, int] = {}
        host_victims = tuple(key for key in first if key in on_host)
        for key in (key for key in loads if key not in on_host and key not in {*made, *elsewhere}):
            enough = self.host.victims(sum(host_loads.values()) + loads[key], kept, first)
            if enough is not None:
                host_loads[key], host_victims = loads[key], enough
        host_hits = tuple(key for key in loads if key in on_host)
        self.arenas = left if slot is None or not arena else left | {slot: arena}
        self._begin(objects, slot)
        return Reservation(hits, loads, victims, slot, arena, before, freed, host_hits, host_loads, host_victims)

    def commit(self, reservation: Reservation, hosted: Iterable[bytes]) -> None:
        self.device.remove(reservation.victims)
        self.host.remove(reservation.host_victims)
        self.device.add(reservation.loads, reservation.loads)
        self.host.add(hosted, reservation.host_loads)

    def abort(self, reservation: Reservation, freed: Iterable[bytes], host_freed: Iterable[bytes]) -> None:
        self.device.remove(freed)
        self.host.remove(host_freed)
        self.arenas |= reservation.arenas_freed
        if reservation.slot is not None:
            self.arenas[reservation.slot] = reservation.arena_bytes_before
        self.arenas = {slot: nbytes for slot, nbytes in self.arenas.items() if nbytes}
        self._end(reservation)

    def release(self, reservation: Reservation, constants: Collection[bytes], unsaved: Collection[bytes]) -> None:
        self.unsaved |= set(unsaved)
        self.use((*reservation.hits, *reservation.loads), reservation.loads, constants)
        self._end(reservation)

    def fail(self, reservation: Reservation) -> tuple[set[bytes], set[bytes]]:
        """Return the objects that leave each tier."""
        self._end(reservation)
        leaving = self.device.new() - set(self.pins)
        host_leaving = self.host.new() & leaving
        self.device.remove(leaving)
        self.host.remove(host_leaving)
        return leaving, host_leaving

    def hold(self, keys: Collection[bytes]) -> None:
        self.held |= set(keys)
        self.pins += keys
        new = [key for key in keys if key in self.device.new()]
        if new:
            self.use(new, (), ())

    def use(self, keys: Collection[bytes], loaded: Collection[bytes], constants: Collection[bytes]) -> None:
        through = [key for key in keys if key in self.host.new() or (key in loaded and key in self.host.sizes())]
        if through:
            self.host.use(through, constants)
        self.device.use(keys, constants)

    def _choices(self, others: Mapping[int, int], needed: int, before: int) -> Iterator[tuple[int, dict[int, int]]]:
        yield max(needed, before), {}
        yield needed, {}
        freed: dict[int, int] = {}
        for nbytes, slot in sorted((-nbytes, slot) for slot, nbytes in others.items() if slot not in self.running):
            freed = freed | {slot: -nbytes}
            yield needed, freed

    def _shortage(self, objects: Mapping[bytes, int], arena_bytes: int, running_bytes: int) -> Shortage:
        there = self.device.sizes()
        mine_bytes = arena_bytes + sum(objects.values())
        pinned_bytes, held_bytes = (
            sum(there[key] for key in set(keys) - objects.keys()) for keys in (self.pins, self.held)
        )
        capacity = self.device.capacity_bytes
        return Shortage(
            mine_bytes + running_bytes + pinned_bytes - capacity, max(0, mine_bytes + held_bytes - capacity)
        )

    def _begin(self, objects: Iterable[bytes], slot: int | None) -> None:
        self.pins += objects
        if slot is not None:
            self.running.add(slot)

    def _end(self, reservation: Reservation) -> None:
        for key in (*reservation.hits, *reservation.loads):
            self.pins.remove(key)
        self.running.discard(-1 if reservation.slot is None else reservation.slot)

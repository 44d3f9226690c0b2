"""The object cache once more, slowly: a list of what is there, sorted anew for every decision."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kaas.executor.cache import Reservation, Shortage
from kaas.executor.eviction import IN_USE_REQUESTS
from kaas.executor.tiers import granules


@dataclass
class Entry:
    """An object of one tier. rank: 0 used once, 1 more often, 2 a constant; order breaks ties."""

    key: bytes
    nbytes: int
    rank: int
    last: int
    order: int


@dataclass
class TierModel:
    capacity_bytes: int
    entries: list[Entry] = field(default_factory=list)
    requests: int = 0
    uses: int = 0

    def sizes(self) -> dict[bytes, int]:
        return {entry.key: entry.nbytes for entry in self.entries}

    def victims(self, needed_bytes: int, kept: Collection[bytes], first: Collection[bytes]) -> tuple[bytes, ...] | None:
        """first: those that leave in any case."""
        chosen = [key for key in first if key in self.sizes()]
        free_bytes = self.capacity_bytes - sum(entry.nbytes for entry in self.entries if entry.key not in chosen)
        for entry in sorted(self.entries, key=self._leaves):
            if free_bytes >= needed_bytes:
                break
            if entry.key not in kept and entry.key not in first:
                chosen.append(entry.key)
                free_bytes += entry.nbytes
        return tuple(chosen) if free_bytes >= needed_bytes else None

    def _leaves(self, entry: Entry) -> tuple[int, int, int]:
        forgotten = entry.rank == 2 and entry.last < self.requests - IN_USE_REQUESTS
        return 1 if forgotten else entry.rank, entry.last, entry.order

    def remove(self, keys: Iterable[bytes]) -> None:
        self.entries = [entry for entry in self.entries if entry.key not in set(keys)]

    def use(self, keys: Iterable[bytes], sizes: Mapping[bytes, int], constants: Collection[bytes]) -> None:
        self.requests += 1
        for key in keys:
            self.uses += 1
            old = next((entry for entry in self.entries if entry.key == key), None)
            if old is None:
                rank = 2 if key in constants else 0
                self.entries.append(Entry(key, sizes[key], rank, self.requests, self.uses))
            else:
                old.rank = 2 if key in constants or old.rank == 2 else 1
                old.last, old.order = self.requests, self.uses


class CacheModel:
    """Says what `ObjectCache.reserve` must answer, and follows what becomes of it."""

    def __init__(self, capacity_bytes: int, host_bytes: int) -> None:
        self.device = TierModel(capacity_bytes)
        self.host = TierModel(host_bytes)
        self.arena_bytes = 0
        self.pins: list[bytes] = []
        self.held: set[bytes] = set()

    def reserve(
        self, objects: Mapping[bytes, int], arena_bytes: int, replaced: Collection[bytes]
    ) -> Reservation | Shortage:
        there, on_host = self.device.sizes(), self.host.sizes()
        hits = tuple(key for key in objects if key in there)
        loads = {key: granules(nbytes) for key, nbytes in objects.items() if key not in there}
        if not loads and arena_bytes <= self.arena_bytes:
            self.pins += objects
            return Reservation(hits, {}, (), self.arena_bytes, self.arena_bytes)
        kept = {*self.pins, *objects}
        first = [key for key in replaced if key not in kept]
        needed = granules(arena_bytes) if arena_bytes else 0
        for arena in (max(needed, self.arena_bytes), needed):
            victims = self.device.victims(sum(loads.values()) + arena, kept, first)
            if victims is not None:
                break
        else:
            kept_bytes = sum(nbytes for key, nbytes in there.items() if key in kept)
            return Shortage(sum(loads.values()) + needed + kept_bytes - self.device.capacity_bytes)
        host_loads: dict[bytes, int] = {}
        host_victims = tuple(key for key in first if key in on_host)
        for key in (key for key in loads if key not in on_host):
            enough = self.host.victims(sum(host_loads.values()) + loads[key], kept, first)
            if enough is not None:
                host_loads[key], host_victims = loads[key], enough
        host_hits = tuple(key for key in loads if key in on_host)
        before, self.arena_bytes = self.arena_bytes, arena
        self.pins += objects
        return Reservation(hits, loads, victims, arena, before, host_hits, host_loads, host_victims)

    def commit(self, reservation: Reservation, hosted: Iterable[bytes], constants: Collection[bytes]) -> None:
        self.device.remove(reservation.victims)
        self.host.remove(reservation.host_victims)
        if reservation.loads or reservation.victims:
            on_host = [key for key in reservation.loads if key in self.host.sizes() or key in hosted]
            self.host.use(on_host, reservation.host_loads, constants)
        self.device.use((*reservation.hits, *reservation.loads), reservation.loads, constants)

    def abort(self, reservation: Reservation, freed: Iterable[bytes], host_freed: Iterable[bytes]) -> None:
        self.device.remove(freed)
        self.host.remove(host_freed)
        self.arena_bytes = reservation.arena_bytes_before
        self.release(reservation)

    def release(self, reservation: Reservation) -> None:
        for key in (*reservation.hits, *reservation.loads):
            self.pins.remove(key)

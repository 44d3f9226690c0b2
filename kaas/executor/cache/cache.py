"""The object cache of one device: decides in two phases which objects come and leave, and touches no memory itself.

The cache has two tiers, the device's memory and page-locked host memory. A request reserves all its memory at once: for
its objects in both tiers, and for the arena of its slot. A reservation either fits whole and names its victims, or it
names the shortage and changes nothing. The caller frees and allocates, and then commits or aborts. A committed
reservation keeps its objects pinned until its request has succeeded (`release`) or failed (`fail`). Objects that only
failed requests have loaded are freed.

Objects come to the device through the host tier and stay in both while there is room: an object that the device evicts
then comes back by a copy, not by a fetch. An object that does not fit into the host tier goes to the device only.

An object that a request makes on the device is *unsaved* once the request has succeeded: there is no other copy, so the
object leaves only after the caller has called `saved`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from kaas.executor.cache.eviction import Eviction
from kaas.executor.cache.reservation import Reservation, Shortage, Unsaved
from kaas.executor.cache.tiers import Tier, granules

D = TypeVar("D")
H = TypeVar("H")


class ObjectCache(Generic[D, H]):
    """Objects by key in the device's memory, which also has the slots' arenas, and in host memory.

    One reservation is open (neither committed nor aborted) at a time; committed ones overlap freely. The objects that
    they pin leave neither tier.

    Fields:
        device, host: the tiers. arenas: bytes of the arenas, by slot. unsaved: keys of the objects without another
            copy. Only the methods of the cache change these fields.
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
        self.arenas: dict[int, int] = {}
        self.unsaved: set[bytes] = set()
        self._pins: dict[bytes, int] = {}
        self._held: set[bytes] = set()
        self._open: Reservation | None = None
        self._running: set[int] = set()
        self._new: set[bytes] = set()  # on the device, and used by no request that succeeded
        self._host_new: set[bytes] = set()  # the same for host memory

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arenas of all slots."""
        return sum(self.arenas.values())

    @property
    def used_bytes(self) -> int:
        """Objects on the device, reserved ones included, and arenas; never more than the device tier's capacity."""
        return self.device.reserved_bytes + self.arena_bytes

    @property
    def sizes(self) -> dict[bytes, int]:
        """Bytes of every object on the device, by key."""
        return dict(self.device.sizes)

    @property
    def pinned(self) -> frozenset[bytes]:
        """Keys of the objects that requests or `hold` pin."""
        return frozenset(self._pins)

    def hit(self, objects: Mapping[bytes, int], slot: int | None, arena_bytes: int) -> Reservation | None:
        """Reserve and commit in one call, if there is nothing to free or to allocate. Otherwise return None.

        That is so if all objects are on the device and the arena is large enough.
        """
        if self._open is not None:
            raise ValueError("a reservation is still open")
        if slot in self._running:
            raise ValueError(f"a request runs in slot {slot}")
        before = self._arena_bytes_of(slot)
        if arena_bytes > before or not objects.keys() <= self.device.values.keys():
            return None
        self._pin(objects, slot)
        return Reservation(tuple(objects), {}, (), slot, before, before)

    def reserve(
        self,
        objects: Mapping[bytes, int],
        slot: int | None,
        arena_bytes: int,
        replaced: Collection[bytes] = (),
        made: Collection[bytes] = (),
        victims: Sequence[bytes] = (),
        held: Collection[bytes] = (),
    ) -> Reservation | Shortage | Unsaved:
        """Reserve room for objects (key -> bytes) and an arena of at least arena_bytes, for an idle slot.

        Idle arenas leave before any object: first the part of this slot's arena beyond arena_bytes, then the arenas of
        other slots. They stay while there is room. Replaced objects are among the victims, unless they are pinned.

        Args:
            objects: bytes by key.
            slot: None: the request has no slot, and no arena.
            arena_bytes: 0: no arena.
            replaced: keys of objects that the new ones replace.
            made: keys of those objects that the request makes on the device. No tier has them, and they do not come
                through host memory.
            victims: keys of objects that leave the device first, in this order, as far as room is needed; then follow
                those of the eviction rule.
            held: keys of objects in memory that is not this cache's. They take no room in any tier.
        """
        there = self.device.values
        if any(key in there or key in self.host.values for key in made):
            raise ValueError("an object that is to be made is already there")
        reservation = self.hit(objects, slot, arena_bytes)
        if reservation is None:
            arena_bytes = granules(arena_bytes) if arena_bytes else 0
            room = self._make_room(objects, slot, arena_bytes, replaced, made, victims, held)
            if not isinstance(room, Reservation):
                return room
            self._pin(objects, slot)
            reservation = room
        self._open = reservation
        return reservation

    def adopt(self, key: bytes, nbytes: int, value: D, *, constant: bool) -> None:
        """Add an object that is on the device already. constant: a function binds it."""
        loads = {key: granules(nbytes)}
        self.device.exchange((), loads)
        self.device.add(key, loads[key], value)
        self.device.used(loads, loads if constant else ())

    def commit(
        self, reservation: Reservation, values: Mapping[bytes, D], host_values: Mapping[bytes, H] | None = None
    ) -> None:
        """Remove the victims, which are freed, and add the loaded objects, which have their memory now.

        `host_values` has the values of the host_loads; a missing key got no host memory.
        """
        self._close(reservation)
        for key in reservation.victims:
            self.device.forget(key)
        for key, nbytes in reservation.loads.items():
            self.device.add(key, nbytes, values[key])
            self._new.add(key)
        for key in reservation.host_victims:
            self.host.forget(key)
        for key, nbytes in reservation.host_loads.items():
            if host_values is not None and key in host_values:
                self.host.add(key, nbytes, host_values[key])
                self._host_new.add(key)
            else:
                self.host.reserved_bytes -= nbytes

    def abort(
        self,
        reservation: Reservation,
        *,
        freed: Iterable[bytes] = (),
        host_freed: Iterable[bytes] = (),
        arenas: Mapping[int, int] | None = None,
    ) -> None:
        """Undo a reservation, except for victims that are already freed.

        Args:
            reservation: the open reservation.
            freed: victims that are freed on the device.
            host_freed: victims that are freed in host memory.
            arenas: bytes of the slots' arenas that the reservation changes, if they are not as before.
        """
        self._close(reservation)
        self.device.take_back(reservation.victims, reservation.loads)
        self.host.take_back(reservation.host_victims, reservation.host_loads)
        for slot, nbytes in (reservation.arenas_before if arenas is None else arenas).items():
            self._set_arena(slot, nbytes)
        for tier, keys in ((self.device, freed), (self.host, host_freed)):
            for key in keys:
                tier.reserved_bytes -= tier.sizes[key]
                tier.forget(key)
        self._end(reservation)

    def release(
        self, reservation: Reservation, *, constants: Collection[bytes] = (), unsaved: Collection[bytes] = ()
    ) -> None:
        """End a request that succeeded: its objects count as used now, and may leave.

        Args:
            reservation: the request's.
            constants: keys of its objects that a function binds.
            unsaved: keys of objects that it made and that have no other copy.
        """
        if unsaved:
            self.unsaved.update(unsaved)
        self._used((*reservation.hits, *reservation.loads), reservation.loads, constants)
        self._end(reservation)

    def fail(self, reservation: Reservation) -> tuple[dict[bytes, D], dict[bytes, H]]:
        """End a request that failed: its objects may leave, and objects that only failed requests used are removed.

        Returns:
            The objects to free, of each tier.
        """
        self._end(reservation)
        if not self._new:
            return {}, {}
        left = [key for key in (*reservation.hits, *reservation.loads) if key in self._new and key not in self._pins]
        hosted = [key for key in left if key in self._host_new]
        self._new.difference_update(left)
        self._host_new.difference_update(left)
        return self.device.retract(left), self.host.retract(hosted)

    def saved(self, key: bytes) -> None:
        """Note that an object has another copy now."""
        self.unsaved.discard(key)

    @property
    def held(self) -> frozenset[bytes]:
        """Keys that `hold` pins."""
        return frozenset(self._held)

    def hold(self, keys: Iterable[bytes]) -> None:
        """Pin objects that are on the device until `let_go`. A second call changes nothing."""
        new = [key for key in keys if key not in self._held]
        for key in new:
            self._held.add(key)
            self._pins[key] = self._pins.get(key, 0) + 1
        unproven = [key for key in new if key in self._new]
        if unproven:  # these stay even if the requests that load them fail
            self._used(unproven, (), ())

    def let_go(self, keys: Iterable[bytes]) -> None:
        """Undo `hold`. Keys that are not held are ignored."""
        for key in keys:
            if key in self._held:
                self._held.remove(key)
                self._unpin(key)

    def flush(self, keys: Iterable[bytes]) -> tuple[dict[bytes, D], dict[bytes, H]]:
        """Forget these objects, except pinned and unsaved ones. Return the objects to free, of each tier."""
        if self._open is not None:
            raise ValueError("a reservation is still open")
        leaving = [key for key in dict.fromkeys(keys) if key not in self._pins and key not in self.unsaved]
        return self.device.drop(leaving), self.host.drop(leaving)

    def to_host(self, keys: Iterable[bytes]) -> dict[bytes, D]:
        """Let these objects leave the device, except pinned and unsaved ones and those that host memory lacks.

        Return the objects to free. They count as evicted.
        """
        if self._open is not None:
            raise ValueError("a reservation is still open")
        kept = self._pins.keys() | self.unsaved
        leaving = [key for key in dict.fromkeys(keys) if key not in kept and key in self.host.values]
        return self.device.evict(leaving)

    def drop_arena(self, slot: int) -> None:
        """Note that a slot, in which no request runs, has no arena any more."""
        self._set_arena(slot, 0)

    # --- room

    def _make_room(
        self,
        objects: Mapping[bytes, int],
        slot: int | None,
        arena_bytes: int,
        replaced: Collection[bytes],
        made: Collection[bytes],
        named: Sequence[bytes],
        held: Collection[bytes],
    ) -> Reservation | Shortage | Unsaved:
        there = self.device.values
        loads = {key: 0 if key in held else granules(nbytes) for key, nbytes in objects.items() if key not in there}
        load_bytes = sum(loads.values())
        kept = self._pins.keys() | objects.keys()
        before = self._arena_bytes_of(slot)
        first = [key for key in replaced if key not in kept]
        others_bytes = self.arena_bytes - before
        replacing = sum(key in self.device.sizes for key in first)
        for arena, freed in self._arenas_to_try(slot, before, arena_bytes):
            needed_bytes = load_bytes + arena + others_bytes - sum(self.arenas[other] for other in freed)
            victims = self.device.victims(needed_bytes, kept, first, named)
            if victims is not None and len(victims) == replacing:  # no object must leave to make room
                break
        if victims is None:
            return self._shortage(objects, loads, needed_bytes, kept)
        unsaved = tuple(key for key in victims if key in self.unsaved) if self.unsaved else ()
        if unsaved:
            return Unsaved(unsaved)
        host_hits = tuple(key for key in loads if key in self.host.values)
        fetched = {key: nbytes for key, nbytes in loads.items() if nbytes and key not in made}
        host_loads, host_victims = self._make_host_room(fetched, kept, first)
        self.device.exchange(victims, loads)
        self.host.exchange(host_victims, host_loads)
        arenas_freed = {other: self.arenas.pop(other) for other in freed}
        if slot is not None:
            self._set_arena(slot, arena)
        hits = tuple(key for key in objects if key not in loads)
        return Reservation(hits, loads, victims, slot, arena, before, arenas_freed, host_hits, host_loads, host_victims)

    def _arenas_to_try(self, slot: int | None, before: int, arena_bytes: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield sizes of the slot's arena with the other slots whose arenas are given up, the least loss first.

        Idle arenas go before objects: one call allocates an arena again, while an object must be copied or fetched.
        """
        if before > arena_bytes:
            yield before, ()
        yield arena_bytes, ()
        idle = [other for other in self.arenas if other != slot and other not in self._running]
        idle.sort(key=lambda other: (-self.arenas[other], other))
        for count in range(1, len(idle) + 1):
            yield arena_bytes, tuple(idle[:count])

    def _shortage(
        self, objects: Mapping[bytes, int], loads: Mapping[bytes, int], needed_bytes: int, kept: Collection[bytes]
    ) -> Shortage:
        """Return the bytes that are missing with the kept objects, and with only the held ones."""
        sizes, capacity_bytes = self.device.sizes, self.device.capacity_bytes
        running_bytes = sum(self.arenas.get(other, 0) for other in self._running)
        alone = needed_bytes - running_bytes + sum(sizes[key] for key in self._held | (objects.keys() - loads.keys()))
        present = needed_bytes + sum(nbytes for key, nbytes in sizes.items() if key in kept)
        return Shortage(present - capacity_bytes, max(0, alone - capacity_bytes))

    def _make_host_room(
        self, loads: Mapping[bytes, int], kept: Collection[bytes], first: Collection[bytes]
    ) -> tuple[dict[bytes, int], tuple[bytes, ...]]:
        """Return as many loads as fit into host memory with the kept objects, in their order, and the victims."""
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

    def _used(self, keys: Collection[bytes], loaded: Collection[bytes], constants: Collection[bytes]) -> None:
        """Note that a request used these objects and succeeded. Host memory notes only those that came through it."""
        if loaded or self._new:
            through = [key for key in keys if key in self.host.values and (key in loaded or key in self._host_new)]
            if through:
                self.host.used(through, constants)
            self._new.difference_update(keys)
            self._host_new.difference_update(keys)
        self.device.used(keys, constants)

    def _arena_bytes_of(self, slot: int | None) -> int:
        return self.arenas.get(slot, 0) if slot is not None else 0

    def _set_arena(self, slot: int, nbytes: int) -> None:
        self.arenas.pop(slot, None)
        if nbytes:
            self.arenas[slot] = nbytes

    def _pin(self, objects: Iterable[bytes], slot: int | None) -> None:
        """Begin a request."""
        for key in objects:
            self._pins[key] = self._pins.get(key, 0) + 1
        if slot is not None:
            self._running.add(slot)

    def _end(self, reservation: Reservation) -> None:
        for key in (*reservation.hits, *reservation.loads):
            self._unpin(key)
        if reservation.slot is not None:
            self._running.remove(reservation.slot)

    def _unpin(self, key: bytes) -> None:
        self._pins[key] -= 1
        if not self._pins[key]:
            del self._pins[key]

    def _close(self, reservation: Reservation) -> None:
        if self._open is not reservation:
            raise ValueError("this reservation is not open")
        self._open = None

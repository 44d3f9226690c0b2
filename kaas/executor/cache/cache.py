"""The object cache of one device: decides who comes and who goes, in two phases, and touches no memory itself.

It has two tiers, the device's memory and page-locked host memory. A request reserves all it needs at once: its objects
in both tiers, and the arena of its slot. A reservation names its victims and fits whole, or says what is missing and
changes nothing. The caller frees and allocates, and then commits or aborts. A committed reservation keeps its objects
pinned until its request has succeeded (`release`) or failed (`fail`); what only failed requests have loaded goes.

Objects come to the device through the host tier and stay there too, as long as it has room: what the device has to give
up is then a copy away, not a fetch. An object that the host tier cannot take goes past it; only the device must fit.

What a request makes on the device is *unsaved* once it has succeeded: there is no other copy, so it leaves only after
the caller has said `saved`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from kaas.executor.cache.eviction import Eviction
from kaas.executor.cache.reservation import Reservation, Shortage, Unsaved
from kaas.executor.cache.tiers import Tier, granules

D = TypeVar("D")
H = TypeVar("H")


class ObjectCache(Generic[D, H]):
    """Objects by key, in the device's memory, where the slots' arenas lie beside them, and in host memory.

    One reservation is open (neither committed nor aborted) at a time; committed ones overlap freely. What they pin
    leaves neither tier.

    Fields:
        device, host: the tiers. arenas: bytes by slot, of those that have any. unsaved: keys of the objects of which
            there is no other copy. All to look at; only the methods of the cache change them.
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
        self._new: set[bytes] = set()  # on the device, loaded by requests of which none has succeeded yet
        self._host_new: set[bytes] = set()  # in host memory likewise

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
        return frozenset(self._pins)

    def hit(self, objects: Mapping[bytes, int], slot: int | None, arena_bytes: int) -> Reservation | None:
        """`reserve` and `commit` in one, for a request for which there is nothing to free or to allocate: all its
        objects are on the device, and its arena is large enough. None: it is not such a one."""
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
    ) -> Reservation | Shortage | Unsaved:
        """Room for objects (key -> bytes) beside an arena of at least arena_bytes, for a slot in which nothing runs.

        Arenas in which nothing runs leave before any object does: what this slot's has beyond arena_bytes, then those
        of other slots. As long as there is room they stay. What the objects have replaced is among the victims, unless
        it is pinned.

        Args:
            made: those of the objects that the request makes on the device. No tier has them, and they do not come
                through host memory.
        """
        there = self.device.values
        if any(key in there or key in self.host.values for key in made):
            raise ValueError("an object that is to be made is already there")
        reservation = self.hit(objects, slot, arena_bytes)
        if reservation is None:
            arena_bytes = granules(arena_bytes) if arena_bytes else 0
            room = self._make_room(objects, slot, arena_bytes, replaced, made)
            if not isinstance(room, Reservation):
                return room
            self._pin(objects, slot)
            reservation = room
        self._open = reservation
        return reservation

    def commit(
        self, reservation: Reservation, values: Mapping[bytes, D], host_values: Mapping[bytes, H] | None = None
    ) -> None:
        """The victims are gone; what the reservation loads has its room, and others may find it.

        Args:
            host_values: of host_loads; what is not among them did not get there.
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
        """Everything as before the reservation, but for the victims that were already freed.

        Args:
            freed, host_freed: these victims, on the device and in host memory.
            arenas: of the slots whose arenas it changes, if they could not stay as they were before.
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
        """The request has succeeded: its objects count as used now, and may leave.

        Args:
            constants: those of its objects that a function binds.
            unsaved: those that it has made and of which there is no other copy.
        """
        if unsaved:
            self.unsaved.update(unsaved)
        self._used((*reservation.hits, *reservation.loads), reservation.loads, constants)
        self._end(reservation)

    def fail(self, reservation: Reservation) -> tuple[dict[bytes, D], dict[bytes, H]]:
        """The request has failed: its objects may leave, and those go that only failed requests have used.

        Returns:
            What to free of each tier.
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
        """Take in that there is another copy of an object now."""
        self.unsaved.discard(key)

    @property
    def held(self) -> frozenset[bytes]:
        """Keys that `hold` pins."""
        return frozenset(self._held)

    def hold(self, keys: Iterable[bytes]) -> None:
        """Objects that are on the device stay pinned until `let_go`, beyond any request; once more changes nothing."""
        new = [key for key in keys if key not in self._held]
        for key in new:
            self._held.add(key)
            self._pins[key] = self._pins.get(key, 0) + 1
        unproven = [key for key in new if key in self._new]
        if unproven:  # these stay now, whatever becomes of the requests that load them
            self._used(unproven, (), ())

    def let_go(self, keys: Iterable[bytes]) -> None:
        """The reverse; nothing happens to what is not held."""
        for key in keys:
            if key in self._held:
                self._held.remove(key)
                self._unpin(key)

    def flush(self, keys: Iterable[bytes]) -> tuple[dict[bytes, D], dict[bytes, H]]:
        """Forgets those of these objects that are neither pinned nor unsaved; gives what to free of each tier."""
        if self._open is not None:
            raise ValueError("a reservation is still open")
        leaving = [key for key in dict.fromkeys(keys) if key not in self._pins and key not in self.unsaved]
        return self.device.drop(leaving), self.host.drop(leaving)

    # --- room

    def _make_room(
        self,
        objects: Mapping[bytes, int],
        slot: int | None,
        arena_bytes: int,
        replaced: Collection[bytes],
        made: Collection[bytes],
    ) -> Reservation | Shortage | Unsaved:
        loads = {key: granules(nbytes) for key, nbytes in objects.items() if key not in self.device.values}
        load_bytes = sum(loads.values())
        kept = self._pins.keys() | objects.keys()
        before = self._arena_bytes_of(slot)
        first = [key for key in replaced if key not in kept]
        others_bytes = self.arena_bytes - before
        replacing = sum(key in self.device.sizes for key in first)
        for arena, freed in self._arenas_to_try(slot, before, arena_bytes):
            needed_bytes = load_bytes + arena + others_bytes - sum(self.arenas[other] for other in freed)
            victims = self.device.victims(needed_bytes, kept, first)
            if victims is not None and len(victims) == replacing:  # no object leaves for want of room
                break
        if victims is None:
            return self._shortage(objects, loads, needed_bytes, kept)
        unsaved = tuple(key for key in victims if key in self.unsaved) if self.unsaved else ()
        if unsaved:
            return Unsaved(unsaved)
        host_hits = tuple(key for key in loads if key in self.host.values)
        fetched = {key: nbytes for key, nbytes in loads.items() if key not in made} if made else loads
        host_loads, host_victims = self._make_host_room(fetched, kept, first)
        self.device.exchange(victims, loads)
        self.host.exchange(host_victims, host_loads)
        arenas_freed = {other: self.arenas.pop(other) for other in freed}
        if slot is not None:
            self._set_arena(slot, arena)
        hits = tuple(key for key in objects if key not in loads)
        return Reservation(hits, loads, victims, slot, arena, before, arenas_freed, host_hits, host_loads, host_victims)

    def _arenas_to_try(self, slot: int | None, before: int, arena_bytes: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Sizes of the slot's arena, with the other slots whose arenas are given up: from nothing at all to everything
        in which nothing runs. An arena costs one call to allocate anew, an object the way from where it came."""
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
        """What is missing beside what is kept, and beside what is held, if everything else left."""
        sizes, capacity_bytes = self.device.sizes, self.device.capacity_bytes
        running_bytes = sum(self.arenas.get(other, 0) for other in self._running)
        alone = needed_bytes - running_bytes + sum(sizes[key] for key in self._held | (objects.keys() - loads.keys()))
        present = needed_bytes + sum(nbytes for key, nbytes in sizes.items() if key in kept)
        return Shortage(present - capacity_bytes, max(0, alone - capacity_bytes))

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

    def _used(self, keys: Collection[bytes], loaded: Collection[bytes], constants: Collection[bytes]) -> None:
        """A request that used these has succeeded; host memory hears only of what came through it."""
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
        """A request begins."""
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

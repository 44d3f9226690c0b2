"""Carries out the cache's decisions: frees and allocates memory of both tiers for the objects and the arenas."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

from kaas.errors import OutOfDeviceMemory
from kaas.executor.cache.cache import ObjectCache
from kaas.executor.cache.inflight import InflightCopies, InflightCopy
from kaas.executor.cache.kept_objects import KeptObjects, placed
from kaas.executor.cache.lease import MemoryLease, SlotArena
from kaas.executor.cache.ranges import Ranges
from kaas.executor.cache.reservation import Reservation, Shortage, Unsaved
from kaas.executor.cache.tiers import TierUse
from kaas.executor.device.device import OpenDevice
from kaas.executor.device.device_memory import DeviceHeap, HostMemory
from kaas.executor.device.page_locked import PageLockedBuffers
from kaas.executor.inputs import Inputs
from kaas.executor.objects import CachedObject, HeldValue, HostObject


class TieredMemory:
    """A device's memory and its host tier. Use it inside `device.context`, and by one thread at a time.

    Fields:
        arenas: by the number of the slot. buffers: of the host tier. leases: the number of leases in use.
        capacity_bytes: of the cache, if the driver has so much.
    """

    def __init__(
        self,
        device: OpenDevice,
        capacity_bytes: int,
        host_capacity_bytes: int,
        whole_object_bytes: int,
    ) -> None:
        self.cache: ObjectCache[CachedObject, HostObject] = ObjectCache(capacity_bytes, host_capacity_bytes)
        self.ranges = Ranges(whole_object_bytes)
        self.arenas: dict[int, SlotArena] = {}
        self._numbers = count()
        self.leases = 0
        self.capacity_bytes = capacity_bytes
        self._unreported: dict[bytes, Any] = {}  # keys of objects that left the device in an attempt that failed
        self._device = device
        self._pool = device.pool()
        self.buffers = PageLockedBuffers(device)
        self._inflight = InflightCopies()
        self._kept = None if device.files is None else KeptObjects(device.pages, device.files)
        for kept, value in () if self._kept is None else self._kept.adopt(capacity_bytes):
            self.cache.adopt(kept.key, value.nbytes, value, constant=kept.constants is not None)

    def arena(self, home: DeviceHeap | None = None) -> tuple[int, SlotArena]:
        """Return the arena of a new slot, and the slot's number. home: None: memory of the device's pool."""
        number = next(self._numbers)
        arena = self.arenas[number] = SlotArena(home or self._pool)
        return number, arena

    def drop_arena(self, number: int) -> None:
        """Free the arena of a slot that is closed."""
        self._resize(self.arenas.pop(number), 0)
        self.cache.drop_arena(number)

    def leave(self, heaps: Sequence[DeviceHeap]) -> bool:
        """Free the objects that are allocated from some heaps; return False if some of them must stay."""
        entries = [entry for entry, there in self.cache.device.values.items() if there.home in heaps]
        cached, hosted = self.cache.flush(entries)
        self._free(cached, hosted)
        return len(cached) == len(entries)

    def find(self, key: bytes) -> CachedObject | HostObject | None:
        """Return an object in the fastest memory that has it; None if no tier has it."""
        return self.cache.device.values.get(key) or self.cache.host.values.get(key)

    def object_of(self, entry: bytes) -> bytes:
        """Return the key of the object that an entry of the cache is, or is a part of."""
        part = self.ranges.part(entry)
        return entry if part is None else part.key

    def is_hosted(self, key: bytes) -> bool:
        """Return True if page-locked memory has at least a part of an object."""
        return any(entry in self.cache.host.values for entry in self._entries(key))

    def take(
        self, inputs: Inputs, slot: int | None, arena_bytes: int, victims: Sequence[bytes] = ()
    ) -> MemoryLease | Shortage | Unsaved:
        """Return a lease of all memory that a request needs, or the obstacle; then nothing has changed.

        Objects in victims leave first, in this order, as far as the request needs room. Requests for an object whose
        copy failed get a Shortage of 0 bytes until the object is dropped.

        Raises:
            OutOfDeviceMemory: the driver has less than the budget says, even after the budget has been corrected, and
                no request holds any of it.
        """
        awaited = self._inflight.among(inputs.objects) if self._inflight.under_way else []
        if awaited and any(copy.failed for copy in awaited):
            return Shortage(0)
        reservation = self.cache.hit(inputs.objects, slot, arena_bytes)
        if reservation is None:
            entries = [entry for key in victims for entry in self._entries(key)]
            needed = None if inputs.window is None else inputs.objects
            lease = self._make(partial(self._try, inputs, slot, arena_bytes, entries, awaited), needed)
            if not isinstance(lease, MemoryLease):
                return lease
        else:
            lease = MemoryLease(reservation, self.cache.device.values, _hits(inputs), awaited=awaited)
        self.leases += 1
        return lease

    def commit(self, lease: MemoryLease, inputs: Inputs, saved: bool = False) -> None:
        """End a request that succeeded: its objects may leave. saved: the objects that it made have another copy."""
        self.leases -= 1
        if lease.copies:
            self._inflight.ended(lease.copies)
            if self._kept is not None:
                self._kept.came(lease.loaded, inputs)
        self.cache.release(lease.reservation, constants=inputs.constants, unsaved=() if saved else lease.made)

    def give_back(self, lease: MemoryLease) -> None:
        """End a request that failed, whose work has ended: objects that only failed requests used are freed."""
        self.leases -= 1
        self._inflight.ended(lease.copies)
        cached, hosted = self.cache.fail(lease.reservation)
        self._inflight.forget(cached)
        self._free(cached, hosted)

    def hold(self, keys: Iterable[bytes]) -> None:
        """Keep objects that are on the device there until `let_go`."""
        self.cache.hold([entry for key in keys for entry in self._entries(key)])

    def let_go(self, keys: Iterable[bytes] | None) -> None:
        """Allow these objects (None: all that are held) to leave again."""
        held = self.cache.held
        self.cache.let_go(held if keys is None else [entry for key in keys for entry in self._entries(key)])

    def flush(self, keys: Iterable[bytes] | None) -> tuple[bytes, ...]:
        """Free these objects (None: all) in both tiers, except pinned and unsaved ones; return those of the device."""
        known = {**self.cache.device.values, **self.cache.host.values}
        entries = known if keys is None else [entry for key in keys for entry in self._entries(key)]
        cached, hosted = self.cache.flush(entries)
        left = tuple(dict.fromkeys(map(self.object_of, cached)))
        self._free(cached, hosted)
        if keys is None:
            self.buffers.trim(0)
        return left

    def to_host(self, keys: Iterable[bytes]) -> tuple[bytes, ...]:
        """Free these objects on the device, except pinned and unsaved ones and those that page-locked memory lacks.

        Return the keys of the objects that have left the device whole.
        """
        entries = [[entry for entry in self._entries(key) if entry in self.cache.device.values] for key in keys]
        hosted = [each for each in entries if each and all(entry in self.cache.host.values for entry in each)]
        cached = self.cache.to_host([entry for each in hosted for entry in each])
        left = tuple(dict.fromkeys(self.object_of(each[0]) for each in hosted if cached.keys() >= {*each}))
        self._free(cached, {})
        return left

    def spoil(self) -> None:
        """Let no later executor adopt objects: a kernel has failed, and may have written anywhere before."""
        if self._kept is not None:
            self._kept.spoil()

    def empty(self, needed: Collection[bytes]) -> None:
        """Free all objects that no request uses and that are not needed, and correct the budget."""
        cached, hosted = self.cache.flush([key for key in self.cache.device.values if key not in needed])
        self._unreported.update(dict.fromkeys(map(self.object_of, cached)))
        self._free(cached, hosted)
        self._correct(pages=True)

    def close(self) -> None:
        """Free everything. No lease may be in use."""
        for cached in self.cache.device.values.values():
            cached.home.free(cached.address)
        for hosted in self.cache.host.values.values():
            hosted.memory.close()
        for arena in self.arenas.values():
            self._resize(arena, 0)
        self.buffers.trim(0)
        for buffer in self.buffers.take_leaving():
            buffer.close()
        self._inflight.close()
        self._pool.close()

    def _entries(self, key: bytes) -> Iterator[bytes]:
        """Yield the keys under which an object, or parts of it, may be cached."""
        yield key
        yield from [part.entry for part in self.ranges.parts(key)]

    def _free(self, cached: dict[bytes, CachedObject], hosted: dict[bytes, HostObject]) -> None:
        """Free objects that the cache has dropped, and forget parts that no tier has any more."""
        for there in cached.values():
            there.home.free(there.address)
        for on_host in hosted.values():
            self.buffers.give(on_host.memory)
        if cached:
            self._pool.settle()
        self._forget_parts((*cached, *hosted))

    def _forget_parts(self, entries: Iterable[bytes]) -> None:
        for entry in entries:
            if self.find(entry) is None:
                self.ranges.remove(entry)

    def _make(
        self, attempt: Callable[[], MemoryLease | Shortage | Unsaved], needed: Collection[bytes] | None
    ) -> MemoryLease | Shortage | Unsaved:
        """Reserve room and allocate it. If the driver has less than the budget says, correct the budget and try again.

        Objects of a window may hold more memory than they have bytes: whole pages. So if the request is too large for
        the corrected budget, or the driver still refuses, all idle objects but the needed ones leave at last.
        """
        tier, refused = self.cache.device, None
        emptying = () if needed is None else (partial(self.empty, needed),)
        if tier.capacity_bytes < self.capacity_bytes:
            self._correct()
        for give_way in (partial(self._correct, pages=needed is None), *emptying, lambda: None):
            try:
                made = attempt()
            except OutOfDeviceMemory as error:
                refused = error
            else:
                small = tier.capacity_bytes < self.capacity_bytes
                if not (small and isinstance(made, Shortage) and made.lasting_bytes):
                    return made
                refused = None
            give_way()
        if refused is not None and not self.leases:
            raise refused
        return made if refused is None else Shortage(refused.needed_bytes)

    def _correct(self, *, pages: bool = False) -> None:
        """Set the budget to what the driver has: other users of the device, and code with large globals, take memory.

        The idle memory that the pool cannot give back lies in pieces between objects: it makes no room. pages: idle
        pages go too, since it is the pool that needs memory.
        """
        self._pool.trim()
        if pages:
            self._device.pages.trim()
        driver_bytes = self.cache.used_bytes + self._device.free_bytes()
        self.cache.device.capacity_bytes = min(self.capacity_bytes, driver_bytes)

    def _try(
        self,
        inputs: Inputs,
        slot: int | None,
        arena_bytes: int,
        victims: Sequence[bytes],
        awaited: list[InflightCopy],
    ) -> MemoryLease | Shortage | Unsaved:
        reservation = self.cache.reserve(
            inputs.objects, slot, arena_bytes, inputs.replaced, inputs.made, victims, inputs.held()
        )
        if not isinstance(reservation, Reservation):
            return reservation
        lease = MemoryLease(reservation, self.cache.device.values, awaited=awaited)
        try:
            self._make_room(lease)
            self._allocate(lease, inputs)
        except BaseException:
            self._undo(lease)
            raise
        self._settle(lease, inputs)
        return lease

    def _make_room(self, lease: MemoryLease) -> None:
        there, on_host, reservation = self.cache.device.values, self.cache.host.values, lease.reservation
        for key in reservation.victims:
            there[key].home.free(there[key].address)
            lease.evicted.append(key)
        for key in reservation.host_victims:
            self.buffers.give(on_host[key].memory)
            lease.host_evicted.append(key)
        for slot in reservation.arenas_freed:
            self._resize(self.arenas[slot], 0)
        own = self.arenas[reservation.slot] if reservation.slot is not None else None
        resized = own is not None and own.nbytes != reservation.arena_bytes
        if own is not None and resized:
            self._resize(own, 0)
        if reservation.victims or reservation.arenas_freed or resized:
            self._pool.settle()
        if own is not None and resized:
            self._resize(own, reservation.arena_bytes)

    def _allocate(self, lease: MemoryLease, inputs: Inputs) -> None:
        reservation, on_host = lease.reservation, self.cache.host.values
        window, loads = inputs.window, dict(reservation.loads)
        written = self._pool if window is None else window.written
        for key in inputs.made:
            made, nbytes = inputs.made[key], loads.pop(key)
            lease.made[key] = CachedObject(written.allocate(nbytes), made.nbytes, made.dtype, made.shape, written)
        new = placed(loads, inputs, self._pool, self._kept) if window is None else window.place(loads, inputs.constants)
        for key, home, address in new:
            source = inputs.fetched.get(key) or on_host[key]
            lease.loaded[key] = CachedObject(address, source.nbytes, source.dtype, source.shape, home)
        self._pool.settle()
        for key in reservation.host_hits:
            lease.sources[key] = on_host[key].memory.address
        for key, fetched in inputs.fetched.items():
            hosted = self._host(lease, reservation.host_loads[key]) if key in reservation.host_loads else None
            if hosted is not None:
                lease.host_loaded[key] = HostObject(hosted, fetched.nbytes, fetched.dtype, fetched.shape)
            lease.sources[key] = None if isinstance(fetched.data, HeldValue) else fetched.data

    def _host(self, lease: MemoryLease, nbytes: int) -> HostMemory | None:
        """Return page-locked memory. If the driver has no more, correct the tier's budget and return None."""
        tier = self.cache.host
        missing = lease.reservation.host_loads.keys() - lease.host_loaded.keys()
        missing_bytes = sum(lease.reservation.host_loads[key] for key in missing)
        used_bytes = tier.reserved_bytes - missing_bytes
        buffer = self.buffers.take(nbytes, max(0, tier.capacity_bytes - tier.reserved_bytes))
        if buffer is None:
            tier.capacity_bytes = used_bytes + self.buffers.idle_bytes
            self.buffers.trim(0)
        return buffer

    def _settle(self, lease: MemoryLease, inputs: Inputs) -> None:
        """Commit the reservation: other requests find the objects from now on, although their copies are to come."""
        lease.tiers = self._uses(lease, inputs)
        self.cache.commit(lease.reservation, lease.loaded | lease.made, lease.host_loaded)
        if lease.loaded:
            lease.copies = self._inflight.expect(lease.loaded)
            for part in inputs.parts.values():
                self.ranges.add(part)
        if lease.evicted or lease.host_evicted or self._unreported:
            lease.left = self._gone(lease)

    def _undo(self, lease: MemoryLease) -> None:
        """Free the new memory after a refusal of the driver. Freed memory stays free."""
        reservation = lease.reservation
        self._unreported.update(dict.fromkeys(map(self.object_of, lease.evicted)))
        self.cache.abort(
            reservation,
            freed=lease.evicted,
            host_freed=lease.host_evicted,
            arenas={slot: self.arenas[slot].nbytes for slot in reservation.arenas_before},
        )  # before calls of the driver: on a lost device they raise, and other requests must not find it open
        for new in (*lease.loaded.values(), *lease.made.values()):
            new.home.free(new.address)
        for hosted in lease.host_loaded.values():
            self.buffers.give(hosted.memory)
        self._pool.settle()
        self._forget_parts((*lease.evicted, *lease.host_evicted))

    def _gone(self, lease: MemoryLease) -> tuple[bytes, ...]:
        """Forget parts that no tier has any more; return evicted objects of which nothing is left on the device."""
        there = self.cache.device.values
        keys = dict.fromkeys((*self._unreported, *map(self.object_of, lease.evicted)))
        self._unreported.clear()
        self._forget_parts((*lease.evicted, *lease.host_evicted))
        return tuple(key for key in keys if not any(entry in there for entry in self._entries(key)))

    def _uses(self, lease: MemoryLease, inputs: Inputs) -> dict[str, TierUse]:
        reservation, cache = lease.reservation, self.cache
        if not (reservation.loads or reservation.victims):
            return _hits(inputs)
        hit_bytes, host_bytes, store_bytes = (
            sum(inputs.objects[key] for key in keys)
            for keys in (reservation.hits, reservation.host_hits, inputs.fetched)
        )
        missed = [key for key in reservation.loads if key not in lease.made]
        returning, hosted = cache.device.returning(missed), cache.host.returning(inputs.fetched)
        return {
            "device": TierUse(
                len(reservation.hits),
                hit_bytes,
                len(missed) - returning,
                returning,
                len(lease.evicted),
                sum(cache.device.sizes[key] for key in lease.evicted),
            ),
            "host": TierUse(
                len(reservation.host_hits),
                host_bytes,
                len(inputs.fetched) - hosted,
                hosted,
                len(lease.host_evicted),
                sum(cache.host.sizes[key] for key in lease.host_evicted),
            ),
            "store": TierUse(len(inputs.fetched), store_bytes),
        }

    def _resize(self, arena: SlotArena, nbytes: int) -> None:
        if arena.nbytes:
            arena.home.free(arena.address)
        arena.address = arena.nbytes = 0
        if nbytes:
            arena.address = arena.home.allocate(nbytes)
            arena.nbytes = nbytes
            arena.fresh = True


def _hits(inputs: Inputs) -> dict[str, TierUse]:
    """Return the tiers' use of a request that found everything on the device."""
    return {"device": TierUse(len(inputs.objects), sum(inputs.objects.values()))} if inputs.objects else {}

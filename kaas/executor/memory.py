"""Carries out what the cache decides: frees and allocates memory of both tiers for the objects and the arena."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from kaas.errors import OutOfDeviceMemory
from kaas.executor.cache import ObjectCache, Reservation, Shortage
from kaas.executor.device import Device, HostMemory
from kaas.executor.inputs import CachedObject, HostObject, Inputs
from kaas.executor.ranges import Ranges
from kaas.executor.tiers import TierUse


@dataclass(slots=True)
class Lease:
    """The memory of one request: its reservation, what was done for it, and where all its objects are.

    Fields:
        objects: where they lie on the device. loaded: those that are new there; sources: what to copy them from.
        host_loaded: those that are new in host memory. evicted, host_evicted: victims that have gone.
        hosting_s: seconds it took to copy what arrived to host memory.
        tiers: what `RunStats` tells of the tiers, but for the seconds of copies that have only been submitted.
    """

    reservation: Reservation
    objects: dict[bytes, CachedObject]
    loaded: dict[bytes, CachedObject] = field(default_factory=dict)
    sources: dict[bytes, Any] = field(default_factory=dict)
    host_loaded: dict[bytes, HostObject] = field(default_factory=dict)
    evicted: list[bytes] = field(default_factory=list)
    host_evicted: list[bytes] = field(default_factory=list)
    hosting_s: float = 0.0
    tiers: dict[str, TierUse] = field(default_factory=dict)


class Memory:
    """A device's memory with the host memory before it: cached objects, and the arena of its slot. Use it inside
    `device.current()`.

    Fields:
        arena: address of the arena, 0 while it has no bytes. arena_is_fresh: nobody cleared it since it was allocated.
    """

    def __init__(self, device: Device, capacity_bytes: int, host_capacity_bytes: int, whole_object_bytes: int) -> None:
        self.cache: ObjectCache[CachedObject, HostObject] = ObjectCache(capacity_bytes, host_capacity_bytes)
        self.ranges = Ranges(whole_object_bytes)
        self.arena = 0
        self.arena_is_fresh = False
        self._arena_bytes = 0
        self._device = device

    def find(self, key: bytes) -> CachedObject | HostObject | None:
        """An object, in the fastest memory that has it."""
        return self.cache.device.values.get(key) or self.cache.host.values.get(key)

    def object_of(self, entry: bytes) -> bytes:
        """The key of the object that an entry of the cache is, or is a part of."""
        part = self.ranges.part(entry)
        return entry if part is None else part.key

    def take(self, inputs: Inputs, arena_bytes: int) -> Lease | Shortage:
        """Room for a request: everything it needs, or a shortage, and then nothing has changed.

        Raises:
            OutOfDeviceMemory: the driver has less than the budget says, even after the budget has been corrected.
        """
        lease = self._try(inputs, arena_bytes)
        if not isinstance(lease, OutOfDeviceMemory):
            return lease
        # Other users of the device, or code with large globals: plan with what the driver really has.
        tier = self.cache.device
        tier.capacity_bytes = min(tier.capacity_bytes, self.cache.used_bytes + self._device.free_bytes())
        lease = self._try(inputs, arena_bytes)
        if isinstance(lease, OutOfDeviceMemory):
            raise lease
        return lease

    def commit(self, lease: Lease, inputs: Inputs) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        """The request succeeded: what it loaded is cached, and nothing of it is pinned any more.

        Returns:
            The objects of which something came to the device, and those of which nothing is there any more.
        """
        self.cache.commit(lease.reservation, lease.loaded, lease.host_loaded, constants=inputs.constants)
        self.cache.release(lease.reservation)
        for part in inputs.parts.values():
            self.ranges.add(part)
        if not lease.reservation.loads and not lease.reservation.victims:
            return (), ()
        return tuple(dict.fromkeys(map(self.object_of, lease.loaded))), self._gone(lease)

    def give_back(self, lease: Lease) -> None:
        """The request failed: what it loaded goes, and nothing of it is pinned any more."""
        for loaded in lease.loaded.values():
            self._device.free(loaded.address)
        for hosted in lease.host_loaded.values():
            hosted.memory.close()
        self.cache.abort(
            lease.reservation, freed=lease.evicted, host_freed=lease.host_evicted, arena_bytes=self._arena_bytes
        )
        self._gone(lease)

    def hold(self, keys: Iterable[bytes]) -> None:
        """Objects that are on the device stay there, until `let_go`."""
        self.cache.hold(entry for key in keys for entry in self._entries(key))

    def let_go(self, keys: Iterable[bytes] | None) -> None:
        """These objects (None: all that are held) may leave again."""
        held = self.cache.held
        self.cache.let_go(held if keys is None else [entry for key in keys for entry in self._entries(key)])

    def flush(self, keys: Iterable[bytes] | None) -> tuple[bytes, ...]:
        """Frees these objects (None: all) in both tiers, but for pinned ones; gives those that were on the device."""
        if keys is None:
            entries = {**self.cache.device.values, **self.cache.host.values}.keys()
        else:
            entries = {entry: None for key in keys for entry in self._entries(key)}.keys()
        cached, hosted = self.cache.flush(entries)
        for there in cached.values():
            self._device.free(there.address)
        for on_host in hosted.values():
            on_host.memory.close()
        left = tuple(dict.fromkeys(map(self.object_of, cached)))
        for entry in (*cached, *hosted):
            if self.find(entry) is None:
                self.ranges.remove(entry)
        return left

    def _entries(self, key: bytes) -> Iterator[bytes]:
        """Keys under which an object, or parts of it, may be cached."""
        yield key
        yield from [part.entry for part in self.ranges.parts(key)]

    def close(self) -> None:
        for cached in self.cache.device.values.values():
            self._device.free(cached.address)
        for hosted in self.cache.host.values.values():
            hosted.memory.close()
        self._resize(0)

    def _gone(self, lease: Lease) -> tuple[bytes, ...]:
        """Forgets parts that no tier has any more; gives the objects of which nothing is on the device any more."""
        there = self.cache.device.values
        keys = dict.fromkeys(self.object_of(entry) for entry in lease.evicted)
        for entry in (*lease.evicted, *lease.host_evicted):
            if self.find(entry) is None:
                self.ranges.remove(entry)
        return tuple(
            key for key in keys if key not in there and not any(p.entry in there for p in self.ranges.parts(key))
        )

    # --- carrying out

    def _try(self, inputs: Inputs, arena_bytes: int) -> Lease | Shortage | OutOfDeviceMemory:
        reservation = self.cache.reserve(inputs.objects, arena_bytes, inputs.replaced)
        if isinstance(reservation, Shortage):
            return reservation
        there = self.cache.device.values
        lease = Lease(reservation, {key: there[key] for key in reservation.hits})
        try:
            self._make_room(lease)
            if reservation.loads:
                self._load(lease, inputs)
            lease.tiers = self._uses(lease, inputs)
        except OutOfDeviceMemory as error:
            self.give_back(lease)
            return error
        except BaseException:
            self.give_back(lease)
            raise
        return lease

    def _make_room(self, lease: Lease) -> None:
        there, on_host = self.cache.device.values, self.cache.host.values
        for key in lease.reservation.victims:
            self._device.free(there[key].address)
            lease.evicted.append(key)
        for key in lease.reservation.host_victims:
            on_host[key].memory.close()
            lease.host_evicted.append(key)
        if lease.reservation.arena_bytes != self._arena_bytes:
            self._resize(lease.reservation.arena_bytes)

    def _load(self, lease: Lease, inputs: Inputs) -> None:
        reservation, on_host = lease.reservation, self.cache.host.values
        for key, nbytes in reservation.loads.items():
            comes = inputs.arriving.get(key) or on_host[key]
            lease.loaded[key] = CachedObject(self._device.allocate(nbytes), comes.nbytes, comes.dtype)
        lease.objects.update(lease.loaded)
        began = perf_counter()
        for key in reservation.host_hits:
            lease.sources[key] = on_host[key].memory.address
        for key, arriving in inputs.arriving.items():
            hosted = self._host(lease, reservation.host_loads[key]) if key in reservation.host_loads else None
            if hosted is None:
                lease.sources[key] = arriving.data
                continue
            lease.host_loaded[key] = HostObject(hosted, arriving.nbytes, arriving.dtype)
            hosted.data[: arriving.nbytes] = np.frombuffer(arriving.data, np.uint8)
            lease.sources[key] = hosted.address
        lease.hosting_s = perf_counter() - began

    def _host(self, lease: Lease, nbytes: int) -> HostMemory | None:
        """Page-locked memory; None, with the tier's budget corrected, if the driver has no more of it."""
        try:
            return self._device.allocate_host(nbytes)
        except OutOfDeviceMemory:
            tier = self.cache.host
            missing = lease.reservation.host_loads.keys() - lease.host_loaded.keys()
            missing_bytes = sum(lease.reservation.host_loads[key] for key in missing)
            tier.capacity_bytes = tier.reserved_bytes - missing_bytes
            return None

    def _uses(self, lease: Lease, inputs: Inputs) -> dict[str, TierUse]:
        reservation, cache = lease.reservation, self.cache
        if not (reservation.loads or reservation.victims):
            return {"device": TierUse(len(inputs.objects), sum(inputs.objects.values()))} if inputs.objects else {}
        hit_bytes, host_bytes, store_bytes = (
            sum(inputs.objects[key] for key in keys)
            for keys in (reservation.hits, reservation.host_hits, inputs.arriving)
        )
        returning, hosted = cache.device.returning(reservation.loads), cache.host.returning(inputs.arriving)
        return {
            "device": TierUse(
                len(reservation.hits),
                hit_bytes,
                len(reservation.loads) - returning,
                returning,
                len(lease.evicted),
                sum(cache.device.sizes[key] for key in lease.evicted),
            ),
            "host": TierUse(
                len(reservation.host_hits),
                host_bytes,
                len(inputs.arriving) - hosted,
                hosted,
                len(lease.host_evicted),
                sum(cache.host.sizes[key] for key in lease.host_evicted),
                lease.hosting_s,
            ),
            "store": TierUse(len(inputs.arriving), store_bytes, seconds=inputs.fetching_s),
        }

    def _resize(self, nbytes: int) -> None:
        if self._arena_bytes:
            self._device.free(self.arena)
        self.arena = self._arena_bytes = 0
        if nbytes:
            self.arena = self._device.allocate(nbytes)
            self._arena_bytes = nbytes
            self.arena_is_fresh = True

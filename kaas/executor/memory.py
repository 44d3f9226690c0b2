"""Carries out what the cache decides: frees and allocates device memory for the objects and the arena of requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kaas.errors import OutOfDeviceMemory
from kaas.executor.cache import ObjectCache, Reservation, Shortage
from kaas.executor.device import Device
from kaas.executor.inputs import Arriving, CachedObject


@dataclass(slots=True)
class Lease:
    """The device memory of one request: its reservation, what was done for it, and where all its objects are."""

    reservation: Reservation
    objects: dict[bytes, CachedObject]
    loaded: dict[bytes, CachedObject] = field(default_factory=dict)
    evicted: list[bytes] = field(default_factory=list)


class Memory:
    """A device's memory: cached objects, and the arena of its slot. Use it inside `device.current()`.

    Fields:
        arena: address of the arena, 0 while it has no bytes. arena_is_fresh: nobody cleared it since it was allocated.
    """

    def __init__(self, device: Device, capacity_bytes: int) -> None:
        self.cache: ObjectCache[CachedObject] = ObjectCache(capacity_bytes)
        self.arena = 0
        self.arena_is_fresh = False
        self._arena_bytes = 0
        self._device = device

    def take(
        self, objects: Mapping[bytes, int], arriving: Mapping[bytes, Arriving], arena_bytes: int
    ) -> Lease | Shortage:
        """Room for a request: everything it needs, or a shortage, and then nothing has changed.

        Args:
            objects: bytes of all objects of the request, by key. arriving: those that are not there yet.

        Raises:
            OutOfDeviceMemory: the driver has less than the budget says, even after the budget has been corrected.
        """
        lease = self._try(objects, arriving, arena_bytes)
        if not isinstance(lease, OutOfDeviceMemory):
            return lease
        # Other users of the device, or code with large globals: plan with what the driver really has.
        self.cache.capacity_bytes = min(self.cache.capacity_bytes, self.cache.used_bytes + self._device.free_bytes())
        lease = self._try(objects, arriving, arena_bytes)
        if isinstance(lease, OutOfDeviceMemory):
            raise lease
        return lease

    def commit(self, lease: Lease) -> None:
        """The request succeeded: what it loaded is cached, and nothing of it is pinned any more."""
        self.cache.commit(lease.reservation, lease.loaded)
        self.cache.release(lease.reservation)

    def give_back(self, lease: Lease) -> None:
        """The request failed: what it loaded goes, and nothing of it is pinned any more."""
        for loaded in lease.loaded.values():
            self._device.free(loaded.address)
        self.cache.abort(lease.reservation, freed=lease.evicted, arena_bytes=self._arena_bytes)

    def close(self) -> None:
        for key in self.cache.sizes:
            self._device.free(self.cache[key].address)
        self._resize(0)

    def _try(
        self, objects: Mapping[bytes, int], arriving: Mapping[bytes, Arriving], arena_bytes: int
    ) -> Lease | Shortage | OutOfDeviceMemory:
        reservation = self.cache.reserve(objects, arena_bytes)
        if isinstance(reservation, Shortage):
            return reservation
        lease = Lease(reservation, {key: self.cache[key] for key in reservation.hits})
        try:
            self._carry_out(lease, arriving)
        except OutOfDeviceMemory as error:
            self.give_back(lease)
            return error
        except BaseException:
            self.give_back(lease)
            raise
        return lease

    def _carry_out(self, lease: Lease, arriving: Mapping[bytes, Arriving]) -> None:
        for key in lease.reservation.victims:
            self._device.free(self.cache[key].address)
            lease.evicted.append(key)
        if lease.reservation.arena_bytes != self._arena_bytes:
            self._resize(lease.reservation.arena_bytes)
        for key, nbytes in lease.reservation.loads.items():
            comes = arriving[key]
            lease.loaded[key] = CachedObject(self._device.allocate(nbytes), comes.nbytes, comes.dtype)
        lease.objects.update(lease.loaded)

    def _resize(self, nbytes: int) -> None:
        if self._arena_bytes:
            self._device.free(self.arena)
        self.arena = self._arena_bytes = 0
        if nbytes:
            self.arena = self._device.allocate(nbytes)
            self._arena_bytes = nbytes
            self.arena_is_fresh = True

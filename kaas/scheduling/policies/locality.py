"""The bytes that a request moves on each device: those that it lacks there, and those that leave for them.

All policies look it up here. The state comes from requests' inputs, from dispatches and from `Residency`: the objects
of a dispatched request count as present, since the worker loads them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from kaas.scheduling.events import PhysicalDevice, Residency
from kaas.scheduling.policies.state import QueuedRequest, Rank, WorkerGroup, WorkerState

COMPARED = 64
"""Free workers that are compared for a request, and as many of those whose devices have its objects."""
RELOADS = 10.0
"""Expected loads of an object that is evicted just after its use. Older objects count for less."""


@dataclass(slots=True)
class _Memory:
    """A device's memory.

    Fields:
        capacity_bytes: None if it is not known. used: the objects that the device holds or gets, each with the number
            of the dispatch that used it last. coming: objects on their way, with the number of requests that bring it.
    """

    capacity_bytes: int | None
    used_bytes: int = 0
    used: dict[bytes, int] = field(default_factory=dict)
    coming: dict[bytes, int] = field(default_factory=dict)


class Locality:
    """The objects on each device, by key. Arenas are not known: two functions may fit here that do not fit there."""

    def __init__(self, devices: Sequence[PhysicalDevice]) -> None:
        self._memories = {device.index: _Memory(device.memory_bytes) for device in devices}
        self._sizes: dict[bytes, int] = {}  # of objects on devices; 0 until a request says the size
        self._holders: dict[bytes, set[int]] = {}
        self._dispatches = 0
        self._version = 1

    # --- events

    def ready(self, device: int, memory_bytes: int) -> None:
        """Take in that a worker with an empty cache of this size is up."""
        self._memories[device].capacity_bytes = memory_bytes

    def dispatched(self, request: QueuedRequest, device: int) -> None:
        """Count the objects that the request reads as present on the device, or on their way."""
        sizes = self._read_by(request)
        if not sizes:
            return
        memory = self._memories[device]
        if memory.coming or not sizes.keys() <= memory.used.keys():
            brings = [key for key in sizes if key in memory.coming or key not in memory.used]
            for key in brings:
                memory.coming[key] = memory.coming.get(key, 0) + 1
                self._add(key, device, sizes[key])
            request.brings = tuple(brings)
        self._dispatches += 1
        memory.used.update(dict.fromkeys(sizes, self._dispatches))

    def ended(self, request: QueuedRequest, device: int) -> None:
        """Forget the objects that the request was to bring and that no worker reported as loaded."""
        memory = self._memories[device]
        for key in request.brings:
            if key in memory.coming:
                memory.coming[key] -= 1
                if not memory.coming[key]:
                    del memory.coming[key]
                    self._remove(key, device)

    def moved(self, event: Residency, device: int) -> None:
        """Take in which objects were loaded on a device, and which left it."""
        memory = self._memories[device]
        for key in event.loaded:
            memory.coming.pop(key, None)
            self._add(key, device, self._sizes.get(key, 0))
        for key in event.evicted:
            if key not in memory.coming:
                self._remove(key, device)

    def emptied(self, device: int) -> None:
        """Take in that the worker of a device ended, and its cache with it."""
        memory = self._memories[device]
        memory.coming.clear()
        for key in list(memory.used):
            self._remove(key, device)

    # --- questions of policies

    def reads(self, request: QueuedRequest) -> bool:
        """Return True if the request reads objects that caches can hold."""
        return bool(self._read_by(request))

    def near(self, request: QueuedRequest) -> frozenset[int]:
        """Return the devices that hold at least half of the bytes that the request reads, perhaps none."""
        if request.near_version != self._version:
            sizes = self._read_by(request)
            some = {device for key in sizes for device in self._holders.get(key, ())}
            request.near = frozenset(
                each for each in some if 2 * self._missing_bytes(request, each) <= sum(sizes.values())
            )
            request.near_version = self._version
        return request.near

    def choose(self, request: QueuedRequest, group: WorkerGroup, best: WorkerState, rank: Rank) -> WorkerState:
        """Return the free worker of a group for a request: the least busy one, on the device that suits it.

        Among equal devices the fastest is taken, then the one with most room, then the first by rank. Where objects
        would be evicted, a busier worker on a device that has the request's objects does better. `best` is the
        group's first free worker by rank.
        """
        if len(group.open) == 1 or not self.reads(request) or self._holds(request, best.device.index):
            return best
        least, near = len(best.running), self.near(request)
        idle = (worker for worker in group.open.values() if len(worker.running) == least and not worker.gated)
        compared = list(islice(idle, COMPARED))  # those that are free for the longest time come first
        if len(compared) == COMPARED:
            compared += islice((worker for worker in group.free_on(near) if len(worker.running) == least), COMPARED)

        def order(worker: WorkerState) -> tuple[float, ...]:
            device = worker.device.index
            _, slowness, last = rank(worker)
            return *self._order(request, device), slowness, -self.free_bytes(device), last

        found = min(compared, key=order)
        if near and found.device.index not in near and self._evicts(request, found.device.index):
            return min(group.free_on(near), key=rank, default=found)
        return found

    def free_bytes(self, device: int) -> float:
        """Return the bytes of a device that no object takes; 0 if its size is not known."""
        memory = self._memories[device]
        return 0 if memory.capacity_bytes is None else memory.capacity_bytes - memory.used_bytes

    # --- how well a device suits

    def _holds(self, request: QueuedRequest, device: int) -> bool:
        """Return True if a device has all objects that the request reads."""
        return self._read_by(request).keys() <= self._memories[device].used.keys()

    def _evicts(self, request: QueuedRequest, device: int) -> bool:
        """Return True if a device must evict an object to run a request."""
        return self._loss(self._read_by(request), self._memories[device], self._missing_bytes(request, device))[1] >= 0

    def _order(self, request: QueuedRequest, device: int) -> tuple[float, ...]:
        """Return how well a device suits a request, compared with other devices: the least does best.

        First come devices that hold at least half of the request's bytes, if fewer bytes move there than the request
        reads: by the bytes that move. Then come all others, by their loss: none; or else, where the newest of the
        leaving objects was used longest ago. So no request evicts objects that another one has just brought, as long as
        there is a device with older ones. Among equals the device that lacks least comes first.
        """
        sizes, memory = self._read_by(request), self._memories[device]
        all_bytes, missing_bytes = sum(sizes.values()), self._missing_bytes(request, device)
        reloaded_bytes, newest = self._loss(sizes, memory, missing_bytes)
        moved_bytes = missing_bytes + reloaded_bytes
        if 2 * missing_bytes <= all_bytes and moved_bytes < all_bytes:
            return 0.0, moved_bytes, 0.0
        return 1.0, newest, missing_bytes

    def _loss(self, sizes: Mapping[bytes, int], memory: _Memory, needed_bytes: int) -> tuple[float, float]:
        """Return the bytes that will be loaded anew since they leave for a request, and their last use.

        The last use is the number of the dispatch that last used the newest of them: -1 if nothing leaves, infinite if
        the request does not fit. Objects that were used longest ago leave first, and are the least likely to come back.
        """
        if (
            memory.capacity_bytes is None
            or (excess_bytes := memory.used_bytes + needed_bytes - memory.capacity_bytes) <= 0
        ):
            return 0.0, -1.0
        used, now = memory.used, self._dispatches + 1
        reloaded_bytes = 0.0
        for key in sorted(used.keys() - sizes.keys(), key=lambda key: (used[key], key)):
            reloaded_bytes += RELOADS * self._sizes[key] / (now - used[key])
            excess_bytes -= self._sizes[key]
            if excess_bytes <= 0:
                return reloaded_bytes, used[key]
        return math.inf, math.inf

    # --- state

    def _missing_bytes(self, request: QueuedRequest, device: int) -> int:
        sizes, used = self._read_by(request), self._memories[device].used
        if sizes.keys() <= used.keys():
            return 0
        return sum(nbytes for key, nbytes in sizes.items() if key not in used)

    def _read_by(self, request: QueuedRequest) -> dict[bytes, int]:
        """Return the bytes of the objects that a request reads, by key; empty objects are left out."""
        sizes = request.reads
        if sizes is None:
            uses = request.inputs
            sizes = request.reads = {use.key: use.nbytes for use in uses if use.key is not None and use.nbytes}
            for key in sizes.keys() & self._sizes.keys():
                self._size(key, sizes[key])
        return sizes

    def _size(self, key: bytes, nbytes: int) -> None:
        """Take in that an object has this many bytes at least: a view of an object may be smaller than the object."""
        more_bytes = nbytes - self._sizes[key]
        if more_bytes > 0:
            self._sizes[key] = nbytes
            for device in self._holders[key]:
                self._memories[device].used_bytes += more_bytes

    def _add(self, key: bytes, device: int, nbytes: int) -> None:
        memory = self._memories[device]
        if key in memory.used:
            return
        nbytes = self._sizes.setdefault(key, nbytes)
        memory.used[key] = self._dispatches
        memory.used_bytes += nbytes
        self._holders.setdefault(key, set()).add(device)
        self._version += 1

    def _remove(self, key: bytes, device: int) -> None:
        memory = self._memories[device]
        if key not in memory.used:
            return
        del memory.used[key]
        memory.used_bytes -= self._sizes[key]
        holders = self._holders[key]
        holders.discard(device)
        if not holders:
            del self._holders[key], self._sizes[key]
        self._version += 1

"""The device that suits a request: by the bytes that it lacks there, and by those that leave for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice

from kaas.scheduling.policies.holdings import DeviceMemory, Holdings
from kaas.scheduling.policies.state import QueuedRequest, Rank, WorkerGroup, WorkerState

COMPARED = 64
"""Free workers that are compared for a request, and as many of those whose devices have its objects."""
HOLDERS = 8
"""Free workers that are compared on devices with all objects of a request."""
RELOADS = 10.0
"""Expected loads of an object that is evicted just after its use. Older objects count for less."""


class Locality:
    """Chooses among free workers by what the devices hold."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings

    def choose(self, request: QueuedRequest, group: WorkerGroup, best: WorkerState, rank: Rank) -> WorkerState:
        """Return the free worker of a group for a request: the least busy one, on the device that suits it.

        Among equal devices the fastest is taken, then the one with most room, then the first by rank. Where objects
        would be evicted, a busier worker on a device that has the request's objects does better. `best` is the
        group's first free worker by rank, whose device lacks some of the objects.
        """
        reads = request.reads
        found = self._holder(request, group)
        if found is not None:
            return found
        all_bytes, held, memories = reads.nbytes, reads.held, self._holdings.memories
        least: tuple[float, ...] = (math.inf,)
        device, found = -1, best
        for index, worker in _compared(group, len(best.running), reads.near):
            memory = memories[index]
            room_bytes = memory.free_bytes
            _, slowness, last = rank(worker) if worker.busier else worker.rank
            if index in held or (all_bytes > room_bytes and memory.capacity_bytes is not None):
                if least < (1.0, 0.0) and index not in held:
                    continue  # another device loses nothing
                order: tuple[float, ...] = (*self.suits(request, index), slowness, -room_bytes, last)
            else:  # as `suits` says of devices that hold nothing, and lose nothing
                order = (1.0, -1.0, all_bytes, slowness, -room_bytes, last)
            if order < least:
                least, device, found = order, index, worker
        if reads.near and device not in reads.near and self._evicts(request, device):
            return min(group.free_on(reads.near), key=rank, default=found)
        return found

    def _holder(self, request: QueuedRequest, group: WorkerGroup) -> WorkerState | None:
        """Return the free worker on a device with all objects of a request, where nothing moves: of the first ones.

        None: there is none, or all devices have to be compared.
        """
        holders, free, memories = request.reads.whole, group.open, self._holdings.memories
        if not holders or not group.one_each:
            return None
        fewer, other = (holders, free) if len(holders) < len(free) else (free, holders)
        least: tuple[float, ...] = (math.inf,)
        found, left = None, HOLDERS
        for index in fewer:
            if index not in other:
                continue
            room_bytes = memories[index].free_bytes
            if room_bytes < 0:
                return None
            worker = free[index]
            _, slowness, last = worker.rank  # a worker with one slot is idle, so its rank holds
            order = slowness, -room_bytes, last
            if order < least:
                least, found = order, worker
            left -= 1
            if not left:
                break
        return found

    def suits(self, request: QueuedRequest, device: int) -> tuple[float, ...]:
        """Return how well a device suits a request, compared with other devices: the least does best.

        First come devices that hold at least half of the request's bytes, if fewer bytes move there than the request
        reads: by the bytes that move. Then come all others, by their loss: none; or else, where the newest of the
        leaving objects was used longest ago. So no request evicts objects that another one has just brought, as long as
        there is a device with older ones. Among equals the device that lacks least comes first.
        """
        reads, memory = request.reads, self._holdings.memories[device]
        all_bytes, missing_bytes = reads.nbytes, reads.missing_bytes(device)
        reloaded_bytes, newest = 0.0, -1.0
        if memory.capacity_bytes is not None and missing_bytes > memory.free_bytes:
            reloaded_bytes, newest = self._loss(reads.sizes, memory, missing_bytes)
        moved_bytes = missing_bytes + reloaded_bytes
        if 2 * missing_bytes <= all_bytes and moved_bytes < all_bytes:
            return 0.0, moved_bytes, 0.0
        return 1.0, newest, missing_bytes

    def _evicts(self, request: QueuedRequest, device: int) -> bool:
        """Return True if a device must evict an object to run a request."""
        reads, memory = request.reads, self._holdings.memories[device]
        return self._loss(reads.sizes, memory, reads.missing_bytes(device))[1] >= 0

    def _loss(self, sizes: Mapping[bytes, int], memory: DeviceMemory, needed_bytes: int) -> tuple[float, float]:
        """Return the bytes that will be loaded anew since they leave for a request, and their last use.

        The last use is the number of the dispatch that last used the newest of them: -1 if nothing leaves, infinite if
        the request does not fit. Objects that were used longest ago leave first, and are the least likely to come back.
        """
        if memory.capacity_bytes is None or (excess_bytes := needed_bytes - memory.free_bytes) <= 0:
            return 0.0, -1.0
        used, now = memory.used, self._holdings.dispatches + 1
        reloaded_bytes = 0.0
        for key in memory.oldest_first():
            if key in sizes:
                continue
            nbytes = self._holdings.size(key)
            reloaded_bytes += RELOADS * nbytes / (now - used[key])
            excess_bytes -= nbytes
            if excess_bytes <= 0:
                return reloaded_bytes, used[key]
        return math.inf, math.inf


def _compared(group: WorkerGroup, least: int, near: Mapping[int, None]) -> list[tuple[int, WorkerState]]:
    """Return the workers to compare, by device: those that are free for the longest time, and those near the data."""
    free = group.open
    if group.one_each:
        compared = list(islice(free.items(), COMPARED))
        if len(compared) == COMPARED:
            fewer, other = (near, free) if len(near) < len(free) else (free, near)
            compared += islice([(index, free[index]) for index in fewer if index in other], COMPARED)
        return compared
    idle = (item for item in free.items() if len(item[1].running) == least and not item[1].gated)
    compared = list(islice(idle, COMPARED))
    if len(compared) == COMPARED:
        found = (worker for worker in group.free_on(near) if len(worker.running) == least)
        compared += ((worker.device.index, worker) for worker in islice(found, COMPARED))
    return compared

"""The device that suits a request: by the bytes that it lacks there, and by those that leave for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice

from kaas.scheduling.policies.holdings import DeviceMemory, Holdings
from kaas.scheduling.policies.state import QueuedRequest, Rank, WorkerGroup, WorkerState

COMPARED = 64
"""Free workers that are compared for a request, and as many of those whose devices have its objects."""
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
        least, near, whole = len(best.running), request.reads.near, request.reads.whole
        idle = (worker for worker in group.open.values() if len(worker.running) == least and not worker.gated)
        compared = list(islice(idle, COMPARED))  # those that are free for the longest time come first
        if len(compared) == COMPARED:
            compared += islice((worker for worker in group.free_on(near) if len(worker.running) == least), COMPARED)
        memories = self._holdings.memories
        holders = [worker for worker in compared if worker.device.index in whole] if whole else []
        if holders and all(memories[worker.device.index].free_bytes >= 0 for worker in holders):
            # nothing moves there, so none of the others suits as well
            return min(holders, key=lambda w: ((place := rank(w))[1], -memories[w.device.index].free_bytes, place[2]))

        def order(worker: WorkerState) -> tuple[float, ...]:
            device = worker.device.index
            _, slowness, last = rank(worker)
            return *self.suits(request, device), slowness, -memories[device].free_bytes, last

        found = min(compared, key=order)
        if near and found.device.index not in near and self._evicts(request, found.device.index):
            return min(group.free_on(near), key=rank, default=found)
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

"""Requests that fit some devices of their group only: they wait for one of these, and hold no other request up.

An order gives a request and a free worker without a look at the device's size. A request that does not fit there goes
to another free worker; if it fits none, it leaves its order until one is free that it fits. Then the first such request
of each client is back in the order, which decides anew.
"""

from __future__ import annotations

from kaas.scheduling.policies.holdings import Holdings
from kaas.scheduling.policies.reclaiming import usable
from kaas.scheduling.policies.state import QueuedRequest, Rank, WorkerGroup, WorkerState


class Oversized:
    """The requests that wait for larger devices. There are none unless `Holdings.uneven`."""

    def __init__(self, holdings: Holdings) -> None:
        self._memories = holdings.memories

    def worker_for(self, request: QueuedRequest, worker: WorkerState, rank: Rank) -> WorkerState | None:
        """Return the free worker that a request goes to which its order gives to a worker; None: it has to wait.

        A request that fits no device of its group goes where its order sends it, and fails there.
        """
        if self._fits(request, worker.device.index):
            return worker
        group = request.group
        free = [each for each in group.open.values() if self._fits(request, each.device.index) and not each.gated]
        if free:
            return min(free, key=rank)
        if not self._may_wait(request, group):
            return worker
        group.order.drop(request)
        group.aside.setdefault(request.share, {})[request.id] = request
        return None

    def bring_back(self, group: WorkerGroup) -> None:
        """Put the first one of each client into the order again, if it fits a free worker, or no device any more."""
        for own in list(group.aside.values()):
            request = next(iter(own.values()))
            if any(self._fits(request, index) for index in group.open) or not self._may_wait(request, group):
                self.give_back(request)

    def give_back(self, request: QueuedRequest) -> None:
        """Put a request into its order again, if it waits here."""
        group = request.group
        own = group.aside.get(request.share, {})
        if own.pop(request.id, None) is not None:
            if not own:
                del group.aside[request.share]
            group.order.add(request)

    def _fits(self, request: QueuedRequest, device: int) -> bool:
        capacity_bytes = self._memories[device].capacity_bytes
        return capacity_bytes is None or request.reads.nbytes <= capacity_bytes

    def _may_wait(self, request: QueuedRequest, group: WorkerGroup) -> bool:
        """Return True if a worker of the group, or one that will start for it, has a device that a request fits."""
        partition = group.partition
        devices = [worker.device for worker in group.workers.values() if not worker.stopping]
        if partition.home == group.serves:
            devices += [each for each in partition.devices if each.index in partition.free and usable(each, group)]
        return any(self._fits(request, device.index) for device in devices)

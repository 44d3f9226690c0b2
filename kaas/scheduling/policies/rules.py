"""The rules of a policy, each with a default, and the state that they look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from kaas.scheduling.events import PhysicalDevice, Utilisation, WorkerKind
from kaas.scheduling.policies.cache_orders import CacheOrders
from kaas.scheduling.policies.estimates import Estimates
from kaas.scheduling.policies.fair_share import ClientShare, FairShare
from kaas.scheduling.policies.holdings import Holdings
from kaas.scheduling.policies.locality import Locality
from kaas.scheduling.policies.orders import HeapOrder
from kaas.scheduling.policies.placement import Placement
from kaas.scheduling.policies.state import (
    Partition,
    QueuedRequest,
    RequestOrder,
    Serves,
    WorkerGroup,
    WorkerState,
    partition,
)

SHARED = Serves(WorkerKind.EXECUTOR)
"""The group of executors that run the kTasks of all clients."""


class Rules:
    """What a policy may decide by itself: a subclass of `Scheduler` overrides some of these methods."""

    work_conserving: ClassVar[bool] = False
    fair: ClassVar[bool] = False
    """Clients that always have requests waiting get device time by their weights. Tests check it."""
    conserving_devices: ClassVar[bool] = True
    """A group without requests gives its idle workers to any group that waits, whatever the sizes."""

    def __init__(self, devices: Sequence[PhysicalDevice]) -> None:
        self._fair_share = FairShare(len(devices))
        self._holdings = Holdings(devices)
        self._locality = Locality(self._holdings)
        self._estimates = Estimates()
        self._placement = Placement(
            self.partitions(devices), self._fair_share, self.rank, self.order, conserving=self.conserving_devices
        )
        self._cache_orders = CacheOrders(self._holdings, self._placement)
        self._now_s = 0.0

    def partitions(self, devices: Sequence[PhysicalDevice]) -> list[Partition]:
        """Return the devices by the groups that compete for them: here all, with an executor on each free one."""
        return [partition(devices, home=SHARED)]

    def place(self, kind: WorkerKind, client: str, function: str) -> tuple[Serves, Partition]:
        """Return which requests wait together, and where: here all kTasks, and each function's eTasks by client."""
        serves = SHARED if kind is WorkerKind.EXECUTOR else Serves(kind, client, function)
        return serves, self._placement.partitions[0]

    def rank(self, worker: WorkerState) -> tuple[float, float, float]:
        """Return the order of free workers: here the least busy, the fastest, then the lowest device."""
        return len(worker.running), -worker.device.spec.speed, worker.device.index

    def suited(self, request: QueuedRequest) -> WorkerState | None:
        """Return the free worker for a request: of the least busy ones the one on the device that suits it."""
        group = request.group
        best = self._placement.best(group)
        return None if best is None else self._locality.choose(request, group, best, self.rank)

    def order(self, serves: Serves) -> RequestOrder:  # noqa: ARG002 - a policy may have others for some requests
        """Return the order of a new group's requests: here the oldest of the highest priority goes next."""
        return HeapOrder(self.suited)

    def urgency(self, group: WorkerGroup, provided: int = 0) -> tuple[float, ...]:
        """Return the order of groups, the least first; `provided` requests have workers on the way."""
        return min((-request.share.priority, request.id) for request in group.next(provided))

    def victims(self, request: QueuedRequest, worker: WorkerState) -> tuple[bytes, ...]:  # noqa: ARG002
        """Return the objects that a worker gives up first for a request: here those of its cache's own rule."""
        return ()

    def estimated(self, function: str) -> None:
        """Take in that the estimates of a function have changed: here no order needs them."""

    def recharged(self, share: ClientShare) -> None:
        """Take in that the charge, the means or the last device of a client have changed: here no order needs them."""

    def measured(self, event: Utilisation) -> None:
        """Take in a device's utilisation, which a policy with `utilisation_every_s` gets: here it changes nothing."""

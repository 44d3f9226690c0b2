"""The rules that a policy may have of its own, each with a default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from kaas.scheduling import events
from kaas.scheduling.policies.fair_share import FairShare
from kaas.scheduling.policies.locality import Locality
from kaas.scheduling.policies.orders import PriorityOrder
from kaas.scheduling.policies.placement import Placement
from kaas.scheduling.policies.state import (
    SHARED,
    Partition,
    QueuedRequest,
    RequestOrder,
    Serves,
    WorkerGroup,
    WorkerState,
    partition,
)
from kaas.scheduling.sharing.load import RecentLoad, trend


class Rules:
    """The decisions that a policy may make in its own way. `Scheduler` asks."""

    work_conserving: ClassVar[bool] = False
    fair: ClassVar[bool] = False
    """Clients that always have requests waiting get device time by their weights. Tests check it."""
    conserving_devices: ClassVar[bool] = True
    """A group without requests gives its idle workers to any group that waits, whatever the sizes."""
    _fair_share: FairShare
    _locality: Locality
    _placement: Placement

    def partitions(self, devices: Sequence[events.PhysicalDevice]) -> list[Partition]:
        """Return the devices by the groups that compete for them: here all, with an executor on each free one."""
        return [partition(devices, home=SHARED)]

    def rank(self, worker: WorkerState) -> tuple[float, float, float]:
        """Return the order of free workers: here the least busy, the fastest, then the lowest device."""
        return len(worker.running), -worker.device.spec.speed, worker.device.index

    def suited(self, request: QueuedRequest) -> WorkerState | None:
        """Return the free worker for a request: of the least busy ones the one on the device that suits it."""
        group = request.group
        best = self._placement.best(group)
        reads = request.reads
        if best is None or len(group.open) == 1 or not reads.nbytes or best.device.index in reads.whole:
            return best
        return self._locality.choose(request, group, best, self.rank)

    def order(self, serves: Serves) -> RequestOrder:  # noqa: ARG002 - a policy may have others for some requests
        """Return the order of a new group's requests: here that of `fcfs`, by arrival."""
        return PriorityOrder(self.suited)

    def urgency(self, group: WorkerGroup, provided: int = 0) -> tuple[float, ...]:
        """Return the order of groups, the least first; `provided` requests have workers on the way."""
        return min((-request.share.priority, request.id) for request in group.next(provided))

    def victims(self, request: QueuedRequest, worker: WorkerState) -> tuple[bytes, ...]:  # noqa: ARG002
        """Return the objects that a worker, which lacks some, gives up first: here those of its cache's own rule."""
        return ()

    def predicted_rate(self, recent: RecentLoad) -> float:
        """Return the requests a second to be expected of a function with a promise of latency: here by its trend."""
        return trend(recent)

    def measured(self, event: events.Utilisation) -> None:
        """Take in a device's utilisation, which a policy with `utilisation_every_s` gets: here it changes nothing."""

    def wake_at(self, time_s: float) -> None:
        """Ask for a Tick, for an order whose decisions depend on the time."""
        self._fair_share.wake_s = min(time_s, self._fair_share.wake_s or time_s)

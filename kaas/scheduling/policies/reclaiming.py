"""The choice of a worker that gives its device to a waiting group: the paper's Exclusive rule (§4.1.4), by weight."""

from __future__ import annotations

from collections.abc import Callable

from kaas.scheduling.events import WorkerKind
from kaas.scheduling.policies.fair_share import NO_CLIENT, FairShare
from kaas.scheduling.policies.state import DeviceState, WorkerGroup, WorkerState

FAILED_STARTS = 3
"""Workers in a row that may fail to start before a device is given up, or the requests of a group."""


def usable(device: DeviceState, group: WorkerGroup) -> bool:
    """Return True unless workers do not start on the device.

    Failures of a single function alone count for that function only: the function may be the cause.
    """
    if device.failures < FAILED_STARTS:
        return True
    return device.failed != {group.serves} and all(s.kind is WorkerKind.ETASK for s in device.failed)


def preference(device: DeviceState, needed_bytes: int) -> tuple[float, ...]:
    """Return the order of free devices for a request that reads so many bytes: the least is taken first.

    A device that is large enough comes before smaller ones, one where workers start before others, then one without
    workers, then one with fewer, then the faster one.
    """
    memory_bytes = device.spec.memory_bytes
    smaller = memory_bytes is not None and memory_bytes < needed_bytes
    busy = sum(bool(worker.running) for worker in device.workers.values())
    size = len(device.workers)
    return smaller, device.failures, size > 0, busy, size, -device.spec.speed, device.index


class Reclaiming:
    """Chooses workers whose devices go to waiting groups; changes nothing.

    Fields:
        exhausted: `choose` found no worker because all devices are reserved: no group has a device to give now.
    """

    def __init__(self, fair_share: FairShare, unheld: Callable[[WorkerGroup], int], *, conserving: bool) -> None:
        """Take the clients' shares, and what counts a group's waiting requests that limits do not hold back.

        A `conserving` policy gives idle workers of a group without such requests to any group that waits, whatever the
        sizes.
        """
        self._fair_share = fair_share
        self._unheld = unheld
        self._conserving = conserving
        self.exhausted = False

    def choose(self, group: WorkerGroup) -> WorkerState | None:
        """Return a worker whose device the group may get, or None."""
        partition = group.partition
        others = [other for other in partition.holding.values() if other is not group and other.workers]
        if self._conserving:
            spare = [worker for other in others for worker in self._spare(other) if self._may_go(worker, group)]
            spare = [
                worker
                for worker in spare
                if not any(w.running or self._unheld(w.group) for w in leaving_workers(worker, group))
            ]
            if spare:
                return min(spare, key=lambda worker: (worker.used, worker.device.index))
        holding = {other.serves: self.relative(other) for other in partition.holding.values()}
        if partition.shared_places and group.serves.kind is WorkerKind.ETASK:
            larger = [other for other in others if self.smaller(group, holding[other.serves])]
            idle = [w for other in larger for w in other.workers.values() if not w.running and self._may_go(w, group)]
            if idle:
                return min(idle, key=lambda worker: (worker.used, worker.device.index))
        if not holding or not self.smaller(group, max(holding.values())):
            return None
        giving = [other for other in others if any(self._may_go(worker, group) for worker in other.workers.values())]
        if not giving:
            self.exhausted = not self._conserving and not partition.shared_places
            return None
        most = max(holding[other.serves] for other in giving)
        if not self.smaller(group, most):
            return None
        gives = {other: self._first_to_go(other, group) for other in giving if holding[other.serves] == most}
        late = {other: self._conserving and self._soonest(worker)[0] for other, worker in gives.items()}
        return gives[min(gives, key=lambda other: (late[other], other.shrank_at, other.born))]

    def smaller(self, group: WorkerGroup, size: float) -> bool:
        """Return True if a group may take a device from a group of this size by weight.

        With one more device the group must be no larger than the other one was before. For equal weights it has fewer
        devices. A group without a device may always take one.
        """
        return size > 0 and (group.size == 0 or (group.size + 1) / self._weight(group) <= size)

    def relative(self, group: WorkerGroup) -> float:
        """Return the devices of a group, divided by its weight."""
        return group.size / self._weight(group)

    def _weight(self, group: WorkerGroup) -> float:
        if group.serves.client:
            return self._fair_share.weight(group.serves.client)
        clients = {*group.clients}
        clients.update(r.share for w in group.workers.values() for r in w.running.values() if r.share is not NO_CLIENT)
        return sum(share.weight for share in clients) or 1.0

    def _may_go(self, worker: WorkerState, reservation: WorkerGroup) -> bool:
        """Return True if the device of a worker may be reserved for another group.

        No other group has reserved it; and if workers share the device, or must not idle, the worker has run a request
        or no request that may go waits for it.
        """
        device = worker.device
        if device.reservation is not None or worker.stopping or not usable(device, reservation):
            return False
        if not self._conserving and not device.partition.shared_places:
            return True
        leaving = leaving_workers(worker, reservation)
        if any(other.group is reservation and other not in leaving for other in device.workers.values()):
            return False
        return not any(self.awaited(other) for other in leaving)

    def awaited(self, worker: WorkerState) -> bool:
        """Return True if a request that may go waits for a worker, the first that the worker will run."""
        return worker.starting or (not worker.served and self._unheld(worker.group) > 0)

    def _spare(self, group: WorkerGroup) -> list[WorkerState]:
        """Return the idle workers of a group without requests that may go; of executors all but one."""
        keep = 0 if group.serves.kind is WorkerKind.ETASK else 1
        spare = group.size > keep and not (group.running or self._unheld(group))
        return list(group.workers.values()) if spare else []

    def _first_to_go(self, group: WorkerGroup, reservation: WorkerGroup) -> WorkerState:
        able = (worker for worker in group.workers.values() if self._may_go(worker, reservation))
        return min(able, key=self._soonest)

    def _soonest(self, worker: WorkerState) -> tuple[float, ...]:
        """Return the order of workers: idle ones first, then those that are free soonest."""
        return bool(worker.running) or self.awaited(worker), worker.ends_s, worker.device.index


def leaving_workers(worker: WorkerState, reservation: WorkerGroup) -> list[WorkerState]:
    """Return the workers that must leave the device: one eTask worker, or all for an executor."""
    if reservation.serves.kind is WorkerKind.ETASK:
        return [worker]
    return [other for other in worker.device.workers.values() if not other.stopping]

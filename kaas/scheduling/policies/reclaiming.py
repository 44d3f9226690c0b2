"""The choice of a worker that gives its device to a waiting group: the paper's Exclusive rule (§4.1.4), by weight.

Where devices must not idle, a worker that has got another group's device has a turn there: otherwise two groups could
take the device from each other for each request, and workers would do little but start.
"""

from __future__ import annotations

from collections.abc import Callable

from kaas.scheduling.events import WorkerKind
from kaas.scheduling.policies.fair_share import NO_CLIENT, SHORTEST_WAIT_S, FairShare
from kaas.scheduling.policies.state import DeviceState, WorkerGroup, WorkerState

FAILED_STARTS = 3
"""Workers in a row that may fail to start before a device is given up, or the requests of a group."""
TURN = 4.0
"""The turn of a worker, in starts as long as its own: where requests always wait, starts take a fifth of the time."""


def usable(device: DeviceState, group: WorkerGroup) -> bool:
    """Return True if a worker of a group may be started on the device: it is there, and workers start there."""
    return not device.away and starts(device, group)


def starts(device: DeviceState, group: WorkerGroup) -> bool:
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
    """Chooses workers whose devices go to waiting groups; changes nothing but the time at which the policy wakes.

    Fields:
        exhausted: `choose` found no worker because all devices are reserved: no group has a device to give now.
        now_s: set by the owner before `choose`.
    """

    now_s = 0.0

    def __init__(self, fair_share: FairShare, unheld: Callable[[WorkerGroup], int], *, conserving: bool) -> None:
        """Take the clients' shares, and what counts a group's waiting requests that limits do not hold back.

        A `conserving` policy gives idle workers of a group without such requests to any group that waits, whatever the
        sizes; and its workers have turns.
        """
        self._fair_share = fair_share
        self._unheld = unheld
        self._conserving = conserving
        self.exhausted = False

    def choose(self, group: WorkerGroup) -> WorkerState | None:
        """Return a worker whose device the group may get, or None."""
        partition = group.partition
        others = [other for other in partition.holding.values() if other is not group and other.workers]
        workers = [worker for other in others for worker in other.workers.values()] if self._conserving else []
        if spare := [worker for worker in workers if self._spare(worker, group)]:
            return min(spare, key=lambda worker: (worker.used, worker.device.index))
        holding = {other.serves: self.relative(other) for other in partition.holding.values()}
        if not holding or not self.smaller(group, max(holding.values())):
            return None
        able = {other: [w for w in other.workers.values() if self._may_be_taken(w, group)] for other in others}
        if partition.shared_places and group.serves.kind is WorkerKind.ETASK:
            larger = [other for other in others if self.smaller(group, holding[other.serves])]
            idle = [worker for other in larger for worker in able[other] if not worker.running]
            if idle:
                return min(idle, key=lambda worker: (worker.used, worker.device.index))
        giving = [other for other in others if able[other]]
        if not giving:
            self.exhausted = not self._conserving and not partition.shared_places
            return None
        most = max(holding[other.serves] for other in giving)
        if not self.smaller(group, most):
            return None
        gives = {other: min(able[other], key=self._soonest) for other in giving if holding[other.serves] == most}
        late = {other: self._conserving and self._soonest(worker)[0] for other, worker in gives.items()}
        return gives[min(gives, key=lambda other: (late[other], other.shrank_at, other.born))]

    def smaller(self, group: WorkerGroup, size: float) -> bool:
        """Return True if a group may take a device from a group of this size by weight.

        With one more device the group must be no larger than the other one was before. For equal weights it has fewer
        devices. A group without a device may always take one. If the other group could take the device back at once, a
        group that has given one up waits for the turn of the next worker there: the two do not swap devices.
        """
        with_it = (group.size + 1) / self._weight(group)
        return with_it < size or (size > 0 and (group.size == 0 or with_it == size) and not self._awaits_turn(group))

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

    def _may_be_taken(self, worker: WorkerState, reservation: WorkerGroup) -> bool:
        """Return True if a group that may take a device may take that of a worker: no worker there has its turn."""
        return self._may_go(worker, reservation) and not any(map(self._keeps, leaving_workers(worker, reservation)))

    def awaited(self, worker: WorkerState) -> bool:
        """Return True if a request that may go waits for a worker, the first that the worker will run."""
        return worker.starting or (not worker.dispatches and self._unheld(worker.group) > 0)

    def _keeps(self, worker: WorkerState) -> bool:
        """Return True in a worker's turn, which begins when another group gives up a device for it.

        A turn ends `TURN` times as long after the worker's start as that start took; earlier, if the group has no
        requests, once the worker has been idle for as long as the start took. The policy is woken at the end.
        """
        if not self._conserving or worker.taken_s is None:
            return False
        if worker.starting:
            return True
        ends_s = worker.taken_s + (1.0 + TURN) * worker.start_s
        if not worker.running and not self._unheld(worker.group):
            ends_s = min(ends_s, worker.freed_s + worker.start_s)
        if ends_s - self.now_s <= SHORTEST_WAIT_S:
            return False
        self._fair_share.wake_s = min(ends_s, self._fair_share.wake_s or ends_s)
        return True

    def _awaits_turn(self, group: WorkerGroup) -> bool:
        """Return True while another group has its turn on the device that a group has given up last."""
        device = group.gave
        if device is None or not self._conserving:
            return False
        taken = device.reservation not in {None, group}
        return taken or any(self._keeps(worker) for worker in device.workers.values() if worker.group is not group)

    def _spare(self, worker: WorkerState, reservation: WorkerGroup) -> bool:
        """Return True if a worker goes to any group that waits: the groups of all that leave can do without them.

        They have no requests that may go; and they have other workers, or are of eTasks, and not in their turn.
        """
        leaving = leaving_workers(worker, reservation)
        if not self._may_go(worker, reservation) or any(
            other.group.running or self._unheld(other.group) for other in leaving
        ):
            return False
        return all(
            w.group.size > 1 or (w.group.serves.kind is WorkerKind.ETASK and not self._keeps(w)) for w in leaving
        )

    def _soonest(self, worker: WorkerState) -> tuple[float, ...]:
        """Return the order of workers: idle ones first, then those that are free soonest."""
        return bool(worker.running) or self.awaited(worker), worker.ends_s, worker.device.index


def leaving_workers(worker: WorkerState, reservation: WorkerGroup) -> list[WorkerState]:
    """Return the workers that must leave the device: one eTask worker, or all for an executor."""
    if reservation.serves.kind is WorkerKind.ETASK:
        return [worker]
    return [other for other in worker.device.workers.values() if not other.stopping]

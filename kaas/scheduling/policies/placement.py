"""Devices and their workers: the group that starts a worker on a device, and the group that gives a device up.

A group whose requests wait takes a device without a worker, else one of the largest group if that stays no smaller than
itself (the paper's Exclusive policy, §4.1.4). Such a device is reserved until the group's worker has run there once:
without the reservation two groups could take the device from each other for ever.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable, Sequence

from kaas.errors import PolicyError
from kaas.scheduling.decisions import Decision, StartWorker, StopWorker
from kaas.scheduling.events import WorkerAdopted, WorkerGone, WorkerKind, WorkerReady
from kaas.scheduling.policies.fair_share import FairShare
from kaas.scheduling.policies.reclaiming import FAILED_STARTS, Reclaiming, leaving_workers, preference, starts, usable
from kaas.scheduling.policies.state import (
    DeviceState,
    Partition,
    QueuedRequest,
    Rank,
    RequestOrder,
    Serves,
    WorkerGroup,
    WorkerState,
)


class Placement:
    """The state of devices, workers and groups. Decisions are appended to `decisions`.

    Args:
        partitions: the devices, by the groups that compete for them. rank: the order in which free workers are used; a
            dispatch to a worker never brings the worker forward. order: makes the order of a new group's requests.
        conserving: a group without requests gives its idle workers to any group that waits, whatever the sizes.
    """

    def __init__(
        self,
        partitions: Iterable[Partition],
        fair_share: FairShare,
        rank: Rank,
        order: Callable[[Serves], RequestOrder],
        *,
        conserving: bool,
    ) -> None:
        self.partitions = list(partitions)
        self.devices = {device.index: device for partition in self.partitions for device in partition.devices}
        self.workers: dict[int, WorkerState] = {}
        self.groups: dict[Serves, WorkerGroup] = {}
        self.decisions: list[Decision] = []
        self._fair_share = fair_share
        self._rank = rank
        self.order = order
        self._conserving = conserving
        self._changes = 0
        self._next_worker = 0
        self._last_failure = ""
        self._reclaiming = Reclaiming(fair_share, self.unheld, conserving=conserving)
        self.reserved: dict[int, WorkerState] = {}  # those whose devices are reserved for other groups
        for partition in self.partitions:
            partition.free = {device.index for device in partition.devices}
            partition.shared_places = any(device.spec.etask_workers > 1 for device in partition.devices)

    def group(self, serves: Serves, partition: Partition, *, born: int | None = None) -> WorkerGroup:
        """Return the group that serves these requests in a partition; the group is new if none did.

        `born` is the device of an adopted worker, if the group is known from that worker before any request.
        """
        group = self.groups.get(serves)
        if group is None:
            since = (1, self._change()) if born is None else (0, born)
            group = WorkerGroup(serves, partition, since, self.order(serves))
            self.groups[serves] = group
        return group

    def forget(self, waiting: Container[WorkerGroup]) -> None:
        """Forget the groups without workers and without waiting requests, and when they last gave up a device."""
        for serves, group in list(self.groups.items()):
            if group not in waiting and not group.workers and not group.reserved:
                del self.groups[serves]

    def _change(self) -> int:
        self._changes += 1
        return self._changes

    # --- workers come and go

    def adopt(self, event: WorkerAdopted, group: WorkerGroup) -> WorkerState:
        """Add a worker of an earlier epoch of the pool, and stop workers that were to start in its place."""
        device = self.devices[event.device]
        self._next_worker = max(self._next_worker, event.worker + 1)
        worker = self._add(event.worker, device, group)
        worker.starting = False
        worker.dispatches = len(event.running)
        taken = {running.slot for running in event.running}
        self._open(worker, [slot for slot in range(event.slots) if slot not in taken], event.slots)
        for other in list(device.workers.values()):
            if other.starting and not other.stopping and WorkerKind.EXECUTOR in (event.kind, other.group.serves.kind):
                self.stop(other)
        return worker

    def known(self, number: int) -> WorkerState:
        """Return the worker with a number.

        Raises:
            PolicyError: there is none.
        """
        if number not in self.workers:
            raise PolicyError(f"no such worker: {number}")
        return self.workers[number]

    def ready(self, event: WorkerReady) -> WorkerState:
        """Open the slots of a worker that has started.

        Raises:
            PolicyError: no such worker was starting.
        """
        worker = self.workers.get(event.worker)
        if worker is None or not worker.starting:
            raise PolicyError(f"worker {event.worker} was not starting")
        worker.starting = False
        if worker.taken_s is not None:
            worker.start_s = event.time_s - worker.taken_s
        worker.group.coming -= not worker.stopping
        worker.group.failures = 0
        worker.device.failures = 0
        worker.device.failed.clear()
        self._open(worker, range(event.slots), event.slots)
        return worker

    def _open(self, worker: WorkerState, slots: Sequence[int], of: int) -> None:
        worker.group.slots = of
        worker.group.most_slots = max(worker.group.most_slots, of)
        worker.free = [(self._change(), slot) for slot in reversed(slots)]
        self.offer(worker)

    def gone(self, event: WorkerGone) -> WorkerState:
        """Remove a worker that has ended, and return it. A worker that never started counts as a failed start."""
        worker = self.known(event.worker)
        del self.workers[worker.id]
        device, group = worker.device, worker.group
        del device.workers[worker.id], group.workers[worker.id]
        group.close(worker)
        worker.version += 1
        device.partition.alive -= 1
        group.leaving -= worker.stopping or worker.last
        self.reserved.pop(worker.id, None)
        if worker.starting and not worker.stopping:
            group.coming -= 1
            self._failed(device, group, event.reason)
        self.held_by(group)
        self.free(device)
        return worker

    def free(self, device: DeviceState) -> None:
        """Let any group have a device that has no worker, unless it is reserved or away."""
        if not device.workers and device.reservation is None and not device.away:
            device.partition.free.add(device.index)

    def _failed(self, device: DeviceState, group: WorkerGroup, reason: str) -> None:
        self._last_failure = group.last_failure = reason
        group.failures += 1
        device.failures += 1
        device.failed.add(group.serves)

    def no_start_reason(self, group: WorkerGroup) -> str | None:
        """Return the reason if no worker of a group can ever start, else None."""
        if group.workers or group.reserved:
            return None
        devices = group.partition.devices
        if not devices:
            return group.partition.why_empty
        if group.serves.kind is WorkerKind.ETASK and group.failures >= FAILED_STARTS:
            group.failures = FAILED_STARTS - 1  # a later request may try once more
            return f"its worker does not start: {group.last_failure}"
        if not any(starts(device, group) for device in devices):
            return f"no device of the pool starts: {group.last_failure or self._last_failure}"
        return None

    # --- slots

    def offer(self, worker: WorkerState) -> None:
        """Give a worker its place among the workers of its group.

        Call it after each change that may make the worker a better choice. `best` handles changes that make the worker
        a worse one.
        """
        group = worker.group
        worker.version = version = worker.version + 1
        worker.busier = False
        if not worker.free or worker.stopping or worker.alone is not None or worker.closed:  # not worker.usable
            group.close(worker)
            return
        group.open[worker.device.index] = worker
        offers = group.offers
        if len(offers) > 64 + 4 * len(group.workers):
            offers[:] = [offer for offer in offers if offer[-1].version == offer[-2]]
            heapq.heapify(offers)
        worker.rank = rank = self._rank(worker)
        heapq.heappush(offers, (*rank, worker.id, version, worker))

    def best(self, group: WorkerGroup) -> WorkerState | None:
        """Return the worker that a request of a group should take, or None if no worker is free."""
        offers, gated = group.offers, []
        while offers:
            offer = offers[0]
            worker = offer[-1]
            if worker.version != offer[-2]:
                heapq.heappop(offers)
            elif worker.busier:
                heapq.heappop(offers)
                self.offer(worker)
            elif len(worker.device.workers) > 1 and worker.gated:
                gated.append(heapq.heappop(offers))
            else:
                break
        found = offers[0][-1] if offers else None
        for offer in gated:
            heapq.heappush(offers, offer)
        return found

    def take_slot(self, worker: WorkerState, request: QueuedRequest) -> int:
        """Take the slot of a worker that was freed last for a request, and return its number."""
        _, slot = worker.free.pop()
        worker.busier = True
        worker.running[request.id] = request
        worker.dispatches += 1
        self._changes += 1
        worker.used = self._changes
        worker.group.running += 1
        if request.alone:
            worker.alone = request
        if not worker.free or worker.alone is not None:
            worker.version += 1  # its offer is no longer valid
            worker.group.close(worker)
        return slot

    def free_slot(self, worker: WorkerState, slot: int, request: QueuedRequest) -> None:
        """Free a slot of a worker."""
        del worker.running[request.id]
        self._changes += 1
        worker.free.append((self._changes, slot))
        worker.used, worker.freed_s = self._changes, self.now_s
        worker.group.running -= 1
        if worker.alone is request:
            worker.alone = None
        self.offer(worker)

    # --- starting and stopping

    def _add(self, number: int, device: DeviceState, group: WorkerGroup) -> WorkerState:
        worker = WorkerState(number, device, group)
        self.workers[number] = device.workers[number] = group.workers[number] = worker
        device.partition.free.discard(device.index)
        device.partition.alive += 1
        self.held_by(group)
        return worker

    def held_by(self, group: WorkerGroup) -> None:
        """Take in that the devices of a group have changed."""
        if group.size:
            group.partition.holding[group.serves] = group
        else:
            group.partition.holding.pop(group.serves, None)

    def start(self, group: WorkerGroup, device: DeviceState, *, taken_s: float | None = None) -> None:
        """Start a worker of a group on a device; `taken_s`: now, if another group has given the device up."""
        worker = self._add(self._next_worker, device, group)
        worker.taken_s = taken_s
        worker.expected_s = self.now_s + self._fair_share.mean_s(group.serves.client)
        group.coming += 1
        self.decisions.append(StartWorker(self._next_worker, group.serves.kind, device.index, *group.serves[1:]))
        self._next_worker += 1

    def reserve_after(self, worker: WorkerState) -> None:
        """Let a worker run its first request, and then give its device to the group that has reserved it.

        Otherwise a group that has just taken the device could lose it before its first run.
        """
        worker.last = True
        self.reserved[worker.id] = worker
        worker.group.leaving += 1
        self.held_by(worker.group)

    def settle_reservations(self) -> None:
        """Stop the workers that got their first request, or for which no request waits that may go."""
        for worker in [each for each in self.reserved.values() if each.dispatches or not self.unheld(each.group)]:
            self.stop(worker)

    def stop(self, worker: WorkerState) -> None:
        """Stop a worker; a busy one ends its requests first."""
        worker.stopping, group = True, worker.group
        group.leaving += not worker.last
        self.reserved.pop(worker.id, None)
        group.coming -= worker.starting
        if worker.alone is not None and worker.alone.worker is None:
            worker.alone = None
        worker.version += 1
        group.close(worker)
        self.held_by(group)
        self.decisions.append(StopWorker(worker.id))

    def stop_idle(self, client: str) -> None:
        """Stop the workers of a client for which no request waits."""
        for group in [group for group in self.groups.values() if group.serves.client == client and not group.ready]:
            for worker in [worker for worker in group.workers.values() if not worker.stopping]:
                self.stop(worker)

    # --- giving devices to groups

    def wants(self, group: WorkerGroup) -> int:
        """Return how many workers a group lacks for its requests. Requests that limits hold back do not count."""
        return -(-self.unheld(group) // group.slots) - group.coming - group.reserved

    def unheld(self, group: WorkerGroup) -> int:
        """Return how many requests of a group wait that limits do not hold back."""
        return group.ready and group.ready - self._fair_share.held_back(group.clients, self.now_s)

    now_s = 0.0
    """Set by the owner at each event."""

    def serve(self, partition: Partition, urgency: Callable[[WorkerGroup, int], tuple[float, ...]]) -> None:
        """Give the free devices, and those that may be taken from other groups, to groups that wait.

        The next device goes to the group whose first request without a worker on the way is the most urgent.
        """
        # a group could get a free device, or one of another group
        free, alive = bool(partition.free), partition.alive
        waiting = list(partition.waiting.values())
        if len(waiting) == 1 and not free and alive == len(waiting[0].workers):
            return
        waiting = [group for group in waiting if free or alive > len(group.workers)]
        if not partition.free and not self._conserving and not partition.shared_places:
            largest = max((self._reclaiming.relative(group) for group in partition.holding.values()), default=0.0)
            waiting = [group for group in waiting if self._reclaiming.smaller(group, largest)]
        order = [(urgency(group, group.provided), group.born, group) for group in waiting if self.wants(group) > 0]
        heapq.heapify(order)
        self._reclaiming.exhausted, self._reclaiming.now_s = False, self.now_s
        while order and not (self._reclaiming.exhausted and not partition.free):
            group = heapq.heappop(order)[-1]
            if self._find(group) and self.wants(group) > 0:
                heapq.heappush(order, (urgency(group, group.provided), group.born, group))
        if partition.home is not None and partition.free:
            home = self.group(partition.home, partition)
            for index in sorted(partition.free):
                if usable(self.devices[index], home):
                    self.start(home, self.devices[index])

    def inherit(self, device: DeviceState) -> None:
        """Start a worker of the group that has reserved a device, after a worker there has ended."""
        reservation = device.reservation
        if reservation is None or not self._has_room(device, reservation):
            return
        device.reservation = None
        reservation.reserved -= 1
        if usable(device, reservation) and self.wants(reservation) > 0:
            self.start(reservation, device, taken_s=self.now_s)
        else:
            self.held_by(reservation)
            self.free(device)

    def _find(self, group: WorkerGroup) -> bool:
        """Get one more device for a group. Return True if there was one."""
        device = self._free_device(group)
        if device is not None:
            self.start(group, device)
            return True
        worker = self._reclaiming.choose(group)
        if worker is None:
            return False
        worker.device.reservation = group
        group.reserved += 1
        for leaving in leaving_workers(worker, group):
            leaving.group.shrank_at, leaving.group.gave = self._change(), worker.device
            if self._reclaiming.awaited(leaving):
                self.reserve_after(leaving)
            else:
                self.stop(leaving)
        self.held_by(group)
        return True

    def _free_device(self, group: WorkerGroup) -> DeviceState | None:
        partition = group.partition
        free = [self.devices[index] for index in partition.free]
        if partition.shared_places and group.serves.kind is WorkerKind.ETASK:
            free += [d for d in partition.devices if d.workers and d.reservation is None and self._has_room(d, group)]
        needed_bytes = max((request.reads.nbytes for request in group.next()), default=0)
        free = [device for device in free if usable(device, group)]
        return min(free, default=None, key=lambda device: preference(device, needed_bytes))

    def _has_room(self, device: DeviceState, group: WorkerGroup) -> bool:
        if group.serves.kind is WorkerKind.EXECUTOR:
            return not device.workers
        others = device.workers.values()
        return len(others) < device.spec.etask_workers and all(
            other.group is not group and other.group.serves.kind is WorkerKind.ETASK for other in others
        )

"""CFS-Affinity (paper §4.1.4): the client with the least device time per weight goes first, where its data is.

A client's effective time on a device is that time, plus ten times its mean latency if its data lies on other devices
only. A slot never stays free for locality: a waiting client goes to another device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from kaas.scheduling.candidates import Candidate
from kaas.scheduling.events import PhysicalDevice, WorkerKind
from kaas.scheduling.policies.fair_share import ClientShare
from kaas.scheduling.policies.holdings import Holdings, WorkingSet
from kaas.scheduling.policies.options import check_choice, check_flag, check_number
from kaas.scheduling.policies.orders import Entry, FlowOrder, PriorityQueue, SortKey
from kaas.scheduling.policies.scheduler import Scheduler
from kaas.scheduling.policies.state import Chosen, Queue, QueuedRequest, RequestOrder, Serves, WorkerGroup, WorkerState

PENALTY = 10.0
"""Mean latencies that a client counts for a device without its data: the paper's number."""
FEW_SETS = 16
"""Working sets near a device that are looked at without a walk through the clients."""
AFFINITIES = ("bytes", "last")


class CfsAffinity(Scheduler):
    """Fair shares of device time, work-conserving; no executor is ever restarted for a share.

    Args:
        affinity: "bytes": a client prefers the devices that hold at least half of what its oldest request reads; where
            the request reads no objects, and with "last" always: the one that ran the client last, or those of
            `ClientKnown` as long as none has.
        penalty: mean latencies that a client counts for another device.
        queueing: if True the latency of a request counts from its arrival; else from its dispatch, as device time.
    """

    work_conserving: ClassVar[bool] = True
    fair: ClassVar[bool] = True

    def __init__(
        self,
        devices: Sequence[PhysicalDevice],
        *,
        affinity: str = "bytes",
        penalty: float = PENALTY,
        queueing: bool = False,
    ) -> None:
        check_choice("cfs_affinity", "affinity", affinity, AFFINITIES)
        check_number("cfs_affinity", "penalty", penalty)
        check_flag("cfs_affinity", "queueing", queueing)
        super().__init__(devices)
        self._bytes = affinity == "bytes"
        self._penalty = penalty
        self._queueing = queueing

    def rank(self, worker: WorkerState) -> tuple[float, float, float]:
        """Return the order of free workers: the least busy, then the lower device, as the paper's rule has it.

        Speed does not count, since a client needs fewer seconds of a faster device.
        """
        return len(worker.running), 0.0, worker.device.index

    def order(self, serves: Serves) -> RequestOrder:
        """Return the order of least effective time; eTasks of one function go in the order of their arrival."""
        if serves.kind is WorkerKind.ETASK:
            return super().order(serves)
        made = EffectiveTime(self, self._holdings)
        self._recharged.append(made.changed)
        return made

    def urgency(self, group: WorkerGroup, provided: int = 0) -> tuple[float, ...]:
        """Return the order of groups: by the least device time per weight of a waiting client."""
        return min((-request.share.priority, request.share.time_s, request.id) for request in group.next(provided))

    def affine(self, head: QueuedRequest) -> WorkingSet | tuple[int, ...]:
        """Return the working set of a request, if a client is affine to the devices near it; else these devices.

        An empty tuple, or a working set near no device: all devices are equal for the client.
        """
        if self._bytes and head.reads.nbytes:
            return head.reads
        share = head.share
        return (share.last_device,) if share.last_device >= 0 else share.devices

    def penalty_s(self, share: ClientShare) -> float:
        """Return the seconds that a client counts for a device to which it is not affine."""
        return self._penalty * (share.latency_s if self._queueing else share.mean_s)

    def worker_for(self, head: QueuedRequest) -> WorkerState | None:
        """Return the worker of a client's request: a device where its data is, else the one that suits it."""
        where = self.affine(head)
        if isinstance(where, tuple) and where:
            affine = min(head.group.free_on(where), key=self.rank, default=None)
            if affine is not None:
                return affine
        return self.suited(head)


class EffectiveTime(FlowOrder):
    """The pair of a client and a free worker of the least effective time goes next, ties to the oldest request.

    A client's effective time is its own, where a device with its data is free, or all are equal for it; else it is the
    penalised one. So the least of all is the first of one of these queues, whatever the number of clients: those for
    which all devices are equal, those that are affine to a free device, and all by the penalised time.
    """

    compares: ClassVar[tuple[str, ...]] = ("-priority", "effective_s", "request")

    def __init__(self, policy: CfsAffinity, holdings: Holdings) -> None:
        super().__init__()
        self._policy = policy
        self._memories = holdings.memories
        self._changed: dict[Queue, None] = {}
        self._penalised: PriorityQueue[Queue] = PriorityQueue()
        self._anywhere: PriorityQueue[Queue] = PriorityQueue()
        self._affine: dict[WorkingSet | int, PriorityQueue[Queue]] = {}  # by what they read, or by device
        self._firsts: dict[WorkingSet | int, Entry] = {}  # the first of each of these: one is read more often than put
        self._affinities: dict[Queue, tuple[WorkingSet | int, ...]] = {}
        self._nowhere: PriorityQueue[WorkingSet] = PriorityQueue()  # by their first client: those near no device
        holdings.near_changed.append(self._renew_first)

    def place(self, queue: Queue) -> SortKey:
        """Return the place of a client by its time."""
        return _by_time(queue.head)

    def offer(self, queue: Queue) -> None:
        """Take in that a client has another first request, or may go on."""
        self._changed[queue] = None

    def withdraw(self, queue: Queue) -> None:
        """Take in that a client may not go on, or has no request."""
        self._changed.pop(queue, None)
        if queue not in self._affinities:
            return
        for places in (self.heads, self._penalised, self._anywhere):
            places.discard(queue)
        for affinity in self._affinities.pop(queue, ()):
            self._affine[affinity].discard(queue)
            if not self._affine[affinity]:
                del self._affine[affinity]
            self._renew_first(affinity)

    def candidates(self) -> list[Candidate]:
        """Return the first request of each client, by the effective times on the best free devices for them."""
        found = []
        for queue in self._flows.values():
            scores = dict(zip(self.compares, self._effective(queue), strict=True))
            time_s, weight = queue.share.time_s, queue.share.weight
            figures = {"time_s": time_s, "penalty_s": scores["effective_s"] - time_s, "weight": weight}
            found.append(self.candidate(queue.head, scores, **figures))
        return found

    def changed(self, share: ClientShare) -> None:
        """Take in that the time, the mean or the last device of a client has changed."""
        queues = self.clients.get(share)
        if queues and share not in self._parked:
            self._changed.update(queues)

    def at_once(self, request: QueuedRequest) -> WorkerState | None:
        """Return the worker of a request that comes while no other waits."""
        return None if self._flows else self._policy.worker_for(request)

    def next(self) -> Chosen | None:
        """Return the request that goes now, and its worker."""
        queue = self._least()
        if queue is None:
            return None
        head = queue.head
        worker = self._policy.worker_for(head)
        return None if worker is None else (head, worker)

    def first(self, skipped: int = 0) -> QueuedRequest | None:
        """Return the most urgent request."""
        self._update()
        return super().first(skipped)

    # --- the least effective time

    def _least(self) -> Queue | None:
        """Return the client that goes next, by comparing all clients or by looking at all free devices."""
        some = next(iter(self._changed), None) or self.heads.first()
        if some is None or len(self._flows) == 1:
            return some
        group = some.head.group
        if len(self) <= len(group.open):
            able: list[Queue] = [*self.heads, *(queue for queue in self._changed if queue not in self.heads)]
            return min(able, key=self._effective)
        self._update()
        found = [places.least() for places in (self._anywhere, self._penalised) if places]
        if (nowhere := self._nowhere.first()) is not None:
            found.append(self._firsts[nowhere])
        for index, worker in group.open.items():
            if worker.gated:
                continue
            if index in self._firsts:
                found.append(self._firsts[index])
            if (near := self._first_near(self._memories[index].near)) is not None:
                found.append(near)
        return min(found)[-1] if found else None

    def _first_near(self, near: Mapping[WorkingSet, None]) -> Entry | None:
        """Return the entry of the first client by time that reads one of these sets.

        All clients are walked through by their time, and the sets in turns with them, until either walk is complete.
        """
        firsts = self._firsts
        if len(near) <= FEW_SETS:
            return min((firsts[reads] for reads in near if reads in firsts), default=None)
        found: Entry | None = None
        for entry, reads in zip(self.heads.entries(), near, strict=False):
            own = entry[-1].head.reads
            if own in near and own in firsts:
                return entry
            first = firsts.get(reads)
            if first is not None and (found is None or first < found):
                found = first
        return found

    def _effective(self, queue: Queue) -> SortKey:
        """Return the effective time of a client on the best free device for it, with its place among equals."""
        head = queue.head
        affine = self._policy.affine(head)
        devices = affine.near if isinstance(affine, WorkingSet) else affine
        away = bool(devices) and next(head.group.free_on(devices), None) is None
        return _by_time(head, self._policy.penalty_s(head.share) if away else 0.0)

    def _update(self) -> None:
        """Give the clients whose time or first request has changed their places."""
        while self._changed:
            queue, _ = self._changed.popitem()
            head, affine = queue.head, self._policy.affine(queue.head)
            affinities = (affine,) if isinstance(affine, WorkingSet) else affine
            if self._affinities.get(queue) != affinities:
                self.withdraw(queue)
                self._affinities[queue] = affinities
            key = self.place(queue)
            self.heads.put(queue, key)
            if not affinities:
                self._anywhere.put(queue, key)
                continue
            self._penalised.put(queue, _by_time(head, self._policy.penalty_s(queue.share)))
            for affinity in affinities:
                self._affine.setdefault(affinity, PriorityQueue()).put(queue, key)
                self._renew_first(affinity)

    def _renew_first(self, affinity: WorkingSet | int) -> None:
        """Take in that the clients that are affine to a working set or a device, or the devices near it, are others."""
        same = self._affine.get(affinity)
        first = None if same is None else same.least()
        if first is None:
            self._firsts.pop(affinity, None)
        else:
            self._firsts[affinity] = first
        if isinstance(affinity, int):
            return
        if first is None or affinity.near:
            self._nowhere.discard(affinity)
        else:
            self._nowhere.put(affinity, first[:-2])


def _by_time(head: QueuedRequest, penalty_s: float = 0.0) -> SortKey:
    return -head.share.priority, head.share.time_s + penalty_s, head.id

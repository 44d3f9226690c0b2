"""CFS-Affinity (paper §4.1.4): the client with the least device time per weight goes first, where its data is.

A client's effective time on a device is that time, plus ten times its mean latency if its data lies on other devices
only. A slot never stays free for locality: a waiting client goes to another device.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import islice
from typing import ClassVar

from kaas.errors import PolicyError
from kaas.scheduling.events import PhysicalDevice, WorkerKind
from kaas.scheduling.policies.fair_share import ClientShare
from kaas.scheduling.policies.scheduler import Scheduler
from kaas.scheduling.policies.state import Queue, QueuedRequest, RequestOrder, Serves, WorkerGroup, WorkerState

PENALTY = 10.0
"""Mean latencies that a client counts for a device without its data: the paper's number."""
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
        if affinity not in AFFINITIES:
            raise PolicyError(f"affinity is one of {', '.join(AFFINITIES)}, not {affinity!r}", policy="cfs_affinity")
        number = isinstance(penalty, int | float) and not isinstance(penalty, bool)
        if not number or not 0 <= penalty < math.inf:
            raise PolicyError(f"penalty is a number from 0 on, not {penalty!r}", policy="cfs_affinity")
        if not isinstance(queueing, bool):
            raise PolicyError(f"queueing is True or False, not {queueing!r}", policy="cfs_affinity")
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
        return super().order(serves) if serves.kind is WorkerKind.ETASK else EffectiveTime(self)

    def urgency(self, group: WorkerGroup, provided: int = 0) -> tuple[float, ...]:
        """Return the order of groups: by the least device time per weight of a waiting client."""
        return min((-request.share.priority, request.share.time_s, request.id) for request in group.next(provided))

    def effective_s(self, head: QueuedRequest) -> tuple[float, WorkerState | None]:
        """Return the effective time of a client on the best free worker for it, and that worker if data is there."""
        share = head.share
        devices = self._affine(head)
        worker = min(head.group.free_on(devices), key=self.rank, default=None) if devices else None
        if devices and worker is None:
            return share.time_s + self._penalty * (share.latency_s if self._queueing else share.mean_s), None
        return share.time_s, worker

    def worker_for(self, head: QueuedRequest, affine: WorkerState | None) -> WorkerState | None:
        """Return the worker of a client's request; affine: the one of `effective_s`."""
        if affine is None or (self._bytes and self._locality.reads(head)):
            return self.suited(head)
        return affine

    def _affine(self, head: QueuedRequest) -> Collection[int]:
        """Return the devices that the request's client has an affinity to; none if all are equal for it."""
        if self._bytes and self._locality.reads(head):
            return self._locality.near(head)
        share = head.share
        return (share.last_device,) if share.last_device >= 0 else share.devices


class EffectiveTime(RequestOrder):
    """The pair of a client and a free worker of the least effective time goes next, ties to the oldest request."""

    def __init__(self, policy: CfsAffinity) -> None:
        self._policy = policy
        self._queues: dict[ClientShare, Queue] = {}
        self._parked: dict[ClientShare, None] = {}

    def add(self, request: QueuedRequest) -> None:
        """Add a request to its client's queue."""
        queue = self._queues.get(request.share)
        if queue is None:
            queue = self._queues[request.share] = Queue(request.share)
        queue.push(request, 0.0)

    def drop(self, request: QueuedRequest) -> None:
        """Remove a request from its client's queue."""
        queue = self._queues[request.share]
        del queue.requests[request.id]
        if not queue.requests:
            del self._queues[request.share]

    def park(self, share: ClientShare) -> None:
        """Pass over a client."""
        self._parked[share] = None

    def unpark(self, share: ClientShare) -> None:
        """Count a client in again."""
        self._parked.pop(share, None)

    def next(self) -> tuple[QueuedRequest, WorkerState] | None:
        """Return the request that goes now, and its worker."""
        chosen: tuple[QueuedRequest, WorkerState | None] | None = None
        least: tuple[float, float, int] | None = None
        for share, queue in self._queues.items():
            if share in self._parked:
                continue
            head = queue.head
            time_s, worker = self._policy.effective_s(head)
            key = (-share.priority, time_s, head.id)
            if least is None or key < least:
                least, chosen = key, (head, worker)
        if chosen is None:
            return None
        worker = self._policy.worker_for(*chosen)
        return None if worker is None else (chosen[0], worker)

    def first(self, skipped: int = 0) -> QueuedRequest | None:
        """Return the most urgent request."""
        if skipped:
            (queue,) = self._queues.values()
            return next(islice(queue.requests.values(), skipped, None))
        heads = [queue.head for queue in self._queues.values()]
        return min(heads, default=None, key=lambda head: (-head.share.priority, head.share.time_s, head.id))

"""CFS-Affinity (paper §4.1.4): the client with the least device time per weight goes first, where its data is.

A client's effective time on a device is that time, plus ten times its mean latency if its data lies on other devices
only. A slot never stays free for locality: a waiting client goes to another device.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import ClassVar

from kaas.errors import PolicyError
from kaas.scheduling.events import PhysicalDevice, WorkerKind
from kaas.scheduling.policies.scheduler import Scheduler
from kaas.scheduling.policies.state import QueuedRequest, WorkerGroup, WorkerState

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

    def choose(self, group: WorkerGroup) -> tuple[QueuedRequest, WorkerState] | None:
        """Return the pair of a client and a worker of the least effective time, ties to the oldest request."""
        if group.serves.kind is WorkerKind.ETASK:
            return super().choose(group)
        if self._placement.best(group) is None:
            return None
        chosen: tuple[QueuedRequest, WorkerState | None] | None = None
        least: tuple[float, float, int] | None = None
        for queue in group.queues.values():
            share = queue.share
            if share.limited and self._fair_share.held(share, self._now_s):
                continue
            head = queue.head
            time_s = share.charged_s / share.weight
            devices = self._affine(head)
            worker = min(group.free_on(devices), key=self.rank, default=None) if devices else None
            if devices and worker is None:
                time_s += self._penalty * (share.latency_s if self._queueing else share.mean_s)
            key = (-share.priority, time_s, head.id)
            if least is None or key < least:
                least, chosen = key, (head, worker)
        if chosen is None:
            return None
        head, worker = chosen
        if worker is None or (self._bytes and self._locality.reads(head)):
            worker = self.suited(group, head)
        return None if worker is None else (head, worker)

    def urgency(self, group: WorkerGroup, provided: int = 0) -> tuple[float, ...]:
        """Return the order of groups: by the least device time per weight of a waiting client."""
        return min((-request.share.priority, request.share.time_s, request.id) for request in group.next(provided))

    def _affine(self, head: QueuedRequest) -> Collection[int]:
        """Return the devices that the request's client has an affinity to; none if all are equal for it."""
        if self._bytes and self._locality.reads(head):
            return self._locality.near(head)
        share = head.share
        return (share.last_device,) if share.last_device >= 0 else share.devices

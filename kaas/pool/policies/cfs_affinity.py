"""CFS-Affinity (paper §4.1.4): the client that has had least device time per weight goes first, where its data is.

A client's effective time on a device is that, plus ten times what one of its requests takes if the device is none that
it has an affinity to. A free slot never stays free for that: who waits goes elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from kaas.errors import PolicyError
from kaas.pool.events import PhysicalDevice, Residency, WorkerKind
from kaas.pool.policies.affinity import Resident
from kaas.pool.policies.books import Crew, Request, Worker
from kaas.pool.policies.scheduler import Scheduler

PENALTY = 10.0
"""Mean requests that running elsewhere counts as: the paper's."""
AFFINITIES = ("bytes", "last")


class CfsAffinity(Scheduler):
    """Fair shares of device time, work-conserving, on executors that are never restarted for it.

    Args:
        affinity: "bytes": a client prefers the device that holds most bytes of what its oldest request reads; where
            none does, and with "last" always: the one that ran it last, before it ran those that `ClientKnown` says.
        penalty: mean requests that another device counts as.
    """

    work_conserving: ClassVar[bool] = True

    def __init__(self, devices: Sequence[PhysicalDevice], *, affinity: str = "bytes", penalty: float = PENALTY) -> None:
        if affinity not in AFFINITIES:
            raise PolicyError(f"affinity is one of {', '.join(AFFINITIES)}, not {affinity!r}", policy="cfs_affinity")
        number = isinstance(penalty, int | float) and not isinstance(penalty, bool)
        if not number or not 0 <= penalty < math.inf:
            raise PolicyError(f"penalty is a number from 0 on, not {penalty!r}", policy="cfs_affinity")
        super().__init__(devices)
        self._resident = Resident() if affinity == "bytes" else None
        self._penalty = penalty

    def rank(self, worker: Worker) -> tuple[float, ...]:
        """The least busy, then the lower device, as the rule has it: of faster ones a client needs fewer seconds."""
        return len(worker.running), worker.device.index

    def choose(self, crew: Crew) -> tuple[Request, Worker] | None:
        """The least effective time over pairs of a client and a worker, ties to the oldest request."""
        if crew.serves.kind is WorkerKind.ETASK:
            return super().choose(crew)
        free = self._fleet.best(crew)
        if free is None:
            return None
        chosen: tuple[Request, Worker] | None = None
        least: tuple[float, float, int] | None = None
        for queue in crew.queues.values():
            account = queue.account
            if account.limited and self._accounts.held(account, self._now_s):
                continue
            head, worker = queue.head, free
            time_s = account.charged_s / account.weight
            if account.mean_s:
                affine = self._affine(crew, head)
                if affine is None:
                    time_s += self._penalty * account.mean_s
                else:
                    worker = affine
            key = (-account.priority, time_s, head.id)
            if least is None or key < least:
                least, chosen = key, (head, worker)
        return chosen

    def urgency(self, crew: Crew, provided: int = 0) -> tuple[float, ...]:
        return min((-request.account.priority, request.account.time_s, request.id) for request in crew.next(provided))

    def _affine(self, crew: Crew, head: Request) -> Worker | None:
        """The worker with a free slot on a device that the client of a request has an affinity to, if there is one."""
        devices: Sequence[int] = ()
        if self._resident is not None:
            devices = self._resident.most(head)
        account = head.account
        if not devices:
            devices = (account.last_device,) if account.last_device >= 0 else account.devices
        found: Worker | None = None
        for index in devices:
            device = self._fleet.devices.get(index)
            for worker in device.workers.values() if device is not None else ():
                if worker.crew is crew and worker.usable and (found is None or self.rank(worker) < self.rank(found)):
                    found = worker
        return found

    def moved(self, event: Residency) -> None:
        if self._resident is not None:
            self._resident.moved(event, self._known(event.worker).device.index)

    def emptied(self, worker: Worker) -> None:
        if self._resident is not None:
            self._resident.emptied(worker.id, worker.device.index)

"""Batch: all requests of a flow go one after the other (the batching baseline of the MQFQ-Sticky paper).

The flow, one client's calls of one function, of the oldest request is a batch with the requests that wait in it then;
those that arrive later belong to a later batch. Each worker has a batch of its own; a worker for which there is none
helps the others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import ClassVar

from kaas.scheduling.candidates import Candidate
from kaas.scheduling.policies.fair_share import ClientShare
from kaas.scheduling.policies.orders import FlowOrder, Suited, by_age
from kaas.scheduling.policies.scheduler import Scheduler
from kaas.scheduling.policies.state import Chosen, Queue, QueuedRequest, RequestOrder, Serves, WorkerGroup, WorkerState

Best = Callable[[WorkerGroup], WorkerState | None]


class Batch(Scheduler):
    """One queue for all, by batches."""

    work_conserving: ClassVar[bool] = True

    def order(self, serves: Serves) -> RequestOrder:  # noqa: ARG002 - eTasks of one function are one flow by client
        """Return the order by batches."""
        return Batches(self._placement.best, self.suited)


class Batches(FlowOrder):
    """The batches of workers, and the flows of requests that are in no batch.

    Args:
        best: gives the free worker of a group that is next. suited: gives the one for a request.
    """

    def __init__(self, best: Best, suited: Suited) -> None:
        super().__init__()
        self._best = best
        self._suited = suited
        self._batches: dict[WorkerState, dict[int, QueuedRequest]] = {}
        self._worker_of: dict[int, WorkerState] = {}  # by request

    def flow(self, request: QueuedRequest) -> Hashable:
        """Return the client and the function of a request."""
        return request.share, request.function

    def at_once(self, request: QueuedRequest) -> WorkerState | None:
        """Return the worker of a request that comes while no other waits: its batch would be done at once."""
        return None if self._flows or self._batches else self._suited(request) or self._best(request.group)

    def drop(self, request: QueuedRequest) -> None:
        """Remove a request from its batch, or its flow."""
        worker = self._worker_of.pop(request.id, None)
        if worker is None:
            super().drop(request)
            return
        del self._batches[worker][request.id]
        if not self._batches[worker]:
            del self._batches[worker]

    def park(self, share: ClientShare) -> None:
        """Pass over a client: its batches end."""
        super().park(share)
        for worker, batch in list(self._batches.items()):
            if next(iter(batch.values())).share is share:
                self._end(worker)

    def lost(self, worker: WorkerState) -> None:
        """End the batch of a worker that has ended."""
        if worker in self._batches:
            self._end(worker)

    def first(self, skipped: int = 0) -> QueuedRequest | None:
        """Return the most urgent request, those in batches included."""
        waiting = super().first(skipped)
        heads = [next(iter(batch.values())) for batch in self._batches.values()]
        return min([*heads, *([waiting] if waiting else [])], default=None, key=by_age)

    def next(self) -> Chosen | None:
        """Return the next request of a free worker's batch; a worker without one gets that of the oldest request."""
        queue, worker = self.heads.first(), self._worker()
        if worker is None:
            return None
        batch = self._batches.get(worker)
        if batch is not None and queue is not None and queue.share.priority > _head(batch).share.priority:
            self._end(worker)
        if worker not in self._batches and queue is not None:
            self._begin(worker, queue)
        batch = self._batches.get(worker) or min(self._batches.values(), key=lambda own: by_age(_head(own)))
        return _head(batch), worker

    def _worker(self) -> WorkerState | None:
        """Return the free worker that gets a request: the best one, or if it has no batch, the one for a new batch."""
        queue = self.heads.first()
        some = queue.head if queue is not None else next((r for b in self._batches.values() for r in b.values()), None)
        worker = None if some is None else self._best(some.group)
        if worker is None or queue is None or worker in self._batches:
            return worker
        return self._suited(queue.head) or worker

    def candidates(self) -> list[Candidate]:
        """Return the first request of each batch and flow: the free worker's batch, then a new one, then the others."""
        free = self._worker()
        found = [self._candidate(queue.head, 1, len(queue.requests)) for queue in self._flows.values()]
        first = self.heads.first()
        for worker, batch in self._batches.items():
            overtaken = first is not None and first.share.priority > _head(batch).share.priority
            turn = 0 if worker is free and not overtaken else 2
            found.append(self._candidate(_head(batch), turn, len(batch), batch_of_worker=worker.id))
        return found

    def _candidate(self, head: QueuedRequest, turn: int, waiting: int, **figures: float) -> Candidate:
        priority, age = by_age(head)
        return self.candidate(head, {"turn": turn, "-priority": priority, "request": age}, waiting=waiting, **figures)

    def _begin(self, worker: WorkerState, queue: Queue) -> None:
        """Take a whole flow as the batch of a worker, the oldest request first."""
        self._remove(queue)
        self._batches[worker] = {number: queue.requests[number] for number in sorted(queue.requests)}
        self._worker_of |= dict.fromkeys(queue.requests, worker)

    def _end(self, worker: WorkerState) -> None:
        """Take the requests of a batch back into their flow."""
        for request in self._batches.pop(worker).values():
            del self._worker_of[request.id]
            super().add(request)


def _head(batch: dict[int, QueuedRequest]) -> QueuedRequest:
    return next(iter(batch.values()))

"""The orders in which waiting requests leave: a heap with a key for each request. A policy chooses the key."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count, islice

from kaas.scheduling.policies.fair_share import ClientShare
from kaas.scheduling.policies.state import Queue, QueuedRequest, RequestOrder, WorkerState

Key = Callable[[QueuedRequest], float]
"""The order of requests of one priority, the least first. Among equals the oldest is first."""
Suited = Callable[[QueuedRequest], WorkerState | None]
"""Returns the worker that a request should take now, or None if no worker is free."""


def by_arrival(_request: QueuedRequest) -> float:
    """RequestOrder requests by their arrival."""
    return 0.0


class HeapOrder(RequestOrder):
    """The request of the least key goes next, of the clients of the highest priority that are not parked.

    Args:
        suited: gives the worker. key: of a request; it does not change while the request waits.
    """

    def __init__(self, suited: Suited, key: Key = by_arrival) -> None:
        self._suited = suited
        self._key = key
        self._queues: dict[ClientShare, Queue] = {}
        self._parked: dict[ClientShare, Queue] = {}
        self._heads: list[tuple[int, float, int, int, Queue]] = []  # heads that have changed since are skipped
        self._offers = count()

    def add(self, request: QueuedRequest) -> None:
        """Add a request to its client's queue."""
        share = request.share
        queue = self._queues.get(share) or self._parked.get(share)
        if queue is None:
            queue = self._queues[share] = Queue(share)
        queue.push(request, self._key(request))
        if queue.head is request and share not in self._parked:
            self._offer(queue)

    def drop(self, request: QueuedRequest) -> None:
        """Remove a request from its client's queue."""
        share = request.share
        queues = self._parked if share in self._parked else self._queues
        queue = queues[share]
        first = queue.head is request
        del queue.requests[request.id]
        if not queue.requests:
            del queues[share]
        elif first and queues is self._queues:
            self._offer(queue)

    def park(self, share: ClientShare) -> None:
        """Pass over a client."""
        if share in self._queues:
            self._parked[share] = self._queues.pop(share)

    def unpark(self, share: ClientShare) -> None:
        """Count a client in again."""
        queue = self._parked.pop(share, None)
        if queue is not None:
            self._queues[share] = queue
        elif share not in self._queues:
            return
        self._offer(self._queues[share])

    def next(self) -> tuple[QueuedRequest, WorkerState] | None:
        """Return the request that goes now, and its worker."""
        queue = self._first()
        if queue is None:
            return None
        worker = self._suited(queue.head)
        return None if worker is None else (queue.head, worker)

    def first(self, skipped: int = 0) -> QueuedRequest | None:
        """Return the most urgent request."""
        queue = self._first()
        queues = [*self._parked.values(), *([] if queue is None else [queue])]
        if skipped:
            return next(islice(queues[0].requests.values(), skipped, None))
        heads = [each.head for each in queues]
        return min(heads, default=None, key=lambda head: (-head.share.priority, self._key(head), head.id))

    def _offer(self, queue: Queue) -> None:
        """Give a queue its place by its head."""
        head, heads = queue.head, self._heads
        if len(heads) > 64 + 4 * len(self._queues):
            heads[:] = [entry for entry in heads if self._holds(entry)]
            heapq.heapify(heads)
        heapq.heappush(heads, (-queue.share.priority, self._key(head), head.id, next(self._offers), queue))

    def _first(self) -> Queue | None:
        """Return the queue whose head goes next."""
        heads = self._heads
        while heads and not self._holds(heads[0]):
            heapq.heappop(heads)
        return heads[0][-1] if heads else None

    def _holds(self, entry: tuple[int, float, int, int, Queue]) -> bool:
        priority, _, number, _, queue = entry
        waits = self._queues.get(queue.share) is queue and queue.head.id == number
        return waits and priority == -queue.share.priority


class Parked:
    """The clients that limits hold back, with the orders that pass over them."""

    def __init__(self) -> None:
        self._orders: dict[ClientShare, dict[RequestOrder, None]] = {}

    def park(self, share: ClientShare, order: RequestOrder) -> None:
        """Let an order pass over a client."""
        order.park(share)
        self._orders.setdefault(share, {})[order] = None

    def unpark(self, share: ClientShare) -> None:
        """Let the requests of a client go again, as far as its limits now allow."""
        for order in self._orders.pop(share, ()):
            order.unpark(share)

    def unpark_all(self) -> None:
        """Let the requests of all clients go again."""
        for share in list(self._orders):
            self.unpark(share)

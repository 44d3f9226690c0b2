"""The orders in which waiting requests leave: a heap with a key for each request. A policy chooses the key."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from kaas.scheduling.policies.fair_share import ClientShare
from kaas.scheduling.policies.priority_queue import PriorityQueue
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
        self._parked: dict[ClientShare, None] = {}
        self._heads: PriorityQueue[Queue] = PriorityQueue()  # of the clients that are not parked

    def add(self, request: QueuedRequest) -> None:
        """Add a request to its client's queue."""
        queue = self._queues.get(request.share)
        if queue is None:
            queue = self._queues[request.share] = Queue(request.share)
        queue.push(request, self._key(request))
        if queue.head is request:
            self._offer(queue)

    def drop(self, request: QueuedRequest) -> None:
        """Remove a request from its client's queue."""
        queue = self._queues[request.share]
        first = queue.head is request
        del queue.requests[request.id]
        if not queue.requests:
            del self._queues[request.share]
            self._parked.pop(request.share, None)
            self._heads.discard(queue)
        elif first:
            self._offer(queue)

    def park(self, share: ClientShare) -> None:
        """Pass over a client."""
        self._parked[share] = None
        if share in self._queues:
            self._heads.discard(self._queues[share])

    def unpark(self, share: ClientShare) -> None:
        """Count a client in again."""
        self._parked.pop(share, None)
        if share in self._queues:
            self._offer(self._queues[share])

    def next(self) -> tuple[QueuedRequest, WorkerState] | None:
        """Return the request that goes now, and its worker."""
        queue = self._heads.first()
        if queue is None:
            return None
        worker = self._suited(queue.head)
        return None if worker is None else (queue.head, worker)

    def first(self, skipped: int = 0) -> QueuedRequest | None:
        """Return the most urgent request."""
        if skipped:
            (only,) = self._queues.values()
            return next(islice(only.requests.values(), skipped, None))
        parked = [self._queues[share] for share in self._parked if share in self._queues]
        queue = self._heads.first()
        heads = [each.head for each in [*parked, *([] if queue is None else [queue])]]
        return min(heads, default=None, key=lambda head: (-head.share.priority, self._key(head), head.id))

    def _offer(self, queue: Queue) -> None:
        """Give a queue its place by its head."""
        if queue.share not in self._parked:
            head = queue.head
            self._heads.put(queue, (-queue.share.priority, self._key(head), head.id))


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

"""The frame of orders: waiting requests in flows, of which a policy's order says the next one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import chain, count, islice
from typing import Any, ClassVar, TypeVar

from kaas.errors import PolicyError
from kaas.scheduling.candidates import Candidate
from kaas.scheduling.events import RequestDone
from kaas.scheduling.policies.fair_share import ClientShare
from kaas.scheduling.policies.state import Chosen, Queue, QueuedRequest, RequestOrder, WorkerGroup, WorkerState

Item = TypeVar("Item")
SortKey = tuple[float, ...]
Entry = tuple[Any, ...]
"""An entry of a PriorityQueue: the key, the number of the put, the item."""
MOST_IN_A_BLOCK = 512
Suited = Callable[[QueuedRequest], WorkerState | None]
"""Returns the worker that a request should take now, or None if no worker is free."""


class PriorityQueue(dict[Item, Entry]):
    """Items by their keys, the least first. Equal keys: the one that was put first. All keys have the same length.

    It is a sorted list in blocks, and a dict of the entries, which only `put` and `discard` change: `in` and `len` then
    call no Python function. To move the entries of a block is cheaper than to skip the dead entries of a heap, and than
    to move those of one long list. Entries are flat, since nested tuples are compared twice.
    """

    __slots__ = ("_blocks", "_splits")

    _puts: ClassVar[count[int]] = count()
    """One for all queues: many are made for a moment, and only the order in each one counts."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: list[list[Entry]] = [[]]  # only a single one may be empty
        self._splits: list[Entry] = []  # between two blocks: greater than the first one's entries, and no other's

    def __iter__(self) -> Iterator[Item]:
        """Return an iterator over the items by their keys. The queue must not change meanwhile."""
        return (entry[-1] for block in self._blocks for entry in block)

    def entries(self) -> Iterator[Entry]:
        """Return an iterator over the entries by their keys. The queue must not change meanwhile."""
        return chain.from_iterable(self._blocks)

    def after(self, key: SortKey) -> Iterator[Entry]:
        """Return an iterator over the entries from a key on, upwards. The queue must not change meanwhile."""
        place = bisect_right(self._splits, key)
        block = self._blocks[place]
        yield from islice(block, bisect_left(block, key), None)
        for block in islice(self._blocks, place + 1, None):
            yield from block

    def before(self, key: SortKey) -> Iterator[Entry]:
        """Return an iterator over the entries below a key, downwards. The queue must not change meanwhile."""
        place = bisect_right(self._splits, key)
        block = self._blocks[place]
        yield from reversed(block[: bisect_left(block, key)])
        for block in reversed(self._blocks[:place]):
            yield from reversed(block)

    def key(self, item: Item) -> SortKey:
        """Return the key of an item that is there."""
        return self[item][:-2]

    def put(self, item: Item, key: SortKey) -> None:
        """Add an item, or give it another key."""
        known = self.get(item)
        if known is not None:
            if known[:-2] == key:
                return
            self._remove(known)
        entry = self[item] = (*key, next(self._puts), item)
        place = bisect_right(self._splits, entry) if self._splits else 0
        block = self._blocks[place]
        insort(block, entry)
        if len(block) > MOST_IN_A_BLOCK:
            half = len(block) // 2
            self._blocks.insert(place + 1, block[half:])
            self._splits.insert(place, block[half])
            del block[half:]

    def discard(self, item: Item) -> None:
        """Remove an item, if it is there."""
        entry = self.pop(item, None)
        if entry is not None:
            self._remove(entry)

    def _remove(self, entry: Entry) -> None:
        place = bisect_right(self._splits, entry) if self._splits else 0
        block = self._blocks[place]
        del block[bisect_left(block, entry)]
        if not block and self._splits:
            del self._blocks[place], self._splits[max(0, place - 1)]

    def first(self) -> Item | None:
        """Return the item of the least key; None if there is none."""
        block = self._blocks[0]
        return block[0][-1] if block else None

    def least(self) -> tuple[Any, ...]:
        """Return the least key, followed by other things, with its item at the end. The queue must not be empty."""
        return self._blocks[0][0]


def by_age(request: QueuedRequest) -> SortKey:
    """Return the place of a request among others by its client's priority and its age."""
    return -request.share.priority, request.id


class FunctionFlows(dict[str, dict[Queue, None]]):
    """The flows of each function, for orders that depend on its times."""

    def add(self, queue: Queue) -> None:
        """Add a flow."""
        self.setdefault(queue.function, {})[queue] = None

    def discard(self, queue: Queue) -> None:
        """Remove a flow, if it is there."""
        own = self.get(queue.function, {})
        own.pop(queue, None)
        if not own:
            self.pop(queue.function, None)


class FlowOrder(RequestOrder):
    """The requests of a group in flows. A policy's order says what a flow is, how its requests follow, and `next`.

    Fields:
        heads: the flows by their first requests, but for those of parked clients. clients: the flows of each client.
    """

    compares: ClassVar[tuple[str, ...]] = ("-priority", "key", "request")
    """Names of the figures of `place`. "-" stands before one that is taken negative, so that the most goes first."""

    def __init_subclass__(cls) -> None:
        """Let an order with its own `add`, `drop` or `next` see all requests, unless it also has its own `at_once`."""
        super().__init_subclass__()
        if "at_once" not in vars(cls) and not {"add", "drop", "next"}.isdisjoint(vars(cls)):
            cls.at_once = RequestOrder.at_once  # type: ignore[method-assign]

    def __init__(self) -> None:
        self.heads: PriorityQueue[Queue] = PriorityQueue()
        self._flows: dict[Hashable, Queue] = {}
        self.clients: dict[ClientShare, dict[Queue, None]] = {}
        self._parked: dict[ClientShare, None] = {}

    # --- the parts of an order

    def flow(self, request: QueuedRequest) -> Hashable:
        """Return the flow of a request, which is asked for once: all of one client. Here each client is a flow."""
        return request.share

    def key(self, request: QueuedRequest) -> float:  # noqa: ARG002 - here all are equal
        """Return the place of a request in its flow, the least first; among equals the oldest is first."""
        return 0.0

    def place(self, queue: Queue) -> SortKey:
        """Return the place of a flow: here by the priority of its client, then by the key of its first request."""
        head = queue.head
        return -queue.share.priority, self.key(head), head.id

    def offer(self, queue: Queue) -> None:
        """Take in that a flow has another first request, or place, and may go on."""
        place = self.place(queue)
        try:
            self.heads.put(queue, place)
        except TypeError as error:
            name = type(self).__name__
            message = f"{name}.place returned {place!r}, not a tuple of numbers that compares with other places"
            raise PolicyError(message, policy=name) from error

    def withdraw(self, queue: Queue) -> None:
        """Take in that a flow is empty, or may not go on."""
        self.heads.discard(queue)

    # --- requests and limits

    def add(self, request: QueuedRequest) -> None:
        """Add a request to its flow."""
        flow = request.flow
        if flow is None:
            flow = request.flow = self.flow(request)
        share = request.share
        queue = self._flows.get(flow)
        first = queue is None
        if queue is None:
            queue = self._flows[flow] = Queue(share, flow, request.function)
            self.clients.setdefault(share, {})[queue] = None
        queue.push(request, self.key(request))
        if (first or queue.head is request) and share not in self._parked:
            self.offer(queue)

    def drop(self, request: QueuedRequest) -> None:
        """Remove a request from its flow."""
        queue = self._flows[request.flow]
        first = len(queue.requests) == 1 or queue.head is request
        del queue.requests[request.id]
        if not queue.requests:
            self._remove(queue)
        elif first and request.share not in self._parked:
            self.offer(queue)

    def _remove(self, queue: Queue) -> None:
        del self._flows[queue.flow]
        own = self.clients[queue.share]
        del own[queue]
        if not own:
            del self.clients[queue.share]
            self._parked.pop(queue.share, None)
        self.withdraw(queue)

    def park(self, share: ClientShare) -> None:
        """Pass over a client."""
        self._parked[share] = None
        for queue in self.clients.get(share, ()):
            self.withdraw(queue)

    def unpark(self, share: ClientShare) -> None:
        """Count a client in again."""
        self._parked.pop(share, None)
        for queue in self.clients.get(share, ()):
            self.offer(queue)

    def dispatched(self, request: QueuedRequest, worker: WorkerState) -> None:
        """Take in that a request has begun on a worker: here nothing depends on it."""

    def freed(self, request: QueuedRequest, worker: WorkerState) -> None:
        """Take in that a request has ended on a worker: here nothing depends on it."""

    def ended(self, request: QueuedRequest, event: RequestDone) -> None:
        """Take in what a request took: here nothing depends on it."""

    def settled(self) -> None:
        """Take in that all requests have been dispatched that can go now: here nothing follows."""

    def lost(self, worker: WorkerState) -> None:
        """Take in that a worker has ended: here no request waits for one worker."""

    def candidates(self) -> list[Candidate]:
        """Return the first request of each flow, with its scores."""
        return [self.candidate(queue.head, self.scores(queue)) for queue in self._flows.values()]

    def candidate(self, request: QueuedRequest, scores: Mapping[str, float], **figures: float) -> Candidate:
        """Return a request as a candidate. figures: those of the policy, beside the ones that all policies have."""
        if request.arrived_s is not None:
            figures = {"arrived_s": request.arrived_s, **figures}
        held = self.obstacle(request)
        return Candidate(request.id, request.share.client, request.function, scores, figures, held)

    def scores(self, queue: Queue) -> dict[str, float]:
        """Return the figures by which a flow is compared, by name: those of the place that it has, or would have."""
        place = self.heads.key(queue) if queue in self.heads else self.place(queue)
        names = self.compares if len(self.compares) == len(place) else [f"place {i}" for i in range(len(place))]
        return dict(zip(names, place, strict=True))

    def obstacle(self, request: QueuedRequest) -> str:
        """Return why a waiting request may not go: here only limits hold requests back."""
        return "limits of its client" if request.share in self._parked else ""

    def parked(self, share: ClientShare) -> bool:
        """Return True if limits hold a client back."""
        return share in self._parked

    def queues(self, share: ClientShare) -> list[Queue]:
        """Return the flows of a client that may go on."""
        return [] if share in self._parked else list(self.clients.get(share, ()))

    def __len__(self) -> int:
        return len(self._flows)

    def __contains__(self, flow: Hashable) -> bool:
        return flow in self._flows

    def first(self, skipped: int = 0) -> QueuedRequest | None:
        """Return the most urgent request, those of parked clients included."""
        least = self.heads.first()
        waiting = [queue for share in self._parked for queue in self.clients.get(share, ())]
        queue = min([*waiting, *([least] if least else [])], default=None, key=self.place)
        if queue is None:
            return None
        return next(islice(queue.requests.values(), skipped, None), queue.head) if skipped else queue.head


class OwnPlaces(FlowOrder):
    """An order whose `next` has other places for flows: `heads` are sorted when `first` is called, which is rare.

    Fields:
        group: that of the requests, once there was one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.group: WorkerGroup | None = None
        self._unsorted_heads: dict[Queue, None] = {}

    def add(self, request: QueuedRequest) -> None:
        """Add a request to its flow."""
        self.group = request.group
        super().add(request)

    def offer(self, queue: Queue) -> None:
        """Take in that a flow has another first request, or place, and may go on."""
        self._unsorted_heads[queue] = None

    def withdraw(self, queue: Queue) -> None:
        """Take in that a flow is empty, or may not go on."""
        self._unsorted_heads.pop(queue, None)
        if queue in self.heads:
            self.heads.discard(queue)

    def sorted_heads(self) -> PriorityQueue[Queue]:
        """Return `heads`, sorted."""
        for queue in self._unsorted_heads:
            self.heads.put(queue, self.place(queue))
        self._unsorted_heads.clear()
        return self.heads

    def first(self, skipped: int = 0) -> QueuedRequest | None:
        """Return the most urgent request, those of parked clients included."""
        self.sorted_heads()
        return super().first(skipped)


class PriorityOrder(FlowOrder):
    """The flow whose first request has the least key goes next, of the clients of the highest priority.

    Among equal keys the oldest request goes next. Without keys (`FlowOrder.key` is 0) the order is that of arrival.

    Args:
        suited: gives the worker.
    """

    def __init__(self, suited: Suited) -> None:
        super().__init__()
        self._suited = suited

    def at_once(self, request: QueuedRequest) -> WorkerState | None:
        """Return the worker of a request that comes while no other waits."""
        return None if self._flows else self._suited(request)

    def next(self) -> Chosen | None:
        """Return the request that goes now, and its worker."""
        queue = self.heads.first()
        if queue is None:
            return None
        request = queue.head
        worker = self._suited(request)
        return None if worker is None else (request, worker)


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

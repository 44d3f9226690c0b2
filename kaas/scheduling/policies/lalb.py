"""Locality-aware load balancing (LALB and LALBO3, paper section III): a request goes where its function's memory is.

A free device takes the oldest request whose memory it holds. A request that was passed over `limit` times, or that
finds its memory on no free device, is placed: on a device without its memory, which loads it; on a free device with its
memory; or in the local queue of a busy one, where that ends sooner than a load would. So a device may stay free while
requests wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from itertools import islice

from kaas.scheduling.candidates import Candidate
from kaas.scheduling.events import PhysicalDevice, WorkerKind
from kaas.scheduling.policies.holdings import NOTHING, WorkingSet
from kaas.scheduling.policies.local_queues import LocalQueues
from kaas.scheduling.policies.options import check_choice, check_whole
from kaas.scheduling.policies.orders import FlowOrder, by_age
from kaas.scheduling.policies.reader_queue import ReaderQueue
from kaas.scheduling.policies.scheduler import Scheduler
from kaas.scheduling.policies.state import Chosen, Queue, QueuedRequest, RequestOrder, Serves, WorkerState

LIMIT = 25
"""Times that LALBO3 passes a request over: the paper's number."""
COMPARED = 16
"""Free devices that are compared for a request where devices differ."""
HOLDER_RULES = ("least", "first")


class Lalbo3(Scheduler):
    """LALB with out-of-order dispatch.

    Args:
        limit: how many times requests that came later may overtake a request.
        holder: the busy device that may get a request promised. "least": where it ends first; "first": the first by its
            number where it ends before a load elsewhere would, as the paper has it.
    """

    def __init__(self, devices: Sequence[PhysicalDevice], *, limit: int = LIMIT, holder: str = "least") -> None:
        check_whole("lalbo3", "limit", limit)
        check_choice("lalbo3", "holder", holder, HOLDER_RULES)
        self._limit = limit
        self._first_holder = holder == "first"
        self._local_orders: list[LocalityOrder] = []
        super().__init__(devices)
        self.mixed = len({(device.kind, device.speed) for device in devices}) > 1

    def rank(self, worker: WorkerState) -> tuple[float, float, float]:
        """Return the order of free workers: the least busy, then the one with fewest dispatches so far."""
        return len(worker.running), worker.dispatches, worker.device.index

    def order(self, serves: Serves) -> RequestOrder:
        """Return the order of kTasks by locality; eTasks of one function go in the order of their arrival."""
        if serves.kind is WorkerKind.ETASK:
            return super().order(serves)
        made = LocalityOrder(self, self._limit)
        self._local_orders.append(made)
        return made

    def victims(self, request: QueuedRequest, worker: WorkerState) -> tuple[bytes, ...]:
        """Return the objects used longest ago. Those that the local queue of the worker reads stay."""
        promised = [reads for order in self._local_orders for reads in order.promised_sets(worker)]
        return self._holdings.least_recently_used(request.reads, worker.device.index, promised)

    # --- the questions of the order

    def idle_worker(self, head: QueuedRequest) -> WorkerState | None:
        """Return the free worker that looks for a request next; head: any request of the group."""
        return self._placement.best(head.group)

    def held_by(self, worker: WorkerState) -> dict[WorkingSet, None]:
        """Return the working sets that are whole on a worker's device, or will be."""
        return self._holdings.memories[worker.device.index].whole

    def destination(self, request: QueuedRequest, idle: WorkerState, local: LocalQueues) -> WorkerState | None:
        """Return the worker that a request goes to at once (the paper: place); None: it was promised to a busy one.

        Where devices differ in kind or speed, the request goes where it ends first, whether its memory is there or not.
        """
        free = min(request.group.free_on(request.reads.constants.whole), key=self.rank, default=None)
        if self.mixed:
            some = [idle, *islice(request.group.open.values(), COMPARED), *([] if free is None else [free])]
            free = min(some, key=lambda worker: (worker.gated, self.cost_s(request, worker), *self.rank(worker)))
        elif free is not None:
            return free
        else:
            free = idle
        busy = self._busy_worker(request, self.now_s + self.cost_s(request, free), local)
        if busy is None:
            return free
        local.promise(request, busy)
        return None

    def _busy_worker(self, request: QueuedRequest, before_s: float, local: LocalQueues) -> WorkerState | None:
        """Return the busy worker with a request's memory where the request ends before a time."""
        all_devices = {device.index: None for device in request.group.partition.devices} if self.mixed else None
        devices = request.reads.constants.whole if all_devices is None else all_devices
        if self._first_holder:
            able = local.on(devices)
            return next((each for each in able if local.ends_s(request, each, self.now_s) < before_s), None)
        least_s = 0.0 if self.mixed else self._estimates.run_s(request, request.group.partition.devices[0].spec)
        return local.soonest(request, devices, self.now_s, least_s=least_s, before_s=before_s)

    def cost_s(self, request: QueuedRequest, worker: WorkerState) -> float:
        """Return the seconds that a request takes on a worker, with the load of what is missing."""
        device = worker.device.spec
        return self._estimates.run_s(request, device) + self._estimates.load_s(request, device)


class Lalb(Lalbo3):
    """LALB: no request overtakes one that has to be placed."""

    def __init__(self, devices: Sequence[PhysicalDevice], *, holder: str = "least") -> None:
        super().__init__(devices, limit=0, holder=holder)


class LocalityOrder(FlowOrder):
    """The queue of all requests, with the local queues of workers.

    The requests of one client with the same memory are a flow. Each pass over a free device passes over the requests in
    front of the one that it takes, or over all. So a request is passed over at least as often as those behind it, and
    only the first one can reach the limit: the passes are kept as the places that they reached.
    """

    def __init__(self, policy: Lalbo3, limit: int) -> None:
        super().__init__()
        self._policy = policy
        self._limit = limit
        self._local = LocalQueues(policy.cost_s)
        self._readers: ReaderQueue[Queue] = ReaderQueue()  # by the constants
        self._passes: dict[int, list[int]] = {}  # by priority: the requests that passes reached, a heap
        self._passed: WorkerState | None = None  # the free worker whose pass over the queue has found nothing
        self._newest = 0

    def promised_sets(self, worker: WorkerState) -> list[WorkingSet]:
        """Return what the requests read that wait for a worker."""
        return [request.reads for request in self._local.requests(worker)]

    # --- flows

    def flow(self, request: QueuedRequest) -> Hashable:
        """Return the client and the constants of a request."""
        return request.share, request.reads.constants

    def offer(self, queue: Queue) -> None:
        """Give a flow its place among all, and among those that read the same."""
        super().offer(queue)
        self._readers.put_reader(queue, self.place(queue), queue.head.reads.constants)

    def withdraw(self, queue: Queue) -> None:
        """Take a flow out of its places."""
        super().withdraw(queue)
        self._readers.discard(queue)

    def add(self, request: QueuedRequest) -> None:
        """Add a request to the queue."""
        super().add(request)
        self._newest = max(self._newest, request.id)
        self._passed = None

    def at_once(self, request: QueuedRequest) -> WorkerState | None:
        """Return the idle worker for a request that comes while the queue is empty, if its memory is there."""
        if self._flows:
            return None
        idle, constants = self._policy.idle_worker(request), request.reads.constants
        if self._policy.mixed or idle is None or not (constants is NOTHING or idle.device.index in constants.whole):
            return None
        self._newest, self._passed = max(self._newest, request.id), None
        return idle

    def drop(self, request: QueuedRequest) -> None:
        """Remove a request from the queue, or from a local queue."""
        if request in self._local:
            self._local.withdraw(request)
        else:
            super().drop(request)

    def dispatched(self, request: QueuedRequest, worker: WorkerState) -> None:  # noqa: ARG002
        """Take in that a request has begun on a worker."""
        self._local.update(worker)
        if worker is self._passed:
            self._passed = None

    def freed(self, request: QueuedRequest, worker: WorkerState) -> None:  # noqa: ARG002
        """Take in that a request has ended on a worker."""
        self._local.update(worker)

    def lost(self, worker: WorkerState) -> None:
        """Take requests that waited for a worker back into the queue."""
        for request in self._local.lost(worker):
            super().add(request)

    def first(self, skipped: int = 0) -> QueuedRequest | None:
        """Return the most urgent request, those in local queues included."""
        waiting = super().first(skipped)
        return min([*self._local.heads(), *([waiting] if waiting else [])], default=None, key=by_age)

    # --- why

    def candidates(self) -> list[Candidate]:
        """Return the first request of each flow, and those in local queues."""
        requests = [*(queue.head for queue in self._flows.values()), *self._local.promised()]
        first = self.heads.first()
        idle = None if first is None else self._policy.idle_worker(first.head)
        return [self._candidate(request, None if first is None else first.head, idle) for request in requests]

    def _candidate(self, request: QueuedRequest, first: QueuedRequest | None, idle: WorkerState | None) -> Candidate:
        """Return a request as a candidate: local queues are first, then the oldest one at its limit, then hits.

        idle: the free worker that looks for a request.
        """
        constants = request.reads.constants
        cached = constants is NOTHING or (idle is not None and idle.device.index in constants.whole)
        passes = self._passes.get(request.share.priority, ()) if request is first else ()
        visits = sum(reached > request.id for reached in passes)  # as _visits, which forgets some
        placed = request is first and (cached or visits >= self._limit or (idle is not None and self._passed is idle))
        scores = {
            "local_queue": self._local.turn(request),
            "-priority": -request.share.priority,
            "-placed": -placed,
            "-cached": -cached,
            "request": request.id,
        }
        return self.candidate(request, scores, visits=visits, holders=len(constants.whole))

    def obstacle(self, request: QueuedRequest) -> str:
        """Return why a request may not go: limits, or its promise."""
        if request in self._local and request.share not in self._parked:
            overtaken = "a request of higher priority waits" if self._held(request) else ""
            return overtaken or self._local.obstacle(request, self._held)
        return super().obstacle(request)

    # --- the algorithm

    def next(self) -> Chosen | None:
        """Return the request that goes now, and its worker."""
        return self._local.next(self._held) or self._from_queue() or self._local.next(self._held)

    def _held(self, request: QueuedRequest) -> bool:
        """Return True if a promised request may not go: its client is held back, or one of higher priority waits."""
        first = self.heads.first()
        return request.share in self._parked or (first is not None and first.share.priority > request.share.priority)

    def _from_queue(self) -> Chosen | None:
        while (queue := self.heads.first()) is not None and (idle := self._policy.idle_worker(queue.head)) is not None:
            chosen = self._pass(queue, idle)
            if chosen is not None:
                return chosen
        self._passed = None
        return None

    def _pass(self, first: Queue, idle: WorkerState) -> Chosen | None:
        """Return the request that a free worker takes, or one that goes elsewhere, or None if one was promised."""
        head = first.head
        constants = head.reads.constants
        hit = head if constants is NOTHING or idle.device.index in constants.whole else None
        if hit is None and self._passed is not idle and self._visits(head) < self._limit:
            found = self._readers.first_reading(self._policy.held_by(idle))
            hit = found.head if found is not None and found.share.priority == head.share.priority else None
            self._mark(head.share.priority, self._newest + 1 if hit is None else hit.id)
            if hit is None:
                self._passed = idle
        if hit is not None and not self._policy.mixed:
            return hit, idle
        # placed: the devices differ, or it was passed over too often, or no request's memory is on the idle device
        chosen = hit or head
        worker = self._policy.destination(chosen, idle, self._local)
        if worker is not None:
            return chosen, worker
        super().drop(chosen)
        return None

    # --- visits

    def _visits(self, head: QueuedRequest) -> int:
        """Return how many passes have gone over the first request. Those that ended at an older one do not count."""
        passes = self._passes.get(head.share.priority, [])
        while passes and passes[0] <= head.id:
            heapq.heappop(passes)
        return len(passes)

    def _mark(self, priority: int, reached: int) -> None:
        heapq.heappush(self._passes.setdefault(priority, []), reached)

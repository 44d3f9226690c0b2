"""The state of policies: requests in queues, workers on devices, and worker groups, one for each queue."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from kaas.scheduling.candidates import Candidate
from kaas.scheduling.events import PhysicalDevice, RequestDone, WorkerKind
from kaas.scheduling.policies.fair_share import ClientShare
from kaas.scheduling.policies.holdings import NOTHING, WorkingSet


class Serves(NamedTuple):
    """The requests that a worker serves. An empty client stands for all clients, an empty function for all of them."""

    kind: WorkerKind
    client: str = ""
    function: str = ""


SHARED = Serves(WorkerKind.EXECUTOR)
"""The group of executors that run the kTasks of all clients."""


class QueuedRequest(msgspec.Struct, eq=False):
    """A request from its arrival to its end.

    Fields:
        reads: the objects that the request reads. brings: keys of those that it brings to its device. victims: keys of
            those that leave for them. dispatch: the number of the last dispatch that reads objects, when it was
            dispatched. flow: the name of its flow in its order; None before the order has it.
        ready: the request stands in a queue. promised: it waits for one busy worker. worker: where the request runs.
        estimate_s: device seconds that the client was charged at the dispatch; None if an earlier epoch of the pool
            dispatched the request.
        ends_s: the time at which the request is expected to end. device_share: the name of its share of a device.
    """

    id: int
    share: ClientShare
    group: WorkerGroup
    function: str = ""
    reads: WorkingSet = NOTHING
    deadline_s: float | None = None
    alone: bool = False
    ready: bool = False
    promised: bool = False
    worker: WorkerState | None = None
    estimate_s: float | None = None
    ends_s: float = 0.0
    arrived_s: float | None = None
    brings: tuple[bytes, ...] = ()
    victims: tuple[bytes, ...] = ()
    dispatch: int = 0
    flow: Hashable = None
    device_share: str = ""

    def late(self, now_s: float) -> bool:
        """Return True if the deadline of the request has passed."""
        return self.deadline_s is not None and self.deadline_s <= now_s


class Queue(msgspec.Struct, eq=False):
    """A flow: ready requests of one client in an order. An empty queue is removed.

    Fields:
        flow: its name in the order. function: that of its first request. heap: keys and ids, the first request on top;
            ids that left `requests` are skipped.
    """

    share: ClientShare
    flow: Hashable = None
    function: str = ""
    requests: dict[int, QueuedRequest] = {}
    heap: list[tuple[float, int]] = []

    def push(self, request: QueuedRequest, key: float) -> None:
        """Add a request with its key."""
        self.requests[request.id] = request
        heapq.heappush(self.heap, (key, request.id))

    @property
    def head(self) -> QueuedRequest:
        """The request of the least key, the oldest of equals. The queue must not be empty."""
        heap, requests = self.heap, self.requests
        while heap[0][1] not in requests:
            heapq.heappop(heap)
        return requests[heap[0][1]]


Chosen = tuple[QueuedRequest, "WorkerState"]
"""A request that goes now, and its worker."""


class RequestOrder(Protocol):
    """Which of the waiting requests of a group goes next, and to which worker. A policy gives each group one."""

    def add(self, request: QueuedRequest) -> None:
        """Add a request whose inputs exist."""

    def drop(self, request: QueuedRequest) -> None:
        """Remove a request that was dispatched, or that left."""

    def at_once(self, request: QueuedRequest) -> WorkerState | None:  # noqa: ARG002
        """Return the worker of a request that comes, if it goes before all that wait; None: it has to be added."""
        return None

    def park(self, share: ClientShare) -> None:
        """Pass over the requests of a client that limits hold back, until `unpark`."""

    def unpark(self, share: ClientShare) -> None:
        """Take in that limits, or the priority, of a client have changed: its requests may go again."""

    def next(self) -> Chosen | None:
        """Return the request that goes now, and its worker; None if none can."""

    def first(self, skipped: int = 0) -> QueuedRequest | None:
        """Return the most urgent request, those of parked clients included; None if there is none.

        skipped: if one client waits, so many of its requests are passed over.
        """

    def dispatched(self, request: QueuedRequest, worker: WorkerState) -> None:
        """Take in that a request, which was dropped, has begun on a worker."""

    def freed(self, request: QueuedRequest, worker: WorkerState) -> None:
        """Take in that a request has ended on a worker."""

    def ended(self, request: QueuedRequest, event: RequestDone) -> None:
        """Take in, after `freed`, how a request ended, and what it took. The worker's own end is no such event."""

    def settled(self) -> None:
        """Take in that all requests have been dispatched that can go now."""

    def lost(self, worker: WorkerState) -> None:
        """Take in that a worker has ended, or gets no more requests: those that waited for it may go elsewhere."""

    def candidates(self) -> list[Candidate]:
        """Return the requests that compete, by the figures that decide, and change nothing: here it is not known."""
        return []

    def obstacle(self, request: QueuedRequest) -> str:  # noqa: ARG002
        """Return why a waiting request may not go, whatever is free; "" if it may in its turn: here each may."""
        return ""


@dataclass(slots=True, eq=False)
class DeviceState:
    """A device and the workers that are alive on it.

    Fields:
        reservation: the group that gets the device when its workers have ended. failures: workers in a row that did not
            start on the device. failed: the requests that these workers were to serve. away: the device was removed.
    """

    spec: PhysicalDevice
    partition: Partition
    workers: dict[int, WorkerState] = field(default_factory=dict)
    reservation: WorkerGroup | None = None
    failures: int = 0
    failed: set[Serves] = field(default_factory=set)
    away: bool = False
    index: int = field(init=False)

    def __post_init__(self) -> None:
        self.index = self.spec.index


@dataclass(slots=True, eq=False)
class WorkerState:
    """A worker from StartWorker to WorkerGone.

    Fields:
        free: the free slots, each with the number of the change that freed the slot, the last one at the end.
        alone: the request that the worker is kept for, or runs, without others. last: the device is reserved for
            another group, which gets it after the request that the worker was started for. expected_s: the time at
            which that request is expected to end. used: number of the change at which the worker last got or ended a
            request. freed_s: the time of the last end. dispatches: the requests that it got.
        taken_s: the time of its StartWorker, if another group gave up the device for it. start_s: how long it started.
        closed: shares leave no SMs of its device to requests without one.
        version: the version of the worker's entry among the offers of its group; each entry has another one. rank: the
            worker's place in that entry. busier: a slot was taken since then, so its rank is too good now.
    """

    id: int
    device: DeviceState
    group: WorkerGroup
    starting: bool = True
    stopping: bool = False
    free: list[tuple[int, int]] = field(default_factory=list)
    running: dict[int, QueuedRequest] = field(default_factory=dict)
    alone: QueuedRequest | None = None
    last: bool = False
    expected_s: float = 0.0
    taken_s: float | None = None
    start_s: float = 0.0
    freed_s: float = -math.inf
    used: int = 0
    dispatches: int = 0
    closed: bool = False
    version: int = 0
    rank: tuple[float, float, float] = (0.0, 0.0, 0.0)
    busier: bool = False

    @property
    def usable(self) -> bool:
        """True if a request without a share may be dispatched here, unless another worker of the device runs one."""
        return bool(self.free) and not self.stopping and self.alone is None and not self.closed

    @property
    def gated(self) -> bool:
        """True if another worker of the device runs a request: workers that share a device take turns."""
        workers = self.device.workers
        return len(workers) > 1 and any(other.running for other in workers.values() if other is not self)

    @property
    def ends_s(self) -> float:
        """The time at which all requests of the worker are expected to have ended."""
        return max((request.ends_s for request in self.running.values()), default=self.expected_s)


@dataclass(slots=True, eq=False)
class WorkerGroup:
    """The workers that serve the same requests, and the requests that wait for them: the paper's pool.

    Fields:
        born: when the group was first seen. shrank_at: number of the change that last took a device from it, or -1.
            gave: that device. leaving: workers that stop, or whose device is reserved for another group. reserved:
            devices that the group gets when their workers have ended. coming: workers that start.
        order: of the ready requests, but for `alone`: those that must run alone, `aside`: those that fit no free
            device, and `shared`: those of each share of a device. clients: how many requests of each client wait.
            ready: how many wait. ready_shared: of these, the ones with shares. running: how many run.
            failures: workers in a row that did not start. slots, most_slots: of a worker.
        open: workers that have a free slot for any request, by device. offers: heap of the workers with a free slot,
            the best first; entries with an old version are skipped, and a busier worker gets a new place at the top.
    """

    serves: Serves
    partition: Partition
    born: tuple[int, int]
    order: RequestOrder
    shrank_at: int = -1
    gave: DeviceState | None = None
    workers: dict[int, WorkerState] = field(default_factory=dict)
    open: dict[int, WorkerState] = field(default_factory=dict)
    leaving: int = 0
    reserved: int = 0
    coming: int = 0
    clients: dict[ClientShare, int] = field(default_factory=dict)
    alone: dict[int, QueuedRequest] = field(default_factory=dict)
    aside: dict[ClientShare, dict[int, QueuedRequest]] = field(default_factory=dict)
    shared: dict[str, dict[ClientShare, dict[int, QueuedRequest]]] = field(default_factory=dict)
    ready_shared: int = 0
    ready: int = 0
    running: int = 0
    failures: int = 0
    last_failure: str = ""
    slots: int = 1
    most_slots: int = 0
    offers: list[tuple[Any, ...]] = field(default_factory=list)

    @property
    def one_each(self) -> bool:
        """True if no worker runs two requests at a time, or shares its device: a worker that is free runs nothing."""
        return self.most_slots == 1 and self.partition.alive == len(self.workers)

    @property
    def provided(self) -> int:
        """Requests for which workers are on their way."""
        return (self.coming + self.reserved) * self.slots

    def enqueue(self, request: QueuedRequest) -> None:
        """Add a request whose inputs exist to the waiting ones."""
        request.ready = True
        self.ready += 1
        self.partition.waiting[self.serves] = self
        self.clients[request.share] = self.clients.get(request.share, 0) + 1
        if request.alone:
            self.alone[request.id] = request
        elif request.device_share:
            self.shared.setdefault(request.device_share, {}).setdefault(request.share, {})[request.id] = request
            self.ready_shared += 1
        else:
            self.order.add(request)

    def dequeue(self, request: QueuedRequest) -> None:
        """Remove a request from the waiting ones."""
        request.ready = False
        self.ready -= 1
        if not self.ready:
            del self.partition.waiting[self.serves]
        if request.alone:
            del self.alone[request.id]
        elif request.device_share:
            self._unshare(request)
        else:
            self.order.drop(request)
        self.clients[request.share] -= 1
        if not self.clients[request.share]:
            del self.clients[request.share]

    def unshare(self, share: str) -> None:
        """Take in that a share is taken away: its requests wait in the order."""
        for request in [each for own in self.shared.get(share, {}).values() for each in own.values()]:
            self._unshare(request)
            request.device_share = ""
            self.order.add(request)

    def _unshare(self, request: QueuedRequest) -> None:
        clients = self.shared[request.device_share]
        own = clients[request.share]
        del own[request.id]
        if not own:
            del clients[request.share]
        if not clients:
            del self.shared[request.device_share]
        self.ready_shared -= 1

    def next(self, provided: int = 0) -> list[QueuedRequest]:
        """Return the most urgent ready request of the order, and the requests that run alone.

        If one client waits alone, return its first request beyond the `provided` ones, whose workers are on their way.
        """
        one = len(self.clients) == 1 and not self.alone and not self.shared and provided < self.ready
        first = self.order.first(provided if one else 0)
        found = [] if first is None else [first]
        if self.alone or self.aside or self.shared:
            shared = [own for clients in self.shared.values() for own in clients.values()]
            apart = [next(iter(own.values())) for own in (*self.aside.values(), *shared)]
            return [*self.alone.values(), *apart, *found]
        return found

    def free_on(self, devices: Collection[int]) -> Iterator[WorkerState]:
        """Return an iterator over the workers with a free slot on some devices, but for gated ones."""
        free = self.open
        fewer, other = (devices, free) if len(devices) < len(free) else (free, devices)
        found = (free[index] for index in fewer if index in other)
        return found if self.one_each else (worker for worker in found if not worker.gated)

    def close(self, worker: WorkerState) -> None:
        """Take in that a worker has no free slot for any request."""
        if self.open.get(worker.device.index) is worker:
            del self.open[worker.device.index]

    @property
    def size(self) -> int:
        """Devices that the group has, or gets when they are free."""
        return len(self.workers) - self.leaving + self.reserved


@dataclass(slots=True, eq=False)
class Partition:
    """Devices for which some groups compete, and no others: all devices, or those of one client.

    Fields:
        home: the requests for which a free device starts a worker before any request needs one; None: it stays free.
        free: devices without worker and without reservation that are not away. waiting: groups with ready requests.
            holding: groups with workers or reservations. alive: how many workers there are. shared_places: several
            eTask workers may share a device. why_empty: why no request can run here, if there are no devices.
    """

    devices: list[DeviceState] = field(default_factory=list)
    home: Serves | None = None
    free: set[int] = field(default_factory=set)
    waiting: dict[Serves, WorkerGroup] = field(default_factory=dict)
    holding: dict[Serves, WorkerGroup] = field(default_factory=dict)
    alive: int = 0
    shared_places: bool = False
    why_empty: str = ""


Rank = Callable[[WorkerState], tuple[float, float, float]]
"""The order in which free workers are used: by their running requests, by slowness, and by the policy's own rule."""


def partition(devices: Iterable[PhysicalDevice], *, home: Serves | None = None, why_empty: str = "") -> Partition:
    """Return a partition of these devices, all free."""
    made = Partition(home=home, why_empty=why_empty)
    made.devices = [DeviceState(device, made) for device in devices]
    return made

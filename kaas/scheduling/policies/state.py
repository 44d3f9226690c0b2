"""What policies remember: requests in queues, workers on devices, and crews, which are the workers for one queue."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import msgspec

from kaas.scheduling.events import ObjectUse, PhysicalDevice, WorkerKind
from kaas.scheduling.policies.fair_share import ClientShare


class Serves(NamedTuple):
    """Whom a worker serves: an empty client is everybody, an empty function each one."""

    kind: WorkerKind
    client: str = ""
    function: str = ""


class QueuedRequest(msgspec.Struct, eq=False):
    """A request from its arrival to its end. Fields: ready: it stands in a queue. worker: where it runs. estimate_s:
    what its client was charged at the dispatch; None if an earlier life of the pool dispatched it.

    Of `Locality` alone: reads: bytes by key of what it reads; None: nobody asked. brings: keys of objects that it
    brings to its device. near: devices that hold most of that, as of near_version."""

    id: int
    account: ClientShare
    group: WorkerGroup
    inputs: tuple[ObjectUse, ...] = ()
    deadline_s: float | None = None
    alone: bool = False
    ready: bool = False
    worker: WorkerState | None = None
    estimate_s: float | None = None
    ends_s: float = 0.0
    """When it will have ended, as far as one can tell."""
    arrived_s: float | None = None
    reads: dict[bytes, int] | None = None
    brings: tuple[bytes, ...] = ()
    near: frozenset[int] = frozenset()
    near_version: int = 0

    def late(self, now_s: float) -> bool:
        return self.deadline_s is not None and self.deadline_s <= now_s


class Queue(msgspec.Struct, eq=False):
    """The ready requests of one client at one crew, the oldest first. It is there while there are any."""

    account: ClientShare
    requests: dict[int, QueuedRequest] = {}
    order: list[int] = []
    """Heap of ids; those that left `requests` are skipped."""

    def push(self, request: QueuedRequest) -> None:
        self.requests[request.id] = request
        heapq.heappush(self.order, request.id)

    @property
    def head(self) -> QueuedRequest:
        """The oldest; there must be one."""
        order, requests = self.order, self.requests
        while order[0] not in requests:
            heapq.heappop(order)
        return requests[order[0]]


@dataclass(slots=True, eq=False)
class DeviceState:
    """A device and the workers that are alive on it. heir: the crew that it is promised to. failures: workers in a row
    that did not start on it, failed: whom they were to serve."""

    spec: PhysicalDevice
    partition: Partition
    workers: dict[int, WorkerState] = field(default_factory=dict)
    reservation: WorkerGroup | None = None
    failures: int = 0
    failed: set[Serves] = field(default_factory=set)

    @property
    def index(self) -> int:
        return self.spec.index


@dataclass(slots=True, eq=False)
class WorkerState:
    """A worker from StartWorker to WorkerGone. Fields: free: its slots that are free, with the number of the change
    that freed them, the last one at the end. alone: the request that it is kept for, or runs, with nothing beside.
    served: a request was dispatched to it. last: its device is promised to others, once it has run what it was started
    for. expected_s: when that will have ended, as far as one can tell. used: number of the change when it last got or
    ended a request."""

    id: int
    device: DeviceState
    group: WorkerGroup
    starting: bool = True
    stopping: bool = False
    free: list[tuple[int, int]] = field(default_factory=list)
    running: dict[int, QueuedRequest] = field(default_factory=dict)
    alone: QueuedRequest | None = None
    served: bool = False
    last: bool = False
    expected_s: float = 0.0
    used: int = 0
    version: int = 0
    """Of its place among the offers of its crew, each of which has another one."""
    busier: bool = False
    """A slot of it was taken since it got that place, which is a worse one now."""

    @property
    def usable(self) -> bool:
        """A request may be dispatched to it, unless another worker of its device runs one."""
        return bool(self.free) and not self.stopping and self.alone is None

    @property
    def gated(self) -> bool:
        """Another worker of its device runs something, and workers that share a device take turns."""
        workers = self.device.workers
        return len(workers) > 1 and any(other.running for other in workers.values() if other is not self)

    @property
    def ends_s(self) -> float:
        return max((request.ends_s for request in self.running.values()), default=self.expected_s)

    @property
    def awaited(self) -> bool:
        """A request waits for it, the first that it will run."""
        return self.starting or (not self.served and self.group.ready > 0)


@dataclass(slots=True, eq=False)
class WorkerGroup:
    """The workers that serve the same requests, with those that wait for them: the paper's pool.

    Fields:
        born: when it was first seen. evicted: number of the change that last took a device from it; -1: none did.
        promised: devices that will be its own once their workers have ended. alone: ready requests that must run
        alone. ready: how many requests wait here. running: how many run. failures: workers in a row that did not start.
        open: workers that have a free slot for any request.
    """

    serves: Serves
    partition: Partition
    born: tuple[int, int]
    evicted: int = -1
    workers: dict[int, WorkerState] = field(default_factory=dict)
    open: dict[int, WorkerState] = field(default_factory=dict)
    leaving: int = 0
    promised: int = 0
    coming: int = 0
    queues: dict[str, Queue] = field(default_factory=dict)
    alone: dict[int, QueuedRequest] = field(default_factory=dict)
    ready: int = 0
    running: int = 0
    failures: int = 0
    last_failure: str = ""
    slots: int = 1
    """Of a worker, as last seen."""
    offers: list[tuple[tuple[float, ...], int, int, WorkerState]] = field(default_factory=list)
    """Heap of workers with a free slot, all of them, the best first; entries whose version has passed are skipped, and
    a worker that is busier gets a new place when it comes to the top."""

    @property
    def provided(self) -> int:
        """Requests for which workers are on their way."""
        return (self.coming + self.promised) * self.slots

    def enqueue(self, request: QueuedRequest) -> None:
        """Let a request wait here: its inputs exist."""
        request.ready = True
        self.ready += 1
        self.partition.waiting[self.serves] = self
        if request.alone:
            self.alone[request.id] = request
            return
        queue = self.queues.get(request.account.client)
        if queue is None:
            queue = self.queues[request.account.client] = Queue(request.account)
        queue.push(request)

    def dequeue(self, request: QueuedRequest) -> None:
        """Take a request that waits here out."""
        request.ready = False
        self.ready -= 1
        if not self.ready:
            del self.partition.waiting[self.serves]
        if request.alone:
            del self.alone[request.id]
            return
        queue = self.queues[request.account.client]
        del queue.requests[request.id]
        if not queue.requests:
            del self.queues[request.account.client]

    def least_busy_for(self, request: QueuedRequest) -> WorkerState | None:
        """Return the least busy worker that may be kept for a request that must run alone."""
        up = [worker for worker in self.workers.values() if not worker.starting and not worker.stopping]
        own = [worker for worker in up if worker.alone is None or worker.alone is request]
        key = lambda w: (len(w.running) + w.gated, w.alone is not request, w.device.index, w.id)  # noqa: E731
        return min(own, default=None, key=key)

    def next(self, provided: int = 0) -> list[QueuedRequest]:
        """The oldest ready request of each client, and those that run alone; where only one client waits, of whom some
        are provided for, the one after these."""
        if len(self.queues) == 1 and not self.alone and 0 < provided < self.ready:
            (queue,) = self.queues.values()
            return [next(islice(queue.requests.values(), provided, None))]
        return [queue.head for queue in self.queues.values()] + list(self.alone.values())

    def free_on(self, devices: Container[int]) -> Iterator[WorkerState]:
        """Its workers with a free slot on some devices, but for those that wait for their turn on a shared device."""
        return (worker for worker in self.open.values() if worker.device.index in devices and not worker.gated)

    @property
    def size(self) -> int:
        """Devices that it holds, or will once they are free."""
        return len(self.workers) - self.leaving + self.promised


@dataclass(slots=True, eq=False)
class Partition:
    """Devices that some crews compete for, and nobody else: all of them, or the share of a client.

    Fields:
        free: those without a worker or an heir. hungry: crews with ready requests. holding: crews with workers or
        promises. alive: how many workers there are.
    """

    devices: list[DeviceState] = field(default_factory=list)
    home: Serves | None = None
    """Whom a device is started for that nobody asked for; None: it stays free."""
    free: set[int] = field(default_factory=set)
    waiting: dict[Serves, WorkerGroup] = field(default_factory=dict)
    holding: dict[Serves, WorkerGroup] = field(default_factory=dict)
    alive: int = 0
    shared_places: bool = False
    nobodys: str = ""
    """Why nothing can run here, if it has no devices."""


Rank = Callable[[WorkerState], tuple[float, float, float]]
"""The order in which free workers are used: by how much they run, how slow they are, and the policy's own rule."""


def partition(devices: Iterable[PhysicalDevice], *, home: Serves | None = None, nobodys: str = "") -> Partition:
    """Return devices that groups compete for, all free."""
    made = Partition(home=home, nobodys=nobodys)
    made.devices = [DeviceState(device, made) for device in devices]
    return made

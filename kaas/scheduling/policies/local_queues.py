"""Requests that wait for one busy worker, and when each worker will be free."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator

from kaas.scheduling.policies.orders import PriorityQueue
from kaas.scheduling.policies.state import QueuedRequest, WorkerState

Seconds = Callable[[QueuedRequest, WorkerState], float]


class LocalQueues:
    """The local queue of each worker: requests promised to it, since their objects are there.

    Args:
        run_s: gives the seconds that a request runs on a worker.
        overrun: a run that takes longer than expected is expected to take this times its overrun more.

    Fields:
        due: the workers for which requests wait, and that have a free slot.
        next_overdue_s: the time at which the next request will have waited for too long; None if none waits so.
    """

    def __init__(self, run_s: Seconds, *, overrun: float = 0.0) -> None:
        self._overrun = overrun
        self.due: dict[WorkerState, None] = {}
        self.next_overdue_s: float | None = None
        self._run_s = run_s
        self._queues: dict[WorkerState, dict[int, tuple[QueuedRequest, float]]] = {}  # with their seconds
        self._seconds: dict[WorkerState, float] = {}
        self._workers: dict[int, WorkerState] = {}  # of the requests
        self._until: PriorityQueue[QueuedRequest] = PriorityQueue()  # those that wait for some time only
        self._busy: PriorityQueue[WorkerState] = PriorityQueue()  # by the time at which they are free
        self._busy_on: dict[int, WorkerState] = {}
        self._changed: dict[WorkerState, None] = {}  # since `_busy` was last read: many more change than are read

    def __len__(self) -> int:
        """Return the number of all requests that wait for some worker."""
        return len(self._workers)

    def __contains__(self, request: QueuedRequest) -> bool:
        return request.id in self._workers

    def length(self, worker: WorkerState) -> int:
        """Return the number of requests that wait for a worker."""
        return len(self._queues.get(worker, ()))

    def requests(self, worker: WorkerState) -> list[QueuedRequest]:
        """Return the requests that wait for a worker, the one promised first in front."""
        return [request for request, _ in self._queues.get(worker, {}).values()]

    def promised(self) -> list[QueuedRequest]:
        """Return all requests that wait for a worker."""
        return [request for own in self._queues.values() for request, _ in own.values()]

    def next(self, held: Callable[[QueuedRequest], bool]) -> tuple[QueuedRequest, WorkerState] | None:
        """Return the first request of a worker that can take one, and the worker. held: whether it may not go."""
        for worker in self.due:
            if worker.usable and not worker.gated:
                for request, _ in self._queues[worker].values():
                    if not held(request):
                        return request, worker
        return None

    def obstacle(self, request: QueuedRequest, held: Callable[[QueuedRequest], bool]) -> str:
        """Return why a promised request may not go: its worker is busy, or another request is first there."""
        worker = self._workers[request.id]
        able = worker.usable and not worker.gated
        first = next((each for each in self.requests(worker) if not held(each)), request)
        return "" if able and first is request else f"promised to worker {worker.id}"

    def turn(self, request: QueuedRequest) -> int:
        """Return the place of a request's worker among those with a local queue that can take a request."""
        able = [worker for worker in self.due if worker.usable and not worker.gated]
        worker = self._workers.get(request.id)
        return able.index(worker) if worker in able else len(able)

    def heads(self) -> list[QueuedRequest]:
        """Return the first request of each local queue."""
        return [next(iter(own.values()))[0] for own in self._queues.values()]

    def promise(self, request: QueuedRequest, worker: WorkerState, until_s: float | None = None) -> None:
        """Let a request wait for a worker; until_s: it may go elsewhere from then on."""
        if until_s is not None:
            self._until.put(request, (until_s,))
            self._until_changed()
        seconds = self._run_s(request, worker)
        self._queues.setdefault(worker, {})[request.id] = request, seconds
        self._seconds[worker] = self._seconds.get(worker, 0.0) + seconds
        self._workers[request.id] = worker
        request.promised = True
        self.update(worker)

    def withdraw(self, request: QueuedRequest) -> None:
        """Remove a request, which begins or leaves."""
        worker = self._workers.pop(request.id)
        self._until.discard(request)
        self._until_changed()
        _, seconds = self._queues[worker].pop(request.id)
        self._seconds[worker] -= seconds
        if not self._queues[worker]:
            del self._queues[worker], self._seconds[worker]
        self.update(worker)

    def overdue(self, now_s: float) -> QueuedRequest | None:
        """Return a request that has waited for its worker for too long, if there is one."""
        return self._until.first() if self.next_overdue_s is not None and self.next_overdue_s <= now_s else None

    def _until_changed(self) -> None:
        first = self._until.first()
        self.next_overdue_s = None if first is None else self._until.key(first)[0]

    def lost(self, worker: WorkerState) -> list[QueuedRequest]:
        """Forget a worker, and return the requests that waited for it."""
        requests = self.requests(worker)
        for request in requests:
            del self._workers[request.id]
            self._until.discard(request)
            request.promised = False
        self._until_changed()
        self._queues.pop(worker, None)
        self._seconds.pop(worker, None)
        self._changed.pop(worker, None)
        self.due.pop(worker, None)
        self._forget(worker)
        return requests

    def update(self, worker: WorkerState) -> None:
        """Take in that a request has begun or ended on a worker."""
        if worker.free and worker in self._queues:
            self.due[worker] = None
        elif self.due:
            self.due.pop(worker, None)
        self._changed[worker] = None

    def _forget(self, worker: WorkerState) -> None:
        self._busy.discard(worker)
        if self._busy_on.get(worker.device.index) is worker:
            del self._busy_on[worker.device.index]

    def _by_time(self) -> PriorityQueue[WorkerState]:
        """Return the busy workers by the time at which they are free."""
        for worker in self._changed:
            if worker.free and worker not in self._queues:
                self._forget(worker)
            else:
                self._busy_on[worker.device.index] = worker
                self._busy.put(worker, (self._free_s(worker, 0.0), worker.id))
        self._changed.clear()
        return self._busy

    def _free_s(self, worker: WorkerState, now_s: float) -> float:
        """Return when a worker has a free slot for one more request: its local queue is then under way."""
        slot_s = now_s if worker.free else min(self._ends_s(each, now_s) for each in worker.running.values())
        return slot_s + self._seconds.get(worker, 0.0) / max(1, worker.group.slots)

    def _ends_s(self, running: QueuedRequest, now_s: float) -> float:
        """Return the time at which a running request is expected to end, as seen now."""
        return running.ends_s if running.ends_s >= now_s else now_s + self._overrun * (now_s - running.ends_s)

    def soonest(
        self, request: QueuedRequest, devices: Collection[int], now_s: float, *, least_s: float, before_s: float
    ) -> WorkerState | None:
        """Return the busy worker on some devices where a request ends first, if it ends there before a time.

        Workers are walked through by the time before which they are not free, and the devices in turns with them, until
        either walk is complete, or no later worker can do better: the request takes `least_s` at least on any of them.
        """
        best, found = (before_s, -1), None
        overrun = self._overrun if request.group.one_each else 0.0  # another slot may be free before the late one
        busy = self._by_time()
        for (free_s, first), index in zip(_by_free_time(busy, now_s, overrun), devices, strict=False):
            if free_s + least_s > best[0]:
                break
            for worker in (first, self._busy_on.get(index)):
                if worker is None or worker.device.index not in devices:
                    continue
                in_time = worker is first or _late_s(busy[worker][0], now_s, overrun) + least_s <= best[0]
                if in_time and _promisable(worker):
                    end = self.ends_s(request, worker, now_s), worker.device.index
                    if end < best:
                        best, found = end, worker
        return found

    def next_free(self) -> WorkerState | None:
        """Return the busy worker that is free soonest of those for which no request waits."""
        for worker in self._by_time():
            if worker not in self._queues and not worker.free and _promisable(worker):
                return worker
        return None

    def on(self, devices: Collection[int]) -> list[WorkerState]:
        """Return the busy workers on some devices to which requests may be promised, by the number of the device."""
        self._by_time()
        workers = [self._busy_on[index] for index in sorted(devices) if index in self._busy_on]
        return [worker for worker in workers if _promisable(worker)]

    def ends_s(self, request: QueuedRequest, worker: WorkerState, now_s: float) -> float:
        """Return the time at which a request ends if it is promised to a worker."""
        return self._free_s(worker, now_s) + self._run_s(request, worker)


def _promisable(worker: WorkerState) -> bool:
    return not worker.stopping and not worker.starting and worker.alone is None


def _late_s(expected_s: float, now_s: float, overrun: float) -> float:
    """Return a time before which a worker is not free: the later its run is, the later that ends."""
    return expected_s if expected_s >= now_s else now_s + overrun * (now_s - expected_s)


def _by_free_time(
    busy: PriorityQueue[WorkerState], now_s: float, overrun: float
) -> Iterator[tuple[float, WorkerState]]:
    """Yield workers by the time before which they are not free: those that are late, and the others."""
    late, punctual = busy.before((now_s,)), busy.after((now_s,))
    one, other = next(late, None), next(punctual, None)
    while one is not None or other is not None:
        late_s = math.inf if one is None else now_s + overrun * (now_s - one[0])
        if one is not None and (other is None or late_s <= other[0]):
            yield late_s, one[-1]
            one = next(late, None)
        elif other is not None:
            yield other[0], other[-1]
            other = next(punctual, None)

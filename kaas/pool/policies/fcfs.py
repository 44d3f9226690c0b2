"""First come, first served over all devices: the oldest request whose inputs are ready gets the next free slot.

Where several are free it is one of the least busy worker, among these the one freed last: its caches are the warmest.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Sequence
from typing import ClassVar

from kaas.errors import PolicyError
from kaas.pool.events import (
    ClientGone,
    ClientKnown,
    Decision,
    Dispatch,
    Event,
    InputsReady,
    PhysicalDevice,
    Reject,
    RequestArrived,
    RequestCancelled,
    RequestDone,
    Residency,
    StartWorker,
    Tick,
    Utilisation,
    WorkerAdopted,
    WorkerGone,
    WorkerKind,
    WorkerReady,
)

FAILED_STARTS = 3
"""Workers in a row that may fail to start on a device before the device is given up."""


class FirstComeFirstServed:
    """One executor on each device, one queue for all of them. A request whose inputs are not ready blocks nobody."""

    work_conserving: ClassVar[bool] = True

    def __init__(self, devices: Sequence[PhysicalDevice]) -> None:
        self._failed_starts = dict.fromkeys((device.index for device in devices), 0)
        self._workers: dict[int, int] = {}  # worker -> device, from StartWorker to WorkerGone
        self._starting: set[int] = set()
        self._idle: list[tuple[int, int]] = []  # (worker, slot), the one freed last at the end
        self._busy: dict[int, int] = {}  # worker that is ready -> requests that it runs
        self._running: dict[int, int] = {}  # request -> worker
        self._waiting: set[int] = set()
        self._ready: set[int] = set()
        self._order: list[int] = []  # heap of ready ids, which count up; those that left _ready are skipped
        self._next_worker = 0
        self._begun = False
        self._last_failure = ""

    def handle(self, event: Event) -> list[Decision]:
        match event:
            case RequestArrived():
                self._arrive(event.request, event.ready)
            case InputsReady():
                _require(event.request, self._waiting)
                self._waiting.remove(event.request)
                self._queue(event.request)
            case RequestCancelled():
                self._cancel(event.request)
            case RequestDone():
                _require(event.request, self._running)
                del self._running[event.request]
                self._busy[event.worker] -= 1
                self._idle.append((event.worker, event.slot))
            case WorkerReady():
                _require(event.worker, self._starting)
                self._starting.remove(event.worker)
                self._failed_starts[event.device] = 0
                self._busy[event.worker] = 0
                self._idle.extend((event.worker, slot) for slot in reversed(range(event.slots)))
            case WorkerGone():
                self._lose(event.worker, event.reason)
            case WorkerAdopted():
                self._adopt(event)
            case Tick():
                self._begun = True  # all that an earlier life of the pool has left is known
            case Residency() | Utilisation() | ClientKnown() | ClientGone():
                pass  # this policy does not look at caches or load
        if not self._begun:
            return []
        return self._start_workers() + (self._dispatch() if self._workers else self._reject_all())

    def _arrive(self, request: int, ready: bool) -> None:
        if request in self._running or request in self._ready or request in self._waiting:
            raise PolicyError(f"request {request} arrived twice", policy="fcfs")
        if ready:
            self._queue(request)
        else:
            self._waiting.add(request)

    def _queue(self, request: int) -> None:
        self._ready.add(request)
        heapq.heappush(self._order, request)

    def _cancel(self, request: int) -> None:
        if request in self._running:
            return  # its slot is free when the worker says so
        queue = self._waiting if request in self._waiting else self._ready
        _require(request, queue)
        queue.remove(request)

    def _adopt(self, event: WorkerAdopted) -> None:
        self._next_worker = max(self._next_worker, event.worker + 1)
        self._workers[event.worker] = event.device
        self._busy[event.worker] = len(event.running)
        self._running |= {running.request: event.worker for running in event.running}
        taken = {running.slot for running in event.running}
        self._idle.extend((event.worker, slot) for slot in reversed(range(event.slots)) if slot not in taken)

    def _lose(self, worker: int, reason: str) -> None:
        _require(worker, self._workers)
        device = self._workers.pop(worker)
        self._busy.pop(worker, None)
        self._idle = [place for place in self._idle if place[0] != worker]
        self._running = {request: at for request, at in self._running.items() if at != worker}
        if worker in self._starting:
            self._starting.remove(worker)
            self._failed_starts[device] += 1
            self._last_failure = reason

    def _start_workers(self) -> list[Decision]:
        served = set(self._workers.values())
        decisions: list[Decision] = []
        for device, failures in self._failed_starts.items():
            if device not in served and failures < FAILED_STARTS:
                decisions.append(StartWorker(self._next_worker, WorkerKind.EXECUTOR, device))
                self._workers[self._next_worker] = device
                self._starting.add(self._next_worker)
                self._next_worker += 1
        return decisions

    def _dispatch(self) -> list[Decision]:
        decisions: list[Decision] = []
        while self._idle and self._order:
            request = heapq.heappop(self._order)
            if request in self._ready:
                self._ready.remove(request)
                worker, slot = self._take_slot()
                self._running[request] = worker
                decisions.append(Dispatch(request, worker, slot))
        return decisions

    def _take_slot(self) -> tuple[int, int]:
        busy = self._busy
        place = min(reversed(self._idle), key=lambda idle: busy[idle[0]])
        self._idle.remove(place)
        busy[place[0]] += 1
        return place

    def _reject_all(self) -> list[Decision]:
        """No device is left that starts: nobody should wait for one."""
        lost = sorted(self._ready | self._waiting)
        self._ready.clear()
        self._waiting.clear()
        self._order.clear()
        return [Reject(request, f"no device of the pool starts: {self._last_failure}") for request in lost]


def _require(number: int, known: Container[int]) -> None:
    if number not in known:
        raise PolicyError(f"no such id here: {number}", policy="fcfs")

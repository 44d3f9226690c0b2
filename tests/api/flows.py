"""The least policy that runs eTasks: a worker for each flow that has requests; an idle worker makes room."""

from __future__ import annotations

from collections.abc import Sequence

from kaas.scheduling.decisions import Decision, Dispatch, StartWorker, StopWorker
from kaas.scheduling.events import (
    Event,
    InputsReady,
    PhysicalDevice,
    RequestArrived,
    RequestCancelled,
    RequestDone,
    WorkerGone,
    WorkerKind,
    WorkerReady,
)

Flow = tuple[WorkerKind, str, str]


class WorkerForEachFlow:
    """kTasks are one flow, served by one executor; each client's calls of each eTask are another. One slot each."""

    def __init__(self, devices: Sequence[PhysicalDevice]) -> None:
        self._free = [device.index for device in devices]
        self._workers: dict[Flow, int] = {}
        self._device: dict[int, int] = {}
        self._idle: set[int] = set()
        self._flows: dict[int, Flow] = {}
        self._ready: list[int] = []
        self._next = 0

    def handle(self, event: Event) -> list[Decision]:
        match event:
            case RequestArrived():
                etask = event.kind is WorkerKind.ETASK
                self._flows[event.request] = event.kind, event.client * etask, event.function * etask
                self._ready += [event.request] * event.ready
            case InputsReady():
                self._ready.append(event.request)
            case RequestCancelled() if event.request in self._ready:
                self._ready.remove(event.request)
            case RequestDone() | WorkerReady():
                self._idle.add(event.worker)
            case WorkerGone():
                self._idle.discard(event.worker)
                self._free.append(self._device.pop(event.worker))
                self._workers = {flow: worker for flow, worker in self._workers.items() if worker != event.worker}
        return [decision for request in list(self._ready) for decision in self._place(request)]

    def _place(self, request: int) -> list[Decision]:
        flow = self._flows[request]
        worker = self._workers.get(flow)
        if worker in self._idle and worker in self._device:
            self._idle.remove(worker)
            self._ready.remove(request)
            return [Dispatch(request, worker, 0)]
        if worker is not None:
            return []
        if self._free:
            worker, self._next = self._next, self._next + 1
            self._workers[flow] = worker
            self._device[worker] = self._free.pop(0)
            return [StartWorker(worker, flow[0], self._device[worker], flow[1], flow[2])]
        wanted = {self._workers.get(self._flows[waiting]) for waiting in self._ready}
        for idle in sorted(self._idle - wanted):
            self._idle.remove(idle)
            return [StopWorker(idle)]
        return []

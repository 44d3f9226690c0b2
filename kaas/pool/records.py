"""What the pool's core remembers of a request and of a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kaas.errors import DeviceLost
from kaas.pool.events import PhysicalDevice, Residency, Running, WorkerAdopted, WorkerKind
from kaas.pool.status import DeviceStatus, PinStatus, WorkerInfo
from kaas.pool.transport import Call, Survivor


@dataclass(slots=True, eq=False)
class Request:
    """A request on its way; worker is where it runs, None while it is queued."""

    id: int
    call: Call
    arrived_s: float
    answer: asyncio.Future[Any]
    attempt: int = 1
    worker: Worker | None = None
    dispatched_s: float = 0.0
    inputs: asyncio.Future[Any] | None = None
    timer: asyncio.TimerHandle | None = None
    fault: DeviceLost | None = None

    @property
    def inputs_exist(self) -> bool:
        inputs = self.inputs
        return inputs is None or (inputs.done() and not inputs.cancelled() and inputs.exception() is None)

    def release(self) -> None:
        """Stop what was set up to answer it or to wait for its inputs."""
        if self.timer is not None:
            self.timer.cancel()
        if self.inputs is not None:
            self.inputs.cancel()


@dataclass(slots=True, eq=False)
class Worker:
    """A worker from the decision to start it to its end.

    Fields:
        info: there once it is ready. settled: set once it is ready or never will be.
        lost: requests that have ended here with the device.
    """

    id: int
    device: PhysicalDevice
    info: WorkerInfo | None = None
    stopping: bool = False
    running: dict[int, Request] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def state(self) -> str:
        if self.stopping:
            return "stopping"
        if self.info is None:
            return "starting"
        return "busy" if self.running else "idle"


def adopted(
    survivor: Survivor, device: PhysicalDevice, ids: Iterator[int], now_s: float
) -> tuple[Worker, list[WorkerAdopted | Residency]]:
    """A worker that outlived an earlier process of the pool, with a request for each of its runs, and what the policy
    is to hear of it. Nobody waits for these requests."""
    info, number = survivor.info, survivor.worker
    worker = Worker(number, device, info)
    worker.settled.set()
    running = []
    for slot, call in survivor.running.items():
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.cancel()
        request = Request(next(ids), call, now_s, answer, worker=worker, dispatched_s=now_s)
        worker.running[request.id] = request
        running.append(Running(request.id, slot, call.client, call.function))
    kind, slots, memory_bytes = WorkerKind.EXECUTOR, info.slots, info.memory_bytes
    arrival = WorkerAdopted(now_s, number, kind, device.index, slots, memory_bytes, running=tuple(running))
    cached = [Residency(now_s, number, survivor.cached, ())] if survivor.cached else []
    return worker, [arrival, *cached]


def device_status(device: PhysicalDevice, worker: Worker | None, pins: tuple[PinStatus, ...]) -> DeviceStatus:
    """A device as `kaas.status()` shows it; worker: the one that it has."""
    if worker is None:
        return DeviceStatus(device.index, device.kind, "lost", pins=pins)
    return DeviceStatus(device.index, device.kind, worker.state, worker.id, worker.info, tuple(worker.running), pins)

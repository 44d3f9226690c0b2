"""What the pool's core remembers of a request and of a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kaas.errors import DeviceLost
from kaas.pool.events import PhysicalDevice, WorkerKind
from kaas.pool.status import DeviceStatus, PinStatus, WorkerInfo
from kaas.pool.transport import Call


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


def orphan(number: int, call: Call, now_s: float, worker: Worker) -> Request:
    """A request that runs on a worker, and for which nobody waits."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    answer.cancel()
    return Request(number, call, now_s, answer, worker=worker, dispatched_s=now_s)


@dataclass(slots=True, eq=False)
class Worker:
    """A worker from the decision to start it to its end.

    Fields:
        info: there once it is ready. settled: set once it is ready or never will be.
        lost: requests that have ended here with the device.
        client, serves: whom it serves and with what, by the label of an eTask; "" if it serves all.
    """

    id: int
    device: PhysicalDevice
    kind: WorkerKind = WorkerKind.EXECUTOR
    client: str = ""
    serves: str = ""
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


def device_status(device: PhysicalDevice, workers: Iterable[Worker], pins: tuple[PinStatus, ...]) -> DeviceStatus:
    """A device as `kaas.status()` shows it. workers: those of the pool."""
    here = sorted((each for each in workers if each.device is device), key=lambda each: (not each.running, -each.id))
    if not here:
        return DeviceStatus(device.index, device.kind, "lost", pins=pins)
    worker = here[0]
    return DeviceStatus(
        device.index,
        device.kind,
        worker.state,
        worker.id,
        worker.info,
        tuple(worker.running),
        pins,
        worker.kind.value,
        worker.client,
        worker.serves,
        tuple(each.id for each in here[1:]),
    )

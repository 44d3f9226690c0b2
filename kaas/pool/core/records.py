"""What the pool's core remembers of a request and of a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kaas.errors import DeviceLost, ExecutorDied
from kaas.pool.executors.transport import Survivor, WorkerCall
from kaas.pool.immediate_future import ImmediateFuture
from kaas.pool.observing.ledger import LedgerEntry
from kaas.pool.observing.tracing import Traced
from kaas.scheduling.events import (
    PhysicalDevice,
    RequestArrived,
    Residency,
    Running,
    WorkerAdopted,
    WorkerKind,
    WorkerReady,
)
from kaas.wire.specs import RunRecord
from kaas.wire.status.status import DeviceStatus, PinStatus, WorkerInfo
from kaas.wire.trace_context import TraceContext


class Request(msgspec.Struct, eq=False):
    """A request on its way; worker is where it runs, None while it is queued.

    Fields:
        charged: how many of its retries are used. alone: it is a suspect, and nothing may run beside it.
        left: is called when it neither is queued nor runs any more. record: what its last run took; of one that ended
            without a measurement, the time since its dispatch.
        suspect_s: of earlier runs that ended with their worker: they are its own if it turns out to have ended that.
        slot: of its worker, where it runs or ran. trace: what its caller said of one, continued.
    """

    id: int
    call: WorkerCall
    arrived_s: float
    answer: ImmediateFuture[Any]
    attempt: int = 1
    worker: WorkerRecord | None = None
    dispatched_s: float = 0.0
    inputs: asyncio.Future[Any] | None = None
    timer: asyncio.TimerHandle | None = None
    charged: int = 0
    alone: bool = False
    left: Callable[[], None] | None = None
    record: RunRecord | None = None
    suspect_s: float = 0.0
    slot: int = 0
    trace: TraceContext | None = None

    @property
    def inputs_exist(self) -> bool:
        inputs = self.inputs
        return inputs is None or (inputs.done() and not inputs.cancelled() and inputs.exception() is None)

    def arrival(self, now_s: float) -> RequestArrived:
        """What a policy hears of it."""
        call = self.call
        return RequestArrived(
            time_s=now_s,
            request=self.id,
            client=call.client,
            function=call.flow,
            inputs=call.uses,
            ready=self.inputs_exist,
            deadline_s=None if call.deadline_s is None else self.arrived_s + call.deadline_s,
            attempt=self.attempt,
            kind=call.kind,
            alone=self.alone,
        )

    def entry(self, outcome: str, record: RunRecord | None, now_s: float) -> LedgerEntry:
        """What the figures say of it once it is answered. record: what was measured, to which its times are added."""
        device = self.worker.device.index if self.worker else None
        if record is None:
            return LedgerEntry(self.call.label, self.call.client, device, outcome)
        record.stages["queue"] = self.dispatched_s - self.arrived_s
        record.stages["request"] = now_s - self.arrived_s
        measured = record.stages, record.tiers, record.kernels
        return LedgerEntry(self.call.label, self.call.client, device, outcome, *measured)

    def traced(self, outcome: str, record: RunRecord | None, now_s: float) -> Traced:
        """Its part of a trace once it is answered."""
        call, worker = self.call, self.worker
        who = (self.id, call.client, call.label, outcome, self.arrived_s, now_s)
        if worker is None:
            return Traced(*who, context=self.trace)
        stages = record.stages if record is not None else {}
        return Traced(*who, worker.device.index, self.slot, self.dispatched_s, stages, self.trace)

    def release(self) -> None:
        """Stop what was set up to answer it or to wait for its inputs."""
        if self.timer is not None:
            self.timer.cancel()
        if self.inputs is not None:
            self.inputs.cancel()


@dataclass(slots=True, eq=False)
class WorkerRecord:
    """A worker from the decision to start it to its end.

    Fields:
        info: there once it is ready. settled: set once it is ready or never will be.
        lost: requests that have ended here with the device. cached_bytes: of objects, on the device and in host memory.
        client, serves: whom it serves and with what, by the label of an eTask; "" if it serves all.
        start_s: what its start took, of an executor for one client, until its first request is charged with it.
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
    cached_bytes: tuple[int, ...] = ()
    start_s: float = 0.0
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        """It in words, for errors."""
        return f"worker {self.id} (pid {self.info.pid if self.info else 0}) on device {self.device.index}"

    @property
    def state(self) -> str:
        if self.stopping:
            return "stopping"
        if self.info is None:
            return "starting"
        return "busy" if self.running else "idle"

    def arrival(self, now_s: float, cache_bytes: int | None) -> WorkerReady:
        """What a policy hears of it once it is ready. cache_bytes: what its cache may take, if that is limited."""
        assert self.info is not None, "it is ready"
        memory_bytes = _cache_bytes(self.info, cache_bytes)
        return WorkerReady(now_s, self.id, self.kind, self.device.index, self.info.slots, memory_bytes)


def _cache_bytes(info: WorkerInfo, cache_bytes: int | None) -> int:
    return info.memory_bytes if cache_bytes is None else min(cache_bytes, info.memory_bytes)


def adopted(
    survivor: Survivor, device: PhysicalDevice, ids: Iterator[int], now_s: float, cache_bytes: int | None
) -> tuple[WorkerRecord, list[WorkerAdopted | Residency]]:
    """A worker that outlived an earlier process of the pool, with a request for each of its runs, and what the policy
    is to hear of it. Nobody waits for these requests."""
    start, info = survivor.start, survivor.info
    worker = WorkerRecord(start.worker, device, start.kind, start.client, info=info)
    worker.settled.set()
    running = []
    for slot, call in survivor.running.items():
        answer: ImmediateFuture[Any] = ImmediateFuture()
        answer.cancel()
        request = Request(next(ids), call, now_s, answer, worker=worker, slot=slot, dispatched_s=now_s)
        worker.running[request.id] = request
        running.append(Running(request.id, slot, call.client, call.function))
    size, whom = (info.slots, _cache_bytes(info, cache_bytes)), (start.client, start.function)
    arrival = WorkerAdopted(now_s, worker.id, start.kind, device.index, *size, *whom, tuple(running))
    cached = [Residency(now_s, worker.id, survivor.cached, ())] if survivor.cached else []
    return worker, [arrival, *cached]


def device_status(
    device: PhysicalDevice, workers: Iterable[WorkerRecord], pins: tuple[PinStatus, ...], reason: str
) -> DeviceStatus:
    """A device as `kaas.status()` shows it. workers: those of the pool. reason: why its last one was lost, if so."""
    here = sorted((each for each in workers if each.device is device), key=lambda each: (not each.running, -each.id))
    if not here:
        return DeviceStatus(device.index, device.kind, "lost" if reason else "unused", pins=pins, reason=reason)
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
        "" if worker.info is not None else reason,
    )


def unmeasured(device_s: float) -> RunRecord:
    """What a run took of which no measurement came."""
    return RunRecord({}, {}, (), (), device_s)


def died(request: Request, worker: WorkerRecord, reason: str, cause: DeviceLost | None) -> ExecutorDied:
    """What a request is told whose worker ended for a reason that is not known to be its own."""
    others = len(worker.running) - 1
    beside = f" beside {others} other request{'s'[: others > 1]}" if others else ""
    ended = f"{worker.name} ended while running it{beside}, attempt {request.attempt}: {reason}"
    error = ExecutorDied(
        f"{request.call.label!r}: {ended}", executor=worker.name, attempts=request.attempt, reason=reason
    )
    error.__cause__ = cause
    return error

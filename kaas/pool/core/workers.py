"""The pool's workers, each from the decision to start it to its end, and the limit of a run's duration."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from kaas.pool.background import Background
from kaas.pool.core.requests import Request, Requests
from kaas.pool.executors.transport import Survivor, WorkerTransport
from kaas.scheduling.decisions import StartWorker
from kaas.scheduling.events import (
    PhysicalDevice,
    Residency,
    Running,
    WorkerAdopted,
    WorkerKind,
    WorkerReady,
)
from kaas.wire.status.status import DeviceStatus, ExecutorStatus, PinStatus, WorkerInfo

GRACE_S = 2.0
"""The pool ends an executor this much later than the run limit: the executor can end the run itself, with less damage
and a better message. After other requests have reported the loss of the device, the pool waits this long for the
reply of a request that ran for too long."""


@dataclass(slots=True, eq=False)
class WorkerRecord:
    """A worker from the decision to start it to its end.

    Fields:
        info: None until the worker is ready. settled: set once the worker is ready, or has failed to start.
        running: the requests on the worker, by number. lost: those that have reported the loss of the device.
        freed_s: when the last run on the worker ended: the runs there may have waited for its room.
        cached_bytes: sizes of the cached objects, on the device and in host memory.
        client, serves: the client that the worker serves, and the label of its eTask; "" if it serves all.
        spare: it serves no client yet, and then that of its first request only.
        start_s: seconds that the start of one client's executor took, until the first request is charged with them.
    """

    id: int
    device: PhysicalDevice
    kind: WorkerKind = WorkerKind.EXECUTOR
    client: str = ""
    serves: str = ""
    spare: bool = False
    info: WorkerInfo | None = None
    stopping: bool = False
    running: dict[int, Request] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    freed_s: float = -math.inf
    cached_bytes: tuple[int, ...] = ()
    start_s: float = 0.0
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    def give(self, client: str) -> None:
        """Let a spare executor serve a client, and no other any more."""
        self.client, self.spare = client, False

    @property
    def name(self) -> str:
        """The worker in words, for errors."""
        return f"worker {self.id} (pid {self.info.pid if self.info else 0}) on device {self.device.index}"

    @property
    def walled(self) -> bool:
        """The worker serves one client only, on a device with executors of several."""
        return self.kind is WorkerKind.EXECUTOR and self.device.client_executors is not None

    @property
    def shown(self) -> ExecutorStatus:
        """The worker as `kaas.status()` shows executors of one client."""
        found = () if self.info is None else (self.info.sandboxed, self.info.lacks)
        return ExecutorStatus(self.id, self.state, self.info.pid if self.info else 0, self.client, *found)

    @property
    def state(self) -> str:
        """The worker's state as `kaas.status()` shows it."""
        if self.stopping:
            return "stopping"
        if self.info is None:
            return "starting"
        return "busy" if self.running else "idle"

    def arrival(self, now_s: float, cache_bytes: int | None) -> Iterator[WorkerReady | Residency]:
        """Yield the events that tell a policy of the worker. cache_bytes: limit of the worker's cache, if any."""
        assert self.info is not None, "it is ready"
        cached, self.info = self.info.cached, replace(self.info, cached=())
        memory_bytes = _cache_bytes(self.info, cache_bytes)
        sizes = self.info.slots, memory_bytes, self.info.sms, self.info.sm_step
        yield WorkerReady(now_s, self.id, self.kind, self.device.index, *sizes)
        if cached:
            yield Residency(now_s, self.id, cached, ())


def _cache_bytes(info: WorkerInfo, cache_bytes: int | None) -> int:
    return info.memory_bytes if cache_bytes is None else min(cache_bytes, info.memory_bytes)


def adopted(
    survivor: Survivor, device: PhysicalDevice, requests: Requests, now_s: float, cache_bytes: int | None
) -> tuple[WorkerRecord, list[WorkerAdopted | Residency]]:
    """Return the record of a worker that outlived an earlier process of the pool, and the events for the policy.

    Each run of the worker becomes an ABANDONED request: no caller waits for it.
    """
    start, info = survivor.start, survivor.info
    worker = WorkerRecord(start.worker, device, start.kind, start.client, info=info)
    worker.settled.set()
    running = []
    for slot, call in survivor.running.items():
        request = requests.adopt(call, worker.id, device.index, slot, now_s)
        worker.running[request.id] = request
        running.append(Running(request.id, slot, call.client, call.function))
    size, serves = (info.slots, _cache_bytes(info, cache_bytes)), (start.client, start.function)
    sms = info.sms, info.sm_step
    arrival = WorkerAdopted(now_s, worker.id, start.kind, device.index, *size, *serves, tuple(running), *sms)
    cached = [Residency(now_s, worker.id, survivor.cached, ())] if survivor.cached else []
    return worker, [arrival, *cached]


def device_status(
    device: PhysicalDevice, workers: Iterable[WorkerRecord], pins: tuple[PinStatus, ...], reason: str, *, away: bool
) -> DeviceStatus:
    """Return a device as `kaas.status()` shows it. workers: of the pool. reason: of its last worker's loss, or "".

    away: the device is not there, or goes.
    """
    here = sorted(
        (each for each in workers if each.device is device), key=lambda each: (not each.running, each.spare, -each.id)
    )
    if not here:
        state = "absent" if away else "lost" if reason else "unused"
        return DeviceStatus(device.index, device.kind, state, pins=pins, reason=reason)
    worker = here[0]
    return DeviceStatus(
        device.index,
        device.kind,
        "draining" if away else worker.state,
        worker.id,
        worker.info,
        tuple(worker.running),
        pins,
        worker.kind.value,
        worker.client,
        worker.serves,
        tuple(each.id for each in here[1:]),
        "" if worker.info is not None else reason,
        tuple(each.shown for each in sorted(here, key=lambda each: each.id)) if worker.walled else (),
    )


class WorkerHost(Protocol):
    """The part of the pool that a WorkerManager calls."""

    def ready(self, worker: WorkerRecord) -> None:
        """Handle that a worker can run requests."""
        ...

    def gone(self, worker: WorkerRecord, reason: str) -> None:
        """Handle the end of a worker; call `WorkerManager.drop`. May be called twice for a worker."""
        ...


class WorkerManager:
    """Starts and ends workers. Use an object of this class from one event loop only.

    Args:
        start_limit_s: the longest that the start of a worker may take.

    Fields:
        workers: by number; other classes only read.
    """

    def __init__(
        self, host: WorkerHost, transport: WorkerTransport, background: Background, start_limit_s: float
    ) -> None:
        self._host = host
        self._transport = transport
        self._background = background
        self._start_limit_s = start_limit_s
        self._loop = asyncio.get_running_loop()
        self.workers: dict[int, WorkerRecord] = {}

    def start(self, decision: StartWorker, device: PhysicalDevice, serves: str) -> None:
        """Start a worker. serves: the label of its only function, "" for a worker of all functions."""
        worker = WorkerRecord(decision.worker, device, decision.kind, decision.client, serves)
        worker.spare = worker.walled
        self.workers[worker.id] = worker
        self._background.run(self._start(worker, decision))

    async def _start(self, worker: WorkerRecord, decision: StartWorker) -> None:
        began_s = self._loop.time()
        try:
            async with asyncio.timeout(self._start_limit_s):
                worker.info = await self._transport.start(decision)
        except Exception as error:  # noqa: BLE001 - any error means that there is no worker
            self._host.gone(worker, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
            return
        if decision.client and worker.kind is WorkerKind.EXECUTOR:  # the transport of eTasks charges the start itself
            worker.start_s = self._loop.time() - began_s
        if worker.id in self.workers:
            worker.settled.set()
            self._host.ready(worker)
            await self._watch(worker)

    async def _watch(self, worker: WorkerRecord) -> None:
        self._host.gone(worker, await self._transport.ended(worker.id))

    def adopt(self, worker: WorkerRecord) -> None:
        """Add a worker that an earlier process of the pool started."""
        self.workers[worker.id] = worker
        self._background.run(self._watch(worker))

    def stop(self, worker: WorkerRecord) -> None:
        """End a worker once it is idle."""
        worker.stopping = True
        if worker.info is None:
            self._loop.call_soon(self._host.gone, worker, "stopped")
        elif not worker.running:
            self.end(worker)

    def end(self, worker: WorkerRecord) -> None:
        """End an idle worker: ask its process to stop."""
        self._background.run(self._end(worker))

    async def _end(self, worker: WorkerRecord) -> None:
        trouble = await self._transport.stop(worker.id)
        self._host.gone(worker, f"stopped, and {trouble}" if trouble else "stopped")

    def drop(self, worker: WorkerRecord) -> bool:
        """Remove a worker and kill its process. Return True if the worker was not removed before."""
        worker.settled.set()
        if self.workers.pop(worker.id, None) is None:
            return False
        self._transport.kill(worker.id)
        return True

    async def close(self) -> None:
        """Kill all workers, but first ask idle workers of eTasks to stop, since their code may clean up."""
        etasks = [worker for worker in self.workers.values() if worker.kind is WorkerKind.ETASK]
        idle = [worker.id for worker in etasks if worker.info is not None and not worker.running]
        await asyncio.gather(*map(self._transport.stop, idle))
        for worker in self.workers.values():
            self._transport.kill(worker.id)
            worker.settled.set()


class RunLimits:
    """One timer for the run limits of all requests. Few requests reach the limit, so one timer is cheap.

    The pool does not hear when a run has its memory: it may have waited for the room of other runs until the last of
    them ended, so its limit counts from then. It waits at most for those in the other slots, one after the other, each
    of which has the limit too: after as many limits as the worker has slots it is over, whatever ends beside it.

    Use an object of this class from one event loop only.

    Args:
        limit_s: of a run, from the time at which it has its memory. workers: those of the pool, which changes them.
        overrun: ends a request that has run for too long, and its worker.
    """

    def __init__(
        self,
        limit_s: float,
        workers: Mapping[int, WorkerRecord],
        overrun: Callable[[Request, WorkerRecord], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._limit_s = limit_s
        self._workers = workers
        self._overrun = overrun
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = math.inf  # time of the next check; infinite while nothing runs

    def begun(self, request: Request) -> None:
        """Check the limit of a request that runs from now on."""
        due_s = request.dispatched_s + self._limit_s  # the earliest time: `runs` has the one that counts by then
        if due_s < self._due_s:
            self._check_at(due_s)

    def check(self) -> None:
        """End the requests that have run for too long."""
        now_s = self._loop.time()
        try:
            for request, worker, due_s in list(self.runs()):
                # the worker may be gone already, because of the limit of a request in another slot
                if due_s <= now_s and request.worker == worker.id:
                    self._overrun(request, worker)
        finally:
            self._check_at(min((due_s for _, _, due_s in self.runs()), default=math.inf))

    def _check_at(self, time_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_s = time_s
        self._timer = self._loop.call_at(time_s, self.check) if time_s < math.inf else None

    def runs(self) -> Iterator[tuple[Request, WorkerRecord, float]]:
        """Yield each run with the time at which it must have ended. A run that reported its device's loss is over."""
        for worker in self._workers.values():
            limit_s = self._limit_s + (0 if worker.kind is WorkerKind.ETASK else GRACE_S)
            slots = 1 if worker.info is None else worker.info.slots
            for request in worker.running.values():
                if request.id not in worker.lost:
                    due_s = max(request.dispatched_s, worker.freed_s) + limit_s
                    yield request, worker, min(due_s, request.dispatched_s + slots * limit_s)

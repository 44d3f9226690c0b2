"""Reports of a pool's requests for statistics, metrics and traces."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from kaas.config import Config
from kaas.errors import DeviceUnavailable
from kaas.pool.background import Background
from kaas.pool.core.devices import PoolDevices
from kaas.pool.core.requests import Request, Requests, RequestState
from kaas.pool.core.shares import PoolShares
from kaas.pool.core.workers import WorkerRecord, device_status
from kaas.pool.observing.event_log import EventLog
from kaas.pool.observing.ledger import Ledger, LedgerEntry
from kaas.pool.observing.metrics import TIERS, Measured
from kaas.pool.observing.tracing import Tracer, TraceStep
from kaas.scheduling.events import PhysicalDevice, WorkerKind
from kaas.scheduling.policy_choice import policy_text
from kaas.wire.specs import RunRecord
from kaas.wire.status.stats import OutcomeStats, StageStats, Stats, TierStats
from kaas.wire.status.status import DeviceStatus, PinStatus, Status


class Reports:
    """The reports of a pool. requests, workers, shares: those of the pool, which changes them.

    Fields:
        ledger: the entries of the answered requests.
    """

    def __init__(
        self,
        requests: Requests,
        workers: Mapping[int, WorkerRecord],
        devices: Sequence[PhysicalDevice],
        presence: PoolDevices,
        background: Background,
        events: EventLog,
        shares: PoolShares,
    ) -> None:
        self._requests = requests
        self._workers = workers
        self._devices = devices
        self._presence = presence
        self._background = background
        self._events = events
        self._shares = shares
        self._loop = asyncio.get_running_loop()
        self._tracers: list[Tracer] = []
        self.ledger = Ledger(self._loop.time())

    def note(self, request: Request, outcome: str, record: RunRecord | None = None) -> None:
        """Record an answered request."""
        now = self._loop.time()
        self.ledger.write(request.entry(outcome, record, now))
        for tracer in self._tracers:
            tracer.note(request.traced(outcome, record, now))

    def note_step(self, step: TraceStep) -> None:
        """Record a finished step of a server. The step's request is recorded separately."""
        self.ledger.write(
            LedgerEntry(step.function, step.client, None, None, {step.stage: step.ended_s - step.begun_s})
        )
        for tracer in self._tracers:
            tracer.note_step(step)

    def rows_of(self, client: str | None) -> tuple[float, Iterator[StageStats | TierStats | OutcomeStats]]:
        """Return the duration of the statistics in seconds, and an iterator of the rows of one client, or of all."""
        return self.ledger.seconds(self._loop.time()), self.ledger.rows(client)

    def stats(self, reset: bool = False) -> Stats:
        """Return the statistics since the last reset. reset: begin anew."""
        now_s = self._loop.time()
        stats = self.ledger.read(now_s)
        if reset:
            self.ledger.reset(now_s)
        return stats

    def measured(self) -> Measured:
        """Return the figures for metrics. A reset of statistics does not reset them."""
        queued = len(self._requests.queued())
        devices = [self.device(device) for device in self._devices]
        cached = [worker.cached_bytes for worker in self._workers.values()]
        tiers = {tier: sum(each[at] for each in cached if each) for at, tier in enumerate(TIERS)}
        running = sum(len(worker.running) for worker in self._workers.values())
        events = self._events
        return Measured(
            self.ledger.since_the_start(),
            queued,
            running,
            tiers,
            Counter(each.state for each in devices),
            worker_starts=events.starts,
            worker_ends=events.ends,
            faults=events.faults,
            shares=self._shares.status(devices),
            lost={each.index: each.reason for each in devices if each.state == "lost"},
        )

    def status(self, pool: str, config: Config, pins: Callable[[int], tuple[PinStatus, ...]]) -> Status:
        """Return a pool's devices and the number of its requests. pins: of a device, by its index."""
        counts = self._requests.counts()
        devices = tuple(self.device(device, pins(device.index)) for device in self._devices)
        return Status(
            pool=pool,
            config=config,
            devices=devices,
            shares=self._shares.status(devices),
            queued=counts[RequestState.QUEUED] + counts[RequestState.RETRYING],
            waiting=counts[RequestState.WAITING],
            running=counts[RequestState.RUNNING] + counts[RequestState.ABANDONED],
            functions=(),
            abandoned=counts[RequestState.ABANDONED],
            policy=policy_text(config.policy),
        )

    def device(self, device: PhysicalDevice, pins: tuple[PinStatus, ...] = ()) -> DeviceStatus:
        """Return a device as `kaas.status()` shows it."""
        reason = self._events.reasons.get(device.index, "")
        away = device.index in self._presence.away
        return device_status(device, self._workers.values(), pins, reason, away=away)

    def check_devices(self) -> None:
        """Check that no device is lost. Of a `kaas.Scale`, one may be as long as others come.

        Raises:
            DeviceUnavailable: a device is lost. The message has the cause.
        """
        least = self._presence.least
        if least < len(self._devices) and (not least or self._up() or self._starting()):
            return
        for device in map(self.device, self._devices):
            if device.reason:
                message = f"device {device.index}, of kind {device.kind!r}, cannot be used: {device.reason}"
                raise DeviceUnavailable(message)

    async def started(self) -> None:
        """Wait until the executors that start now can run requests.

        Raises:
            DeviceUnavailable: an executor cannot start, or a device was lost before. The message has the cause.
        """
        self.check_devices()
        while len(self._up()) < self._presence.least and (starting := self._starting()):
            waits = [asyncio.ensure_future(worker.settled.wait()) for worker in starting]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in waits:
                each.cancel()
            self.check_devices()

    def _up(self) -> set[int]:
        """Return the devices with an executor that can run requests."""
        return {each.device.index for each in self._workers.values() if each.info is not None}

    def _starting(self) -> list[WorkerRecord]:
        return [
            each for each in self._workers.values() if each.kind is WorkerKind.EXECUTOR and not each.settled.is_set()
        ]

    async def trace(self, seconds: float) -> bytes:
        """Return the requests answered in the next seconds, or until the pool ends, for `tracing.chrome`."""
        tracer = Tracer(self._loop.time())
        self._tracers.append(tracer)
        end = self._background.begin(asyncio.sleep(seconds))
        try:
            await asyncio.wait([end])
        finally:
            end.cancel()
            self._tracers.remove(tracer)
        return tracer.encoded()

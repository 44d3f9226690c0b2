"""The commands about a pool's caches: orders of programs, pins that outlive executors, decisions of the policy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from kaas.errors import DeviceLost, DeviceUnavailable, InvalidRequest, KaasError
from kaas.pool.background import Background
from kaas.pool.core.requests import Request, RequestState
from kaas.pool.core.runs import Runs
from kaas.pool.core.workers import WorkerRecord
from kaas.pool.executors.transport import CacheOrder, WorkerCall, WorkerLost, WorkerReply, WorkerTransport
from kaas.pool.observing.ledger import Ledger, LedgerEntry
from kaas.scheduling.decisions import Evict, Prefetch
from kaas.scheduling.events import WorkerKind
from kaas.wire.specs import RunRecord
from kaas.wire.status.status import PinStatus

SendCommand = Callable[[int], Coroutine[Any, Any, WorkerReply]]
"""Sends a command to the worker with a number, and returns the worker's reply."""


class CacheHost(Protocol):
    """The part of the pool that CacheCommands calls."""

    def check_open(self) -> None:
        """Check that the pool takes commands.

        Raises:
            KaasError
        """
        ...


@dataclass(slots=True, eq=False)
class _Pin:
    """A standing order on one device.

    Fields:
        shown: the target in `kaas.status()`. order: None once the pin is lost, so that its object is no longer held.
        worker: the worker that has carried the order out. lost: why no worker can carry the order out.
    """

    shown: str
    order: CacheOrder | None
    worker: int | None = None
    lost: str = ""


class CacheCommands:
    """The commands about the caches of a pool's workers. Use an object of this class from one event loop only.

    Args:
        runs: ends a worker that fails, and tells the policy which objects a worker loads.
        workers: those of the pool, which changes them.
        limit_s: the longest time without a reply of a worker that has commands.
    """

    def __init__(
        self,
        host: CacheHost,
        runs: Runs,
        workers: Mapping[int, WorkerRecord],
        devices: int,
        transport: WorkerTransport,
        background: Background,
        ledger: Ledger,
        limit_s: float,
    ) -> None:
        self._host = host
        self._runs = runs
        self._workers = workers
        self._devices = devices
        self._transport = transport
        self._background = background
        self._ledger = ledger
        self._pins: dict[tuple[bytes, int], _Pin] = {}
        self.references: RequestsByObject | None = None
        """The requests by object, from the policy's first Prefetch on: no decision before that needs them."""
        self._timeouts = Timeouts()
        self._limit_s = limit_s

    # --- orders of programs

    async def carry_out(self, order: CacheOrder, device: int | None = None) -> list[int]:
        """Carry out an order on the worker of one device, or of each; return these workers.

        With isolation="process" these are the executors of the order's client, which may have none yet.

        Raises:
            InvalidRequest: there is no such device. DeviceUnavailable: it has no worker.
            PoolStopped: the pool is closed. KaasError: the error of the first worker that failed.
        """
        self._host.check_open()
        if device is not None and not 0 <= device < self._devices:
            raise InvalidRequest(f"the pool has devices 0 to {self._devices - 1}, no {device}")
        there = [worker for worker in self._executors() if device in (None, worker.device.index)]
        if not there:
            raise DeviceUnavailable(f"no worker on {'any device' if device is None else f'device {device}'}")
        workers = [worker for worker in there if concerns(order, worker)]
        tasks = [self._background.task(self._order(worker, order)) for worker in workers]
        for result in await asyncio.gather(*map(asyncio.shield, tasks), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
        return [worker.id for worker in workers]

    async def write_back(self, worker: int, key: bytes) -> None:
        """Let a worker write back an output that it kept.

        Raises:
            KaasError: the worker's error. DeviceUnavailable: the worker ended.
        """
        if worker not in self._workers:
            raise DeviceUnavailable(f"worker {worker} has ended")
        # shorter than other commands: a request on another worker may wait for this output
        limit_s = self._limit_s / 2
        await self._send(
            self._workers[worker], "", "", lambda number: self._transport.write_back(number, [key]), limit_s
        )

    def discard(self, worker: int, keys: Sequence[bytes]) -> None:
        """Let a worker forget outputs that it kept: no request will ask for them."""
        if worker in self._workers:
            self._background.run(self._forget(self._workers[worker], keys))

    async def _forget(self, worker: WorkerRecord, keys: Sequence[bytes]) -> None:
        await self._try(worker, lambda number: self._transport.discard(number, keys))

    def _executors(self) -> Iterator[WorkerRecord]:
        return (worker for worker in self._workers.values() if worker.kind is WorkerKind.EXECUTOR)

    async def _order(self, worker: WorkerRecord, order: CacheOrder) -> None:
        await worker.settled.wait()
        await self._send(
            worker, order.function, order.client, lambda number: self._transport.cache_command(number, order)
        )

    async def _send(
        self, worker: WorkerRecord, function: str, client: str, send: SendCommand, limit_s: float | None = None
    ) -> RunRecord | None:
        """Send a command to a worker, take in the worker's reply, and return its record.

        Raises:
            KaasError: the worker's error. DeviceUnavailable: the worker ended; or it did not reply, and was ended; or
                it lost its device while requests ran, which are then at fault.
        """
        name = f"worker {worker.id} on device {worker.device.index}"
        try:
            if worker.id not in self._workers:
                raise WorkerLost("it ended")
            reply = await self._timeouts.reply(worker.id, send(worker.id), limit_s or self._limit_s)
        except WorkerLost as lost:
            raise DeviceUnavailable(f"{name}: {lost}") from lost
        except WorkerSilent as silent:
            self._runs.gone(worker, str(silent))
            raise DeviceUnavailable(f"{name}: {silent}") from silent
        if isinstance(reply.error, DeviceLost):
            alone = worker.id in self._workers and not worker.running
            self._runs.lost(worker, reply.error)
            if not alone:
                raise DeviceUnavailable(f"{name}: {reply.error.message}") from reply.error
        if reply.error is not None:
            raise reply.error
        if reply.record is not None and reply.record.tiers:
            self._ledger.write(LedgerEntry(function, client, worker.device.index, None, tiers=reply.record.tiers))
        self._runs.tell_residency(worker, reply.record)
        return reply.record

    # --- pins

    async def pin(self, target: bytes, order: CacheOrder, device: int | None = None) -> None:
        """Carry out an order, and repeat it on each worker that starts later. target: names the order.

        Raises:
            KaasError: as `carry_out`; then no later worker repeats the order.
        """
        self._keep(target, order, device, await self.carry_out(order, device))

    def _keep(self, target: bytes, order: CacheOrder, device: int | None, done_by: Sequence[int]) -> None:
        """Repeat an order on each worker that starts from now on, on one device or each.

        target names the order; the workers done_by have carried it out.
        """
        on_device = {worker.device.index: worker for worker in self._executors() if concerns(order, worker)}
        for index in range(self._devices) if device is None else (device,):
            pin = self._pins[target, index] = _Pin(order.function or target.hex(), order)
            worker = on_device.get(index)
            if worker is not None and worker.id in done_by:
                pin.worker = worker.id
            elif worker is not None and worker.settled.is_set():
                self._background.run(self._repeat(worker, pin, order))

    def unpin(self, target: bytes | None = None, device: int | None = None) -> None:
        """Remove the pins of one target or all, on one device or each."""
        for place in list(self._pins):
            if target in (None, place[0]) and device in (None, place[1]):
                del self._pins[place]

    def repeat(self, worker: WorkerRecord) -> None:
        """Repeat the pins of a device on its new worker, if the worker has a cache."""
        if worker.kind is not WorkerKind.EXECUTOR:
            return
        for (_, index), pin in self._pins.items():
            if index == worker.device.index and pin.order is not None and concerns(pin.order, worker):
                self._background.run(self._repeat(worker, pin, pin.order))

    async def _repeat(self, worker: WorkerRecord, pin: _Pin, order: CacheOrder) -> None:
        try:
            await self._order(worker, order)
        except DeviceUnavailable:
            pass  # the worker has ended, or ends soon: the device's next worker repeats the order
        except KaasError as error:
            if worker.id in self._workers:  # else the device's next worker repeats the order
                pin.order = None
                pin.lost = f"{type(error).__name__}: {error.message}"
        else:
            pin.worker = worker.id

    def pins(self, device: int) -> tuple[PinStatus, ...]:
        """Return the pins of a device as `kaas.status()` shows them."""
        return tuple(
            PinStatus(pin.shown, "lost" if pin.lost else "held" if pin.worker in self._workers else "loading", pin.lost)
            for (_, index), pin in self._pins.items()
            if index == device
        )

    # --- the policy's decisions

    def decided(self, decision: Prefetch | Evict, requests: Iterable[Request]) -> None:
        """Carry out a decision of the policy as far as possible; an Ordered event tells the policy what came of it.

        requests: all that are queued or running.
        """
        worker, keys = self._workers[decision.worker], decision.keys
        if isinstance(decision, Evict):
            send: SendCommand = lambda number: self._transport.evict(number, keys, decision.to)  # noqa: E731
            self._background.run(self._follow(worker, decision, keys, send))
            return
        references = self.references
        if references is None:
            references = self.references = RequestsByObject()
            for request in requests:
                references.add(request)
        named = {key: call for key in keys if (call := references.find(key)) is not None}
        send = lambda number: self._transport.prefetch(number, named, decision.victims)  # noqa: E731
        self._background.run(self._follow(worker, decision, tuple(named), send))

    async def _follow(
        self, worker: WorkerRecord, decision: Prefetch | Evict, keys: Sequence[bytes], send: SendCommand
    ) -> None:
        """Carry out a decision as far as it concerns these keys, and tell the policy what came of it."""
        record = None
        if keys and worker.kind is WorkerKind.EXECUTOR:
            record = await self._try(worker, send)
        moved: Collection[bytes] = ()
        there: Collection[bytes] = ()
        if record is not None:
            moved, there = (record.evicted,) * 2 if isinstance(decision, Evict) else (record.loaded, keys)
        loaded = tuple(key for key in decision.keys if key in moved)
        refused = tuple(key for key in decision.keys if key not in there)
        self._runs.ordered(worker, decision.order, loaded, refused, 0.0 if record is None else record.load_s)

    async def _try(self, worker: WorkerRecord, send: SendCommand) -> RunRecord | None:
        """Send a command that no caller waits for: only the statistics report its error. Return the worker's record."""
        try:
            return await self._send(worker, "", "", send)
        except KaasError as error:
            self._ledger.write(LedgerEntry("", "", worker.device.index, type(error).__name__))
            return None

    def ended(self, request: Request) -> None:
        """Take in that a request is ENDED: commands may have waited for the room that it had on its worker."""
        if request.worker is not None:
            self._timeouts.heard(request.worker)
        if self.references is not None:
            self.references.remove(request)


def concerns(order: CacheOrder, worker: WorkerRecord) -> bool:
    """Return True if an executor may carry out an order: it serves all clients, or that of the order."""
    return not worker.walled or worker.client == order.client


class RequestsByObject:
    """For each object, the requests that use it."""

    def __init__(self) -> None:
        self._requests: dict[bytes, dict[int, Request]] = {}

    def add(self, request: Request) -> None:
        """Add a request for each object that it uses."""
        for use in request.call.uses:
            if use.key is not None:
                self._requests.setdefault(use.key, {})[request.id] = request

    def remove(self, request: Request) -> None:
        """Remove a request, if it was added."""
        for use in request.call.uses:
            named = self._requests.get(use.key) if use.key is not None else None
            if named is not None and named.pop(request.id, None) is not None and not named:
                del self._requests[use.key]  # type: ignore[arg-type]  # it is a key

    def find(self, key: bytes) -> WorkerCall | None:
        """Return the call of the latest request that uses the object and whose inputs exist."""
        named = self._requests.get(key, {})
        return next(
            (request.call for request in reversed(named.values()) if request.state is not RequestState.WAITING), None
        )


T = TypeVar("T")


class WorkerSilent(Exception):
    """A worker did not reply within its time limit."""


class Timeouts:
    """Timeouts of commands to workers. Each reply of a worker extends the timeouts of its other commands.

    A worker carries out its commands one after the other, so a command may wait long for those before it, and a load
    for the room of runs.
    """

    def __init__(self) -> None:
        self._waits: dict[int, dict[asyncio.Timeout, float]] = {}

    async def reply(self, worker: int, command: Coroutine[object, object, T], limit_s: float) -> T:
        """Return a worker's reply to a command.

        Raises:
            WorkerSilent: the worker sent no reply to any command for limit_s seconds.
            Exception: the error that comes instead of the reply.
        """
        waits = self._waits.setdefault(worker, {})
        try:
            async with asyncio.timeout(limit_s) as wait:
                waits[wait] = limit_s
                return await command
        except TimeoutError as error:
            if wait.expired():
                raise WorkerSilent(f"it sent no reply for {limit_s:g} s") from error
            raise
        finally:
            waits.pop(wait, None)
            self.heard(worker)
            if not waits:
                self._waits.pop(worker, None)

    def heard(self, worker: int) -> None:
        """Extend the timeouts of a worker's commands, since it has replied to a command or a run."""
        for wait, limit_s in self._waits.get(worker, {}).items():
            if not wait.expired():
                wait.reschedule(asyncio.get_running_loop().time() + limit_s)

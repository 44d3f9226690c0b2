"""The pool's core: requests in, the policy's decisions carried out, every request answered; asyncio, but no Ray.

A request is *queued* until the policy dispatches it, then *running* until its worker replies or ends. Its caller may
leave before (cancelled, deadline, run limit); a running request then goes on alone, and its slot is free when it ends.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from kaas.config import ClientSettings, Config
from kaas.errors import (
    DeadlineExceeded,
    DeviceLost,
    DeviceUnavailable,
    KaasError,
    PoolStopped,
)
from kaas.pool.background import Background
from kaas.pool.core.accounts import ClientAccounts, client_known
from kaas.pool.core.backlog import Backlog
from kaas.pool.core.cache_commands import CacheCommands
from kaas.pool.core.policy_driver import PolicyDriver
from kaas.pool.core.quarantine import Quarantine
from kaas.pool.core.records import Request, WorkerRecord, adopted, died, unmeasured
from kaas.pool.core.retry_alone import Case, Verdict, charged_s, judge
from kaas.pool.core.run_limits import GRACE_S, RunLimits
from kaas.pool.core.sessions import Sessions
from kaas.pool.core.workers import WorkerManager
from kaas.pool.executors.transport import CacheOrder, Survivor, WorkerCall, WorkerLost, WorkerReply, WorkerTransport
from kaas.pool.immediate_future import ImmediateFuture
from kaas.pool.observing import event_log
from kaas.pool.observing.ledger import LedgerEntry
from kaas.pool.observing.reports import Reports
from kaas.scheduling.events import (
    ClientGone,
    Dispatch,
    Event,
    Evict,
    InputsReady,
    Outcome,
    PhysicalDevice,
    Prefetch,
    Reject,
    RequestCancelled,
    RequestDone,
    Residency,
    StartWorker,
    StopWorker,
    Tick,
    WakeAt,
    WorkerGone,
    WorkerKind,
)
from kaas.store import Store
from kaas.wire.specs import RunRecord
from kaas.wire.status.stats import Stats
from kaas.wire.status.status import Status

TIMED_OUT = 702
"""CUDA_ERROR_LAUNCH_TIMEOUT"""


class Pool:
    """Drives one policy. All methods belong to the event loop in which it was made."""

    def __init__(self, name: str, config: Config, transport: WorkerTransport) -> None:
        assert config.devices is not None, "a pool gets a resolved configuration"
        self._name = name
        self._config = config
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._background = Background(self._break)
        self._devices = tuple(
            PhysicalDevice(i, d.kind, d.memory_bytes, d.speed, config.etask_workers)
            for i, d in enumerate(config.devices)
        )
        self._policy = PolicyDriver(config, self._devices)
        self._requests: dict[int, Request] = {}
        self._ids = itertools.count()
        self._manager = WorkerManager(self, transport, self._background, config.start_limit_s)
        self._workers: Mapping[int, WorkerRecord] = self._manager.workers
        self._limits = RunLimits(config.run_limit_s, self._workers, self._overrun, self._loop)
        self.events = event_log.EventLog()
        self.reports = Reports(self._requests, self._workers, self._devices, self._background, self.events)
        self._ledger = self.reports.ledger
        self._backlog = Backlog(config.queue_limit, config.clients)
        self._sessions = Sessions()
        self._quarantine = Quarantine(config.faults_allowed, None, config.client_faults_allowed)
        limit_s = config.run_limit_s + GRACE_S
        self._caches = CacheCommands(
            self, self._workers, len(self._devices), transport, self._background, self._ledger, limit_s
        )
        self._accounts: ClientAccounts | None = None
        self._broken: KaasError | None = None
        self._stopped = False

    def open(self, survivors: Sequence[Survivor] = (), store: Store | None = None) -> None:
        """Tell the policy what is there, and then let it start its workers. store: of what an earlier process knew.

        Raises:
            InvalidConfig: its record cannot be written.
        """
        self._policy.open()
        charged_s: dict[str, float] = {}
        if store is not None:
            self._accounts = ClientAccounts(store, self._loop)
            self._quarantine = Quarantine(self._config.faults_allowed, store, self._config.client_faults_allowed)
            charged_s = self._accounts.charged_s()
        now = self._loop.time()
        for survivor in survivors:
            self._adopt(survivor, now)
        for client in dict.fromkeys((*self._config.clients, *charged_s)):
            self._tell(client_known(now, client, self._config.clients.get(client), charged_s.get(client, 0.0)))
        self._tell(Tick(now))

    def regrant(self, clients: Mapping[str, ClientSettings]) -> None:
        """What is granted to clients from now on, instead of what the configuration says; what they have had stays."""
        before = self._config.clients
        self._config = replace(self._config, clients=dict(clients))
        self._backlog.regrant(clients)
        for client in {**before, **clients}:
            if before.get(client) != clients.get(client):
                self._tell(client_known(self._loop.time(), client, clients.get(client), None))

    def _grant(self, client: str) -> None:
        """Tell the policy what the configuration grants to a client, if it says so."""
        granted = self._config.clients.get(client)
        if granted is not None:
            self._tell(client_known(self._loop.time(), client, granted, 0.0))

    async def started(self) -> None:
        """Wait until the executors that start now can run requests.

        Raises:
            DeviceUnavailable: one cannot, or a device could not before. Its message has the cause.
        """
        starting = [worker for worker in self._workers.values() if worker.kind is WorkerKind.EXECUTOR]
        for settled in asyncio.as_completed([worker.settled.wait() for worker in starting]):
            await settled
            self._check_devices()
        self._check_devices()

    def _check_devices(self) -> None:
        """
        Raises:
            DeviceUnavailable
        """
        for device in map(self.reports.device, self._devices):
            if device.reason:
                message = f"device {device.index}, of kind {device.kind!r}, cannot be used: {device.reason}"
                raise DeviceUnavailable(message)

    async def submit(self, call: WorkerCall, inputs_ready: Awaitable[Any] | None = None) -> Any:
        """Run a request; inputs_ready completes when its inputs exist.

        Raises:
            KaasError: of whatever kind, when the request did not succeed.
            asyncio.CancelledError: the caller cancelled it.
        """
        request = self.begin(call, inputs_ready)
        try:
            return await request.answer
        except asyncio.CancelledError:
            self.cancelled(request)
            raise

    def begin(self, call: WorkerCall, inputs_ready: Awaitable[Any] | None = None) -> Request:
        """As `submit`, for who waits for the request's answer without a task, and tells `cancelled` of its end.

        Raises:
            KaasError: it is not taken in.
        """
        self._check_open()
        try:
            if (refusal := self._quarantine.refusal(call.identity, call.client)) is not None:
                raise refusal
            self._backlog.enter(call.client)
        except KaasError as error:
            self._ledger.write(LedgerEntry(call.label, call.client, None, type(error).__name__))
            raise
        now_s = self._loop.time()
        request = Request(next(self._ids), call, now_s, ImmediateFuture())
        self._requests[request.id] = request
        self._caches.arrived(request)
        if call.deadline_s is not None:
            request.timer = self._loop.call_later(call.deadline_s, self._expire, request)
        if inputs_ready is not None:
            request.inputs = asyncio.ensure_future(inputs_ready)
            if not request.inputs_exist:
                request.inputs.add_done_callback(lambda waited: self._inputs_ready(request, waited))
        self._tell(request.arrival(now_s))
        self._sessions.uses(call.session, call.client)
        return request

    def cancelled(self, request: Request) -> None:
        """The wait for a request's answer was cancelled."""
        if request.answer.cancelled():
            self.reports.note(request, "cancelled")
        self._abandon(request)

    def holds(self, request: Request) -> bool:
        """Whether a request is queued, or runs, with its caller or without."""
        return request.id in self._requests

    async def upkeep(self, order: CacheOrder, device: int | None = None) -> None:
        """Carry out an order about caches on the worker of one device, or of each.

        Raises:
            What `CacheCommands.carry_out` does.
        """
        self._check_open()
        await self._caches.carry_out(order, device)

    async def pin(self, target: bytes, order: CacheOrder, device: int | None = None) -> None:
        """Carry out an order, and once more on each worker that comes later; target names it.

        Raises:
            As `upkeep`, and then nothing will be done later.
        """
        self._check_open()
        self._caches.keep(target, order, device, await self._caches.carry_out(order, device))

    def unpin(self, target: bytes | None = None, device: int | None = None) -> None:
        """The end of what `pin` has begun, for one target or all, on one device or each."""
        self._caches.forget(target, device)

    async def write_back(self, worker: int, key: bytes) -> None:
        """Have a worker write back an output that stayed with it.

        Raises:
            KaasError: it cannot, or has ended.
        """
        if worker not in self._workers:
            raise DeviceUnavailable(f"worker {worker} has ended")
        await self._caches.write_back(self._workers[worker], key)

    def session_ended(self, session: str) -> None:
        """A program has ended: what it had queued goes, what it had running ends without anybody waiting, and clients
        that only it had requests for are forgotten."""
        for request in [request for request in self._requests.values() if request.call.session == session]:
            request.answer.cancel()  # `submit` notes it, and abandons what runs
            if request.worker is None:
                self._abandon(request)
        for client in self._sessions.end(session):
            if self._accounts is not None:
                self._accounts.forget(client)
            self._tell(ClientGone(self._loop.time(), client))
            self._grant(client)

    def pardon(self, function: str) -> bool:
        """Forget the faults of a function, of all functions of a kTask, by key, or of a client, by `client:` and its
        name. Whether one was in quarantine."""
        return self._quarantine.pardon(function)

    def discard(self, worker: int, keys: Sequence[bytes]) -> None:
        """Have a worker forget outputs that stayed with it, since nobody will ask for them."""
        if worker in self._workers:
            self._background.run(self._caches.discard(self._workers[worker], keys))

    def tell_residency(self, worker: WorkerRecord, record: RunRecord | None) -> None:
        if record is not None:
            worker.cached_bytes = record.cached_bytes
        if record is not None and (record.loaded or record.evicted) and worker.id in self._workers:
            self._tell(Residency(self._loop.time(), worker.id, tuple(record.loaded), tuple(record.evicted)))

    def _check_open(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self._stopped:
            raise PoolStopped(f"pool {self._name!r} is shut down", pool=self._name)

    async def close(self) -> None:
        """Answer everybody, end all workers."""
        self._stopped = True
        for request in list(self._requests.values()):
            self._answer(request, PoolStopped(f"pool {self._name!r} was shut down", pool=self._name))
        await self._manager.close()
        await self._background.close()
        if self._accounts is not None:
            self._accounts.write()
        self._policy.close()

    def stats(self, reset: bool = False) -> Stats:
        now = self._loop.time()
        stats = replace(self._ledger.read(now), policy_s=self._policy.seconds, policy_events=self._policy.events)
        if reset:
            self._ledger.reset(now)
            self._policy.reset()
        return stats

    async def trace(self, seconds: float) -> bytes:
        """Return what is answered in the next seconds, or until the pool ends, for `tracing.chrome`."""
        self._check_open()
        return await self.reports.trace(seconds)

    def status(self, functions: tuple[str, ...] = ()) -> Status:
        queued = [request for request in self._requests.values() if request.worker is None]
        waiting = sum(request.inputs is not None and not request.inputs.done() for request in queued)
        running = [request for worker in self._workers.values() for request in worker.running.values()]
        return Status(
            pool=self._name,
            config=self._config,
            devices=tuple(self.reports.device(device, self._caches.pins(device.index)) for device in self._devices),
            queued=len(queued) - waiting,
            waiting=waiting,
            running=len(running),
            abandoned=sum(request.answer.done() for request in running),
            functions=functions,
            broken=str(self._broken) if self._broken else None,
            quarantined=self._quarantine.status(),
        )

    # --- the policy

    def _tell(self, event: Event) -> None:
        """The only way to the policy; what it decides is begun here and goes on in tasks, so events never nest."""
        if self._broken is not None or self._stopped:
            return
        try:
            decisions = self._policy.handle(event)
            for decision in decisions:
                match decision:
                    case Dispatch():
                        self._dispatch(decision)
                    case Reject():
                        error = DeviceUnavailable(f"pool {self._name!r}: {decision.reason}")
                        self._answer(self._leave(self._requests[decision.request]), error)
                    case StartWorker():
                        self._start(decision)
                    case StopWorker():
                        self._manager.stop(self._workers[decision.worker])
                    case WakeAt(time_s=time_s):
                        self._loop.call_at(time_s, self._wake, time_s)
                    case Prefetch() | Evict():
                        self._caches.decided(decision, self._requests.values())
        except Exception as error:  # noqa: BLE001 - whoever made the mistake, nobody may be left waiting
            self._break(error)

    def _wake(self, time_s: float) -> None:
        now_s = self._loop.time()
        if now_s < time_s:  # the loop's timers may be early, and a policy counts on the time that it has named
            self._loop.call_at(time_s, self._wake, time_s)
        else:
            self._tell(Tick(now_s))

    def _break(self, error: BaseException) -> None:
        """The pool can no longer be trusted: tell every waiter and all who come later, rather than let them hang."""
        if not isinstance(error, KaasError):
            error = KaasError(f"pool {self._name!r} failed: {type(error).__name__}: {error}")
        event_log.broken(self._name, error)
        self._broken = error
        for request in list(self._requests.values()):
            self._answer(request, error)
            if request.worker is None:
                self._leave(request)

    # --- requests

    def _inputs_ready(self, request: Request, waited: asyncio.Future[Any]) -> None:
        if waited.cancelled() or isinstance(waited.exception(), asyncio.CancelledError):
            return  # whoever stopped the wait has answered
        if (error := waited.exception()) is not None:
            self._break(error)
        elif not request.answer.done():
            self._tell(InputsReady(self._loop.time(), request.id))

    def _expire(self, request: Request) -> None:
        limit = request.call.deadline_s or 0.0
        waited = max(limit, self._loop.time() - request.arrived_s)  # timers are early by a rounding error
        message = f"{request.call.label!r} did not end in {limit} s: still "
        if request.worker is None:
            message += f"queued after {waited:.3f} s"
        else:
            most = self._config.run_limit_s
            until = "until it ends" if most is None else f"until it ends, at most to the run limit of {most} s"
            message += f"running after {waited:.3f} s; its kernel has the device {until}"
        self._answer(request, DeadlineExceeded(message, task=request.call.label, deadline_s=limit, waited_s=waited))
        self._abandon(request)

    def _answer(self, request: Request, result: WorkerReply | KaasError) -> None:
        """Tell the caller, unless it has an answer or has gone."""
        if not request.answer.done():
            if isinstance(result, WorkerReply):
                request.answer.set_result(result.value)
                self.reports.note(request, "succeeded", result.record)
            else:
                request.answer.set_exception(result)
                self.reports.note(request, type(result).__name__)
                event_log.failed(request, result)
        request.release()

    def _abandon(self, request: Request) -> None:
        """Nobody waits for it any more: a queued request goes, a running one runs on."""
        request.release()
        if request.id not in self._requests:
            return
        if request.worker is None:
            self._leave(request)
        self._tell(RequestCancelled(self._loop.time(), request.id))

    def _leave(self, request: Request) -> Request:
        """It is neither queued nor running any more."""
        if self._requests.pop(request.id, None) is not None:
            self._caches.left(request)
            if request.worker is None:
                self._backlog.leave(request.call.client)
            if request.left is not None:
                request.left()
        return request

    # --- running

    def _dispatch(self, decision: Dispatch) -> None:
        request, worker = self._requests[decision.request], self._workers[decision.worker]
        request.worker, request.slot = worker, decision.slot
        request.dispatched_s = self._loop.time()
        worker.running[request.id] = request
        self._run(request, worker)
        self._backlog.leave(request.call.client)

    def _run(self, request: Request, worker: WorkerRecord) -> None:
        reply = self._transport.run(worker.id, request.slot, request.call)  # what can wait comes while it is busy
        self._limits.begun(request)
        ran = partial(self._ran, request, worker)
        if not isinstance(reply, ImmediateFuture):
            reply = ImmediateFuture.of(self._background.begin(reply))
        if reply.done():
            self._loop.call_soon(ran, reply)  # not here, within what an event has led to
        else:
            reply.add_done_callback(ran)

    def _ran(self, request: Request, worker: WorkerRecord, run: ImmediateFuture[WorkerReply]) -> None:
        """A run has ended, or its worker."""
        if run.cancelled():
            return  # by the pool's own end
        try:
            self._replied(request, worker, run.result())
        except WorkerLost as lost:
            self.gone(worker, str(lost))
        except Exception as error:  # noqa: BLE001 - as in `_tell`
            self._break(error)

    def _replied(self, request: Request, worker: WorkerRecord, reply: WorkerReply) -> None:
        if worker.id not in self._workers:
            return
        if isinstance(reply.error, DeviceLost):
            worker.lost.add(request.id)
            self.lost(worker, reply.error, told_by=request)
        elif reply.lost:
            request.record = reply.record or unmeasured(self._loop.time() - request.dispatched_s)
            self._answer(request, reply.error or reply)  # it ran for too long, or ended just before another did
            if isinstance(reply.error, DeadlineExceeded):
                self._blame(request, worker, reply.error.message, function=len(worker.running) == 1)
            cause = reply.error.__cause__ if reply.error is not None else None
            self.gone(worker, reply.lost, cause if isinstance(cause, DeviceLost) else None)
        else:
            self._done(request, worker, reply)

    def _done(self, request: Request, worker: WorkerRecord, reply: WorkerReply) -> None:
        left = request.answer.done()
        del worker.running[request.id]
        record = request.record = reply.record or unmeasured(self._loop.time() - request.dispatched_s)
        self._answer(self._leave(request), reply.error or reply)
        ended = Outcome.FAILED if reply.error else Outcome.SUCCEEDED
        outcome = Outcome.ABANDONED if left else ended
        device_s = worker.start_s + record.charged_s
        worker.start_s = 0.0
        self.tell_residency(worker, reply.record)
        was_last = worker.stopping and not worker.running
        self._tell(RequestDone(self._loop.time(), request.id, worker.id, request.slot, outcome, device_s))
        self._charge(request, device_s, left=left)
        if was_last:
            self._manager.end(worker)

    def lost(self, worker: WorkerRecord, error: DeviceLost, told_by: Request | None = None) -> None:
        """A worker lost its device. If that is since a request ran for too long, it is not run again: the worker ends
        when that request has its own error."""
        if error.fields.get("code") == TIMED_OUT and worker.running.keys() - worker.lost:
            self._loop.call_later(GRACE_S, self.gone, worker, error.message, error)
        else:
            self.gone(worker, error.message, error, told_by)

    def _overrun(self, request: Request, worker: WorkerRecord) -> None:
        limit = self._config.run_limit_s
        message = f"{request.call.label!r} ran longer than the pool's run limit of {limit} s"
        waited = self._loop.time() - request.arrived_s
        self._answer(request, DeadlineExceeded(message, task=request.call.label, deadline_s=limit, waited_s=waited))
        if worker.kind is WorkerKind.EXECUTOR:
            self._blame(request, worker, message, function=False)  # perhaps its process has failed
        self.gone(worker, message)

    # --- workers

    def _start(self, decision: StartWorker) -> None:
        device, function = self._devices[decision.device], decision.function
        labels = (each.call.label for each in self._requests.values() if each.call.flow == function)
        serves = next(labels, function) if function else ""
        self._manager.start(decision, device, serves)

    def ready(self, worker: WorkerRecord) -> None:
        """A worker can run requests."""
        self.events.ready(worker)
        self._tell(worker.arrival(self._loop.time(), self._config.cache_bytes))
        self._caches.repeat(worker)

    def _adopt(self, survivor: Survivor, now: float) -> None:
        """What it still runs holds its slots until it ends, and nobody waits for it."""
        worker, events = adopted(
            survivor, self._devices[survivor.start.device], self._ids, now, self._config.cache_bytes
        )
        self._requests |= worker.running
        for request in worker.running.values():
            self._run(request, worker)
        self._manager.adopt(worker)
        for event in events:
            self._tell(event)

    def gone(
        self, worker: WorkerRecord, reason: str, cause: DeviceLost | None = None, told_by: Request | None = None
    ) -> None:
        """A worker ended or must end, noticed here first or once more; its requests get another chance or an error."""
        if not self._manager.drop(worker) or self._stopped:
            return
        self.events.ended(worker, reason, cause)
        now, ends = self._loop.time(), list[tuple[Request, Case, float]]()
        beside = len(worker.running) - 1 + (cause is not None and told_by is None)  # an order about caches, perhaps
        for request in worker.running.values():
            pure, retries = request.call.kind is WorkerKind.EXECUTOR, request.call.retries - request.charged
            case = Case(beside, request is told_by, request.alone, pure, retries)
            ends.append((request, case, self._had(request, case, now - request.dispatched_s)))
        self._tell(WorkerGone(now, worker.id, reason, tuple((each.id, had_s) for each, _, had_s in ends if had_s)))
        for request, case, had_s in ends:
            self._left_behind(request, worker, reason, cause, case, had_s)

    def _had(self, request: Request, case: Case, run_s: float) -> float:
        """Device seconds of a request whose worker is gone, charged to its client."""
        left, told = request.answer.done(), request.record
        had_s = charged_s(case, judge(case), run_s, request.suspect_s, left) if told is None else told.charged_s
        if had_s:
            self._charge(request, had_s, left=left)
        return had_s

    def _charge(self, request: Request, device_s: float, *, left: bool) -> None:
        """Keep what a client is charged. left: nobody waits for the answer; perhaps its client has gone."""
        client = request.call.client
        if self._accounts is not None and (not left or client in self._sessions):
            self._accounts.charge(client, device_s)

    def _left_behind(
        self, request: Request, worker: WorkerRecord, reason: str, cause: DeviceLost | None, case: Case, had_s: float
    ) -> None:
        """Answer a request whose worker is gone, or queue it again. had_s: device seconds that it is charged."""
        call, verdict = request.call, judge(case)
        if verdict is Verdict.FAULT or (verdict is Verdict.DIED and case.pure and not case.beside):
            self._blame(request, worker, reason, function=verdict is Verdict.FAULT)
        final = verdict in (Verdict.FAULT, Verdict.DIED)
        refusal = None if final else self._quarantine.refusal(call.identity, call.client)
        left = request.answer.done()
        if final or left or refusal is not None:
            if request.record is None:
                request.record = unmeasured(had_s)
            own = cause if verdict is Verdict.FAULT else refusal
            self._answer(self._leave(request), own or died(request, worker, reason, cause))
        else:
            request.charged += verdict is Verdict.CHARGED
            request.suspect_s += self._loop.time() - request.dispatched_s
            request.attempt += 1
            request.alone = True
            request.worker = None
            self._backlog.enter(call.client, again=True)
            self._tell(request.arrival(self._loop.time()))

    def _blame(self, request: Request, worker: WorkerRecord, what: str, *, function: bool) -> None:
        """A request ended its device: its client has one fault more, and with one too many is not run any more.
        function: so has its function."""
        call = request.call
        story = f"{datetime.now(UTC).isoformat(' ', 'seconds')}, {worker.name}: {what}"
        if function:
            held = self._quarantine.fault(call.identity, call.label, story, call.client, call.task)
            self.events.fault(request, worker, what, self._quarantine.faults(call.identity), held)
        if self._quarantine.client_fault(call.client, f"{call.label}: {story}"):
            event_log.client_held(request)
        for other in [each for each in self._requests.values() if each.worker is None]:
            if (refusal := self._quarantine.refusal(other.call.identity, other.call.client)) is not None:
                self._answer(other, refusal)
                self._abandon(other)

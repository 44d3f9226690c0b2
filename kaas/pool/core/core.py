"""The pool's core accepts requests, carries out the policy's decisions and answers each request. asyncio, no Ray.

`RequestState` names the states of a request, and `Requests.move` is the only function that changes one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

from kaas.config import ClientSettings, Config
from kaas.errors import KaasError, PolicyError, PoolStopped
from kaas.pool.background import Background
from kaas.pool.core.accounts import ClientAccounts, Sessions, client_known
from kaas.pool.core.cache_commands import CacheCommands
from kaas.pool.core.compilations import Compilations
from kaas.pool.core.device_use import DeviceUse
from kaas.pool.core.devices import PoolDevices
from kaas.pool.core.profiles import Profiles
from kaas.pool.core.quarantine import Quarantine
from kaas.pool.core.requests import IN_QUEUE, Backlog, Request, Requests, RequestState
from kaas.pool.core.runs import Runs
from kaas.pool.core.shares import PoolShares
from kaas.pool.core.workers import GRACE_S, WorkerManager, WorkerRecord, adopted
from kaas.pool.executors.transport import Survivor, WorkerCall, WorkerReply, WorkerTransport
from kaas.pool.observing import event_log
from kaas.pool.observing.ledger import LedgerEntry
from kaas.pool.observing.reports import Reports
from kaas.scheduling.decisions import (
    Decision,
    Dispatch,
    Evict,
    Granted,
    Prefetch,
    Reject,
    StartWorker,
    StopWorker,
    WakeAt,
)
from kaas.scheduling.events import ClientGone, Event, InputsReady, Outcome, RequestCancelled, RequestDone, Tick
from kaas.scheduling.policy_choice import make_policy, physical
from kaas.scheduling.recording import Recorder
from kaas.store import Store
from kaas.wire.status.stats import Stats
from kaas.wire.status.status import Status
from kaas.worker.executor_options import executor_options


class Pool:
    """One policy, its requests and its workers. Use an object of this class from the event loop that made it only.

    Fields:
        caches: carries out commands about the workers' caches. compilations: of the kTasks' code; None: workers do it.
        events: tells the operator of workers and faults. reports: figures of the answered requests. shares: of
            functions and clients. quarantine: of those that have ended devices. stopped: the pool was closed.
    """

    def __init__(self, name: str, config: Config, transport: WorkerTransport) -> None:
        assert config.devices is not None, "a pool gets a resolved configuration"
        assert not isinstance(config.profiles, str), "the program has read the file"
        self._name = name
        self._config = config
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._background = Background(self.fail)
        self._devices = physical(config, config.devices)
        self._cache_bytes = [executor_options(config, device)["cache_bytes"] for device in config.devices]
        self._policy = make_policy(config.policy, self._devices)
        self._recorder: Recorder | None = None
        self._profiles = Profiles(config.profiles or (), self._devices)
        self._backlog = Backlog(config.queue_limit, config.clients)
        self._requests = Requests(self._backlog, lambda request: self.caches.ended(request))
        self._manager = WorkerManager(self, transport, self._background, config.start_limit_s)
        self._workers: Mapping[int, WorkerRecord] = self._manager.workers
        self.quarantine = Quarantine(config.faults_allowed, None, config.client_faults_allowed)
        self.events = event_log.EventLog()
        missed = getattr(self._policy.policy, "missed_windows", dict)  # a user's own policy may not count them
        self.shares = PoolShares(self.handle, config.slots, self._profiles.points, self._profiles.keep, missed)
        self._presence = PoolDevices(config, self.handle, self._policy.holds)
        shown = self._requests, self._workers, self._devices, self._presence, self._background
        self.reports = Reports(*shown, self.events, self.shares)
        limit_s = config.run_limit_s
        self._runs = Runs(
            self, transport, self._background, self._manager, self._requests, self.quarantine, self.events, limit_s
        )
        ledger = self.reports.ledger
        of_caches = len(self._devices), transport, self._background, ledger, limit_s + GRACE_S
        self.caches: CacheCommands = CacheCommands(self, self._runs, self._workers, *of_caches)
        self.compilations = None if config.isolation == "none" else Compilations(transport, self._background, ledger)
        self._use: DeviceUse | None = None
        if every_s := self._policy.utilisation_every_s:
            self._use = DeviceUse(every_s, self._requests, self._workers, transport, self._background, self.handle)
        self._sessions = Sessions()
        self._accounts: ClientAccounts | None = None
        self._broken: KaasError | None = None
        self.stopped = False

    def open(self, survivors: Sequence[Survivor] = (), store: Store | None = None) -> None:
        """Tell the policy of surviving workers and known clients, then let it start workers.

        Args:
            survivors: workers that outlived an earlier process of the pool.
            store: keeps accounts, faults and profiles.

        Raises:
            InvalidConfig: the record of the policy cannot be written.
        """
        if self._config.record is not None:
            self._recorder = Recorder.open(self._config.record, self._config.policy, self._devices)
        charged_s: dict[str, float] = {}
        if store is not None:
            self._accounts = ClientAccounts(store, self._loop)
            self.quarantine.open(store)
            self._profiles.open(store)
            charged_s = self._accounts.charged_s()
        self.shares.regrant(self._config.clients)
        now_s = self._loop.time()
        for survivor in survivors:
            self._adopt(survivor, now_s)
        for client in dict.fromkeys((*self._config.clients, *charged_s)):
            self.handle(client_known(now_s, client, self._config.clients.get(client), charged_s.get(client, 0.0)))
        self._presence.begin({survivor.start.device for survivor in survivors}, now_s)
        self.handle(Tick(now_s))

    def _adopt(self, survivor: Survivor, now_s: float) -> None:
        device = self._devices[survivor.start.device]
        worker, events = adopted(survivor, device, self._requests, now_s, self._cache_bytes[device.index])
        for request in worker.running.values():
            self._runs.run(request, worker)
        self._manager.adopt(worker)
        for event in events:
            self.handle(event)

    def regrant(self, clients: Mapping[str, ClientSettings]) -> None:
        """Replace the clients' settings in the configuration. Charges and queued requests stay."""
        before = self._config.clients
        self.shares.regrant(clients)
        self._config = replace(self._config, clients=dict(clients))
        self._backlog.regrant(clients)
        for client in {**before, **clients}:
            if before.get(client) != clients.get(client):
                self.handle(client_known(self._loop.time(), client, clients.get(client), None))

    async def close(self) -> None:
        """Answer all requests and end all workers."""
        self.stopped = True
        for request in list(self._requests.by_id.values()):
            self.answer(request, PoolStopped(f"pool {self._name!r} was shut down", pool=self._name))
        await self._manager.close()
        await self._background.close()
        if self._accounts is not None:
            self._accounts.write()
        self._profiles.write()
        if self._recorder is not None:
            self._recorder.close()

    def fail(self, error: BaseException) -> None:
        """Answer all requests with an error, and refuse later ones: the pool can no longer be trusted."""
        if not isinstance(error, KaasError):
            error = KaasError(f"pool {self._name!r} failed: {type(error).__name__}: {error}")
        event_log.broken(self._name, error)
        self._broken = error
        for request in list(self._requests.by_id.values()):
            self.answer(request, error)

    def check_open(self) -> None:
        """Check that the pool takes requests.

        Raises:
            PoolStopped: the pool was closed. KaasError: the pool is broken.
        """
        if self._broken is not None:
            raise self._broken
        if self.stopped:
            raise PoolStopped(f"pool {self._name!r} is shut down", pool=self._name)

    # --- requests

    async def submit(self, call: WorkerCall, inputs_ready: Awaitable[Any] | None = None) -> Any:
        """Run a request and return its value. inputs_ready: completes when the request's inputs exist.

        Raises:
            KaasError: the request did not succeed.
            asyncio.CancelledError: the caller cancelled the request.
        """
        request = self.begin(call, inputs_ready)
        try:
            return await request.answer
        except asyncio.CancelledError:
            self.cancelled(request)
            raise

    def begin(self, call: WorkerCall, inputs_ready: Awaitable[Any] | None = None) -> Request:
        """Take a request in, as `submit` does, and return it at once.

        If the request's answer is cancelled, the caller must call `cancelled`.

        Raises:
            KaasError: the request is refused.
        """
        self.check_open()
        now_s, compilation = self._loop.time(), None
        try:
            if self.quarantine.records and (refusal := self.quarantine.refusal(call.identity, call.client)):
                raise refusal
            if self.compilations is not None and call.task not in self.compilations.done:
                compilation, inputs_ready = self.compilations.wanted(call, inputs_ready)
            request = self._requests.add(call, now_s, inputs_ready, compilation)
        except KaasError as error:
            self.reports.ledger.write(LedgerEntry(call.label, call.client, None, type(error).__name__))
            raise
        if (references := self.caches.references) is not None:
            references.add(request)
        if call.deadline_s is not None:
            request.timer = self._loop.call_later(call.deadline_s, self._expire, request)
        if request.inputs is not None and request.state is RequestState.WAITING:
            request.inputs.add_done_callback(partial(self.inputs_ready, request))
        if self._use is not None:
            self._use.wake()
        if request.flow not in self._profiles.told:
            for known in self._profiles.tell(request, now_s):
                self.handle(known)
        request.share = self.shares.of(call) if self.shares.given else ""
        self.handle(request.arrival(now_s))
        self._sessions.uses(call.session, call.client)
        return request

    def unfinished(self, request: Request) -> bool:
        """Return True if a request is in the queue or on a worker, with or without a caller."""
        return request.state is not RequestState.ENDED

    def inputs_ready(self, request: Request, inputs: asyncio.Future[Any]) -> None:
        """Let a WAITING request go, or fail."""
        if inputs.cancelled() or isinstance(inputs.exception(), asyncio.CancelledError):
            return  # the request has ended, and has its answer
        if not isinstance(error := inputs.exception(), KaasError | None):
            self.fail(error)
        elif request.state is not RequestState.WAITING:
            return
        elif error is not None:
            self.answer(request, error)
            self.handle(RequestCancelled(self._loop.time(), request.id))
        else:
            self._requests.move(request, RequestState.QUEUED)
            self.handle(InputsReady(self._loop.time(), request.id))

    def cancelled(self, request: Request) -> None:
        """End a request whose answer was cancelled, or let its run go on without a caller."""
        if request.answer.cancelled():
            self.reports.note(request, "cancelled")
        self._abandon(request)

    def _abandon(self, request: Request) -> None:
        if self._requests.abandon(request):
            self.handle(RequestCancelled(self._loop.time(), request.id))

    def _expire(self, request: Request) -> None:
        """Answer a request whose deadline has passed."""
        error = request.deadline_exceeded(self._loop.time(), self._config.run_limit_s)
        self.answer(request, error)
        self.handle(RequestCancelled(self._loop.time(), request.id))

    def session_ended(self, session: str) -> None:
        """Cancel the requests of a program that has ended, and forget the clients that no other program uses."""
        for request in [each for each in self._requests.by_id.values() if each.call.session == session]:
            request.answer.cancel()  # the code that awaits the answer calls `cancelled`, which abandons a run
            if request.state in IN_QUEUE:
                self._abandon(request)
        self.shares.session_ended(session)
        for client in self._sessions.end(session):
            if self._accounts is not None:
                self._accounts.forget(client)
            self.forget_client(client)

    def forget_client(self, client: str) -> None:
        """Tell the policy that a client is gone, whose name another client may get, with the same settings."""
        self.handle(ClientGone(self._loop.time(), client))
        if (granted := self._config.clients.get(client)) is not None:
            self.handle(client_known(self._loop.time(), client, granted, None))

    def answer(self, request: Request, result: WorkerReply | KaasError) -> None:
        """Give a request's caller an answer, unless the caller has one or has left. The request's run goes on."""
        self._requests.abandon(request)
        if request.answer.done():
            return
        self.shares.answered(request, result if isinstance(result, KaasError) else None)
        if isinstance(result, WorkerReply):
            request.answer.set_result(result.value)
            self.reports.note(request, "succeeded", result.record)
        else:
            request.answer.set_exception(result)
            self.reports.note(request, type(result).__name__)
            event_log.failed(request, result)

    def end(self, request: Request, result: WorkerReply | KaasError) -> None:
        """End a request and give its caller an answer."""
        self._requests.move(request, RequestState.ENDED)
        self.answer(request, result)

    def ran(self, request: Request, done: RequestDone) -> None:
        """Take in what a run that has ended took."""
        self.charge(request, done.device_s, abandoned=done.outcome is Outcome.ABANDONED)
        if done.outcome is Outcome.SUCCEEDED:
            self._profiles.add(request, done)

    def charge(self, request: Request, device_s: float, *, abandoned: bool) -> None:
        """Charge a request's client. abandoned: the caller had left, and perhaps the client has gone."""
        client = request.call.client
        if self._accounts is not None and (not abandoned or client in self._sessions):
            self._accounts.charge(client, device_s)
        if request.share:
            self.shares.charge(request.share, device_s, request.part)

    # --- the policy

    def handle(self, event: Event) -> None:
        """Give the policy an event and carry out its decisions. Every event of the pool goes through here.

        A decision only begins an action, which ends in a later turn of the loop, so events never nest.
        """
        if self._broken is not None or self.stopped:
            return
        requests = self._requests.by_id
        try:
            for decision in self._decide(event):
                match decision:
                    case Dispatch():
                        request, worker = requests[decision.request], self._workers[decision.worker]
                        if worker.spare:
                            worker.give(request.call.client)
                            self.caches.repeat(worker)
                        self._runs.dispatch(request, worker, decision)
                    case Reject():
                        refused = requests[decision.request]
                        self.end(refused, self.shares.refusal(refused, decision, self._name))
                    case Granted():
                        self.shares.granted(decision)
                    case StartWorker(device=device, function=function):
                        self._manager.start(decision, self._devices[device], self._requests.label_of(function))
                    case StopWorker():
                        self._manager.stop(self._workers[decision.worker])
                    case WakeAt(time_s=time_s):
                        self._loop.call_at(time_s, self._wake, time_s)
                    case Prefetch() | Evict():
                        self.caches.decided(decision, requests.values())
        except Exception as error:  # noqa: BLE001 - every caller gets an answer, whatever the error
            self.fail(error)

    def _decide(self, event: Event) -> list[Decision]:
        """Return the policy's decisions on an event; measure its time, and record them if so configured."""
        recorder, ledger, began_s = self._recorder, self.reports.ledger, perf_counter()
        try:
            decisions = self._policy.handle(event)
        except PolicyError:
            if recorder is not None:
                recorder.write(event, (), raised=True)
            raise
        ledger.policy_s += perf_counter() - began_s
        ledger.policy_events += 1
        if recorder is not None:
            recorder.write(event, decisions)
        if self._presence.scaler is not None:
            self._presence.heard(event, decisions)
        return decisions

    def _wake(self, time_s: float) -> None:
        now_s = self._loop.time()
        if now_s < time_s:  # the loop's timers may be early, and a policy relies on the time of its WakeAt
            self._loop.call_at(time_s, self._wake, time_s)
        else:
            self.handle(Tick(now_s))

    # --- workers

    def ready(self, worker: WorkerRecord) -> None:
        """Tell the policy that a worker can run requests, and repeat the pins of its device."""
        self.events.ready(worker)
        for event in worker.arrival(self._loop.time(), self._cache_bytes[worker.device.index]):
            self.handle(event)
        self.caches.repeat(worker)

    def gone(self, worker: WorkerRecord, reason: str) -> None:
        """End a worker, as `Runs.gone` does."""
        self._runs.gone(worker, reason)

    def stats(self, reset: bool = False) -> Stats:
        """Return the statistics since the last reset. reset: begin anew."""
        return replace(self.reports.stats(reset), profiles=self._profiles.measured())

    def status(self, functions: tuple[str, ...] = ()) -> Status:
        """Return the pool's status for `kaas.status()`. functions: labels of the registered functions."""
        now = self.reports.status(self._name, self._config, self.caches.pins)
        broken = None if self._broken is None else str(self._broken)
        return replace(now, functions=functions, broken=broken, quarantined=self.quarantine.status())

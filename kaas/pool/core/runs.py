"""Runs of requests on workers, each from its dispatch to the worker's reply or the worker's end."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

from kaas.errors import DeadlineExceeded, DeviceLost, ExecutorDied, KaasError, NotCompiled
from kaas.ktask.request import RETRIES
from kaas.pool.background import Background
from kaas.pool.core.compilations import Compilations
from kaas.pool.core.quarantine import Quarantine
from kaas.pool.core.requests import Request, Requests, RequestState, at_least, unmeasured
from kaas.pool.core.retry_alone import Case, Verdict, charged_s, judge
from kaas.pool.core.workers import GRACE_S, RunLimits, WorkerManager, WorkerRecord
from kaas.pool.executors.transport import WorkerLost, WorkerReply, WorkerTransport
from kaas.pool.immediate_future import ImmediateFuture
from kaas.pool.observing import event_log
from kaas.pool.observing.event_log import EventLog
from kaas.scheduling.decisions import Dispatch
from kaas.scheduling.events import (
    Event,
    Ordered,
    Outcome,
    RequestCancelled,
    RequestDone,
    Residency,
    WorkerGone,
    WorkerKind,
)
from kaas.wire.specs import RunRecord

TIMED_OUT = 702
"""CUDA_ERROR_LAUNCH_TIMEOUT"""


class RunHost(Protocol):
    """The part of the pool that Runs calls; see the methods of `core.Pool`."""

    @property
    def stopped(self) -> bool: ...

    def handle(self, event: Event) -> None: ...

    def answer(self, request: Request, result: WorkerReply | KaasError) -> None: ...

    def end(self, request: Request, result: WorkerReply | KaasError) -> None: ...

    def ran(self, request: Request, done: RequestDone) -> None: ...

    def charge(self, request: Request, device_s: float, *, abandoned: bool) -> None: ...

    @property
    def compilations(self) -> Compilations | None: ...

    def inputs_ready(self, request: Request, inputs: asyncio.Future[Any]) -> None: ...

    def fail(self, error: BaseException) -> None: ...


class Runs:
    """The runs of a pool. Use an object of this class from one event loop only.

    Fields:
        limits: ends the runs that exceed the pool's run limit.
    """

    def __init__(
        self,
        host: RunHost,
        transport: WorkerTransport,
        background: Background,
        manager: WorkerManager,
        requests: Requests,
        quarantine: Quarantine,
        events: EventLog,
        run_limit_s: float,
    ) -> None:
        self._host = host
        self._transport = transport
        self._background = background
        self._manager = manager
        self._workers = manager.workers
        self._requests = requests
        self._quarantine = quarantine
        self._events = events
        self._run_limit_s = run_limit_s
        self._loop = asyncio.get_running_loop()
        self.limits = RunLimits(run_limit_s, self._workers, self._overrun, self._loop)

    def dispatch(self, request: Request, worker: WorkerRecord, decision: Dispatch) -> None:
        """Run a request on a worker as the policy has decided."""
        self._requests.move(request, RequestState.RUNNING)
        request.worker, request.device, request.slot = worker.id, worker.device.index, decision.slot
        request.part = decision.sms / worker.info.sms if decision.sms and worker.info is not None else 1.0
        request.dispatched_s, request.best_effort = self._loop.time(), bool(request.share and not decision.share)
        worker.running[request.id] = request
        self.run(request, worker, decision)

    def run(self, request: Request, worker: WorkerRecord, decision: Dispatch | None = None) -> None:
        """Send a request to its worker, or wait for the reply of a request that an adopted worker runs already."""
        decision = decision or Dispatch(request.id, worker.id, request.slot)
        run = self._transport.run(request.call, decision)
        self.limits.begun(request)
        if not isinstance(run, ImmediateFuture):
            run = ImmediateFuture.of(self._background.begin(run))
        ran = partial(self._ran, request, worker)
        if run.done():
            self._loop.call_soon(ran, run)  # in a later turn, since events never nest
        else:
            run.add_done_callback(ran)

    def _ran(self, request: Request, worker: WorkerRecord, run: ImmediateFuture[WorkerReply]) -> None:
        """Handle the end of a run, or of its worker."""
        if run.cancelled():
            return  # the pool was closed
        try:
            self._replied(request, worker, run.result())
        except WorkerLost as lost:
            self.gone(worker, str(lost))
        except Exception as error:  # noqa: BLE001 - as in `Pool.handle`
            self._host.fail(error)

    def _replied(self, request: Request, worker: WorkerRecord, reply: WorkerReply) -> None:
        if worker.id not in self._workers:
            return
        if isinstance(reply.error, DeviceLost):
            worker.lost.add(request.id)
            self.lost(worker, reply.error, reported_by=request)
        elif reply.lost:  # the request ran for too long, or ended just before another broke the device
            request.took(reply.record or unmeasured(self._ran_s(request)))
            self._host.answer(request, reply.error or reply)
            if isinstance(reply.error, DeadlineExceeded):
                self._blame(request, worker, reply.error.message, function=len(worker.running) == 1)
            cause = reply.error.__cause__ if reply.error is not None else None
            self.gone(worker, reply.lost, cause if isinstance(cause, DeviceLost) else None)
        else:
            self._done(request, worker, reply)

    def _done(self, request: Request, worker: WorkerRecord, reply: WorkerReply) -> None:
        abandoned = request.state is RequestState.ABANDONED
        del worker.running[request.id]
        worker.freed_s = self._loop.time()
        record = reply.record or unmeasured(self._ran_s(request))
        if worker.walled:  # kernels may have taken the process over, which then says what it likes
            record = at_least(record, self._ran_s(request))
        record = request.took(record)
        lacks = isinstance(reply.error, NotCompiled) and request.state is RequestState.RUNNING
        ahead = self._host.compilations if lacks and request.attempt <= RETRIES else None
        if ahead is not None:  # the cache of compiled code was cleaned meanwhile
            self._requests.move(request, RequestState.WAITING)
        else:
            self._host.end(request, reply.error or reply)
        outcome = Outcome.FAILED if reply.error else Outcome.SUCCEEDED
        charged_s = record.charged_s
        device_s = worker.start_s + charged_s
        load_s = min(record.load_s, charged_s)
        worker.start_s = 0.0
        self.tell_residency(worker, reply.record)
        was_last = worker.stopping and not worker.running
        outcome = Outcome.ABANDONED if abandoned else outcome
        where = request.id, worker.id, request.slot
        run_s = charged_s - load_s - record.stages.get("start", 0.0)  # of an eTask's process, in its record
        done = RequestDone(self._loop.time(), *where, outcome, device_s, run_s, load_s, record.miss_bytes)
        self._host.handle(done)
        self._host.ran(request, done)
        if ahead is not None:
            request.attempt += 1
            request.inputs = self._background.begin(ahead.compiled(request.call))
            request.inputs.add_done_callback(partial(self._host.inputs_ready, request))
            self._host.handle(request.arrival(self._loop.time()))
        if was_last:
            self._manager.end(worker)

    def _ran_s(self, request: Request) -> float:
        """Return the seconds of an unmeasured run, since its dispatch: beyond the run limit it has waited for room."""
        return min(self._loop.time() - request.dispatched_s, self._run_limit_s)

    def tell_residency(self, worker: WorkerRecord, record: RunRecord | None) -> None:
        """Tell the policy which objects a worker has loaded and evicted."""
        if record is not None:
            worker.cached_bytes = record.cached_bytes
        if record is not None and (record.loaded or record.evicted) and worker.id in self._workers:
            loaded, evicted, hosted = tuple(record.loaded), tuple(record.evicted), tuple(record.hosted)
            self._host.handle(Residency(self._loop.time(), worker.id, loaded, evicted, hosted))

    def ordered(
        self,
        worker: WorkerRecord,
        order: int,
        loaded: tuple[bytes, ...],
        refused: tuple[bytes, ...],
        seconds: float,
    ) -> None:
        """Tell the policy what came of its Prefetch or Evict. The end of the worker tells it too."""
        if worker.id in self._workers:
            self._host.handle(Ordered(self._loop.time(), worker.id, order, loaded, refused, seconds))

    # --- the end of a worker

    def lost(self, worker: WorkerRecord, error: DeviceLost, reported_by: Request | None = None) -> None:
        """End a worker that lost its device.

        If a request ran for too long there, the worker ends only after that request got its own error, since that
        request must not run again.
        """
        if error.fields.get("code") == TIMED_OUT and worker.running.keys() - worker.lost:
            self._loop.call_later(GRACE_S, self.gone, worker, error.message, error)
        else:
            self.gone(worker, error.message, error, reported_by)

    def _overrun(self, request: Request, worker: WorkerRecord) -> None:
        """End a request that exceeds the run limit, and its worker."""
        limit_s, label = self._run_limit_s, request.call.label
        message = f"{label!r} ran longer than the pool's run limit of {limit_s} s"
        waited_s = self._loop.time() - request.arrived_s
        error = DeadlineExceeded(message, task=label, deadline_s=limit_s, waited_s=waited_s)
        self._host.answer(request, error)
        if worker.kind is WorkerKind.EXECUTOR:
            # the function is not blamed: the executor's process may have failed
            self._blame(request, worker, message, function=False)
        self.gone(worker, message)

    def gone(
        self, worker: WorkerRecord, reason: str, cause: DeviceLost | None = None, reported_by: Request | None = None
    ) -> None:
        """End a worker that has ended or must end; later calls for the same worker do nothing.

        Args:
            worker: of the pool, or removed already.
            reason: in words.
            cause: the loss of the worker's device, if the worker ended because of that.
            reported_by: the request whose reply reported that loss.
        """
        if not self._manager.drop(worker) or self._host.stopped:
            return
        self._events.ended(worker, reason, cause)
        now_s, ends = self._loop.time(), list[tuple[Request, Case, float]]()
        # a loss that no request reported was reported by a cache command, which ran in parallel with the requests
        others = len(worker.running) - 1 + (cause is not None and reported_by is None)
        for request in worker.running.values():
            pure, retries = request.call.kind is WorkerKind.EXECUTOR, request.call.retries - request.retries_used
            case = Case(others, request is reported_by, request.alone, pure, retries)
            ends.append((request, case, self._charge(request, case, self._ran_s(request))))
        charges = tuple((request.id, device_s) for request, _, device_s in ends if device_s)
        self._host.handle(WorkerGone(now_s, worker.id, reason, charges))
        if worker.client and worker.walled and not (worker.running or worker.stopping):
            self._blame_client(worker.client, f"{worker.name}: {reason}")
        for request, case, device_s in ends:
            self._settle(request, worker, reason, cause, case, device_s)

    def _charge(self, request: Request, case: Case, run_s: float) -> float:
        """Charge a request's client, and return the device seconds."""
        abandoned, record = request.state is RequestState.ABANDONED, request.record
        if record is None:
            device_s = charged_s(case, judge(case), run_s, request.earlier_runs_s, abandoned)
        else:
            device_s = record.charged_s
        if device_s:
            self._host.charge(request, device_s, abandoned=abandoned)
        return device_s

    def _settle(
        self,
        request: Request,
        worker: WorkerRecord,
        reason: str,
        cause: DeviceLost | None,
        case: Case,
        device_s: float,
    ) -> None:
        """Answer a request whose worker is gone, or queue it again. device_s: its client is charged so much."""
        call, verdict = request.call, judge(case)
        if verdict is Verdict.FAULT or (verdict is Verdict.DIED and case.pure and not case.others):
            self._blame(request, worker, reason, function=verdict is Verdict.FAULT)
        final = verdict in (Verdict.FAULT, Verdict.DIED)
        refusal = None if final else self._quarantine.refusal(call.identity, call.client)
        if final or refusal is not None or request.state is not RequestState.RUNNING:
            if request.record is None:
                request.took(unmeasured(device_s))
            own = cause if verdict is Verdict.FAULT else refusal
            self._host.end(request, own or died(request, worker, reason, cause))
        else:
            request.retries_used += verdict is Verdict.CHARGED
            request.earlier_runs_s += self._ran_s(request)
            request.attempt += 1
            request.alone = True
            self._requests.move(request, RequestState.RETRYING)
            self._host.handle(request.arrival(self._loop.time()))

    def _blame(self, request: Request, worker: WorkerRecord, what: str, *, function: bool) -> None:
        """Count a fault of a request's client, as `_blame_client` does.

        what describes the fault. function: count a fault of the request's function too.
        """
        call = request.call
        story = f"{datetime.now(UTC).isoformat(' ', 'seconds')}, {worker.name}: {what}"
        if function:
            held = self._quarantine.fault(call.identity, call.label, story, call.client, call.task)
            self._events.fault(request, worker, what, self._quarantine.faults(call.identity), held)
        self._blame_client(call.client, f"{call.label}: {story}")

    def _blame_client(self, client: str, story: str) -> None:
        """Count a fault of a client, and answer the queued requests that are refused from now on."""
        if self._quarantine.client_fault(client, story):
            event_log.client_held(client, story)
        for queued in self._requests.queued():
            refusal = self._quarantine.refusal(queued.call.identity, queued.call.client)
            if refusal is not None and queued.state is not RequestState.ENDED:
                self._host.answer(queued, refusal)
                self._host.handle(RequestCancelled(self._loop.time(), queued.id))


def died(request: Request, worker: WorkerRecord, reason: str, cause: DeviceLost | None) -> ExecutorDied:
    """Return the error of a request whose worker ended for a reason that is not known to be the request's own."""
    others = len(worker.running) - 1
    parallel = f" in parallel with {others} other request{'s'[: others > 1]}" if others else ""
    ended = f"{worker.name} ended while running it{parallel}, attempt {request.attempt}: {reason}"
    error = ExecutorDied(
        f"{request.call.label!r}: {ended}", executor=worker.name, attempts=request.attempt, reason=reason
    )
    error.__cause__ = cause
    return error

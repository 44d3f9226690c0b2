"""The pool's requests: the states of a request, the one function that changes a state, and the limits of the queue."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any

import msgspec

from kaas.config import ClientSettings
from kaas.errors import DeadlineExceeded, QueueFull
from kaas.pool.core.compilations import BegunCompilation
from kaas.pool.executors.transport import WorkerCall
from kaas.pool.immediate_future import ImmediateFuture
from kaas.pool.observing.ledger import LedgerEntry
from kaas.pool.observing.tracing import Traced
from kaas.scheduling.events import RequestArrived
from kaas.wire.specs import RunRecord
from kaas.wire.trace_context import TraceContext


class RequestState(Enum):
    """The place of a request of the pool between its arrival and its end."""

    WAITING = "waiting"
    """In the queue; its inputs do not exist yet, or its code is not compiled."""
    QUEUED = "queued"
    """In the queue; the policy may dispatch it."""
    RUNNING = "running"
    """On a worker; its caller waits for the answer."""
    RETRYING = "retrying"
    """In the queue again, because its worker ended; the policy may dispatch it to a worker that runs nothing else."""
    ABANDONED = "abandoned"
    """On a worker; its caller has an answer already or has left. The request keeps its slot until its kernels end."""
    ENDED = "ended"
    """Neither in the queue nor on a worker."""

    __hash__ = object.__hash__  # `Requests.move` looks states up three times a call: Enum's own hash runs in Python


FIRST_STATES = frozenset({RequestState.WAITING, RequestState.QUEUED, RequestState.ABANDONED})
"""States in which a request begins. ABANDONED: an earlier process of the pool dispatched it."""
IN_QUEUE = frozenset({RequestState.WAITING, RequestState.QUEUED, RequestState.RETRYING})
ON_WORKER = frozenset({RequestState.RUNNING, RequestState.ABANDONED})
WITH_CALLER = IN_QUEUE | {RequestState.RUNNING}
"""States in which the caller waits. In these states the answer is open; in every other state it is set."""

TRANSITIONS: dict[RequestState, frozenset[RequestState]] = {
    RequestState.WAITING: frozenset({RequestState.QUEUED, RequestState.ENDED}),
    RequestState.QUEUED: frozenset({RequestState.RUNNING, RequestState.ENDED}),
    RequestState.RUNNING: frozenset(
        {RequestState.WAITING, RequestState.RETRYING, RequestState.ABANDONED, RequestState.ENDED}
    ),
    RequestState.RETRYING: frozenset({RequestState.RUNNING, RequestState.ENDED}),
    RequestState.ABANDONED: frozenset({RequestState.ENDED}),
    RequestState.ENDED: frozenset(),
}
"""The states that may follow each state."""


class Request(msgspec.Struct, eq=False):
    """A request from its arrival to its end.

    Fields:
        flow: the function's name for policies. With other constants it is another function, cached on other devices.
        share: the name of its share of a device, "" if it has none. part: of the SMs on which its last run was.
            best_effort: it runs on what shares leave, since it would be late.
        state: is changed by `Requests.move` only.
        attempt: 1, and one more for each later one. alone: no other request may run on the same worker: a worker ended
            while it ran this request. retries_used: how many of the retries of `call` are used.
        worker, device, slot: number of the worker that runs or ran the request, its device's index, its slot; worker
            and device are None before the first dispatch and in RETRYING.
        dispatched_s: time of the last dispatch. earlier_runs_s: duration of the runs that ended with their workers.
        compilation: of the kTask's code, if the request has to wait for it.
        record: measurements of the last run; `unmeasured` if the run ended without any.
        trace: the caller's trace, continued. on_end: is called when the request is ENDED.
    """

    id: int
    call: WorkerCall
    arrived_s: float
    answer: ImmediateFuture[Any]
    state: RequestState
    flow: str = ""
    share: str = ""
    best_effort: bool = False
    part: float = 1.0
    attempt: int = 1
    alone: bool = False
    worker: int | None = None
    device: int | None = None
    slot: int = 0
    dispatched_s: float = 0.0
    inputs: asyncio.Future[Any] | None = None
    compilation: BegunCompilation | None = None
    timer: asyncio.TimerHandle | None = None
    retries_used: int = 0
    on_end: Callable[[], None] | None = None
    record: RunRecord | None = None
    earlier_runs_s: float = 0.0
    trace: TraceContext | None = None

    def arrival(self, now_s: float) -> RequestArrived:
        """Return the event that tells a policy of the request."""
        call = self.call
        return RequestArrived(
            time_s=now_s,
            request=self.id,
            client=call.client,
            function=self.flow,
            inputs=call.uses,
            ready=self.state is not RequestState.WAITING,
            deadline_s=None if call.deadline_s is None else self.arrived_s + call.deadline_s,
            attempt=self.attempt,
            kind=call.kind,
            alone=self.alone,
            share=self.share,
        )

    def took(self, record: RunRecord) -> RunRecord:
        """Keep the measurements of the last run, with its part of the SMs. Return them."""
        self.record = record if self.part == 1.0 else msgspec.structs.replace(record, part=self.part)
        return self.record

    def deadline_exceeded(self, now_s: float, run_limit_s: float) -> DeadlineExceeded:
        """Return the error of a request whose deadline has passed."""
        label, limit_s = self.call.label, self.call.deadline_s or 0.0
        waited_s = max(limit_s, now_s - self.arrived_s)  # timers are early by a rounding error
        message = f"{label!r} did not end in {limit_s} s: "
        if self.state in ON_WORKER:
            message += f"still running after {waited_s:.3f} s; its kernel has the device until it ends, "
            message += f"at most to the run limit of {run_limit_s} s"
        elif self.compilation is not None and self.compilation.ended_s is None:
            message += f"its code is still being compiled after {waited_s:.3f} s"
        else:
            message += f"still queued after {waited_s:.3f} s"
        return DeadlineExceeded(message, task=label, deadline_s=limit_s, waited_s=waited_s)

    def compile_s(self, now_s: float) -> float:
        """Return the seconds for which the request has waited for its code."""
        if self.compilation is None:
            return 0.0
        return (now_s if self.compilation.ended_s is None else self.compilation.ended_s) - self.arrived_s

    def entry(self, outcome: str, record: RunRecord | None, now_s: float) -> LedgerEntry:
        """Return the ledger's entry of an answered request, and add the request's durations to the record."""
        if record is None:
            return LedgerEntry(self.call.label, self.call.client, self.device, outcome)
        record.stages["queue"] = self.dispatched_s - self.arrived_s
        record.stages["request"] = now_s - self.arrived_s
        measured = record.stages, record.tiers, record.kernels
        return LedgerEntry(self.call.label, self.call.client, self.device, outcome, *measured)

    def traced(self, outcome: str, record: RunRecord | None, now_s: float) -> Traced:
        """Return an answered request as a part of a trace."""
        call = self.call
        request = (self.id, call.client, call.label, outcome, self.arrived_s, now_s)
        if self.device is None:
            return Traced(*request, context=self.trace)
        stages = record.stages if record is not None else {}
        return Traced(*request, self.device, self.slot, self.dispatched_s, stages, self.trace)


def unmeasured(device_s: float) -> RunRecord:
    """Return the record of a run without measurements."""
    return RunRecord({}, {}, (), (), device_s)


def at_least(record: RunRecord, ran_s: float) -> RunRecord:
    """Return the record of a run that occupied its device for as long as it had a slot, by the pool's clock."""
    missing_s = ran_s - record.charged_s
    if missing_s <= 0:
        return record
    return msgspec.structs.replace(record, device_s=record.device_s + missing_s, occupied_s=ran_s)


class Requests:
    """All requests of a pool that have not ended. Use an object of this class from one event loop only.

    Args:
        backlog: counts the requests in the queue. on_end: is called with each request that is ENDED.

    Fields:
        by_id: the requests; other classes only read.
    """

    def __init__(self, backlog: Backlog, on_end: Callable[[Request], None]) -> None:
        self._backlog = backlog
        self._on_end = on_end
        self._next_id = 0
        self.by_id: dict[int, Request] = {}

    def add(
        self,
        call: WorkerCall,
        now_s: float,
        inputs: Awaitable[Any] | None = None,
        compilation: BegunCompilation | None = None,
    ) -> Request:
        """Return a new request: WAITING if its inputs do not exist yet, else QUEUED.

        Args:
            call: the function and its arguments.
            now_s: the loop's time.
            inputs: completes when the inputs of the call exist.
            compilation: of its code, which the inputs include.

        Raises:
            QueueFull: the queue has no room for the request.
        """
        self._backlog.enter(call.client)
        waits = None if inputs is None else asyncio.ensure_future(inputs)
        state = RequestState.QUEUED if waits is None or _succeeded(waits) else RequestState.WAITING
        request = Request(self._next_id, call, now_s, ImmediateFuture(), state, inputs=waits, compilation=compilation)
        return self._enter(request)

    def adopt(self, call: WorkerCall, worker: int, device: int, slot: int, now_s: float) -> Request:
        """Return an ABANDONED request for a call that a worker runs since an earlier process of the pool."""
        answer: ImmediateFuture[Any] = ImmediateFuture()
        answer.cancel()
        request = Request(self._next_id, call, now_s, answer, RequestState.ABANDONED, dispatched_s=now_s)
        request.worker, request.device, request.slot = worker, device, slot
        return self._enter(request)

    def _enter(self, request: Request) -> Request:
        assert request.state in FIRST_STATES, f"request {request.id} cannot begin as {request.state.name}"
        call = request.call
        request.flow = call.bound or call.function or call.label
        self._next_id += 1
        self.by_id[request.id] = request
        return request

    def move(self, request: Request, state: RequestState) -> None:
        """Move a request to another state. No other code changes the state of a request.

        Raises:
            AssertionError: TRANSITIONS has no such move.
        """
        before = request.state
        assert state in TRANSITIONS[before], f"request {request.id} cannot move from {before.name} to {state.name}"
        request.state = state
        if before in IN_QUEUE and state not in IN_QUEUE:
            self._backlog.leave(request.call.client)
        if state in WITH_CALLER:
            if before is RequestState.RUNNING and state in IN_QUEUE:
                self._backlog.enter(request.call.client, again=True)
                request.worker = request.device = None
            return
        if request.timer is not None:
            request.timer.cancel()
        if request.inputs is not None:
            request.inputs.cancel()
        if state is RequestState.ENDED:
            del self.by_id[request.id]
            self._on_end(request)
            if request.on_end is not None:
                request.on_end()

    def abandon(self, request: Request) -> bool:
        """End a request in the queue, or let one on a worker run on without its caller. Return True if it moved."""
        if request.state not in WITH_CALLER:
            return False
        self.move(request, RequestState.ENDED if request.state in IN_QUEUE else RequestState.ABANDONED)
        return True

    def queued(self) -> list[Request]:
        """Return the requests that no worker runs."""
        return [request for request in self.by_id.values() if request.state in IN_QUEUE]

    def label_of(self, flow: str) -> str:
        """Return the label of a function that a request calls; else its name for policies."""
        return next((each.call.label for each in self.by_id.values() if each.flow == flow), flow) if flow else ""

    def counts(self) -> Counter[RequestState]:
        """Return the number of requests in each state; ENDED ones are not counted."""
        return Counter(request.state for request in self.by_id.values())


def _succeeded(inputs: asyncio.Future[Any]) -> bool:
    return inputs.done() and not inputs.cancelled() and inputs.exception() is None


class Backlog:
    """The number of requests in the queue, in total and of each client, with the limits.

    Args:
        limit: of all clients together. clients: settings of some clients, with limits of their own.
    """

    def __init__(self, limit: int, clients: Mapping[str, ClientSettings]) -> None:
        self._limit = limit
        self._queued: dict[str, int] = {}
        self._total = 0
        self.regrant(clients)

    def regrant(self, clients: Mapping[str, ClientSettings]) -> None:
        """Replace the limits of clients. Requests in the queue stay."""
        self._limits = {name: granted.max_queued for name, granted in clients.items() if granted.max_queued is not None}

    def enter(self, client: str, *, again: bool = False) -> None:
        """Count one more request of a client. again: its worker ended; such a request always finds room.

        Raises:
            QueueFull: the pool, or the client, has as many requests in the queue as its limit allows.
        """
        if self._total >= self._limit and not again:
            message = f"the pool queues {self._limit} requests at most, and {self._total} wait already"
            raise QueueFull(message, limit=self._limit, queued=self._total)
        limit, queued = self._limits.get(client), self._queued.get(client, 0)
        if limit is not None and queued >= limit and not again:
            message = f"client {client!r} may have {limit} requests queued, and {queued} wait already"
            raise QueueFull(message, client=client, limit=limit, queued=queued)
        self._queued[client] = queued + 1
        self._total += 1

    def leave(self, client: str) -> None:
        """Count one request of a client less."""
        self._total -= 1
        self._queued[client] -= 1
        if not self._queued[client]:
            del self._queued[client]

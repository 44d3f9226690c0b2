"""Invocations of remote clients: credit, keys of idempotency, and one final answer for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from kaas.errors import Cancelled, InvalidRequest, PoolStopped
from kaas.pool.answer import Answer
from kaas.pool.records import Request
from kaas.pool.service import Service
from kaas.pool.wire import RunRecord
from kaas.remote import wire
from kaas.remote.answers import failure_of
from kaas.remote.holdings import Holdings
from kaas.remote.invocations import invocation_of
from kaas.remote.sessions import LONGEST_NAME, Run, Session, Wait


class Meter(Protocol):
    """What counts who used what. client: the name of a key; function: a label."""

    def admit(self, client: str, function: str, input_bytes: int) -> None:
        """
        Raises:
            QuotaExceeded
        """
        ...

    def ended(
        self,
        client: str,
        function: str,
        key: str,
        outcome: str,
        input_bytes: int,
        output_bytes: int,
        record: RunRecord | None,
    ) -> None:
        """Of each request that was admitted, once, when it neither waits nor runs. key: of idempotency. outcome:
        "succeeded", "cancelled" or an error's name."""
        ...


class Runs:
    """Belongs to the pool's event loop.

    Fields:
        draining: why nothing is taken in any more, "" while it is.
    """

    def __init__(
        self, service: Service, holdings: Holdings, closed: Callable[[], None], meter: Meter | None = None
    ) -> None:
        """closed: is called when something is open no more."""
        self.draining = ""
        self._service, self._pool, self._holdings = service, service.pool, holdings
        self._closed, self._meter = closed, meter
        self._loop = asyncio.get_running_loop()

    def ask(self, session: Session, message: wire.Invoke, frames: Sequence[Any]) -> None:
        """frames: with the header. What was asked before, by this number or by its key, is the same request.

        Raises:
            KaasError, or whatever else a senseless message leads to.
        """
        known = session.waits.get(message.number)
        if known is not None:
            if known.run.done and known.sent != session.channel:
                self._send(known)
        elif message.number in session.tasks:
            raise InvalidRequest(f"question {message.number} is not answered yet")
        elif not (message.key and self._joined(session, message)):
            self._begin(session, message, frames)

    def _joined(self, session: Session, message: wire.Invoke) -> bool:
        """Whether a request is known by its key, and is waited for once more.

        Raises:
            InvalidRequest, QueueFull
        """
        client, key = session.client, message.key
        if len(key) > LONGEST_NAME:
            raise InvalidRequest(f"a key has at most {LONGEST_NAME} characters, not {len(key)}")
        run = client.runs.get(key) or client.finished.get(key, self._loop.time())
        if run is None:
            return False
        if run.asked != message.function:
            raise InvalidRequest(f"key {key!r} is of a request to another function, {run.asked!r}")
        client.check(run.nbytes)
        wait = _wait(session, message.number, run, run.nbytes)
        if run.done:
            self._send(wait)
        return True

    def _begin(self, session: Session, message: wire.Invoke, frames: Sequence[Any]) -> None:
        if self.draining:
            raise PoolStopped(f"the server takes nothing more: {self.draining}")
        client = session.client
        runnable = self._holdings.function(client.name, message.function)
        function = runnable.function
        input_bytes = sum([len(frame) for frame in frames]) - len(frames[0])
        nbytes = sum(function.output_bytes)
        client.check(input_bytes + nbytes)
        invocation, payload = invocation_of(client.name, message, frames, runnable, self._holdings)
        if self._meter is not None:
            self._meter.admit(client.name, function.label, input_bytes)
        request = self._service.begin(function, invocation, payload, None, "")
        run = Run(client, message.key, message.function, function, runnable.outputs, input_bytes, nbytes, request)
        _wait(session, message.number, run, input_bytes + nbytes)
        if message.key:
            client.runs[message.key] = run
        request.answer.add_done_callback(partial(self._answered, run, request))

    # --- answers

    def _answered(self, run: Run, request: Request, answer: Answer[Sequence[Any]]) -> None:
        if answer.cancelled():  # and all who waited know
            self._pool.cancelled(request)
            outcome = "cancelled"
        elif (error := answer.exception()) is not None:
            run.failure = failure_of(0, error)
            outcome = run.failure.error
        else:
            run.frames = answer.result()
            outcome = "succeeded"
        if self._meter is not None:
            if self._pool.holds(request):
                request.left = partial(self._meter_ended, run, request, outcome)
            else:
                self._meter_ended(run, request, outcome)
        self._end(run)

    def _meter_ended(self, run: Run, request: Request, outcome: str) -> None:
        assert self._meter is not None, "who is asked"
        sizes = run.input_bytes, sum(map(len, run.frames))
        self._meter.ended(run.client.name, run.function.label, run.key, outcome, *sizes, request.record)

    def _end(self, run: Run) -> None:
        """Tell all who wait."""
        run.done, run.request = True, None
        run.nbytes = sum([len(frame) for frame in run.frames])
        client, key = run.client, run.key
        if key:
            run.ended_s = self._loop.time()
            del client.runs[key]
            if run.waits and (run.failure is None or run.failure.retry_s is None):
                client.finished.add(key, run)
        waits, run.waits = run.waits, []
        for wait in waits:
            client.held_bytes += run.nbytes - wait.nbytes
            wait.nbytes = run.nbytes
            self._send(wait)

    def _send(self, wait: Wait) -> None:
        session, run = wait.session, wait.run
        if run.failure is None:
            sent = session.channel.send(wire.Result(wait.number, run.outputs), run.frames)
        else:
            sent = session.channel.send(_numbered(run.failure, wait.number))
        if sent:
            wait.sent = session.channel
        else:
            wait.sent = None
            session.unsent.add(wait.number)

    def send_again(self, session: Session) -> None:
        """On a new connection: all that has not been received."""
        session.unsent.clear()
        for wait in session.waits.values():
            if wait.run.done:
                self._send(wait)

    # --- what is not open any more

    def received(self, session: Session, numbers: Iterable[int]) -> None:
        """What makes no sense means nothing: it may come twice."""
        for number in numbers:
            wait = session.waits.get(number)
            if wait is not None and wait.run.done:
                self._leave(wait)
        if session.unsent:  # it reads again
            unsent, session.unsent = session.unsent, set()
            for number in unsent & session.waits.keys():
                self._send(session.waits[number])

    def cancel(self, session: Session, number: int) -> None:
        """What others wait for too goes on."""
        wait = session.waits.get(number)
        if wait is None or wait.run.done:
            return
        shared, client = wait.run, session.client
        shared.waits.remove(wait)
        failure = failure_of(number, Cancelled(f"request {number} was cancelled"))
        wait.run = Run(client, "", shared.asked, shared.function, (), 0, 0, done=True, failure=failure)
        client.held_bytes -= wait.nbytes
        wait.nbytes = 0
        self._send(wait)
        if not shared.waits and shared.request is not None:
            shared.request.answer.cancel()

    def forget(self, session: Session) -> None:
        """A program has ended."""
        for wait in list(session.waits.values()):
            self._leave(wait)

    def _leave(self, wait: Wait) -> None:
        session, run = wait.session, wait.run
        del session.waits[wait.number]
        session.client.open -= 1
        session.client.held_bytes -= wait.nbytes
        if not run.done:
            run.waits.remove(wait)
            if not run.waits and run.request is not None:
                run.request.answer.cancel()
        self._closed()


def _wait(session: Session, number: int, run: Run, nbytes: int) -> Wait:
    wait = session.waits[number] = Wait(session, number, run, nbytes)
    if not run.done:
        run.waits.append(wait)
    session.client.open += 1
    session.client.held_bytes += nbytes
    return wait


def _numbered(failure: wire.Failure, number: int) -> wire.Failure:
    return wire.Failure(number, failure.error, failure.message, failure.fields, failure.retry_s)

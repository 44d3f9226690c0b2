"""Invocations of remote clients, from request to reply: credit, idempotency keys, steps, charges."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from kaas.errors import Cancelled, DeadlineExceeded, InvalidRequest, PoolStopped, StateUnavailable, UsageUnavailable
from kaas.ktask.request import check_deadline
from kaas.pool.core.requests import Request
from kaas.pool.executors.transport import WorkerCall
from kaas.pool.immediate_future import ImmediateFuture
from kaas.pool.observing.tracing import TraceStep
from kaas.pool.service import Service
from kaas.server.building.invocable_function import InvocableFunction
from kaas.server.idempotency_keys import IdempotencyKeys
from kaas.server.invocation_request import check_made, given_values, invocation_of, sent_bytes
from kaas.server.replies import failure_of
from kaas.server.reply_tracker import ENDED, ReplyTracker
from kaas.server.sessions import LONGEST_NAME, ClientRun, ClientSession, ConnectedClient
from kaas.server.state import durable_replies
from kaas.server.state.client_store import ClientStore
from kaas.server.state.object_store import NewObject
from kaas.server.steps.steps import Made, Steps
from kaas.server.usage.metering import Meter, unanswered
from kaas.wire import protocol
from kaas.wire.trace_context import continued

SUCCEEDED = "succeeded"
CANCELLED = "all callers of the request have cancelled it"
UNWRITTEN = (StateUnavailable, UsageUnavailable)
"""Errors that pass once the server can write again."""
WRITE_AGAIN_S = 1.0
"""Seconds after which a request with such an error may be sent again."""
BEFORE, AFTER = "before", "after"
"""Names of the stages of steps."""

T = TypeVar("T")


class Invocations:
    """Invocations in flight. Use an object of this class from the pool's event loop only.

    Fields:
        draining: why new requests are refused, "" while they are taken.
        closed: True once the usage is closed: no request is charged any more, and none gets a result.
    """

    def __init__(
        self, service: Service, stores: ClientStore, meter: Meter, steps: Steps, tracker: ReplyTracker
    ) -> None:
        self.draining = ""
        self.closed = False
        self._service, self._pool, self._stores = service, service.pool, stores
        self._meter, self._steps, self._tracker = meter, steps, tracker
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._keys = IdempotencyKeys(stores.objects, tracker, self._task, self._begin)

    def ask(self, session: ClientSession, message: protocol.Invoke, frames: Sequence[Any]) -> None:
        """Begin a request, or join a known request with the same number or key. frames: with the header.

        Raises:
            KaasError, or any other error that an invalid message causes.
        """
        known = session.waits.get(message.number)
        if known is not None:
            if known.run.done:
                self._tracker.send(known)
            return
        if message.number in session.tasks:
            raise InvalidRequest(f"message {message.number} has no reply yet")
        client, key = session.client, message.key
        client.check_replies_read(session.channel)  # a failure may be large too, and takes no credit
        if len(key.encode()) > LONGEST_NAME:
            raise InvalidRequest(f"a key has at most {LONGEST_NAME} bytes of UTF-8, not {len(key.encode())}")
        run = client.known(key)
        if run is None:
            self._begin(session, message, frames)
        else:
            self._keys.ask_again(session, message, frames, run)

    def _begin(self, session: ClientSession, message: protocol.Invoke, frames: Sequence[Any]) -> None:
        if self.draining:
            raise PoolStopped(f"the server takes no more requests: {self.draining}")
        client = session.client
        remote = self._stores.functions.named(client.name, message.function)
        function = remote.function
        input_bytes = sent_bytes(message, frames)
        nbytes = sum(function.output_bytes)
        outputs, stored_bytes = remote.outputs, 0
        if message.store:
            outputs, stored_bytes = self._outputs(client, remote, message.store)
            client.storing.check(client, stored_bytes)
            nbytes -= stored_bytes
        client.requests.check(client, input_bytes + nbytes)
        request = None
        self._meter.admit(client.name)
        try:
            contents = self._keys.contents(client.name, message) if message.key else {}
            if not remote.before and remote.etask is None:  # first, so that the device has work meanwhile
                request = self._request(client.name, message, frames, remote)
            run = ClientRun(client, message.key, message.function, remote.label, outputs, input_bytes, nbytes=nbytes)
            run.begun_s = self._loop.time()
            if message.store or remote.after or remote.etask is not None:
                run.store, run.remote, run.stored_bytes = message.store, remote, stored_bytes
            if remote.before or remote.after or remote.etask is not None:
                run.ends_s = self._ends_s(message)
            if request is None:
                self._prepare(run, message, frames, remote)
        except BaseException as error:
            self._meter.refused(client.name, remote.label, type(error).__name__, admitted=True)
            raise
        self._tracker.wait(session, message.number, run, input_bytes + nbytes)
        if stored_bytes:
            client.storing.take(stored_bytes)
        if message.key:
            client.runs[message.key] = run
            self._keys.bind(run, message, frames, remote.key, contents)
        if request is not None:
            run.moved_bytes = input_bytes
            self._begun(run, request)

    def _request(
        self, client: str, message: protocol.Invoke, frames: Sequence[Any], remote: InvocableFunction
    ) -> Request:
        """Submit an admitted request to the pool.

        Raises:
            KaasError
        """
        invocation, payload = invocation_of(client, message, frames, remote, self._stores.objects)
        call = remote.function.call(invocation, payload, payload.refs, "", remote.label)
        return self._submit_traced(call, message.trace)

    def _submit_traced(self, call: WorkerCall, trace: str) -> Request:
        request = self._pool.begin(call)
        if trace:
            request.trace = continued(trace)
        return request

    def _begun(self, run: ClientRun, request: Request) -> None:
        """Note that the pool has the request."""
        run.request = request
        if request.trace is not None:
            run.trace = request.trace.traceparent
        request.answer.add_done_callback(partial(self._answered, run, request))

    # --- steps

    def _ends_s(self, message: protocol.Invoke) -> float | None:
        """Return the end of a request's deadline on the loop's clock.

        Raises:
            InvalidRequest
        """
        if message.deadline_s is None:
            return None
        check_deadline(message.deadline_s)
        return self._loop.time() + message.deadline_s

    def _prepare(
        self, run: ClientRun, message: protocol.Invoke, frames: Sequence[Any], remote: InvocableFunction
    ) -> None:
        """Start the step that makes the inputs from the sent values. The inputs of an eTask are put into the store.

        Raises:
            InvalidRequest
        """
        given = given_values(message, frames) if remote.before else None
        run.task = self._task(self._call(run, message, frames, remote, given))
        run.task.add_done_callback(partial(self._prepared, run, message.trace))

    async def _call(
        self,
        run: ClientRun,
        message: protocol.Invoke,
        frames: Sequence[Any],
        remote: InvocableFunction,
        given: Mapping[str, Any] | None,
    ) -> WorkerCall:
        """Run the step before, then return the call of the pool.

        Raises:
            KaasError
        """
        if given is not None:
            made = await self._step(run, BEFORE, remote.before, given)
            check_made(remote, made)
            inputs = {name: protocol.Input(frame=frame) for frame, name in enumerate(made, 1)}
            frames = [b"", *(each.data for each in made.values())]
            message = msgspec.structs.replace(message, inputs=inputs, deadline_s=self._left_s(run))
        client, objects = run.client.name, self._stores.objects
        run.moved_bytes = sent_bytes(message, frames)
        if remote.etask is not None:
            return await remote.etask.call(client, message, frames, remote, objects)
        invocation, payload = invocation_of(client, message, frames, remote, objects)
        return remote.function.call(invocation, payload, payload.refs, "", remote.label)

    def _left_s(self, run: ClientRun) -> float | None:
        return None if run.ends_s is None else max(1e-3, run.ends_s - self._loop.time())

    def _prepared(self, run: ClientRun, trace: str, task: asyncio.Future[WorkerCall]) -> None:
        run.task = None
        try:
            call = task.result()
            if not run.waits:
                raise asyncio.CancelledError  # cancelled after the step
            request = self._submit_traced(call, trace)
        except asyncio.CancelledError:  # all waiting programs know
            self._meter.refused(run.client.name, run.label, "cancelled", admitted=True)
            _fail(run, Cancelled(CANCELLED))
            self._tracker.end(run)
        except Exception as error:  # noqa: BLE001 - the error becomes the reply
            self._meter.refused(run.client.name, run.label, type(error).__name__, admitted=True)
            _fail(run, error)
            self._tracker.end(run)
        else:
            self._begun(run, request)

    async def _step(self, run: ClientRun, stage: str, name: str, values: Mapping[str, Any]) -> dict[str, Made]:
        """Run a step and note its duration.

        Raises:
            StepFailed, DeadlineExceeded
        """
        begun_s = self._loop.time()
        try:
            return await self._run_step(run, name, values, begun_s)
        finally:
            ended_s = self._loop.time()
            run.steps_s[stage] = ended_s - begun_s
            self._pool.reports.note_step(TraceStep(run.client.name, run.label, stage, name, begun_s, ended_s))

    async def _run_step(self, run: ClientRun, name: str, values: Mapping[str, Any], begun_s: float) -> dict[str, Made]:
        """Run a step within the request's deadline.

        Raises:
            StepFailed, DeadlineExceeded
        """
        try:
            async with asyncio.timeout_at(run.ends_s):
                whose = {"client": run.client.name, "function": run.function}
                return await self._steps.run(name, values, whose)
        except TimeoutError as error:
            left_s = (run.ends_s or begun_s) - begun_s
            message = f"step {name!r} did not end within the {left_s:.3f} s that were left of the request's deadline"
            raise DeadlineExceeded(message, task=run.label, deadline_s=left_s) from error

    def _task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _outputs(
        self, client: ConnectedClient, remote: InvocableFunction, store: Mapping[str, str]
    ) -> tuple[tuple[str, ...], int]:
        """Return the names of the outputs that the reply carries, and the bytes of the stored outputs.

        Raises:
            InvalidRequest, QuotaExceeded
        """
        if len({*store.values()}) != len(store):
            raise InvalidRequest("two outputs cannot be stored under one name")
        if remote.after:  # its outputs are known only after it has run
            return remote.outputs, 0
        sizes = dict(zip(remote.outputs, remote.function.output_bytes, strict=True))
        for name in store.keys() - sizes.keys():
            raise InvalidRequest(f"function {remote.function.label!r} has no output {name!r} to store", buffer=name)
        self._stores.objects.check_room(client.name, {store[name]: sizes[name] for name in store})
        return tuple(name for name in remote.outputs if name not in store), sum(sizes[name] for name in store)

    # --- replies

    def _answered(self, run: ClientRun, request: Request, answer: ImmediateFuture[Sequence[Any]]) -> None:
        if run.binding is not None:  # the charge needs its digest
            run.binding.add_done_callback(lambda _: self._answered(run, request, answer))
            return
        if answer.cancelled():  # all waiting programs know
            self._pool.cancelled(request)
            outcome = "cancelled"
            run.failure = failure_of(0, Cancelled(CANCELLED))
        elif (error := answer.exception()) is not None:
            run.failure = failure_of(0, error)
            outcome = run.failure.error
        else:
            run.frames = answer.result()
            outcome = SUCCEEDED
        run.nbytes = sum(map(len, run.frames))
        run.moved_bytes += run.nbytes
        if outcome != SUCCEEDED and self._pool.unfinished(request):  # after its deadline: it still runs
            request.on_end = partial(self._charge_late, run, request, outcome)
            self._tracker.end(run)
        elif run.remote is not None and outcome == SUCCEEDED:
            self._task(self._after(run, request, run.remote))
        else:
            self._settle(run, request, outcome, partial(self._tracker.end, run))

    async def _after(self, run: ClientRun, request: Request, remote: InvocableFunction) -> None:
        """Run the step after, then store the outputs and the durable reply, if the request has them."""
        outcome = SUCCEEDED
        found = {
            name: Made(dtype, shape, frame)
            for name, (dtype, shape), frame in zip(remote.outputs, remote.function.outputs, run.frames, strict=True)
        }
        try:
            if remote.after:
                found = await self._step(run, AFTER, remote.after, {name: each.data for name, each in found.items()})
            for name in run.store.keys() - found.keys():
                raise InvalidRequest(f"step {remote.after!r} has made no output {name!r} to store", buffer=name)
            come = {name: each.data for name, each in found.items() if name not in run.store}
            run.outputs, run.frames, run.nbytes = tuple(come), list(come.values()), sum(map(len, come.values()))
        except Exception as error:  # noqa: BLE001 - the error becomes the reply
            outcome = type(error).__name__
            _fail(run, error)
        charged = self._settle(run, request, "cancelled" if run.cancelled else outcome)
        if run.failure is None and run.waits and (run.store or remote.etask is not None):
            run.committed = True  # other requests may read what is stored, so its reply has to be kept with it
            named = [NewObject(stored, *found[name].kept()) for name, stored in run.store.items()]
            try:
                await self._stores.objects.store(run.client.name, named, self._durable_reply(run))
            except Exception as error:  # noqa: BLE001 - the error becomes the reply
                run.durable = False
                _fail(run, error)
                if charged:
                    self._meter.failed(run.client.name, run.label, run.charge_key, outcome, type(error).__name__)
        self._tracker.end(run)

    def _durable_reply(self, run: ClientRun) -> dict[str, dict[str, bytes]]:
        """Return the durable reply of a request, so that a repeat of it does not run again; {} for none."""
        run.durable = bool(run.key) and run.client.finished.takes(run.kept_bytes)
        if not run.durable:
            return {}
        assert run.bound is not None, "it has a key and was answered"
        names, reply = (run.function, run.label), (run.outputs, run.frames)
        entry = durable_replies.entry(run.client.name, run.key, *names, *reply, run.bound)
        return {durable_replies.ANSWERS: {run.key: entry}}

    def _settle(
        self, run: ClientRun, request: Request, outcome: str, answer: Callable[[], object] = unanswered
    ) -> bool:
        """Charge for a request, then call `answer`, which sends the reply. Return True if it was charged."""
        try:
            if self.closed and outcome != "cancelled":  # so is the usage: it runs again after the restart
                raise PoolStopped(ENDED)
            return self._charge(run, request, outcome, answer)
        except (PoolStopped, UsageUnavailable) as error:  # a result without a charge is not sent
            _fail(run, error)
            answer()
            return False

    def _charge_late(self, run: ClientRun, request: Request, outcome: str) -> None:
        if self.closed:  # so is the usage
            return
        with suppress(UsageUnavailable):  # the reply is sent, and the meter reports the error to the next request
            self._charge(run, request, outcome, unanswered)

    def _charge(self, run: ClientRun, request: Request, outcome: str, answer: Callable[[], object]) -> bool:
        """Write the charge of a request. Return True if it was charged, and not known as charged before.

        Raises:
            UsageUnavailable
        """
        client, moved_bytes, record = run.client.name, run.moved_bytes, request.record
        nbytes = (run.input_bytes, run.nbytes, moved_bytes)
        return self._meter.ended(client, run.label, run.charge_key, outcome, *nbytes, record, answer)


def _fail(run: ClientRun, error: Exception) -> None:
    run.frames, run.nbytes, run.failure = (), 0, failure_of(0, error)
    if isinstance(error, UNWRITTEN):  # an eTask is not run again, because it may have had an effect
        pure = run.remote is None or run.remote.etask is None
        run.failure = msgspec.structs.replace(run.failure, retry_s=WRITE_AGAIN_S if pure else None)

"""Remote clients at a pool: their messages become its requests, and each gets exactly one answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from time import monotonic
from typing import Any, Protocol

import msgspec

from kaas.errors import ConfigMismatch, InvalidRequest, KaasError, QueueFull, UnknownSession
from kaas.pool.service import Service
from kaas.server.invocations import Invocations
from kaas.server.replies import failure_of
from kaas.server.reply_tracker import ReplyTracker
from kaas.server.sessions import LONGEST_NAME, ClientRun, ClientSession, ConnectedClient, ReplyChannel
from kaas.server.state.client_store import ClientStore, Said
from kaas.server.steps.steps import Steps
from kaas.server.usage.metering import Meter
from kaas.wire import protocol
from kaas.wire.rpc.idempotency_cache import IdempotencyCache

SWEEP_S = 5.0
"""How often what has changed without a message is looked after."""
HEADER_BYTES = 512 << 10
"""Of a message's first frame: enough for a function's constants as far as a client may have objects. The loop reads it
at once, and others wait for about 10 ms of that."""
SENSELESS = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""What is raised for a header that is none."""


@dataclass(frozen=True, slots=True)
class KeptLimits:
    """What a gateway keeps of each client, at most.

    Fields:
        sessions: programs; those that wait for nothing go first. lost_s: how long what a program waits for stays when
            it cannot be reached. answers_bytes, answers_s: of answers to requests with a key, after they were received.
    """

    sessions: int = 1024
    lost_s: float = 60.0
    answers_bytes: int = 16 << 20
    answers_s: float = 600.0


class AdminQueries(Protocol):
    """What answers `wire.Ask`."""

    def told(self, session: ClientSession, what: str, frames: Sequence[Any]) -> Any | Coroutine[Any, Any, Any]:
        """
        Raises:
            KaasError
        """
        ...


class SessionManager:
    """Belongs to the pool's event loop.

    Fields:
        life: of this server, told to all. dropped: messages that made no sense and had no number to answer.
        clients: by name. kept_out: names of clients whose programs are to come again later.
    """

    def __init__(
        self,
        service: Service,
        holdings: ClientStore,
        meter: Meter,
        steps: Steps,
        limits: Callable[[str], protocol.Limits],
        keeping: KeptLimits = KeptLimits(),
        slow_s: float | None = None,
    ) -> None:
        """limits: of a client, as they are now. slow_s: requests that take longer are logged."""
        self.epoch = token_hex(8)
        self.dropped = 0
        self.clients: dict[str, ConnectedClient] = {}
        self.admin: AdminQueries | None = None
        self._holdings, self._limits, self._keeping = holdings, limits, keeping
        self._loop = asyncio.get_running_loop()
        time_s = self._loop.time
        self._tracker = ReplyTracker(
            meter, holdings.answers, self._closed, lambda run: tell_slow(run, slow_s, time_s())
        )
        self._runs = Invocations(service, holdings, meter, steps, self._tracker)
        self._by_channel: dict[ReplyChannel, ClientSession] = {}
        self._meter = meter
        self.kept_out: Collection[str] = ()
        self._silence: asyncio.Event | None = None  # somebody waits for it
        self._sweep = self._loop.call_later(SWEEP_S, self._look_after)

    async def retire(self, names: Collection[str]) -> None:
        """Forget these clients, with all that they have here.

        Raises:
            KaasError
        """
        for name in names:
            client = self.clients.pop(name, None)
            for session in list(client.sessions.values()) if client is not None else ():
                self._forget(session)
                session.channel.drop()
            self._meter.forget_keys(name)
            await self._holdings.purge(name)

    def open(self) -> None:
        """Answers of an earlier life are there again."""
        for answer in self._holdings.answers.read():
            self._tracker.remember(self._client(answer.client), answer)

    # --- messages

    def receive(self, channel: ReplyChannel, frames: Sequence[Any]) -> None:
        """frames: with the header."""
        session = self._by_channel.get(channel)
        if len(frames[0]) > HEADER_BYTES:
            why = f"a message's header has at most {HEADER_BYTES} bytes, not {len(frames[0])}"
            self._senseless(session, frames[0], why)
            return
        try:
            message = protocol.decode_from_client(frames[0])
        except SENSELESS as error:
            self._senseless(session, frames[0], f"a message that makes no sense: {error}")
            return
        try:
            if session is not None:
                self._take(session, message, frames)
            elif isinstance(message, protocol.Hello):
                self._greet(channel, message)
            elif (number := number_of(message)) is not None:
                channel.send(
                    failure_of(number, UnknownSession("the server does not know this program: Hello comes first"))
                )
            else:
                self.dropped += 1
        except Exception as error:  # noqa: BLE001 - whatever a message says, its sender gets an answer
            channel.send(failure_of(number_of(message) or 0, error))

    def _senseless(self, session: ClientSession | None, header: Any, why: str) -> None:
        """Strangers learn nothing; others what is wrong with which message."""
        try:
            number = msgspec.msgpack.decode(header, type=_Numbered).number if session is not None else None
        except SENSELESS:
            number = None
        if session is None or number is None:
            self.dropped += 1
        else:
            session.channel.send(failure_of(number, InvalidRequest(why)))

    def _take(self, session: ClientSession, message: protocol.FromClient, frames: Sequence[Any]) -> None:
        """
        Raises:
            KaasError, or whatever else a senseless message leads to.
        """
        match message:
            case protocol.Invoke():
                self._runs.ask(session, message, frames)
            case protocol.Received(numbers):
                self._tracker.received(session, numbers)
            case protocol.Cancel(number):
                self._tracker.cancel(session, number)
            case protocol.Hello():
                self._greet(session.channel, message)
            case protocol.Ask():
                session.client.check_taken(session.channel.leaving_bytes)
                if self.admin is None:
                    raise InvalidRequest("this server answers no questions")
                told = self.admin.told(session, message.what, frames[1:])
                if isinstance(told, Coroutine):
                    self._later(session, message.number, _told(message.number, told))
                else:
                    session.channel.send(protocol.Reply(message.number, told))
            case _:
                session.client.check_taken(session.channel.leaving_bytes)
                said = self._holdings.answer(session.client.name, message, frames[1:])
                if isinstance(said, Coroutine):
                    self._later(session, message.number, said, sum(map(len, frames[1:])))
                else:
                    session.channel.send(*said)

    # --- programs

    def _greet(self, channel: ReplyChannel, hello: protocol.Hello) -> None:
        """A program has a connection, its first or a new one, where from now on it gets all its answers.

        Raises:
            KaasError
        """
        if hello.version != protocol.VERSION:
            channel.send(_other_version(hello.version))
            return
        if not 0 < len(hello.session.encode()) <= LONGEST_NAME:
            raise InvalidRequest(f"a session is named by 1 to {LONGEST_NAME} bytes of UTF-8")
        if channel.user in self.kept_out:
            channel.drop()  # it comes again
            return
        client = self._client(channel.user)
        session = client.sessions.get(hello.session)
        if session is None:
            self._make_room(client)
            session = client.sessions[hello.session] = ClientSession(client, channel, hello.session)
        elif session.channel != channel:
            self._by_channel.pop(session.channel, None)
            session.channel.drop()
        client.sessions.move_to_end(hello.session)
        send_again = self._tracker.greeted(session, channel)
        former = self._by_channel.get(channel)
        if former is not None and former is not session:
            self.gone(channel)
        self._by_channel[channel] = session
        channel.send(protocol.Welcome(protocol.VERSION, self.epoch, client.name, client.limits))
        if self._runs.draining:
            channel.send(protocol.Goodbye(self._runs.draining))
        send_again()

    def _client(self, name: str) -> ConnectedClient:
        limits = self._limits(name)
        client = self.clients.get(name)
        if client is None:
            keeping = self._keeping
            finished = IdempotencyCache[ClientRun](keeping.answers_bytes, keeping.answers_s, self._tracker.forgotten)
            client = self.clients[name] = ConnectedClient(name, limits, finished=finished)
        client.limits = limits
        return client

    def _make_room(self, client: ConnectedClient) -> None:
        """
        Raises:
            QueueFull: each of its programs waits for something.
        """
        if len(client.sessions) < self._keeping.sessions:
            return
        idle = next((session for session in client.sessions.values() if session.idle), None)
        if idle is None:
            limit = self._keeping.sessions
            message = f"{limit} programs of client {client.name!r} wait for something already"
            raise QueueFull(message, client=client.name, limit=limit, queued=limit)
        self._forget(idle)

    def _forget(self, session: ClientSession) -> None:
        """A program has ended, or can say Hello again."""
        client = session.client
        client.sessions.pop(session.id, None)
        if self._by_channel.get(session.channel) is session:
            del self._by_channel[session.channel]
        self._tracker.forget(session)
        for task in list(session.tasks.values()):
            task.cancel()

    def gone(self, channel: ReplyChannel) -> None:
        """A connection has ended: its program may come again."""
        session = self._by_channel.pop(channel, None)
        if session is not None:
            self._lost(session)

    def _lost(self, session: ClientSession) -> None:
        session.lost_s = monotonic()
        self._tracker.lost(session)
        if session.idle:
            self._forget(session)
        self._closed()

    def _look_after(self) -> None:
        """Programs that do not come again are forgotten; keys may grant something else by now."""
        self._sweep = self._loop.call_later(SWEEP_S, self._look_after)
        now_s = monotonic()
        self.limits_changed()
        for client in list(self.clients.values()):
            client.finished.expire(now_s)
            for session in list(client.sessions.values()):
                if session.lost and now_s - session.lost_s >= self._keeping.lost_s:
                    self._forget(session)

    def limits_changed(self) -> None:
        for client in self.clients.values():
            client.limits = self._limits(client.name)

    # --- questions that take a while

    def _later(self, session: ClientSession, number: int, said: Coroutine[Any, Any, Said], nbytes: int = 0) -> None:
        """nbytes: of the question's frames.

        Raises:
            InvalidRequest, QueueFull
        """
        client = session.client
        try:
            if number in session.tasks or number in session.waits:
                raise InvalidRequest(f"question {number} is not answered yet")
            client.questions.check(client, nbytes)
        except KaasError:
            said.close()
            raise
        client.questions.take(nbytes)
        task = session.tasks[number] = self._loop.create_task(said)
        task.add_done_callback(partial(self._said, session, number, nbytes))

    def _said(self, session: ClientSession, number: int, nbytes: int, task: asyncio.Future[Said]) -> None:
        del session.tasks[number]
        session.client.questions.give_back(nbytes)
        if not task.cancelled():
            error = task.exception()
            if error is None:
                session.channel.send(*task.result())
            else:
                session.channel.send(failure_of(number, error))
        self._closed()

    # --- the end

    def drain(self, reason: str) -> None:
        """From now on nothing is taken in; what is open is answered."""
        if not self._runs.draining:
            self._runs.draining = reason
            for session in self._by_channel.values():
                session.channel.send(protocol.Goodbye(reason))

    async def received(self) -> None:
        """Wait until all answers have been received, or nobody is there who could."""
        while any(not session.idle and not session.lost for session in self._by_channel.values()):
            self._silence = asyncio.Event()
            await self._silence.wait()

    def _closed(self) -> None:
        if self._silence is not None:
            self._silence.set()

    def close(self) -> None:
        """Whoever still waits is told that this server ends."""
        self._sweep.cancel()
        self._runs.closed = True
        self._tracker.close(self._by_channel.values())
        for client in self.clients.values():
            for session in list(client.sessions.values()):
                self._forget(session)


async def _told(number: int, answer: Coroutine[Any, Any, Any]) -> Said:
    return protocol.Reply(number, await answer), ()


class _Numbered(msgspec.Struct):
    number: int


def number_of(message: protocol.FromClient) -> int | None:
    """That its answer has; None for what gets none."""
    if isinstance(message, protocol.Hello):
        return 0
    return None if isinstance(message, protocol.Received | protocol.Cancel) else message.number


def _other_version(theirs: int) -> protocol.Failure:
    differences = (f"protocol: {protocol.VERSION}, not {theirs}",)
    error = ConfigMismatch("the server speaks another version of the protocol", differences=differences)
    failure = failure_of(0, error)
    return msgspec.structs.replace(failure, fields={**failure.fields, "versions": [protocol.VERSION]})


_log = logging.getLogger(__name__)


def tell_slow(run: ClientRun, limit_s: float | None, now_s: float) -> None:
    """A request has its answer. limit_s: those that took longer are logged; None: none are. now_s: on the loop's
    clock, as is when it began."""
    seconds = now_s - run.begun_s
    if limit_s is None or seconds <= limit_s or not run.begun_s:
        return
    request = run.request
    spent = dict(run.steps_s)
    if request is not None:
        if request.dispatched_s:
            spent["queue"] = request.dispatched_s - request.arrived_s
        spent |= request.record.stages if request.record is not None else {}
    outcome = "succeeded" if run.failure is None else run.failure.error
    told = {"client": run.client.name, "function": run.label, "seconds": seconds, "outcome": outcome}
    stages = {f"{stage}_s": round(spent[stage], 6) for stage in spent if stage not in ("request", "total")}
    trace = {"trace": run.trace} if run.trace else {}
    _log.warning("a slow request", extra={**told, **stages, **trace, "limit_by": (run.client.name, run.label)})

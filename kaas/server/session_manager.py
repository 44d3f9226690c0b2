"""Sessions of remote clients: each message becomes a request of the pool and gets exactly one reply."""

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
from kaas.server.state.client_store import ClientStore, StoreReply
from kaas.server.steps.steps import Steps
from kaas.server.usage.metering import Meter
from kaas.wire import protocol
from kaas.wire.rpc.idempotency_cache import IdempotencyCache

SWEEP_S = 5.0
"""Seconds between two checks for lost programs and changed limits."""
HEADER_BYTES = 512 << 10
"""The largest first frame of a message: enough for the constants of a function with as many objects as a client may
have. The event loop decodes it in about 10 ms, while other clients wait."""
INVALID_HEADER = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""Errors of decoding an invalid header."""


@dataclass(frozen=True, slots=True)
class KeptLimits:
    """Bounds on the state that a server keeps for each client.

    Fields:
        sessions: programs; idle ones are forgotten first. lost_s: seconds for which a program without a connection
            keeps its requests. answers_bytes, answers_s: of replies to requests with a key, after they were received.
    """

    sessions: int = 1024
    lost_s: float = 60.0
    answers_bytes: int = 16 << 20
    answers_s: float = 600.0


class AdminQueries(Protocol):
    """The interface that replies to `protocol.Ask`."""

    def reply(self, session: ClientSession, what: str, frames: Sequence[Any]) -> Any | Coroutine[Any, Any, Any]:
        """Return the reply to a query, or a coroutine that returns it.

        Raises:
            KaasError
        """
        ...


class SessionManager:
    """Sessions of all clients. Use an object of this class from the pool's event loop only.

    Fields:
        epoch: identifies this run of the server to its clients. dropped: invalid messages without a number, which got
            no reply. clients: by name. kept_out: names of clients whose programs must connect again later.
    """

    def __init__(
        self,
        service: Service,
        stores: ClientStore,
        meter: Meter,
        steps: Steps,
        limits: Callable[[str], protocol.Limits],
        keeping: KeptLimits = KeptLimits(),
        slow_s: float | None = None,
    ) -> None:
        """limits: returns the current limits of a client. slow_s: requests that take longer are logged."""
        self.epoch = token_hex(8)
        self.dropped = 0
        self.clients: dict[str, ConnectedClient] = {}
        self.admin: AdminQueries | None = None
        self._stores, self._limits, self._keeping = stores, limits, keeping
        self._loop = asyncio.get_running_loop()
        time_s = self._loop.time
        self._tracker = ReplyTracker(
            meter, stores.durable_replies, self._closed, lambda run: log_if_slow(run, slow_s, time_s())
        )
        self._invocations = Invocations(service, stores, meter, steps, self._tracker)
        self._by_channel: dict[ReplyChannel, ClientSession] = {}
        self._meter = meter
        self.kept_out: Collection[str] = ()
        self._closed_event: asyncio.Event | None = None  # set while `received` waits
        self._sweep = self._loop.call_later(SWEEP_S, self._sweep_sessions)

    async def retire(self, names: Collection[str]) -> None:
        """Forget these clients and remove all their data.

        Raises:
            KaasError
        """
        for name in names:
            client = self.clients.pop(name, None)
            for session in list(client.sessions.values()) if client is not None else ():
                self._forget(session)
                session.channel.drop()
            self._meter.forget_keys(name)
            await self._stores.purge(name)

    def open(self) -> None:
        """Load the durable replies of earlier epochs."""
        for reply in self._stores.durable_replies.read():
            self._tracker.remember(self._client(reply.client), reply)

    # --- messages

    def receive(self, channel: ReplyChannel, frames: Sequence[Any]) -> None:
        """Handle one message of a connection. frames: with the header."""
        session = self._by_channel.get(channel)
        if len(frames[0]) > HEADER_BYTES:
            why = f"a message's header has at most {HEADER_BYTES} bytes, not {len(frames[0])}"
            self._invalid(session, frames[0], why)
            return
        try:
            message = protocol.decode_from_client(frames[0])
        except INVALID_HEADER as error:
            self._invalid(session, frames[0], f"an invalid message: {error}")
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
        except Exception as error:  # noqa: BLE001 - every message gets a reply
            channel.send(failure_of(number_of(message) or 0, error))

    def _invalid(self, session: ClientSession | None, header: Any, why: str) -> None:
        """Report an invalid message to its session. A peer without a session gets no reply."""
        try:
            number = msgspec.msgpack.decode(header, type=_Numbered).number if session is not None else None
        except INVALID_HEADER:
            number = None
        if session is None or number is None:
            self.dropped += 1
        else:
            session.channel.send(failure_of(number, InvalidRequest(why)))

    def _take(self, session: ClientSession, message: protocol.FromClient, frames: Sequence[Any]) -> None:
        """Handle a message of a known session.

        Raises:
            KaasError, or any other error that an invalid message causes.
        """
        match message:
            case protocol.Invoke():
                self._invocations.ask(session, message, frames)
            case protocol.Received(numbers):
                self._tracker.received(session, numbers)
            case protocol.Cancel(number):
                self._tracker.cancel(session, number)
            case protocol.Hello():
                self._greet(session.channel, message)
            case protocol.Ask():
                session.client.check_replies_read(session.channel)
                if self.admin is None:
                    raise InvalidRequest("this server replies to no queries")
                reply = self.admin.reply(session, message.what, frames[1:])
                if isinstance(reply, Coroutine):
                    self._reply_later(session, message.number, _reply_of(message.number, reply))
                else:
                    session.channel.send(protocol.Reply(message.number, reply))
            case _:
                session.client.check_replies_read(session.channel)
                kept_reply = self._stores.reply(session.client.name, message, frames[1:])
                if isinstance(kept_reply, Coroutine):
                    self._reply_later(session, message.number, kept_reply, sum(map(len, frames[1:])))
                else:
                    session.channel.send(*kept_reply)

    # --- programs

    def _greet(self, channel: ReplyChannel, hello: protocol.Hello) -> None:
        """Bind a program to its connection, the first or a new one. All further replies to the program go there.

        Raises:
            KaasError
        """
        if hello.version != protocol.VERSION:
            channel.send(_other_version(hello.version))
            return
        if not 0 < len(hello.session.encode()) <= LONGEST_NAME:
            raise InvalidRequest(f"a session is named by 1 to {LONGEST_NAME} bytes of UTF-8")
        if channel.user in self.kept_out:
            channel.drop()  # the program connects again
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
        if self._invocations.draining:
            channel.send(protocol.Goodbye(self._invocations.draining))
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
        """Forget an idle program of a client that has too many.

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
        """Forget a program that has ended. A program that has not ended can send Hello again."""
        client = session.client
        client.sessions.pop(session.id, None)
        if self._by_channel.get(session.channel) is session:
            del self._by_channel[session.channel]
        self._tracker.forget(session)
        for task in session.tasks.values():
            task.cancel()

    def gone(self, channel: ReplyChannel) -> None:
        """Note that a connection has ended. Its program may connect again."""
        session = self._by_channel.pop(channel, None)
        if session is not None:
            self._lost(session)

    def _lost(self, session: ClientSession) -> None:
        session.lost_s = monotonic()
        self._tracker.lost(session)
        if session.idle:
            self._forget(session)
        self._closed()

    def _sweep_sessions(self) -> None:
        """Forget programs that have been lost for too long, and take the current limits of the keys."""
        self._sweep = self._loop.call_later(SWEEP_S, self._sweep_sessions)
        now_s = monotonic()
        self.limits_changed()
        for client in list(self.clients.values()):
            client.finished.expire(now_s)
            for session in list(client.sessions.values()):
                if session.lost and now_s - session.lost_s >= self._keeping.lost_s:
                    self._forget(session)

    def limits_changed(self) -> None:
        """Take the current limits of all clients."""
        for client in self.clients.values():
            client.limits = self._limits(client.name)

    # --- replies that take a while

    def _reply_later(
        self, session: ClientSession, number: int, reply: Coroutine[Any, Any, StoreReply], nbytes: int = 0
    ) -> None:
        """Send the result of a coroutine as the reply. nbytes: of the message's frames.

        Raises:
            InvalidRequest, QueueFull
        """
        client = session.client
        try:
            if number in session.tasks or number in session.waits:
                raise InvalidRequest(f"message {number} has no reply yet")
            client.questions.check(client, nbytes)
        except KaasError:
            reply.close()
            raise
        client.questions.take(nbytes)
        task = session.tasks[number] = self._loop.create_task(reply)
        task.add_done_callback(partial(self._replied, session, number, nbytes))

    def _replied(self, session: ClientSession, number: int, nbytes: int, task: asyncio.Future[StoreReply]) -> None:
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
        """Refuse new requests from now on. Open requests still get their replies."""
        if not self._invocations.draining:
            self._invocations.draining = reason
            for session in self._by_channel.values():
                session.channel.send(protocol.Goodbye(reason))

    async def received(self) -> None:
        """Wait until each connected program has received all its replies."""
        while any(not session.idle and not session.lost for session in self._by_channel.values()):
            self._closed_event = asyncio.Event()
            await self._closed_event.wait()

    def _closed(self) -> None:
        if self._closed_event is not None:
            self._closed_event.set()

    def close(self) -> None:
        """Fail the requests that still wait, and forget all programs."""
        self._sweep.cancel()
        self._invocations.closed = True
        self._tracker.close(self._by_channel.values())
        for client in self.clients.values():
            for session in list(client.sessions.values()):
                self._forget(session)


async def _reply_of(number: int, reply: Coroutine[Any, Any, Any]) -> StoreReply:
    return protocol.Reply(number, await reply), ()


class _Numbered(msgspec.Struct):
    number: int


def number_of(message: protocol.FromClient) -> int | None:
    """Return the number of the reply to a message, None for a message without reply."""
    if isinstance(message, protocol.Hello):
        return 0
    return None if isinstance(message, protocol.Received | protocol.Cancel) else message.number


def _other_version(theirs: int) -> protocol.Failure:
    differences = (f"protocol: {protocol.VERSION}, not {theirs}",)
    error = ConfigMismatch("the server speaks another version of the protocol", differences=differences)
    failure = failure_of(0, error)
    return msgspec.structs.replace(failure, fields={**failure.fields, "versions": [protocol.VERSION]})


_log = logging.getLogger(__name__)


def log_if_slow(run: ClientRun, limit_s: float | None, now_s: float) -> None:
    """Log a request that took longer than `limit_s` until its reply; None: log none. now_s: on the loop's clock, as
    is the request's begin."""
    seconds = now_s - run.begun_s
    if limit_s is None or seconds <= limit_s or not run.begun_s:
        return
    request = run.request
    spent = dict(run.steps_s)
    if request is not None:
        if request.compilation is not None:
            spent["compile"] = request.compile_s(now_s)
        if request.dispatched_s:
            spent["queue"] = request.dispatched_s - request.arrived_s
        spent |= request.record.stages if request.record is not None else {}
    outcome = "succeeded" if run.failure is None else run.failure.error
    fields = {"client": run.client.name, "function": run.label, "seconds": seconds, "outcome": outcome}
    stages = {f"{stage}_s": round(spent[stage], 6) for stage in spent if stage not in ("request", "total")}
    trace = {"trace": run.trace} if run.trace else {}
    _log.warning("a slow request", extra={**fields, **stages, **trace, "limit_by": (run.client.name, run.label)})

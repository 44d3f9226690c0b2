"""The open calls of a client, through all its connections to the server and all epochs of the server."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from secrets import token_hex
from time import monotonic
from typing import Any

from kaas.client.connecting import ServerEndpoint, error_of
from kaas.client.credit_queue import CreditQueue
from kaas.client.open_calls import OpenCall, OpenQuestion, TryAgain
from kaas.client.server_connection import BROKEN, MALFORMED, ServerConnection
from kaas.errors import KaasError, NotInitialized, Unreachable
from kaas.futures import PendingReply
from kaas.wire import protocol
from kaas.wire.connections.connection import AnyConnection, ConnectionLost
from kaas.wire.connections.reply_reader import TAKEN_EVERY, ReplyReader
from kaas.wire.connections.timer_thread import TimerThread
from kaas.wire.rpc.client_half import ClientHalf
from kaas.wire.rpc.credit import Credit

GRACE_S = 1.0
"""A call that the server does not end at its deadline ends so much later by itself."""
ACKNOWLEDGED_S = 0.2
"""The server gets a receipt of a reply within this time, or with an earlier request."""


class RemoteCalls:
    """The calls of a client. queue: calls that wait for credit. session: this client's id. numbers: of requests.

    key_prefix: of the calls' idempotency keys. stopped: set by `close`.
    """

    def __init__(self, endpoint: ServerEndpoint, patience_s: float) -> None:
        self._endpoint, self._patience_s = endpoint, patience_s
        weakref.finalize(self, endpoint.abandon).atexit = False
        self._pid = os.getpid()
        self.session = token_hex(16)
        self.key_prefix = f"{self.session}-"
        self.numbers = count(1)
        self.stopped = threading.Event()
        self._timer = TimerThread("kaas-later")
        self._receiver = ReplyReader[protocol.FromServer](self._take, self._connection_lost)
        self.lock = self._receiver.lock  # guards the fields below and the pending replies
        self._half: ClientHalf[OpenCall | OpenQuestion, int] = ClientHalf()  # abandoned calls hold bytes of credit
        self._credit: Credit[PendingReply] = Credit()
        self.queue = CreditQueue(self._credit, self._receiver, self._timer, self._begin, self.forget)
        self._connection: ServerConnection | None = None
        self._epoch = ""  # of the server, at the newest connection
        self._connecting = self._draining = False
        self._ended: KaasError | None = None

    # --- requests

    def submit(self, call: OpenCall) -> PendingReply | None:
        """Send an Invoke if there is credit for it; else return a reply that ends once `queue` has taken credit for it.

        Raises:
            NotInitialized: the client is closed. RequestTooLarge: an input exceeds the limit of one message.
        """
        self._check()
        limits = self._credit.limits
        if limits is not None and call.nbytes > limits.frame_bytes:
            call.check(limits)
        if self._begin(call, taken=False):
            if not call.number % TAKEN_EVERY:
                self._receiver.take_all()
            return None
        room = PendingReply(self, -call.number)  # `abandon` finds it by this number
        with self.lock:
            ended = self._ended
            if ended is None:
                self._credit.waiting.append((room, call.nbytes))
        if ended is not None:
            raise type(ended)(ended.message)
        self._connect()
        self.queue.grant()
        return room

    def interrupted(self, call: OpenCall) -> None:
        """Lose the connection: a call that was interrupted on its way out is sent again, and credit is recounted."""
        self.queue.abandon(call)
        connection = self._connection
        if connection is not None:
            self._connection_lost(connection)

    def _begin(self, call: OpenCall, room: PendingReply | None = None, *, taken: bool = True) -> bool:
        """Send a call. Return False if there is no credit for it. room: its wait for credit. taken: it has credit."""
        due: tuple[int, ...] = ()
        with self.lock:
            if room is not None:
                self._credit.promised.pop(room, None)
            if not taken and not self._credit.take(call.nbytes):
                return False
            ended, connection = self._ended, self._connection
            if ended is None:
                self._half.begin(call.invoke.number, call)
                if connection is not None:
                    due = self._credit.due()
        if ended is not None:
            call.end(error=ended)
        elif connection is None:
            self._connect()
        else:
            if due:
                self._send(connection, protocol.Received(due))
            if not self._draining:  # else the call is sent to the server's next epoch
                self._send(connection, call.invoke, call.frames_out)
        return True

    def ask(self, make: Callable[[int], Any], frames: Sequence[Any] = ()) -> PendingReply:
        """Send a request other than an Invoke. Its reply has the reply's header and frames, or the error TryAgain."""
        self._check()
        question = OpenQuestion(self, make(next(self.numbers)), frames)
        with self.lock:
            ended, connection = self._ended, self._connection
            if ended is None:
                self._half.begin(question.number, question)
        if ended is not None:
            question.end(error=ended)
        elif connection is None:
            self._connect()
        else:
            self._send(connection, question.header, frames)
        return question

    def limits(self) -> protocol.Limits | None:
        """Return this client's limits at the server, or None before the first connection."""
        return self._credit.limits

    def _check(self) -> None:
        if self._ended is not None:
            raise type(self._ended)(self._ended.message)
        self.check_process()

    def check_process(self) -> None:
        """Raise NotInitialized in a process that was forked from the one that made the calls."""
        if os.getpid() != self._pid:
            raise NotInitialized("this process was forked from one with a client: it needs a client of its own")

    def _send(self, connection: ServerConnection, header: protocol.FromClient, frames: Sequence[Any] = ()) -> None:
        try:
            connection.send(header, frames)
        except ConnectionLost:
            self._connection_lost(connection)

    # --- replies

    def wait(self, pending: PendingReply, timeout_s: float | None) -> None:
        """Wait for a reply, timeout_s at most. A call with a deadline ends GRACE_S after it."""
        self.check_process()
        if isinstance(pending, OpenCall) and pending.expires_s is not None:
            left_s = max(0.0, pending.expires_s + GRACE_S - monotonic())
            if timeout_s is None or left_s < timeout_s:
                self._receiver.wait(pending, left_s)
                if not pending.ended:
                    self._expire(pending)
                return
        self._receiver.wait(pending, timeout_s)

    def call(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Let the receiving thread call these functions."""
        self._receiver.call(callbacks)

    def watch(self, pending: PendingReply) -> None:
        """Let the receiving thread end a call, since no thread waits for it."""
        self._receiver.watch(pending.number)
        if isinstance(pending, OpenCall) and pending.expires_s is not None:
            watched = weakref.ref(pending)  # weak: a call with a reply may be freed before its deadline
            left_s = max(0.0, pending.expires_s + GRACE_S - monotonic())
            self._timer.after(left_s, lambda: self._expire_watched(watched))

    def _expire_watched(self, watched: weakref.ref[OpenCall]) -> None:
        call = watched()
        if call is not None:
            self._expire(call)

    def forget(self, pending: PendingReply) -> None:
        """Cancel a call whose future is garbage or cancelled."""
        connection = None
        with self.lock:
            self._receiver.unwatch(pending.number)
            if isinstance(pending, OpenCall):
                call, sent = self._half.abandon(pending.invoke.number, pending.number, pending.nbytes)
                if sent:
                    connection = self._connection
                elif call is not None:
                    self._credit.give(pending.nbytes)
            else:
                self._credit.leave(pending)
        if connection is not None and isinstance(pending, OpenCall):
            self._send(connection, protocol.Cancel(pending.invoke.number))
        self._receiver.wake()
        self.queue.grant()

    def _expire(self, call: OpenCall) -> None:
        if call.end(error=call.expired()):
            self.forget(call)

    def _take(self, header: protocol.FromServer, frames: Sequence[Any]) -> None:
        match header:
            case protocol.Result(number=number, outputs=names, trace=trace):
                self._end_call(number, frames, None, trace, names)
            case protocol.Failure(error="UnknownSession"):
                connection = self._connection
                if connection is not None:
                    self._connection_lost(connection)  # the next connection introduces the session again
            case protocol.Failure(number=number) if not isinstance(self._half.open.get(number), OpenQuestion):
                self._end_call(number, (), header, header.trace)
            case protocol.Goodbye():
                self._draining = True
            case protocol.Welcome():
                pass
            case _:
                self._end_question(header, frames)

    def _end_question(self, header: Any, frames: Sequence[Any]) -> None:
        question = self._half.open.get(header.number)
        if not isinstance(question, OpenQuestion):
            return
        if isinstance(header, protocol.Failure):
            error = error_of(header)
            question.end(error=error if header.retry_s is None else TryAgain(error, header.retry_s))
        else:
            question.end((header, *frames))
        with self.lock:
            self._half.replied(header.number)  # last: a thread that is interrupted before loses the connection
            self._receiver.unwatch(header.number)

    def _end_call(
        self,
        number: int,
        frames: Sequence[Any],
        failure: protocol.Failure | None,
        trace: str,
        names: Sequence[str] = (),
    ) -> None:
        error = None if failure is None else error_of(failure)
        credit = self._credit
        with self.lock:
            call = self._half.open.get(number)
            if isinstance(call, OpenQuestion):
                return  # a reply of this kind does not belong to a question
            if call is not None and not call.ended:
                pause_s = None if failure is None else call.retry_pause_s(failure, self._patience_s)
                if pause_s is None:
                    call.traceparent = trace
                    self._receiver.called_later += call.settle((names, *frames) if call.named else frames, error)
                else:
                    self._timer.after(pause_s, lambda: self._repeat(call))
                    self._half.put_off(number, call.number)
            first = credit.replied(number, 0 if call is None else call.nbytes)
            self._replied(number)
        if first:
            self._timer.after(ACKNOWLEDGED_S, self._acknowledge)
        if credit.waiting:
            self.queue.grant()

    def _replied(self, number: int) -> None:
        """Forget a call that has its reply; last, since an interrupted thread sends it again. Needs the lock."""
        call, nbytes = self._half.replied(number)
        if isinstance(call, OpenCall):
            nbytes = call.nbytes
            self._receiver.unwatch(call.number)
        if nbytes is not None:
            self._credit.give(nbytes)

    def _repeat(self, call: OpenCall) -> None:
        number = next(self.numbers)
        with self.lock:
            if self._half.repeat(call.number, number) is None:
                return
            call.renumber(number)
        self._begin(call)

    def _acknowledge(self) -> None:
        with self.lock:
            connection, numbers = self._connection, self._credit.all_due()
        if connection is not None and numbers:
            self._send(connection, protocol.Received(numbers))

    # --- connections

    def _connect(self) -> None:
        """Begin to connect, if there is no connection."""
        with self.lock:
            if self._connecting or self._connection is not None or self._ended is not None:
                return
            self._connecting = True
        threading.Thread(target=self._reconnect, name="kaas-connection", daemon=True).start()

    def _connection_lost(self, connection: AnyConnection[Any, protocol.FromServer]) -> None:
        with self.lock:
            lost = self._connection
            if lost is None or lost is not connection:
                return
            self._connecting = malformed = lost.malformed  # then no thread connects before `_fail`
            self._connection = None
            self._receiver.use(None)
            questions = self._half.lost()
            wanted = bool(self._half.open or self._credit.waiting)
            for question in questions:
                self._receiver.unwatch(question.number)
        connection.close()
        reason = MALFORMED if malformed else BROKEN
        error = Unreachable(reason, address=self._endpoint.address, reason=reason)
        for question in questions:
            question.end(error=error if malformed else TryAgain(error))
        if malformed:
            self._fail(error)
        elif wanted:
            self._connect()

    def _reconnect(self) -> None:
        """Connect to the server, and send it all requests without a reply."""
        try:
            connection, welcome = self._endpoint.connect(self.session, self.stopped, self._expire_all)
        except KaasError as error:
            self._fail(error)
            return
        except Exception as error:  # noqa: BLE001 - every waiting caller gets the error
            message = f"{type(error).__name__}: {error}"
            self._fail(Unreachable(message, address=self._endpoint.address, reason=str(error)))
            return
        with self.lock:
            same, self._epoch = welcome.life == self._epoch, welcome.life
            self._credit.renew(welcome.limits)
            abandoned, unanswered = self._half.renewed()
            self._credit.recount([call.nbytes for call in self._half.calls() if isinstance(call, OpenCall)])
            self._connecting = self._draining = False
            if self._ended is None:
                self._connection = connection
                self._receiver.use(connection)
        if self._connection is not connection:
            connection.close()
            return
        for number in abandoned if same else ():
            self._send(connection, protocol.Cancel(number))
        self._send_again(connection, unanswered)
        self.queue.grant()

    def _send_again(self, connection: ServerConnection, unanswered: Iterable[OpenCall | OpenQuestion]) -> None:
        for call in unanswered:
            if isinstance(call, OpenQuestion):
                self._send(connection, call.header, call.frames_out)
                continue
            call.renumber(call.invoke.number)
            if not self._draining:
                self._send(connection, call.invoke, call.frames_out)
            if call.ended:  # meanwhile: its Cancel may have been sent before the call
                self._send(connection, protocol.Cancel(call.invoke.number))

    def _expire_all(self) -> None:
        now_s = monotonic()
        with self.lock:
            calls = [call for call in self._half.open.values() if isinstance(call, OpenCall)]
            expired = [call for call in calls if call.expires_s is not None and call.expires_s < now_s]
        for call in expired:
            self._expire(call)

    def _fail(self, error: KaasError) -> None:
        """End all waiting calls with an error; further calls try to connect again."""
        with self.lock:
            calls, abandoned = self._half.failed()
            for nbytes in (*(call.nbytes for call in calls if isinstance(call, OpenCall)), *abandoned):
                self._credit.give(nbytes)
            pending: list[PendingReply] = [*calls, *(room for room, _ in self._credit.waiting)]
            self._credit.waiting.clear()
            self._connecting = False
            for each in pending:
                self._receiver.unwatch(each.number)
        for each in pending:
            each.end(error=error)

    def close(self) -> None:
        """End all calls with NotInitialized; those that have not begun do not run. A second call changes nothing."""
        closed = NotInitialized("this client is closed")
        if os.getpid() != self._pid:
            return  # the connection belongs to the parent process
        with self.lock:
            if self._ended is not None:
                return
            self._ended = closed
            connection, self._connection = self._connection, None
            numbers = [number for number, call in self._half.open.items() if isinstance(call, OpenCall)]
            answered = self._credit.all_due()
            self._receiver.close()
        self.stopped.set()
        self._timer.close()
        if connection is not None:
            connection.finish(numbers, answered)
        self._fail(closed)

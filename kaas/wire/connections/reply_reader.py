"""One of the threads that wait for replies receives from their connection, for itself and for the others.

When its own reply is there, the thread leaves receiving to the next. So a thread that waits alone has its reply without
any other thread. Only where no thread waits, for callbacks and event loops, there is a thread of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Generic, Protocol

from kaas.wire.connections.connection import AnyConnection, ConnectionLost, Got

TAKEN_EVERY = 64
"""After so many calls that no caller has waited for, a client takes in the replies that have come."""
LATE_AT_MOST = 1000
"""A receiving thread whose time is up still takes so many messages that have come already."""

LINGER_S = 10.0
"""The reader's own thread ends when it was not needed for so long: a forgotten client leaves no thread."""

_log = logging.getLogger(__name__)


class AwaitedReply(Protocol):
    """The reply that a thread waits for.

    A lock in `waiting` is released when the reply is there, or when it is its thread's turn to receive. The receiver's
    lock guards both.
    """

    waiting: list[threading.Lock]

    @property
    def ended(self) -> bool: ...


class ReplyReader(Generic[Got]):
    """Receives replies.

    `take` is called with each message. `lost` is called when a connection has ended; it gives another, or ends the
    calls. A thread may be interrupted anywhere, by Ctrl-C: if it has a message in hand, the connection is lost, and
    what had no reply is sent again.

    Fields:
        called_later: callbacks that the receiving thread calls once it no longer receives.
    """

    def __init__(
        self, take: Callable[[Got, Sequence[Any]], None], lost: Callable[[AnyConnection[Any, Got]], None]
    ) -> None:
        self.lock = threading.Lock()
        self._take = take
        self._lost = lost
        self._connection: AnyConnection[Any, Got] | None = None
        self._receiving: int | None = None  # the receiving thread
        self.called_later: list[Callable[[], Any]] = []
        self._turns: dict[int, threading.Lock] = {}  # by waiting thread
        self._watched = _WatchedCalls()

    def use(self, connection: AnyConnection[Any, Got] | None) -> None:
        """Receive from this connection from now on; None: from none. The caller holds the lock."""
        self._connection = connection
        self._pass_on()

    def wait(self, until: AwaitedReply, timeout_s: float | None) -> None:
        """Wait until a call has ended or the time is up; with 0, only take the messages that are there."""
        end_s = None if timeout_s is None else monotonic() + timeout_s
        thread = threading.get_ident()
        try:
            while True:
                with self.lock:
                    connection = self._connection if self._receiving is None else None
                    if until.ended:
                        if self._turns:
                            self._pass_on()
                        return
                    if connection is not None:
                        self._receiving = thread
                    else:
                        turn = threading.Lock()
                        turn.acquire()
                        self._turns[thread] = turn
                        until.waiting.append(turn)
                if connection is not None:
                    self._receive(connection, until, end_s)
                    time_left = not until.ended and (end_s is None or monotonic() < end_s)
                else:
                    time_left = self._await_turn(turn, until, end_s)
                if not time_left:
                    return
        except BaseException:
            self._leave(thread, until)
            raise

    def _leave(self, thread: int, until: AwaitedReply) -> None:
        """Let the next thread receive in the place of one that was interrupted."""
        with self.lock:
            if self._receiving == thread:
                self._receiving = None
            turn = self._turns.pop(thread, None)
            if turn is not None and turn in until.waiting:
                until.waiting.remove(turn)
            self._pass_on()

    def take_all(self) -> None:
        """Take the messages that are there."""
        self.wait(_Never(), 0)

    def _receive(self, connection: AnyConnection[Any, Got], until: AwaitedReply, end_s: float | None) -> None:
        left_s, late = None, 0
        try:
            while not until.ended and not self.called_later and late < LATE_AT_MOST:
                if end_s is not None:
                    left_s = max(0.0, end_s - monotonic())
                    late += not left_s
                arrived = connection.receive(left_s)
                if arrived is None:
                    return
                self._take(*arrived)
                connection.in_hand = False
        except ConnectionLost:
            self._lost(connection)
        except BaseException:
            if connection.in_hand:
                self._lost(connection)
            raise
        finally:
            with self.lock:
                self._receiving = None
                callbacks, self.called_later = self.called_later, []
                if self._turns:
                    self._pass_on()
            if callbacks:
                self.call(callbacks)

    def call(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Call these. The receiving thread does so only when it no longer receives: they may wait for replies too."""
        if self._receiving == threading.get_ident():
            self.called_later += callbacks
            return
        for callback in callbacks:
            try:
                callback()
            except Exception:  # noqa: BLE001 - the error is that callback's; the others are called too
                _log.exception("a callback of a kaas.Future raised")

    def _await_turn(self, turn: threading.Lock, until: AwaitedReply, end_s: float | None) -> bool:
        """Wait for the turn to receive; return True if there is time left. A turn not taken goes to the next thread."""
        came = turn.acquire(timeout=-1 if end_s is None else min(max(0.0, end_s - monotonic()), threading.TIMEOUT_MAX))
        time_left = end_s is None or monotonic() < end_s
        with self.lock:
            del self._turns[threading.get_ident()]
            until.waiting.remove(turn)
            if not (time_left and came):
                self._pass_on()
        return time_left

    def _pass_on(self) -> None:
        if self._turns and self._receiving is None and self._connection is not None:
            _release(next(iter(self._turns.values())))

    def wake(self) -> None:
        """Let the receiving thread look: a call has ended in another way."""
        with self.lock:
            connection = self._connection if self._receiving is not None else None
        if connection is not None:
            connection.wake()

    # --- calls that no thread waits for

    def watch(self, number: int) -> None:
        """Receive until this call is `unwatch`ed, even if no thread waits.

        The caller holds the lock, here and below.
        """
        watched = self._watched
        watched.numbers.add(number)
        watched.some.set()
        if watched.thread is None:
            thread = threading.Thread(target=self._attend, name="kaas-answers", daemon=True)
            thread.start()
            watched.thread = thread

    def unwatch(self, number: int) -> None:
        watched = self._watched
        watched.numbers.discard(number)
        if watched.waiting and not watched.numbers:
            watched.let_go()

    def close(self) -> None:
        self._connection = None
        self._watched.numbers.clear()
        self._watched.closed = True
        self._watched.some.set()
        self._watched.let_go()

    def _attend(self) -> None:
        watched = self._watched
        while not watched.closed:
            if not watched.some.wait(LINGER_S):
                with self.lock:
                    if not watched.some.is_set():
                        watched.thread = None
                        return
            watched.some.clear()
            self.wait(watched, None)


class _WatchedCalls:
    """The end that the reader's own thread waits for: no call is left to be watched."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()
        self.waiting: list[threading.Lock] = []
        self.some = threading.Event()
        self.closed = False
        self.thread: threading.Thread | None = None

    @property
    def ended(self) -> bool:
        return not self.numbers

    def let_go(self) -> None:
        """Let the thread wait for a turn, which may never come."""
        for turn in self.waiting:
            _release(turn)


def _release(turn: threading.Lock) -> None:
    if turn.locked():
        turn.release()


class _Never:
    ended = False

    def __init__(self) -> None:
        self.waiting: list[threading.Lock] = []

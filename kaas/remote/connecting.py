"""How a client comes to speak to its server: attempts, until one is welcome."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import zmq
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_after_delay,
    stop_when_event_set,
    wait_random_exponential,
)

from kaas.errors import InvalidConfig, NotInitialized, Unreachable
from kaas.pool.lines import LineLost
from kaas.pool.node_line import Socket
from kaas.remote import wire
from kaas.remote.failures import error_of
from kaas.remote.remote_line import NOT_IT, REFUSED, CurveKeys, RemoteLine

ATTEMPT_S = 5.0
"""Within this a server that is there says Welcome."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0
"""Between attempts."""

Connected = tuple[RemoteLine, wire.Welcome]


class Way:
    """To one server. patience_s: how long a server that is not there is looked for."""

    def __init__(self, address: str, keys: CurveKeys | None, patience_s: float) -> None:
        self.address = address
        self._keys = keys
        self._patience_s = patience_s
        self._context: zmq.Context[Socket] = zmq.Context()
        self._lock = threading.Lock()
        self._connecting = self._closed = False
        self._pid = os.getpid()
        self._line: RemoteLine | None = None  # the last that somebody was given

    def connect(self, session: str, stopped: threading.Event, meanwhile: Callable[[], Any]) -> Connected:
        """A line on which this session has been welcomed.

        Args:
            stopped: set when nobody wants it any more. meanwhile: called between attempts.

        Raises:
            Unreachable: nobody is there for so long, or they do not speak to each other
            KaasError: the server wants nothing of this session
        """
        with self._lock:
            if self._closed:
                raise NotInitialized("this client is closed")
            self._connecting = True
        try:
            self._line, welcome = self._connect(session, stopped, meanwhile)
            return self._line, welcome
        finally:
            self._connected()

    def _connected(self) -> None:
        with self._lock:
            self._connecting = False
            closed = self._closed
        if closed:
            if self._line is not None:
                self._line.close()
            self._context.term()

    def _connect(self, session: str, stopped: threading.Event, meanwhile: Callable[[], Any]) -> Connected:
        attempts = Retrying(
            retry=retry_if_exception_type(_Missed),
            stop=stop_after_delay(self._patience_s) | stop_when_event_set(stopped),
            wait=wait_random_exponential(SHORTEST_PAUSE_S, LONGEST_PAUSE_S),
            sleep=sleep_using_event(stopped),
            before_sleep=lambda _: meanwhile(),
            reraise=True,
        )
        try:
            line, welcome = attempts(self._attempt, session)
            if stopped.is_set():
                line.close()
                raise NotInitialized("this client is closed")
            return line, welcome
        except LineLost as error:
            raise Unreachable(
                f"the server at {self.address} cannot be reached: {error}", address=self.address, reason=str(error)
            ) from error

    def _attempt(self, session: str) -> Connected:
        try:
            line = RemoteLine(self._context, self.address, self._keys, ATTEMPT_S)
        except zmq.ZMQError as error:
            raise InvalidConfig(f"{self.address!r} is no address of a server: {error}", field="address") from error
        try:
            line.send(wire.Hello(wire.VERSION, session))
            return line, _welcome(line)
        except BaseException as error:
            line.close()
            if isinstance(error, LineLost) and str(error) not in (REFUSED, NOT_IT):
                raise _Missed(str(error)) from None
            raise

    def close(self) -> None:
        """When all lines are, but for one that is still being made. A process that was forked has none of its own."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            first, self._closed = not self._closed, True
            connecting = self._connecting
        if first and not connecting:
            self._context.term()

    def abandon(self) -> None:
        """Nobody is there any more to use it or to close it. Left to themselves, a context and its sockets that become
        garbage together can wait for each other for ever."""
        if self._line is not None and os.getpid() == self._pid:
            self._line.close()
        self.close()


class _Missed(LineLost):
    """Another attempt may meet somebody."""


def _welcome(line: RemoteLine) -> wire.Welcome:
    end_s = time.monotonic() + ATTEMPT_S
    while True:
        match line.receive(max(0.0, end_s - time.monotonic())):
            case (wire.Welcome() as welcome, _):
                return welcome
            case (wire.Failure(retry_s=None) as failure, _):
                raise error_of(failure)
            case (wire.Failure(message=reason) | wire.Goodbye(reason=reason), _):
                raise LineLost(reason)
            case None:
                raise LineLost(f"no answer within {ATTEMPT_S:g} s")


def retried(patience_s: float, stopped: threading.Event, delay_s: Callable[[BaseException], float | None]) -> Retrying:
    """How a question is asked again. delay_s: after which time, by what came of it; None: not at all."""
    pause = wait_random_exponential(SHORTEST_PAUSE_S, LONGEST_PAUSE_S)

    def wait(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        return (0.0 if error is None else delay_s(error) or 0.0) + pause(state)

    return Retrying(
        retry=lambda state: (
            state.outcome is not None
            and (error := state.outcome.exception()) is not None
            and delay_s(error) is not None
        ),
        stop=stop_after_delay(patience_s) | stop_when_event_set(stopped),
        wait=wait,
        sleep=sleep_using_event(stopped),
        reraise=True,
    )

"""Connects a client to its server, with attempts until the server welcomes the session."""

from __future__ import annotations

import inspect
import logging
import os
import threading
import time
from collections.abc import Callable
from functools import cache
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
from tenacity.stop import stop_base

from kaas import errors
from kaas.client.server_connection import HUNG_UP, MALFORMED, REFUSED, WRONG_PEER, CurveKeys, ServerConnection
from kaas.errors import InvalidConfig, KaasError, NotInitialized, Unreachable, declared
from kaas.wire import protocol
from kaas.wire.connections.connection import ConnectionLost
from kaas.wire.connections.zmq_connection import Socket

ATTEMPT_S = 5.0
"""A reachable server sends Welcome within this time."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0
"""Pauses between attempts."""
HANG_UPS, HANG_UPS_S, HANG_UPS_SHARE = 3, 2.0, 1 / 6
"""A client gives up after so many attempts in a row that ended in the handshake, if they took HANG_UPS_S seconds and
this share of patience_s: another attempt would fail too. Other causes end sooner: a server refuses an address for less
time, unless the address floods it, and a relay hangs up only while its server starts."""

LOG_AFTER_S = 3.0
"""After so many seconds without a server, a client logs the address and its time limit: a wrong address and a server
that starts look the same."""

_log = logging.getLogger(__name__)

Connected = tuple[ServerConnection, protocol.Welcome]


class ServerEndpoint:
    """Connects to one server. patience_s: how long the attempts to connect go on."""

    def __init__(self, address: str, keys: CurveKeys | None, patience_s: float) -> None:
        self.address = address
        self._keys = keys
        self._patience_s = patience_s
        self._context: zmq.Context[Socket] = zmq.Context()
        self._lock = threading.Lock()
        self._connecting = self._closed = False
        self._welcomed = False
        self._pid = os.getpid()
        self._connection: ServerConnection | None = None  # the newest

    def connect(self, session: str, stopped: threading.Event, meanwhile: Callable[[], Any]) -> Connected:
        """Return a connection on which this session has been welcomed.

        Args:
            session: the session's id.
            stopped: set when the connection is no longer needed.
            meanwhile: called between attempts.

        Raises:
            Unreachable: no server replied within patience_s; or the server has another key, which is found sooner.
            NotInitialized: the endpoint was closed, or stopped.
            KaasError: the server refuses this session.
        """
        with self._lock:
            if self._closed:
                raise _closed()
            self._connecting = True
        try:
            return self._connect(session, stopped, meanwhile)
        finally:
            self._connected()

    def _connected(self) -> None:
        with self._lock:
            self._connecting = False
            closed = self._closed
        if closed:
            self._context.term()

    def _connect(self, session: str, stopped: threading.Event, meanwhile: Callable[[], Any]) -> Connected:
        stop = stop_after_delay(self._patience_s) | stop_when_event_set(stopped)
        logged = False

        def between(state: RetryCallState) -> None:
            nonlocal logged
            if not logged and (state.seconds_since_start or 0.0) >= LOG_AFTER_S and state.outcome is not None:
                logged = True
                why = state.outcome.exception()
                _log.warning(
                    "the server at %s cannot be reached so far: %s; attempts go on for %g s (patience_s)",
                    self.address, why, self._patience_s,
                )  # fmt: skip
            meanwhile()

        attempts = Retrying(
            retry=retry_if_exception_type(_Missed),
            stop=stop
            if self._welcomed
            else stop | _HungUp(self._patience_s),  # a server that was reached once has the right key
            wait=wait_random_exponential(SHORTEST_PAUSE_S, LONGEST_PAUSE_S),
            sleep=sleep_using_event(stopped),
            before_sleep=between,
            reraise=True,
        )
        try:
            connection, welcome = attempts(self._attempt, session)
        except ConnectionLost as error:
            if stopped.is_set():
                raise _closed() from None
            raise Unreachable(
                f"the server at {self.address} cannot be reached: {error}", address=self.address, reason=str(error)
            ) from error
        self._welcomed = True
        if stopped.is_set():
            connection.close()
            raise _closed()
        return connection, welcome

    def _attempt(self, session: str) -> Connected:
        try:
            connection = ServerConnection(self._context, self.address, self._keys, ATTEMPT_S)
        except zmq.ZMQError as error:
            raise InvalidConfig(f"{self.address!r} is no address of a server: {error}", field="address") from error
        with self._lock:
            self._connection, closed = connection, self._closed
        try:
            if closed:
                raise _closed()
            connection.send(protocol.Hello(protocol.VERSION, session))
            return connection, _welcome(connection)
        except BaseException as error:
            connection.close()
            if isinstance(error, ConnectionLost) and str(error) not in (REFUSED, WRONG_PEER, MALFORMED):
                raise _Missed(str(error)) from None
            raise

    def close(self) -> None:
        """Close the endpoint. A thread that is connecting ends first. In a forked process this does nothing."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            first, self._closed = not self._closed, True
            connecting, connection = self._connecting, self._connection
        if connecting and connection is not None:
            connection.close()  # the thread that waits in it goes on, and ends the context
        elif first and not connecting:
            self._context.term()

    def abandon(self) -> None:
        """Close the socket of an endpoint that has become garbage.

        Without this, a context and its sockets that become garbage together can wait for each other for ever.
        """
        if self._connection is not None and os.getpid() == self._pid:
            self._connection.close()
        self.close()


def _closed() -> NotInitialized:
    return NotInitialized("this client is closed")


class _Missed(ConnectionLost):
    """An attempt failed; another attempt may reach the server."""


class _HungUp(stop_base):
    """Stops attempts once the peer has hung up too often: a server hangs up on a client without its key."""

    def __init__(self, patience_s: float) -> None:
        self._at_s: list[float] = []
        self._limit_s = max(HANG_UPS_S, HANG_UPS_SHARE * patience_s)

    def __call__(self, state: RetryCallState) -> bool:
        if state.outcome is None or str(state.outcome.exception()) != HUNG_UP:
            self._at_s.clear()
            return False
        self._at_s.append(time.monotonic())
        return len(self._at_s) >= HANG_UPS and self._at_s[-1] - self._at_s[0] >= self._limit_s


def _welcome(connection: ServerConnection) -> protocol.Welcome:
    end_s = time.monotonic() + ATTEMPT_S
    while True:
        match connection.receive(max(0.0, end_s - time.monotonic())):
            case (protocol.Welcome() as welcome, _):
                return welcome
            case (protocol.Failure(retry_s=None) as failure, _):
                raise error_of(failure)
            case (protocol.Failure(message=reason) | protocol.Goodbye(reason=reason), _):
                raise ConnectionLost(reason)
            case None:
                raise ConnectionLost(f"no reply within {ATTEMPT_S:g} s")


def retried(patience_s: float, stopped: threading.Event, delay_s: Callable[[BaseException], float | None]) -> Retrying:
    """Return a retry loop. delay_s: returns the pause after an error, or None if the error ends the loop."""
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


def error_of(failure: protocol.Failure) -> KaasError:
    """Return a failure as an error of its class, or as a KaasError if this version does not have the class."""
    cls = getattr(errors, failure.error, None)
    if not (isinstance(cls, type) and issubclass(cls, KaasError)):
        return KaasError(f"{failure.error}: {failure.message}")
    tuples = _tuples_of(cls.__name__)
    return cls(
        failure.message,
        **{
            name: tuple(value) if name in tuples and isinstance(value, list) else value
            for name, value in failure.fields.items()
            if name in declared(cls)
        },
    )


@cache
def _tuples_of(name: str) -> frozenset[str]:
    """Return the fields of an error that are tuples; msgpack has lists only."""
    bases = getattr(errors, name).__mro__
    annotations = {name: text for base in bases for name, text in inspect.get_annotations(base).items()}
    return frozenset(name for name, text in annotations.items() if str(text).startswith("tuple["))

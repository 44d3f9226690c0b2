"""A client's line to a server: one connection of ZeroMQ, which ends where it breaks."""

from __future__ import annotations

import errno
import math
import os
import select
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import zmq
import zmq.backend
from zmq.utils.monitor import parse_monitor_message

from kaas.wire import protocol
from kaas.wire.connections.connection import CLOSED, LARGE_BYTES, AnyConnection, ConnectionLost, Frames
from kaas.wire.connections.zmq_connection import Socket, receive_frames

HEARTBEAT_S = 2.0
"""How often it asks whether the server is there; thrice as long without an answer is a no."""
LAST_WORDS_S = 0.2
"""Within this what was sent just before `close` goes out."""

RECONNECT_MS = 3_600_000
"""Another connection is another line, on which the session is introduced anew. Without any reconnecting (-1) a context
whose connection broke in its handshake can wait for ever in `term`, as of ZeroMQ 4.3.5."""

UNKNOWN_KEY = 400
"""What a server that refuses says of a key that it does not know (ZeroMQ's RFC 27); 500, if it has its fill of
connections: then there may be room later."""

BROKEN = "the connection to the server broke"
NOBODY = "nobody listens there"
NOWHERE = "there is no such host"
HUNG_UP = (
    "whoever is there does not answer the handshake, and hangs up. That is all that a server does that has another key "
    "than this client was given (compare server_key in the client's file with public_key in server.toml among the "
    "server's keys, and look at the address), and also one that too many connections without a key keep busy, or that "
    "keeps out this address for now"
)
FULL = "the server takes no more connections of this key now"
REFUSED = "the server does not take this key"
NOT_IT = (
    "whoever is there does not have this server's key, or does not speak this protocol; a server with keys talks to a "
    "client that gives its own only: kaas.Client(address, keys=...)"
)

_MORE, _AT_ONCE = int(zmq.SNDMORE), int(zmq.DONTWAIT)
_EVENTS, _READABLE = int(zmq.EVENTS), int(zmq.POLLIN)
_REFUSED = int(zmq.Event.HANDSHAKE_FAILED_AUTH)
_NOT_IT = int(zmq.Event.HANDSHAKE_FAILED_PROTOCOL)
_CUT = int(zmq.Event.HANDSHAKE_FAILED_NO_DETAIL)
_NOBODY = int(zmq.Event.CLOSED)
_send = zmq.backend.Socket.send  # a third of the time of what pyzmq lays over it
_get = zmq.backend.Socket.get
_BROKEN = int(zmq.Event.DISCONNECTED)
_AGAIN = int(zmq.Event.CONNECT_RETRIED)
"""Follows each of the others; where it stands alone there was nothing to connect to."""


@dataclass(frozen=True, slots=True, repr=False)
class CurveKeys:
    """Of a client's connections, in Z85: the server's public key, and the client's own pair."""

    server_key: bytes
    public_key: bytes
    secret_key: bytes


class ServerConnection(AnyConnection[protocol.FromClient, protocol.FromServer]):
    """A CURVE connection to a server, whose one socket sending and receiving threads share.

    A thread that waits for a message waits for the socket's file descriptor, and not in the socket.
    """

    def __init__(self, context: zmq.Context[Socket], address: str, keys: CurveKeys | None, connect_s: float) -> None:
        """Begin to connect.

        Raises:
            zmq.ZMQError: no such address can be.
        """
        self._using, self._receiving = threading.Lock(), threading.Lock()
        self._socket = socket = context.socket(zmq.DEALER)
        self._monitor = socket.get_monitor_socket(_REFUSED | _NOT_IT | _CUT | _NOBODY | _BROKEN | _AGAIN)
        self._bell = os.eventfd(0)
        self._woken = self._waiting = False
        self._lost = ""
        try:
            _set(socket, address, keys, connect_s)
            socket.connect(address)
        except BaseException:
            self.close()
            raise
        self._socket_fd, self._monitor_fd = (int(each.getsockopt(zmq.FD)) for each in (socket, self._monitor))
        self._heard = False  # what the monitor has to tell
        self._poll = select.poll()
        for descriptor in (self._socket_fd, self._monitor_fd, self._bell):
            self._poll.register(descriptor, select.POLLIN)

    def send(self, header: protocol.FromClient, frames: Sequence[Any] = ()) -> None:
        """frames: each anything with contiguous memory; what is large is not copied."""
        with self._using:
            if self._lost:
                raise ConnectionLost(self._lost)
            socket, left = self._socket, len(frames)
            try:
                _send(socket, protocol.encode(header), _AT_ONCE | _MORE if left else _AT_ONCE)
                for frame in frames:
                    left -= 1
                    _send(socket, frame, _MORE if left else 0, len(frame) < LARGE_BYTES)
            except zmq.Again:
                self._hear()
                raise ConnectionLost(self._lost or BROKEN) from None
            if self._waiting and _readable(self._socket):
                os.eventfd_write(self._bell, 1)  # sending may have taken the notice of what has come

    def receive(self, timeout_s: float | None = None) -> tuple[protocol.FromServer, Frames] | None:
        """Return the next message with its frames, or None after timeout_s."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._receiving:
            came = False  # as far as its file descriptor tells
            while True:
                with self._using:
                    if self._lost == CLOSED:
                        raise ConnectionLost(CLOSED)
                    if came or _readable(self._socket):
                        try:
                            header, *frames = receive_frames(self._socket, _AT_ONCE)
                        except zmq.Again:
                            pass  # it was something else
                        else:
                            return protocol.decode_from_server(header), frames
                    if not (self._lost or self._heard):
                        self._hear()
                    if self._lost:
                        raise ConnectionLost(self._lost)
                    self._waiting = True
                left_ms = None if deadline_s is None else max(0, math.ceil((deadline_s - time.monotonic()) * 1000))
                ready = dict(self._poll.poll(left_ms))
                self._waiting = False
                if not ready or (self._bell in ready and self._rung()):
                    return None
                came = self._socket_fd in ready
                self._heard = self._monitor_fd not in ready

    def wake(self) -> None:
        """Let a thread in `receive` return."""
        with self._using:
            if self._lost != CLOSED:
                self._woken = True
                os.eventfd_write(self._bell, 1)

    def part(self, unanswered: Iterable[int], received: tuple[int, ...]) -> None:
        """Cancel requests, acknowledge replies, and close.

        The end of the connection tells the server what it no longer carries.
        """
        try:
            for number in unanswered:
                self.send(protocol.Cancel(number))
            if received:
                self.send(protocol.Received(received))
        except ConnectionLost:
            return
        finally:
            self.close()

    def close(self) -> None:
        """Close the socket; threads in `receive` raise."""
        with self._using:
            if self._lost == CLOSED:
                return
            broken, self._lost = self._lost, CLOSED
            os.eventfd_write(self._bell, 1)
        with self._receiving:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._socket.close(linger=0 if broken else int(LAST_WORDS_S * 1000))
            os.close(self._bell)

    def _rung(self) -> bool:
        """Whether it was for whoever receives, and not to have it look again."""
        with self._using:
            os.eventfd_read(self._bell)
            woken, self._woken = self._woken, False
        return woken

    def _hear(self) -> None:
        """What the monitor has to tell: its file descriptor too tells only that something has changed since."""
        while _readable(self._monitor):
            told = parse_monitor_message(self._monitor.recv_multipart())
            self._lost = self._lost or _why(told["event"], told["value"])


def _why(event: int, value: int) -> str:
    """A connection ended."""
    if event & _REFUSED:
        return REFUSED if value == UNKNOWN_KEY else FULL
    if event & _NOT_IT:
        return NOT_IT
    if event & _CUT and value == errno.EPIPE:  # and not torn off, by a process that ended or by a relay to nobody
        return HUNG_UP
    if event & _AGAIN:
        return NOWHERE
    return NOBODY if event & _NOBODY else BROKEN


def _readable(socket: Socket) -> bool:
    return bool(int(_get(socket, _EVENTS)) & _READABLE)


def _set(socket: Socket, address: str, keys: CurveKeys | None, connect_s: float) -> None:
    socket.set_hwm(0)  # credit bounds what waits
    socket.reconnect_ivl = RECONNECT_MS
    socket.connect_timeout = socket.handshake_ivl = math.ceil(connect_s * 1000)
    socket.heartbeat_ivl = int(HEARTBEAT_S * 1000)
    socket.heartbeat_timeout = int(3 * HEARTBEAT_S * 1000)
    socket.ipv6 = "[" in address
    if keys is not None:
        socket.curve_serverkey = keys.server_key
        socket.curve_publickey, socket.curve_secretkey = keys.public_key, keys.secret_key

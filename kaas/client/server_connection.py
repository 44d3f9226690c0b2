"""A client's connection to a server: one ZeroMQ connection, which does not reconnect after a break."""

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

import msgspec
import zmq
import zmq.backend
from zmq.utils.monitor import parse_monitor_message

from kaas.wire import protocol
from kaas.wire.connections.connection import CLOSED, INTERRUPTED, LARGE_BYTES, AnyConnection, ConnectionLost, Frames
from kaas.wire.connections.zmq_connection import Socket, readable, receive_frames

HEARTBEAT_S = 2.0
"""Interval of ZeroMQ heartbeats. The connection breaks after three intervals without a reply."""
SILENCE_S = 15.0
"""Silence after which the server may end the connection: of a program that is stopped, or gone behind a relay, whose
machine still answers."""
LINGER_S = 0.2
"""Messages that were sent just before `close` still go out within this time."""

RECONNECT_MS = 3_600_000
"""So long that ZeroMQ does not reconnect: a new connection needs a new Hello. With reconnecting switched off (-1) a
context whose connection broke in its handshake can wait for ever in `term`, as of ZeroMQ 4.3.5."""

UNKNOWN_KEY = 400
"""The status of a server that does not know a key (ZeroMQ's RFC 27). Its status is 500 if it has too many connections
now; then it may have room later."""

BROKEN = "the connection to the server broke"
NO_LISTENER = "no server listens at this address"
NO_HOST = "there is no such host"
HUNG_UP = (
    "the peer at this address hangs up during the handshake. Most likely the keys differ: a server with keys requires "
    "the client's keys (kaas.Client(address, keys=...), on the command line --keys), whose server_key is public_key in "
    "server.toml among the server's keys. Check the address too. A server also hangs up while too many connections "
    "without a key keep it busy, or while it refuses this address"
)
FULL = "the server takes no more connections of this key now"
REFUSED = "the server does not take this key"
WRONG_PEER = (
    "the peer at this address does not have this server's key, or does not speak this protocol. A server with keys "
    "requires the client's keys: kaas.Client(address, keys=...), on the command line --keys"
)
MALFORMED = "the server sent bytes that are no message of this protocol"

_MORE, _AT_ONCE = int(zmq.SNDMORE), int(zmq.DONTWAIT)
_REFUSED_EVENT = int(zmq.Event.HANDSHAKE_FAILED_AUTH)
_WRONG_PEER_EVENT = int(zmq.Event.HANDSHAKE_FAILED_PROTOCOL)
_CUT = int(zmq.Event.HANDSHAKE_FAILED_NO_DETAIL)
_CONNECT_CLOSED = int(zmq.Event.CLOSED)
_send = zmq.backend.Socket.send  # takes a third of the time of pyzmq's own `send`
_BROKEN_EVENT = int(zmq.Event.DISCONNECTED)
_AGAIN = int(zmq.Event.CONNECT_RETRIED)
"""Follows each of the other events. Alone, it says that the host does not exist."""


@dataclass(frozen=True, slots=True, repr=False)
class CurveKeys:
    """Keys of a client's connections, in Z85: the server's public key, and the client's own pair."""

    server_key: bytes
    public_key: bytes
    secret_key: bytes


class ServerConnection(AnyConnection[protocol.FromClient, protocol.FromServer]):
    """A CURVE connection to a server. Threads that send and receive share its one socket.

    A thread waits for a message by a poll of the socket's file descriptor, so that others can use the socket meanwhile.
    """

    def __init__(self, context: zmq.Context[Socket], address: str, keys: CurveKeys | None, connect_s: float) -> None:
        """Begin to connect.

        Raises:
            zmq.ZMQError: the address is malformed.
        """
        self._using, self._receiving = threading.Lock(), threading.Lock()
        self._socket = socket = context.socket(zmq.DEALER)
        self._monitor = socket.get_monitor_socket(
            _REFUSED_EVENT | _WRONG_PEER_EVENT | _CUT | _CONNECT_CLOSED | _BROKEN_EVENT | _AGAIN
        )
        self._wakeup_fd = os.eventfd(0)
        self._woken = self._waiting = False
        self._lost = ""
        try:
            _set(socket, address, keys, connect_s)
            socket.connect(address)
        except BaseException:
            self.close()
            raise
        self._socket_fd, self._monitor_fd = (int(each.getsockopt(zmq.FD)) for each in (socket, self._monitor))
        self._monitor_read = False  # the monitor's events so far
        self._poll = select.poll()
        for descriptor in (self._socket_fd, self._monitor_fd, self._wakeup_fd):
            self._poll.register(descriptor, select.POLLIN)

    def send(self, header: protocol.FromClient, frames: Sequence[Any] = ()) -> None:
        """Send a message. frames: objects with contiguous memory; large ones are not copied.

        Raises:
            ConnectionLost: the connection broke, or is closed.
        """
        with self._using:
            if self._lost:
                raise ConnectionLost(self._lost)
            socket, left, encoded = self._socket, len(frames), protocol.encode(header)
            try:
                _send(socket, encoded, _AT_ONCE | _MORE if left else _AT_ONCE)
                for frame in frames:
                    left -= 1
                    _send(socket, frame, _MORE if left else 0, len(frame) < LARGE_BYTES)
            except zmq.Again:
                self._read_monitor()
                raise ConnectionLost(self._lost or BROKEN) from None
            except BaseException:
                self._lost = INTERRUPTED
                os.eventfd_write(self._wakeup_fd, 1)
                raise
            if self._waiting and readable(self._socket):
                os.eventfd_write(self._wakeup_fd, 1)  # sending may have consumed the notice of a received message

    def receive(self, timeout_s: float | None = None) -> tuple[protocol.FromServer, Frames] | None:
        """Return the next message with its frames, or None after timeout_s or `wake`.

        Raises:
            ConnectionLost: the connection broke, or is closed.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._receiving:
            noticed = False  # by the socket's file descriptor
            while True:
                with self._using:
                    if self._lost in (CLOSED, INTERRUPTED):
                        raise ConnectionLost(self._lost)
                    self.in_hand = True
                    if noticed or readable(self._socket):
                        try:
                            header, *frames = receive_frames(self._socket, _AT_ONCE)
                            return protocol.decode_from_server(header), frames
                        except zmq.Again:
                            pass  # the notice was not of a message
                        except msgspec.MsgspecError:
                            self._lost = MALFORMED
                    if not (self._lost or self._monitor_read):
                        self._read_monitor()
                    if self._lost:
                        raise ConnectionLost(self._lost)
                    self._waiting = True
                    self.in_hand = False
                left_ms = None if deadline_s is None else max(0, math.ceil((deadline_s - time.monotonic()) * 1000))
                ready = dict(self._poll.poll(left_ms))
                self._waiting = False
                if not ready or (self._wakeup_fd in ready and self._clear_wakeup()):
                    return None
                noticed = self._socket_fd in ready
                self._monitor_read = self._monitor_fd not in ready

    def wake(self) -> None:
        """Let a thread in `receive` return."""
        with self._using:
            if self._lost != CLOSED:
                self._woken = True
                os.eventfd_write(self._wakeup_fd, 1)

    def finish(self, unanswered: Iterable[int], received: tuple[int, ...]) -> None:
        """Cancel requests, acknowledge replies, and close.

        If a message cannot be sent any more, the end of the connection tells the server the same.
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
            os.eventfd_write(self._wakeup_fd, 1)
        with self._receiving:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._socket.close(linger=0 if broken else int(LINGER_S * 1000))
            os.close(self._wakeup_fd)

    @property
    def malformed(self) -> bool:
        """True after bytes that are no message: another connection to this server would bring the same."""
        return self._lost == MALFORMED

    def _clear_wakeup(self) -> bool:
        """Clear the wake-up. Return True if it came from `wake`, False if the receiver only has to look again."""
        with self._using:
            os.eventfd_read(self._wakeup_fd)
            woken, self._woken = self._woken, False
        return woken

    def _read_monitor(self) -> None:
        """Read the monitor's events, until none is left: its file descriptor reports changes only."""
        while readable(self._monitor):
            message = parse_monitor_message(self._monitor.recv_multipart())
            self._lost = self._lost or _reason(message["event"], message["value"])


def _reason(event: int, value: int) -> str:
    """Return the reason of a connection's end, in words."""
    if event & _REFUSED_EVENT:
        return REFUSED if value == UNKNOWN_KEY else FULL
    if event & _WRONG_PEER_EVENT:
        return WRONG_PEER
    if event & _CUT and value == errno.EPIPE:  # other errors: the peer's process ended, or a relay has no server
        return HUNG_UP
    if event & _AGAIN:
        return NO_HOST
    return NO_LISTENER if event & _CONNECT_CLOSED else BROKEN


def _set(socket: Socket, address: str, keys: CurveKeys | None, connect_s: float) -> None:
    socket.set_hwm(0)  # credit bounds the bytes that wait
    socket.reconnect_ivl = RECONNECT_MS
    socket.connect_timeout = socket.handshake_ivl = math.ceil(connect_s * 1000)
    socket.heartbeat_ivl = int(HEARTBEAT_S * 1000)
    socket.heartbeat_timeout = int(3 * HEARTBEAT_S * 1000)
    socket.heartbeat_ttl = int(SILENCE_S * 1000)
    socket.ipv6 = "[" in address
    if keys is not None:
        socket.curve_serverkey = keys.server_key
        socket.curve_publickey, socket.curve_secretkey = keys.public_key, keys.secret_key

"""A peer's connection from another machine: two ZeroMQ sockets, so that one thread may send while another receives."""

from __future__ import annotations

import math
import os
import secrets
import threading
import time
from collections.abc import Sequence
from typing import Any

import zmq
import zmq.backend
from zmq.utils.monitor import parse_monitor_message

from kaas.wire import messages
from kaas.wire.connections.connection import CLOSED, INTERRUPTED, LARGE_BYTES, Connection, ConnectionLost, Frames
from kaas.wire.messages import Address, FromPeer, PeerHello, ToPeer

HEARTBEAT_S = 5.0
"""The period of heartbeats at each end. After three periods without a reply the other end counts as gone."""

OUTWARD, INWARD = b"o", b"i"
"""The identity of a socket is its connection's token and one of these: the sending or the receiving socket."""

Socket = zmq.Socket[bytes]

_MORE, _AT_ONCE = int(zmq.SNDMORE), int(zmq.DONTWAIT)
_EVENTS, _READABLE = int(zmq.EVENTS), int(zmq.POLLIN)
_receive = zmq.backend.Socket.recv  # takes less than half of the time of pyzmq's wrapper
_get = zmq.backend.Socket.get
_BROKEN = zmq.Event.DISCONNECTED | zmq.Event.CLOSED
_REFUSED = zmq.Event.HANDSHAKE_FAILED_PROTOCOL | zmq.Event.HANDSHAKE_FAILED_AUTH
"""Events after which the server does not let this peer in. After other failed handshakes, whose connection broke too
early, ZeroMQ tries again."""


class ZmqConnection(Connection):
    """A connection over ZeroMQ, which connects anew by itself where a connection breaks.

    The pool is then greeted again. A PoolWelcome that `receive` returns says that messages in between, in either
    direction, may be lost.
    """

    def __init__(self, address: Address, hello: PeerHello) -> None:
        """hello: sent on each connection but the first."""
        super().__init__()
        self._hello = hello
        self._context = zmq.Context()
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        token = secrets.token_bytes(16)
        self._out = self._socket(address, token + OUTWARD)
        self._in = self._socket(address, token + INWARD)
        sockets = (self._in, self._out)
        self._monitors = monitors = [socket.get_monitor_socket(_BROKEN | _REFUSED) for socket in sockets]
        self._bell = os.eventfd(0)
        self._lost = ""
        self._polled: list[tuple[Any, int]] = [
            (waited, int(zmq.POLLIN)) for waited in (self._in, *monitors, self._bell)
        ]
        for socket in sockets:
            socket.connect(address.tcp)

    def send(self, header: FromPeer, frames: Sequence[Any] = ()) -> None:
        with self._sending:
            if self._lost:
                raise ConnectionLost(self._lost)
            try:
                send_message(self._out, header, frames)
            except BaseException:
                self._lost = INTERRUPTED
                os.eventfd_write(self._bell, 1)
                raise

    def receive(self, timeout_s: float | None = None) -> tuple[ToPeer, Frames] | None:
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._receiving:
            if self._early:
                self.in_hand = True
                return self._early.popleft()
            while not self._lost:
                left_ms = -1 if deadline_s is None else max(0, math.ceil((deadline_s - time.monotonic()) * 1000))
                ready: list[tuple[Any, int]] = zmq.zmq_poll(self._polled, left_ms)
                if not ready:
                    return None
                if ready[0][0] is self._in:
                    return self._next()
                for waited, _ in ready:
                    if waited != self._bell:
                        self.in_hand = True  # a message of the monitor
                        self._happened(waited)
                        self.in_hand = False
                    elif os.eventfd_read(self._bell) and not self._lost:
                        return None
            if self._lost in (CLOSED, INTERRUPTED):
                raise ConnectionLost(self._lost)
            try:
                return self._next()  # a message that came before the end
            except zmq.Again:
                raise ConnectionLost(self._lost) from None

    def wake(self) -> None:
        with self._sending:
            if self._lost != CLOSED:
                os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        with self._sending:
            if self._lost == CLOSED:
                return
            self._lost = CLOSED
            os.eventfd_write(self._bell, 1)
        with self._receiving:
            for socket in (self._in, self._out):
                socket.disable_monitor()  # first: ZeroMQ's own thread would wait for ever for a monitor that is gone
            for socket in (*self._monitors, self._in, self._out):
                socket.close()
            self._context.term()
            os.close(self._bell)

    def _greet(self, hello: PeerHello, frames: Sequence[Any]) -> None:
        send_message(self._in, hello, frames)

    def _socket(self, address: Address, identity: bytes) -> Socket:
        socket = self._context.socket(zmq.DEALER)
        socket.set_hwm(0)
        socket.linger = 0
        socket.identity = identity
        socket.ipv6 = "[" in address.tcp
        socket.curve_serverkey = address.server_key
        socket.curve_publickey, socket.curve_secretkey = address.public_key, address.secret_key
        beat(socket)
        return socket

    def _next(self) -> tuple[ToPeer, Frames]:
        self.in_hand = True
        header, *frames = receive_frames(self._in, _AT_ONCE)
        return messages.decode_to_peer(header), frames

    def _happened(self, monitor: Socket) -> None:
        event = parse_monitor_message(monitor.recv_multipart())["event"]
        if event & _REFUSED:
            self._lost = "the pool does not know this key"
        elif event & zmq.Event.DISCONNECTED:
            send_message(self._in, self._hello)  # goes out once there is a connection again


def send_message(socket: Socket, header: FromPeer | ToPeer, frames: Sequence[Any] = ()) -> None:
    """Send a header and its frames, each of them with contiguous memory."""
    if not frames:
        socket.send(messages.encode(header), _AT_ONCE)
        return
    socket.send(messages.encode(header), _AT_ONCE | _MORE)
    for frame in frames[:-1]:
        socket.send(frame, _MORE, copy=False)
    socket.send(frames[-1], copy=False)


def readable(socket: Socket) -> bool:
    """Return True if a message can be received now. The socket's state is read anew.

    `zmq_poll` would let go of Python's lock, for which a client's other threads may compute.
    """
    return bool(int(_get(socket, _EVENTS)) & _READABLE)


def receive_frames(socket: Socket, flags: int = 0) -> Frames:
    """Return all frames of the next message; flags: DONTWAIT if it may not be there."""
    frames: Frames = []
    while True:
        frame = _receive(socket, flags, False)
        frames.append(frame.bytes if len(frame) < LARGE_BYTES else frame.buffer.toreadonly())
        if not frame.more:
            return frames


def beat(socket: Socket) -> None:
    """Set the heartbeats of a socket."""
    socket.heartbeat_ivl = int(HEARTBEAT_S * 1000)
    socket.heartbeat_timeout = int(3 * HEARTBEAT_S * 1000)

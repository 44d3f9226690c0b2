"""A peer's line to the pool: two ZeroMQ sockets, so that one thread may send while another receives."""

from __future__ import annotations

import math
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from kaas.error_codec import decode_error
from kaas.pool import messages
from kaas.pool.blocks import Outbox
from kaas.pool.messages import Address, FromPeer, Hello, Refused, ToPeer, Welcome

LARGE_BYTES = 64 << 10
"""Frames from here on are not copied on their way through a process: the sender's memory goes out as it is, and must
stay as it is until the answer; a receiver has a read-only view of what came in."""
HEARTBEAT_S = 5.0
"""Between nodes: how often each end asks the other whether it is there; thrice as long without an answer is a no."""

PROBE_BYTES = 32
"""Of a secret in a process's memory, by which the pool knows that memory again."""

OUTWARD, INWARD = b"o", b"i"
"""Behind a line's token, the identities of its two sockets: the one that sends, the one that receives."""

ENDED = "the pool's process has ended"
CLOSED = "this line is closed"

Socket = zmq.Socket[bytes]
Frames = list[Any]
"""Of a message, behind its header: bytes, or from LARGE_BYTES on a read-only memoryview."""

_MORE, _AT_ONCE = int(zmq.SNDMORE), int(zmq.DONTWAIT)
_NEVER_MS = 24 * 3600 * 1000
"""With -1, which also says that a socket does not connect anew, what it has received and nobody has read is lost."""
_BROKEN = zmq.Event.DISCONNECTED | zmq.Event.CLOSED
_REFUSED = zmq.Event.HANDSHAKE_FAILED_PROTOCOL | zmq.Event.HANDSHAKE_FAILED_AUTH
"""One without detail is a connection that broke too early: ZeroMQ tries again."""


class LineLost(Exception):
    """Nothing comes over this line any more."""


class Line:
    """Made by `connect`. Anybody sends; one thread at a time receives, the others wait for their turn.

    Between nodes ZeroMQ connects anew by itself where a connection breaks. The pool is then greeted again, and a
    Welcome that `receive` gives says that what was on its way in between, in either direction, may be lost.
    """

    def __init__(self, address: Address, node: str, hello: Hello) -> None:
        self.shares = False
        self._early: deque[tuple[ToPeer, Frames]] = deque()
        self._hello = hello
        self._here = address.node == node and os.path.exists(address.ipc.removeprefix("ipc://"))
        if not (self._here or address.tcp):
            raise LineLost(ENDED)
        self._context = zmq.Context()
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        token = secrets.token_bytes(16)
        self._out = self._socket(address, token + OUTWARD)
        self._in = self._socket(address, token + INWARD)
        monitored = [self._in] if self._here else [self._in, self._out]
        self._monitors = monitors = [socket.get_monitor_socket(_BROKEN | _REFUSED) for socket in monitored]
        self._bell = os.eventfd(0)
        self._lost = ""
        self._polled: list[tuple[Any, int]] = [
            (waited, int(zmq.POLLIN)) for waited in (self._in, *monitors, self._bell)
        ]
        for socket in (self._in, self._out):
            socket.connect(address.ipc if self._here else address.tcp)

    @classmethod
    def connect(cls, address: Address, node: str, role: str, name: str, incarnation: str, timeout_s: float) -> Line:
        """A line on which the pool has said Welcome.

        Raises:
            LineLost: there is no pool at this address, or it does not answer in time
            KaasError: it wants nothing of this peer
        """
        line = cls(address, node, Hello(messages.VERSION, role, name, incarnation, os.getpid()))
        try:
            line._introduce(timeout_s)
        except BaseException:
            line.close()
            raise
        return line

    def send(self, header: FromPeer, frames: Sequence[Any] = ()) -> None:
        """From any thread; waits for nobody.

        Raises:
            LineLost: it is closed, here or by the pool's end
        """
        with self._sending:
            if self._lost:
                raise LineLost(self._lost)
            try:
                send_message(self._out, header, frames)
            except zmq.Again:
                raise LineLost(ENDED) from None

    def receive(self, timeout_s: float | None = None) -> tuple[ToPeer, Frames] | None:
        """The next message, or None if there is none in time, or after `wake`.

        Raises:
            LineLost: it is closed, here or by the pool's end; all that came before was received
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._receiving:
            if self._early:
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
                        self._happened(waited)
                    elif os.eventfd_read(self._bell) and not self._lost:
                        return None
            if self._lost == CLOSED:
                raise LineLost(CLOSED)
            try:
                return self._next()  # what came before the end
            except zmq.Again:
                raise LineLost(self._lost) from None

    def wake(self) -> None:
        """From any thread: who waits in `receive` gets None, and if nobody does, the next who has to wait."""
        with self._sending:
            if self._lost != CLOSED:
                os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """From any thread; once more changes nothing. Who waits in `receive` gets LineLost. What was not sent yet is
        not sent."""
        with self._sending:
            if self._lost == CLOSED:
                return
            self._lost = CLOSED
            os.eventfd_write(self._bell, 1)
        with self._receiving:
            for socket in (*self._monitors, self._in, self._out):
                socket.close()
            self._context.term()
            os.close(self._bell)

    def _socket(self, address: Address, identity: bytes) -> Socket:
        socket = self._context.socket(zmq.DEALER)
        socket.set_hwm(0)
        socket.linger = 0
        socket.identity = identity
        if self._here:  # never again: who listened there has ended
            socket.reconnect_ivl = -1 if identity.endswith(OUTWARD) else _NEVER_MS
        else:
            socket.curve_serverkey = address.server_key
            socket.curve_publickey, socket.curve_secretkey = address.public_key, address.secret_key
            beat(socket)
        return socket

    def _introduce(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        secret, early = secrets.token_bytes(PROBE_BYTES), list[tuple[ToPeer, Frames]]()
        probe = Outbox(limit_idle_bytes=0).put(secret)
        try:
            hello = msgspec.structs.replace(self._hello, probe=probe.block) if self._here else self._hello
            send_message(self._in, hello, [secret])
            while True:
                match self.receive(max(0.0, deadline_s - time.monotonic())):
                    case (Welcome() as welcome, _):
                        self.shares = welcome.shares
                        self._early.extend(early)
                        return
                    case (Refused(), [error]):
                        raise decode_error(error)
                    case None:
                        raise LineLost(f"no answer from the pool within {timeout_s:g} s")
                    case message:
                        early.append(message)
        finally:
            probe.release()

    def _next(self) -> tuple[ToPeer, Frames]:
        header, *frames = receive_frames(self._in, _AT_ONCE)
        return messages.decode_to_peer(header), frames

    def _happened(self, monitor: Socket) -> None:
        event = parse_monitor_message(monitor.recv_multipart())["event"]
        if event & _REFUSED:
            self._lost = "the pool does not know this key"
        elif self._here:
            self._lost = ENDED
        elif event & zmq.Event.DISCONNECTED:
            send_message(self._in, self._hello)  # goes out once there is a connection again


def send_message(socket: Socket, header: FromPeer | ToPeer, frames: Sequence[Any] = ()) -> None:
    """A header and its frames, each of them anything with contiguous memory."""
    if not frames:
        socket.send(messages.encode(header), _AT_ONCE)
        return
    socket.send(messages.encode(header), _AT_ONCE | _MORE)
    for frame in frames[:-1]:
        socket.send(frame, _MORE, copy=False)
    socket.send(frames[-1], copy=False)


def receive_frames(socket: Socket, flags: int = 0) -> Frames:
    """All frames of the next message; flags: DONTWAIT if it may not be there."""
    frames: Frames = []
    while True:
        frame = socket.recv(flags, copy=False)
        frames.append(frame.bytes if len(frame) < LARGE_BYTES else frame.buffer.toreadonly())
        if not frame.more:
            return frames


def beat(socket: Socket) -> None:
    socket.heartbeat_ivl = int(HEARTBEAT_S * 1000)
    socket.heartbeat_timeout = int(3 * HEARTBEAT_S * 1000)

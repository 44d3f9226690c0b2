"""The pool's end of the lines from other machines: a ZeroMQ socket, for who has the key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import zmq
from zmq.utils import z85

from kaas.pool.lines import Frames
from kaas.pool.messages import ToPeer
from kaas.pool.node_line import INWARD, Socket, beat, receive_frames, send_message

TURN = 64
"""Messages that are taken before others of the loop have their turn."""

_ZAP = "inproc://zeromq.zap.01"
"""Where ZeroMQ asks whether a key may come in (its RFC 27)."""

_MORE, _AT_ONCE = int(zmq.SNDMORE), int(zmq.DONTWAIT)
_EVENTS, _READABLE = int(zmq.EVENTS), int(zmq.POLLIN)

Take = Callable[["NodeChannel", Frames], None]


class NodeDoor:
    """Who comes in must have the key, and nobody listens in.

    Fields:
        endpoint: where it is. server_key: public. public_key, secret_key: the pair that lets a peer in.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, host: str, greet: Take, take: Take) -> None:
        """greet: takes what comes on a peer's receiving socket. take: on the other one."""
        self._greet, self._take = greet, take
        self._context: zmq.Context[Socket] = zmq.Context()
        self.server_key, server_secret = zmq.curve_keypair()
        self.public_key, self.secret_key = zmq.curve_keypair()
        asked = self._context.socket(zmq.REP)
        asked.bind(_ZAP)  # before the door: while nobody answers, all may come in
        admitting = _Drain(loop, asked, lambda frames: _admit(asked, self.public_key, *frames))
        self._socket = socket = self._context.socket(zmq.ROUTER)
        socket.set_hwm(0)
        socket.router_mandatory = True  # or what goes to nobody would not be noticed
        socket.router_handover = True  # who connects anew is known before the old connection is missed
        socket.curve_server = True
        socket.curve_secretkey = server_secret
        socket.zap_domain = b"kaas"
        socket.ipv6 = ":" in host
        beat(socket)
        socket.bind(f"tcp://[{host}]:*" if socket.ipv6 else f"tcp://{host}:*")
        self.endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._drain = _Drain(loop, socket, lambda frames: self._arrived(*frames))
        self._drains = (admitting, self._drain)

    def close(self, wait_s: float) -> None:
        """What was sent goes out yet, to who takes it within this time."""
        for drain in self._drains:
            drain.close(wait_s)
        self._context.term()

    def send(self, identity: bytes, header: ToPeer, frames: Sequence[Any]) -> bool:
        """Whether its peer is there."""
        try:
            self._socket.send(identity, _MORE)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        send_message(self._socket, header, frames)
        self._drain.look()
        return True

    def _arrived(self, identity: bytes, *frames: Any) -> None:
        take = self._greet if identity.endswith(INWARD) else self._take
        take(NodeChannel(identity[: -len(INWARD)], self), list(frames))


@dataclass(frozen=True, slots=True)
class NodeChannel:
    """One line, by the token of its two sockets."""

    token: bytes
    door: NodeDoor = field(compare=False)
    local: ClassVar[bool] = False

    def send(self, header: ToPeer, frames: Sequence[Any]) -> bool:
        """Whether its peer is there."""
        return self.door.send(self.token + INWARD, header, frames)


class _Drain:
    """A socket whose messages are taken by the loop's callbacks, each by a call of take with its frames.

    The socket's file descriptor tells only that something has changed since the socket was last asked, so each time all
    is taken that is there, and after sending it is asked again.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, socket: Socket, take: Callable[[Frames], None]) -> None:
        self._socket = socket
        self._loop, self._take = loop, take
        self._fd = int(socket.getsockopt(zmq.FD))
        self._expected = True
        loop.add_reader(self._fd, self._drain)
        loop.call_soon(self._drain)

    def look(self) -> None:
        """After sending."""
        if not self._expected and self._readable():
            self._expected = True
            self._loop.call_soon(self._drain)

    def close(self, wait_s: float) -> None:
        self._loop.remove_reader(self._fd)
        self._socket.close(linger=int(wait_s * 1000))

    def _drain(self) -> None:
        self._expected = not self._socket.closed
        try:
            for _ in range(TURN):
                try:
                    frames = receive_frames(self._socket, _AT_ONCE)
                except zmq.ZMQError:  # nothing, or nothing any more
                    self._expected = False
                    return
                self._take(frames)
                if self._socket.closed or not self._readable():
                    self._expected = False
                    return
        finally:  # an error in what takes is the loop's to report, and the next message is none of its business
            if self._expected:
                self._loop.call_soon(self._drain)

    def _readable(self) -> bool:
        return bool(int(self._socket.getsockopt(_EVENTS)) & _READABLE)


def _admit(asked: Socket, public_key: bytes, version: bytes, number: bytes, *question: bytes) -> None:
    """Answer a question of ZeroMQ: whether somebody with this key may come in."""
    _domain, _address, _identity, _mechanism, *credentials = question
    knows = credentials == [z85.decode(public_key)]
    asked.send_multipart([version, number, *([b"200", b"OK"] if knows else [b"400", b"no such key"]), b"", b""])

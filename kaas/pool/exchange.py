"""The pool's end of all lines: its sockets on an event loop, and who speaks through them."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import zmq

from kaas.pool import messages
from kaas.pool.lines import INWARD, OUTWARD, Frames, receive_frames, send_message
from kaas.pool.messages import Address, FromPeer, Hello, ToPeer, Welcome

TURN = 64
"""Messages that are taken before others of the loop have their turn."""

_MORE = int(zmq.SNDMORE)
_READABLE = int(zmq.POLLIN)


class Peer:
    """Who is at the other end of a line. role, name, incarnation, pid: as in its Hello. shares: the pool can read its
    Blocks, which are in memory of that pid and no other."""

    __slots__ = ("_door", "_identity", "incarnation", "name", "pid", "role", "shares")

    def __init__(self, door: _Door, identity: bytes, hello: Hello, shares: bool) -> None:
        self.role, self.name, self.incarnation, self.pid = hello.role, hello.name, hello.incarnation, hello.pid
        self.shares = shares
        self._door, self._identity = door, identity

    def __repr__(self) -> str:
        return f"<{self.role} {self.name}, process {self.pid}>"


Receive = Callable[[Peer, FromPeer, Frames], None]
Greet = Callable[[Peer, Hello], None]


class Exchange:
    """All its methods belong to the loop's thread.

    What comes from strangers, or makes no sense, is dropped and counted.

    Fields:
        address: once it is open. dropped: messages that were not understood, or came from or went to nobody.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, node: str, host: str | None = None) -> None:
        """host: an address of this machine that other nodes can reach; None if nobody comes from there."""
        self._loop, self._node, self._host = loop, node, host
        self._context = zmq.Context()
        self._doors: list[_Door] = []
        self._peers: dict[bytes, Peer] = {}
        self.dropped = 0

    def open(self, receive: Receive, greet: Greet) -> None:
        """From now on peers may come. greet hears of each, and again of one whose connection was made anew, so that
        what was on its way may be lost; receive of all that they send then. Neither waits."""
        self._receive, self._greet = receive, greet
        self._folder = tempfile.mkdtemp(prefix="kaas-")
        ipc = f"ipc://{self._folder}/pool"
        self._doors.append(_Door(self._loop, self._context, ipc, self._take))
        self.address = Address(secrets.token_hex(8), self._node, ipc)

    def send(self, peer: Peer, header: ToPeer, frames: Sequence[Any] = ()) -> None:
        """Waits for nobody; to a peer that is gone it is dropped."""
        if not peer._door.send(peer._identity, header, frames):
            self.dropped += 1

    def forget(self, peer: Peer) -> None:
        """It has ended: nothing that it sent is received any more."""
        self._peers.pop(peer._identity[: -len(INWARD)] + OUTWARD, None)

    def close(self) -> None:
        """What was not sent yet is not sent."""
        for door in self._doors:
            door.close()
        self._context.term()
        shutil.rmtree(self._folder)

    def _take(self, door: _Door, identity: bytes, frames: Frames) -> None:
        peer = self._peers.get(identity)
        try:
            header = messages.decode_from_peer(frames[0])
        except (msgspec.DecodeError, IndexError):
            self.dropped += 1
            return
        if peer is not None:
            self._receive(peer, header, frames[1:])
        elif isinstance(header, Hello) and identity.endswith(INWARD):
            self._welcome(door, identity, header)
        else:
            self.dropped += 1

    def _welcome(self, door: _Door, identity: bytes, hello: Hello) -> None:
        token = identity[: -len(INWARD)]
        peer = self._peers.get(token + OUTWARD)
        if peer is None:
            peer = self._peers[token + OUTWARD] = Peer(door, identity, hello, shares=False)
        self.send(peer, Welcome(self.address.life, peer.shares))
        self._greet(peer, hello)


class _Door:
    """A ROUTER socket whose messages are taken by the loop's callbacks.

    The socket's file descriptor tells only that something has changed since the socket was last asked, so each time all
    is taken that is there, and after sending it is asked again.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        take: Callable[[_Door, bytes, Frames], None],
    ) -> None:
        self._loop, self._take = loop, take
        self._draining = False
        self._socket = socket = context.socket(zmq.ROUTER)
        socket.set_hwm(0)
        socket.linger = 0
        socket.router_mandatory = True  # or what goes to nobody would not be noticed
        socket.router_handover = True  # who connects anew is known before the old connection is missed
        socket.bind(endpoint)
        self._fd = int(socket.getsockopt(zmq.FD))
        loop.add_reader(self._fd, self._drain)
        loop.call_soon(self._drain)

    def send(self, identity: bytes, header: ToPeer, frames: Sequence[Any]) -> bool:
        """Whether there is such a peer."""
        socket = self._socket
        try:
            socket.send(identity, _MORE)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        send_message(socket, header, frames)
        if not self._draining and int(socket.getsockopt(zmq.EVENTS)) & _READABLE:
            self._draining = True
            self._loop.call_soon(self._drain)
        return True

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        self._socket.close()

    def _drain(self) -> None:
        socket = self._socket
        self._draining = True
        again = True
        try:
            for _ in range(TURN):
                if socket.closed or not int(socket.getsockopt(zmq.EVENTS)) & _READABLE:
                    again = False
                    break
                identity = socket.recv()
                self._take(self, identity, receive_frames(socket) if socket.getsockopt(zmq.RCVMORE) else [])
        finally:
            self._draining = again
            if again:
                self._loop.call_soon(self._drain)

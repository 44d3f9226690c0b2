"""The pool's end of all lines: its sockets on an event loop, and who speaks through them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import zmq
from zmq.utils import z85

from kaas.error_codec import encode_error
from kaas.errors import ConfigMismatch, KaasError
from kaas.pool import messages
from kaas.pool.blocks import Inbox
from kaas.pool.lines import INWARD, OUTWARD, PROBE_BYTES, Frames, Socket, beat, receive_frames, send_message
from kaas.pool.messages import Address, FromPeer, Hello, Refused, ToPeer, Welcome
from kaas.pool.socket_folder import SocketFolder

TURN = 64
"""Messages that are taken before others of the loop have their turn."""
LAST_WORDS_S = 1.0
"""How long what was sent may still go out when the pool ends."""

_ZAP = "inproc://zeromq.zap.01"
"""Where ZeroMQ asks whether a key may come in (its RFC 27)."""

_MORE, _AT_ONCE = int(zmq.SNDMORE), int(zmq.DONTWAIT)
_EVENTS, _READABLE = int(zmq.EVENTS), int(zmq.POLLIN)


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
        address: once it is open. inbox: for Blocks of peers that share. dropped: messages that were not understood, or
            came from or went to nobody.
    """

    address: Address

    def __init__(
        self, loop: asyncio.AbstractEventLoop, node: str, host: str | None = None, folder: str | None = None
    ) -> None:
        """host: an address of this machine that other nodes can reach; None if nobody comes from there. folder: for the
        local socket, only this user's; None for a new one that goes with the exchange."""
        self.inbox = Inbox()
        self.dropped = 0
        self._loop, self._node, self._host, self._folder = loop, node, host, folder
        self._context: zmq.Context[Socket] = zmq.Context()
        self._doors: list[_Door] = []
        self._peers: dict[bytes, Peer] = {}
        self._own_folder: SocketFolder | None = None

    def open(self, receive: Receive, greet: Greet) -> None:
        """From now on peers may come. greet hears of each before it is welcome, and may refuse it by a KaasError; it
        hears again of one whose connection was made anew, so that what was on its way may be lost. receive hears of all
        that they send then. Neither waits."""
        self._receive, self._greet = receive, greet
        if self._folder is None:
            self._own_folder = SocketFolder()
            self._folder = self._own_folder.path
        ipc = f"ipc://{self._folder}/pool"
        self._open_door(_router(self._context), ipc, local=True)
        self.address = Address(secrets.token_hex(8), self._node, ipc)
        if self._host is not None:
            self._open_to_nodes(self._host)

    def send(self, peer: Peer, header: ToPeer, frames: Sequence[Any] = ()) -> None:
        """Waits for nobody; to a peer that is gone it is dropped."""
        door = peer._door
        try:
            door.socket.send(peer._identity, _MORE)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self.dropped += 1
            return
        send_message(door.socket, header, frames)
        door.look()

    def forget(self, peer: Peer) -> None:
        """It has ended: nothing that it sent is received any more."""
        self._peers.pop(_outward(peer._identity), None)
        if peer.shares:
            self.inbox.forget(peer.pid)

    def close(self) -> None:
        """What was sent goes out yet, if its receiver takes it within LAST_WORDS_S."""
        for door in self._doors:
            door.close()
        self._context.term()
        self.hide()

    def hide(self) -> None:
        """Nobody on this machine finds it any more; who is connected stays so."""
        Path(self.address.ipc.removeprefix("ipc://")).unlink(missing_ok=True)
        if self._own_folder is not None:
            self._own_folder.remove()

    def _open_door(self, socket: Socket, endpoint: str, local: bool = False) -> str:
        socket.bind(endpoint)
        door = _Door(self._loop, socket, lambda frames: self._take(door, *frames), local)
        self._doors.append(door)
        return socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def _open_to_nodes(self, host: str) -> None:
        """Who comes by tcp must have the key that is in the address, and nobody listens in."""
        server_key, server_secret = zmq.curve_keypair()
        public_key, secret_key = zmq.curve_keypair()
        asked = self._context.socket(zmq.REP)
        asked.bind(_ZAP)  # before the door: while nobody answers, all may come in
        self._doors.append(_Door(self._loop, asked, lambda frames: _admit(asked, public_key, *frames)))
        socket = _router(self._context)
        socket.curve_server = True
        socket.curve_secretkey = server_secret
        socket.zap_domain = b"kaas"
        socket.ipv6 = ":" in host
        beat(socket)
        tcp = self._open_door(socket, f"tcp://[{host}]:*" if socket.ipv6 else f"tcp://{host}:*")
        self.address = msgspec.structs.replace(
            self.address, tcp=tcp, server_key=server_key, public_key=public_key, secret_key=secret_key
        )

    def _take(self, door: _Door, identity: bytes, data: Any, *frames: Any) -> None:
        try:
            header = messages.decode_from_peer(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.dropped += 1
            return
        peer = self._peers.get(identity)
        if peer is not None and type(header) is not Hello:
            self._receive(peer, header, list(frames))
        elif peer is None and type(header) is Hello and identity.endswith(INWARD):
            self._answer(door, identity, header, list(frames))
        else:
            self.dropped += 1

    def _answer(self, door: _Door, identity: bytes, hello: Hello, frames: Frames) -> None:
        known = self._peers.get(_outward(identity))
        peer = known or Peer(door, identity, hello, door.local and self._can_read(hello, frames))
        try:
            if hello.version != messages.VERSION:
                differences = (f"messages: {messages.VERSION}, not {hello.version}",)
                raise ConfigMismatch("the pool's KaaS is another version than this one", differences=differences)
            self._greet(peer, hello)
        except KaasError as error:
            self.send(peer, Refused(), [encode_error(error)])
            return
        self._peers[_outward(identity)] = peer
        self.send(peer, Welcome(self.address.life, peer.shares))

    def _can_read(self, hello: Hello, frames: Frames) -> bool:
        """Who shows what lies in a process's memory is that process: nobody else knows it."""
        if hello.probe is None or hello.probe.pid != hello.pid or not frames or len(frames[0]) < PROBE_BYTES:
            return False
        try:
            return bool(self.inbox.view(hello.probe) == frames[0])
        except OSError:
            return False


class _Door:
    """A socket whose messages are taken by the loop's callbacks, each by a call of take with its frames.

    The socket's file descriptor tells only that something has changed since the socket was last asked, so each time all
    is taken that is there, and after sending it is asked again.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, socket: Socket, take: Callable[[Frames], None], local: bool = False
    ) -> None:
        """local: who comes in is on this machine."""
        self.socket = socket
        self.local = local
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

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        self.socket.close(linger=int(LAST_WORDS_S * 1000))

    def _drain(self) -> None:
        self._expected = not self.socket.closed
        try:
            for _ in range(TURN):
                try:
                    frames = receive_frames(self.socket, _AT_ONCE)
                except zmq.ZMQError:  # nothing, or nothing any more
                    self._expected = False
                    return
                self._take(frames)
                if self.socket.closed or not self._readable():
                    self._expected = False
                    return
        finally:  # an error in what takes is the loop's to report, and the next message is none of its business
            if self._expected:
                self._loop.call_soon(self._drain)

    def _readable(self) -> bool:
        return bool(int(self.socket.getsockopt(_EVENTS)) & _READABLE)


def _router(context: zmq.Context[Socket]) -> Socket:
    socket = context.socket(zmq.ROUTER)
    socket.set_hwm(0)
    socket.router_mandatory = True  # or what goes to nobody would not be noticed
    socket.router_handover = True  # who connects anew is known before the old connection is missed
    return socket


def _admit(asked: Socket, public_key: bytes, version: bytes, number: bytes, *question: bytes) -> None:
    """Answer a question of ZeroMQ: whether somebody with this key may come in."""
    _domain, _address, _identity, _mechanism, *credentials = question
    knows = credentials == [z85.decode(public_key)]
    asked.send_multipart([version, number, *([b"200", b"OK"] if knows else [b"400", b"no such key"]), b"", b""])


def _outward(identity: bytes) -> bytes:
    """Of a line's receiving socket: that of its sending one."""
    return identity[: -len(INWARD)] + OUTWARD

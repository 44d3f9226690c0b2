"""The peers of a pool and their messages, over Unix sockets and over ZeroMQ."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from kaas.errors import ConfigMismatch, KaasError
from kaas.process_folder import ProcessFolder
from kaas.wire import messages
from kaas.wire.connections.connection import PROBE_BYTES, Frames
from kaas.wire.connections.shared_memory import Inbox
from kaas.wire.connections.stream import ANY_BYTES, Malformed
from kaas.wire.connections.unix_sockets import UnixChannel, UnixListener
from kaas.wire.error_codec import encode_error
from kaas.wire.messages import Address, FromPeer, PeerHello, PoolWelcome, Refused, ToPeer

if TYPE_CHECKING:
    from kaas.wire.connections.zmq_listener import ZmqListener

MOST_LETTERS = 64
"""Of the path of the folder for temporary files: a socket's whole path has at most 107."""
LAST_WORDS_S = 1.0
"""Sent messages may still go out for so long when the pool ends."""


class Channel(Protocol):
    """The endpoint of one peer; hashable. local: the peer is on this machine."""

    @property
    def local(self) -> bool: ...

    def send(self, header: ToPeer, frames: Sequence[Any], files: Sequence[int] = ()) -> bool:
        """Send without waiting, and return True if the peer is there.

        files: only for a local peer; closed after that.
        """
        ...

    def limit(self, nbytes: int) -> None:
        """End the connection of a local peer if one of its next messages is longer."""
        ...


Receive = Callable[["Peer", FromPeer, Frames], None]
"""Gets the messages of a peer, each with the frames after its header."""


class Peer:
    """One end of a connection, as the pool knows it. role, name, incarnation: as in its PeerHello.

    pid: of a peer on this machine as the pool's process sees it, 0 if it does not; else as in its PeerHello.
    shares: the pool can read its Blocks, which are in memory of that pid and no other."""

    __slots__ = ("channel", "incarnation", "name", "pid", "receive", "role", "shares")

    receive: Receive
    """Gets the messages of the peer, once it is welcome."""

    def __init__(self, channel: Channel, hello: PeerHello, shares: bool) -> None:
        self.role, self.name, self.incarnation, self.pid = hello.role, hello.name, hello.incarnation, hello.pid
        self.shares = shares
        self.channel = channel

    def __repr__(self) -> str:
        return f"<{self.role} {self.name}, process {self.pid}>"


Greet = Callable[[Peer, PeerHello], Receive]
Left = Callable[[Peer | None, int], None]


class Router:
    """Passes messages between a pool and its peers. All methods belong to the loop's thread.

    A local peer that sends what makes no sense, or that is refused, is disconnected. From other nodes, messages of
    unknown peers and those that make no sense are dropped and counted.

    Fields:
        address: once the router is open. inbox: for Blocks of peers that share. dropped: the number of messages that
            were not understood, or that came from unknown peers or went to them.
    """

    address: Address

    def __init__(
        self, loop: asyncio.AbstractEventLoop, node: str, host: str | None = None, folder: str | None = None
    ) -> None:
        """host: an address of this machine that other nodes can reach; None if no peer comes from there.

        folder: for the local socket, only this user's; None for a new one that goes with the router.
        """
        self.inbox = Inbox()
        self.dropped = 0
        self._loop, self._node, self._host, self._folder = loop, node, host, folder
        self._listeners: list[UnixListener | ZmqListener] = []
        self._peers: dict[Channel, Peer] = {}
        self._own_folder: ProcessFolder | None = None

    def open(self, greet: Greet, left: Left = lambda _peer, _pid: None) -> None:
        """Let peers come.

        `greet` hears of each peer before it is welcome, and returns the function that gets the peer's messages, or
        refuses the peer by a KaasError. It hears again of a peer whose connection was made anew, so that messages in
        between may be lost. `left` hears of the end of each local connection, with its peer, None if it was never
        welcome, and its process. No function waits.
        """
        self._greet, self._left = greet, left
        if self._folder is None:
            temporary = tempfile.gettempdir()
            self._own_folder = ProcessFolder("kaas-pool-", temporary if len(temporary) <= MOST_LETTERS else "/tmp")
            self._folder = self._own_folder.path
        path = f"{self._folder}/pool"
        self._local = UnixListener(self._loop, path, self._take_local, self._ended)
        self._listeners.append(self._local)
        self.address = Address(secrets.token_hex(8), self._node, path)
        if self._host is not None:
            from kaas.wire.connections.zmq_listener import ZmqListener

            listener = ZmqListener(self._loop, self._host, self._greeted, self._take)
            self._listeners.append(listener)
            keys = {
                "server_key": listener.server_key,
                "public_key": listener.public_key,
                "secret_key": listener.secret_key,
            }
            self.address = msgspec.structs.replace(self.address, tcp=listener.endpoint, **keys)

    def send(self, peer: Peer, header: ToPeer, frames: Sequence[Any] = (), files: Sequence[int] = ()) -> None:
        """Send without waiting; a message to a peer that is gone is dropped. files: as the channel takes them."""
        if not peer.channel.send(header, frames, files):
            self.dropped += 1

    def forget(self, peer: Peer) -> None:
        """Take in that a peer has ended: no message of it is received any more."""
        self._peers.pop(peer.channel, None)
        if peer.shares:
            self.inbox.forget(peer.pid)

    def close(self) -> None:
        """Close. Sent messages still go out if their receiver takes them within LAST_WORDS_S."""
        for listener in self._listeners:
            listener.close(LAST_WORDS_S)
        self.hide()

    def hide(self) -> None:
        """Let no process of this machine find the router any more; connected peers stay so."""
        self._local.hide()
        if self._own_folder is not None:
            self._own_folder.remove()

    # --- received messages

    def _take_local(self, channel: UnixChannel, frames: Frames) -> None:
        """Take a message of a local connection. The first one is PeerHello.

        Raises:
            Malformed: it makes no sense, or the peer is refused.
        """
        peer = self._peers.get(channel)
        if not (self._hear(peer, frames) if peer is not None else self._greeted(channel, frames, channel.pid)):
            raise Malformed

    def _take(self, channel: Channel, frames: Frames) -> None:
        peer = self._peers.get(channel)
        if peer is None:
            self.dropped += 1
        else:
            self._hear(peer, frames)

    def _hear(self, peer: Peer, frames: Frames) -> bool:
        """Take a message of a peer, and return True, if it makes sense."""
        header = _header(frames)
        if header is None or type(header) is PeerHello:
            self.dropped += 1
            return False
        peer.receive(peer, header, frames[1:])
        return True

    def _greeted(self, channel: Channel, frames: Frames, pid: int | None = None) -> bool:
        """Take a peer's first message; return True if it is welcome. pid: of a local peer, as this process knows it."""
        hello = _header(frames)
        if type(hello) is not PeerHello:
            self.dropped += 1
            return False
        if pid is not None:
            hello = msgspec.structs.replace(hello, pid=pid)
        known = self._peers.get(channel)
        peer = known or Peer(channel, hello, channel.local and self._can_read(hello, frames[1:]))
        channel.limit(ANY_BYTES)
        try:
            if hello.version != messages.VERSION:
                differences = (f"messages: {messages.VERSION}, not {hello.version}",)
                raise ConfigMismatch("the pool's KaaS is another version than this one", differences=differences)
            peer.receive = self._greet(peer, hello)
        except KaasError as error:
            self.send(peer, Refused(), [encode_error(error)])
            return False
        self._peers[channel] = peer
        self.send(peer, PoolWelcome(self.address.epoch, peer.shares))
        return True

    def _ended(self, channel: UnixChannel) -> None:
        self._left(self._peers.pop(channel, None), channel.pid)

    def _can_read(self, hello: PeerHello, frames: Frames) -> bool:
        """Return True if the pool can read the peer's memory. The peer proves that it is its memory by its content."""
        if hello.probe is None or hello.probe.pid != hello.pid or not frames or len(frames[0]) < PROBE_BYTES:
            return False
        try:
            return bool(self.inbox.view(hello.probe) == frames[0])
        except OSError:
            return False


def _header(frames: Frames) -> FromPeer | None:
    try:
        header: FromPeer = messages.decode_from_peer(frames[0])
        return header
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None

"""Where remote clients come in: a ZeroMQ socket that knows them by their keys."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Sequence
from typing import Any

import zmq
import zmq.backend
from zmq.utils import z85

from kaas.errors import InvalidConfig
from kaas.pool.drain import Drain
from kaas.pool.lines import LARGE_BYTES, Frames
from kaas.pool.node_line import Socket, beat
from kaas.remote import wire
from kaas.remote.keys import Keys, ServerKeys

FRAME_BYTES = 16 << 20
"""Of the largest frame that is taken, unless told otherwise."""
QUEUED = 1024
"""Messages that wait in each direction on one connection, unless told otherwise."""
HANDSHAKE_S = 5.0
"""In which a connection must have shown its key."""
REFRESH_S = 1.0
"""How soon a key that was added or revoked counts."""
NOBODY = "local"
"""Who everybody is where there are no keys."""

_ZAP = "inproc://zeromq.zap.01"
"""Where ZeroMQ asks whether a key may come in (its RFC 27)."""
_LAST, _MORE, _AT_ONCE = 0, int(zmq.SNDMORE), int(zmq.DONTWAIT)
_UNSENT = (zmq.EHOSTUNREACH, zmq.EAGAIN)

_send = zmq.backend.Socket.send  # a third of the time of what pyzmq lays over it
_receive_frame = zmq.backend.Socket.recv
_log = logging.getLogger(__name__)

Receive = Callable[["RemoteChannel", Frames], None]


class RemoteDoor:
    """Belongs to one event loop.

    Fields:
        endpoint: where it is.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        host: str,
        port: int,
        keys: Keys | None,
        server_keys: ServerKeys | None,
        receive: Receive,
        *,
        frame_bytes: int = FRAME_BYTES,
        queued: int = QUEUED,
        nobody: str = NOBODY,
    ) -> None:
        """port: 0 for any. keys: None lets everybody in whom this machine's loopback lets come, by the name nobody.
        receive: takes each message; frames from LARGE_BYTES on are read-only views, others bytes.

        Raises:
            InvalidConfig: it cannot be there, or not without keys.
        """
        self._loop, self._receive, self._keys, self._nobody = loop, receive, keys, nobody
        self._context: zmq.Context[Socket] = zmq.Context()
        self._channels: dict[tuple[bytes, str], RemoteChannel] = {}
        self._drains: list[Drain] = []
        self._socket = socket = self._context.socket(zmq.ROUTER)
        socket.router_mandatory = True  # or what goes to nobody would not be noticed
        socket.sndhwm = socket.rcvhwm = queued
        socket.maxmsgsize = frame_bytes
        socket.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_S * 1000))
        beat(socket)
        if keys is None or server_keys is None:
            self._require_loopback(host)
        else:
            self._lock(socket, server_keys)
        try:
            socket.ipv6 = ":" in host
            socket.bind(f"tcp://[{host}]:{port or '*'}" if ":" in host else f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            self._end(0.0)
            raise InvalidConfig(f"no server can be at {host}, port {port}: {error.strerror}", field="host") from error
        self.endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        if keys is None:
            _log.warning("INSECURE: whoever is on this machine may use the server at %s", self.endpoint)
        else:
            self._refreshing = loop.call_later(REFRESH_S, self._refresh, keys)
        self._drain = Drain(loop, socket, self._arrived, _receive_known)
        self._drains.append(self._drain)

    def close(self, wait_s: float) -> None:
        """What was sent goes out yet, to who takes it within this time."""
        if self._keys is not None:
            self._refreshing.cancel()
        self._end(wait_s)

    def _end(self, wait_s: float) -> None:
        for drain in self._drains:
            drain.close(wait_s)
        self._socket.close(linger=int(wait_s * 1000))
        self._context.term()

    def _require_loopback(self, host: str) -> None:
        try:
            here = host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            here = False
        if not here:
            self._end(0.0)
            raise InvalidConfig(f"without keys a server is only on loopback, not at {host}", field="host")

    def _lock(self, socket: Socket, server_keys: ServerKeys) -> None:
        asked = self._context.socket(zmq.REP)
        asked.bind(_ZAP)  # before the door: while nobody answers, all may come in
        self._drains.append(Drain(self._loop, asked, lambda frames: self._admit(asked, *frames)))
        socket.curve_server = True
        socket.curve_secretkey = server_keys.secret_key.encode()
        socket.zap_domain = b"kaas"

    def _admit(self, asked: Socket, version: bytes, number: bytes, *question: bytes) -> None:
        """Answer a question of ZeroMQ: whether somebody with this key may come in."""
        _domain, _address, _identity, _mechanism, key = question
        public_key = z85.encode(key)
        knows = self._keys is not None and self._keys.who(public_key.decode()) is not None
        answer = [b"200", b"OK", public_key, b""] if knows else [b"400", b"", b"", b""]
        asked.send_multipart([version, number, *answer])

    def _refresh(self, keys: Keys) -> None:
        self._refreshing = self._loop.call_later(REFRESH_S, self._refresh, keys)
        if keys.refresh():
            for (_, public_key), channel in list(self._channels.items()):
                if keys.who(public_key) is None:
                    channel.drop()

    def _arrived(self, frames: Frames) -> None:
        first, *rest = frames
        key = (first.bytes, "" if self._keys is None else first.get("User-Id"))
        channel = self._channels.get(key)
        if channel is None:
            channel = self._came(key)
        if not channel.dropped:
            self._receive(channel, rest)

    def _came(self, key: tuple[bytes, str]) -> RemoteChannel:
        """A connection's first message."""
        client = None if self._keys is None else self._keys.who(key[1])
        user = self._nobody if client is None else client.name
        channel = self._channels[key] = RemoteChannel(self, key[0], user)
        channel.dropped = self._keys is not None and client is None
        return channel

    def send(self, identity: bytes, header: wire.FromServer, frames: Sequence[Any]) -> bool:
        """Waits for nobody. Whether its client is there and has room for it."""
        socket = self._socket
        try:
            _send(socket, identity, _AT_ONCE | _MORE)
        except zmq.ZMQError as error:
            if error.errno not in _UNSENT:
                raise
            return False
        _send(socket, wire.encode(header), _MORE if frames else _LAST)
        left = len(frames)
        for frame in frames:
            left -= 1
            _send(socket, frame, _MORE if left else _LAST, len(frame) < LARGE_BYTES)
        self._drain.look()
        return True


class RemoteChannel:
    """One connection of a client; another one has another.

    Fields:
        user: the client's name. dropped: nothing that comes from it counts any more.
    """

    __slots__ = ("_door", "_identity", "dropped", "user")

    def __init__(self, door: RemoteDoor, identity: bytes, user: str) -> None:
        self._door, self._identity = door, identity
        self.user = user
        self.dropped = False

    def __repr__(self) -> str:
        return f"<connection of {self.user}>"

    def send(self, header: wire.FromServer, frames: Sequence[Any] = ()) -> bool:
        """Waits for nobody. False: its client is gone, or takes nothing."""
        return not self.dropped and self._door.send(self._identity, header, frames)

    def drop(self) -> None:
        """Have no more to do with it."""
        self.dropped = True


def _receive_known(socket: Socket, flags: int) -> Frames:
    """The next message's frames; the first as ZeroMQ has it, which knows who sent it."""
    frames: Frames = [_receive_frame(socket, flags, copy=False)]
    frame = frames[0]
    while frame.more:
        frame = _receive_frame(socket, flags, copy=False)
        frames.append(frame.bytes if len(frame) < LARGE_BYTES else frame.buffer.toreadonly())
    return frames

"""Where remote clients come in: a ZeroMQ socket that knows them by their keys."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import resource
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import zmq
import zmq.backend
from zmq.utils import z85

from kaas.errors import InvalidConfig
from kaas.server.peers.keys import Keys
from kaas.server.peers.tcp_connections import LeavingBytes, TcpConnection, TcpConnections, Unfinished
from kaas.server.peers.unfinished import wire_bytes
from kaas.wire import protocol
from kaas.wire.connections.connection import LARGE_BYTES, Frames
from kaas.wire.connections.zmq_connection import Socket, beat
from kaas.wire.connections.zmq_reader import ZmqReader, end
from kaas.wire.key_files import ServerKeys

FRAME_BYTES = 16 << 20
"""Of the largest frame that is taken, unless told otherwise."""
FRAMES = 1024
"""Of a message; with more of them its client is put out, and not let in for OUT_S: each takes the loop's time."""
OUT_S, OUTS = 60.0, 6
"""The next time it is OUT_LONGER times as long, and so on for so many times."""
OUT_LONGER = 4
QUEUED = 1024
"""Messages to a client that wait on one connection, unless told otherwise."""
LEAVING_BYTES = 4 << 10
"""From there on an answer that takes no credit counts as long as it waits."""
ARRIVED = 128
"""Messages from it that do."""
CONNECTIONS = 64
"""Of one key, unless told otherwise."""
HANDSHAKE_S = 5.0
"""In which a connection must have shown its key."""
REFRESH_S = 1.0
"""How soon a key that was added or revoked counts."""
GONE_S = 1.0
"""After its connection a channel ends: what came over it before is taken first."""
NOBODY = "local"
"""Who everybody is where there are no keys."""

_ZAP = "inproc://zeromq.zap.01"
"""Where ZeroMQ asks whether a key may come in (its RFC 27)."""
_LAST, _MORE, _AT_ONCE = 0, int(zmq.SNDMORE), int(zmq.DONTWAIT)
_UNSENT = (zmq.EHOSTUNREACH, zmq.EAGAIN)
_OWN = re.compile(rb"\0.{4}", re.DOTALL)

_send = zmq.backend.Socket.send  # a third of the time of what pyzmq lays over it
_receive_frame = zmq.backend.Socket.recv
_log = logging.getLogger(__name__)

Receive = Callable[["ServerChannel", Frames], None]


class ServerListener:
    """Belongs to one event loop.

    Fields:
        endpoint: where it is. refused: connections, by why.
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
        gone: Callable[[ServerChannel], None] = lambda _channel: None,
        changed: Callable[[], None] = lambda: None,
        frame_bytes: int = FRAME_BYTES,
        message_bytes: int | None = None,
        unfinished_bytes: tuple[int, int] | None = None,
        queued: int = QUEUED,
        connections: int = CONNECTIONS,
        nobody: str = NOBODY,
    ) -> None:
        """port: 0 for any. keys: None lets everybody in whom this machine's loopback lets come, by the name nobody.
        receive: takes each message; frames from LARGE_BYTES on are read-only views, others bytes. gone: hears of
        channels that have ended. changed: is called when keys have. message_bytes: of all frames of one; None for four
        of the largest. unfinished_bytes: of messages whose ends have not come, of one client and of all; None for those
        of four and of sixteen. connections: of one key.

        Raises:
            InvalidConfig: it cannot be there, or not without keys.
        """
        self._loop, self._receive, self._gone = loop, receive, gone
        self._changed = changed
        self._keys, self._keyless_client, self._limit = keys, nobody, connections
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2  # the rest is for those inside
        self._closed = False
        self._channels: dict[tuple[bytes, str], ServerChannel] = {}
        self._leaving: dict[str, WeakSet[LeavingBytes]] = {}  # of each user
        self._of_key: Counter[str] = Counter()
        self._out: set[str] = set()
        self.refused = Counter[str]()
        self._times_out: Counter[str] = Counter()
        self._drains: list[ZmqReader] = []
        if keys is None:
            host = _loopback(host)
        self._context: zmq.Context[Socket] = zmq.Context()
        self._socket = socket = self._context.socket(zmq.ROUTER)
        socket.router_mandatory = True  # or what goes to nobody would not be noticed
        socket.sndhwm, socket.rcvhwm = queued, ARRIVED
        socket.maxmsgsize = frame_bytes
        socket.copy_threshold = LEAVING_BYTES
        socket.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_S * 1000))
        beat(socket)
        if keys is not None and server_keys is not None:
            self._lock(socket, keys, server_keys)
        most_bytes = 4 * frame_bytes if message_bytes is None else message_bytes
        unfinished = Unfinished(most_bytes, *(unfinished_bytes or (4 * most_bytes, 16 * most_bytes)))
        self._connections = TcpConnections[ServerChannel](
            loop, self._context, socket, unfinished, self._left, lambda channel: channel.user
        )
        self._drains.append(ZmqReader(loop, socket, self._arrived, _Known()))
        self._bind(host, port)
        if keys is None:
            _log.warning("INSECURE: whoever is on this machine may use the server at %s", self.endpoint)
        else:
            self._refreshing = loop.call_later(REFRESH_S, self._refresh, keys)

    def close(self, wait_s: float) -> None:
        """What was sent goes out yet, to who takes it within this time."""
        self._closed = True
        if self._keys is not None:
            self._refreshing.cancel()
        self._connections.close()
        for drain in self._drains:
            drain.close(wait_s)
        end(self._context, wait_s)

    def _bind(self, host: str, port: int) -> None:
        self._socket.ipv6 = ":" in host
        try:
            self._socket.bind(f"tcp://[{host}]:{port or '*'}" if ":" in host else f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            self._keys = None
            self.close(0.0)
            raise InvalidConfig(f"no server can be at {host}, port {port}: {error.strerror}", field="host") from error
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._connections.bound(self.endpoint)

    # --- who may come

    def _lock(self, socket: Socket, keys: Keys, server_keys: ServerKeys) -> None:
        asked = self._context.socket(zmq.REP)
        asked.bind(_ZAP)  # before the door: while nobody answers, all may come in
        self._drains.append(ZmqReader(self._loop, asked, lambda frames: self._admit(asked, keys, *frames)))
        socket.curve_server = True
        socket.curve_secretkey = server_keys.secret_key.encode()
        socket.zap_domain = b"kaas"

    def _admit(self, asked: Socket, keys: Keys, version: bytes, number: bytes, *question: bytes) -> None:
        """Answer a question of ZeroMQ: whether somebody with this key may come in."""
        _domain, address, _identity, _mechanism, key = question
        public_key = z85.encode(key)
        if keys.who(public_key.decode()) is None and keys.added():
            self._see(keys)
        client = keys.who(public_key.decode())
        if client is None:
            self.refused["key"] += 1
            self._refuse("a key that no client has was refused", address.decode())
            self._connections.refused(address.decode())
            answer = [b"400", b"", b"", b""]
        elif why := self._shut_for(public_key.decode()):
            self.refused["out" if public_key.decode() in self._out else "limit"] += 1
            self._refuse("a connection was refused", address.decode(), client=client.name, reason=why)
            answer = [b"500", b"", b"", b""]  # 300 would be the word for it, but then ZeroMQ lets them wait
        else:
            answer = [b"200", b"", public_key, b""]
        asked.send_multipart([version, number, *answer])

    def _refuse(self, event: str, address: str, **fields: str) -> None:
        """Tell the operator, once in a while for each address."""
        _log.warning(event, extra={"address": address, **fields, "limit_by": address})

    def _shut_for(self, public_key: str) -> str:
        """Why no more connections of a key that is known may come now; "" if they may."""
        if self._of_key[public_key] >= self._limit:
            return f"its key has {self._limit} connections, as many as it may"
        if len(self._connections) > self._most:
            return f"the server has {len(self._connections)} connections, as many as it may"
        return "it sent a message of too many frames a while ago" if public_key in self._out else ""

    def _refresh(self, keys: Keys) -> None:
        self._refreshing = self._loop.call_later(REFRESH_S, self._refresh, keys)
        self._see(keys)

    def _see(self, keys: Keys) -> None:
        if keys.refresh():
            self._changed()
            for (_, public_key), channel in list(self._channels.items()):
                client = keys.who(public_key)
                if client is None or client.name != channel.user:
                    channel.drop()

    # --- what comes and goes

    def _arrived(self, frames: Frames) -> None:
        if not frames:
            return
        known = frames.pop(0)
        key = (known.bytes, known.get("User-Id") if self._keys is not None else "")
        channel = self._channels.get(key) or self._came(key, int(known.get("__fd")))
        if channel is None or channel.dropped:
            return
        if len(frames) > FRAMES:
            self._put_out(channel)
            return
        nbytes = wire_bytes(frames, self._keys is not None)
        self._receive(channel, frames)
        channel.connection.taken_bytes += nbytes

    def _put_out(self, channel: ServerChannel) -> None:
        """And all else that has its key, for a while."""
        channel.drop()
        public_key = channel.key[1]
        event = "a client is put out, for a message of too many frames"
        told = {"client": channel.user, "limit_by": channel.user}
        if not public_key:  # it is everybody's
            _log.warning(event, extra=told)
            return
        self._out.add(public_key)
        seconds = OUT_S * OUT_LONGER ** min(self._times_out[public_key], OUTS)
        _log.warning(event, extra={**told, "seconds": seconds})
        self._times_out[public_key] += 1
        self._loop.call_later(seconds, self._out.discard, public_key)
        for (_, each), channel in self._channels.items():
            if each == public_key:
                channel.drop()

    def _came(self, key: tuple[bytes, str], fd: int) -> ServerChannel | None:
        """A connection's first message. ZeroMQ's own identities are five bytes; who chooses one might take another's
        place."""
        identity, public_key = key
        client = self._keys.who(public_key) if self._keys is not None else None
        if (self._keys is not None and client is None) or self._shut_for(public_key) or not _OWN.fullmatch(identity):
            self._connections.shut(fd)
            return None
        user = self._keyless_client if client is None else client.name
        channel = ServerChannel(self, key, user, self._leaving.setdefault(user, WeakSet()))
        connection = self._connections.owned(fd, channel)
        if connection is None:
            return None
        channel.connection = connection
        self._channels[key] = channel
        self._of_key[public_key] += 1
        return channel

    def _left(self, channel: ServerChannel) -> None:
        """Its connection has ended."""
        public_key = channel.key[1]
        self._of_key[public_key] -= 1
        if not self._of_key[public_key]:
            del self._of_key[public_key]
        self._loop.call_later(GONE_S, self._forget, channel)

    def _forget(self, channel: ServerChannel) -> None:
        del self._channels[channel.key]
        channel.dropped = True
        if not self._closed:
            self._gone(channel)

    def send(self, channel: ServerChannel, header: protocol.FromServer, frames: Sequence[Any]) -> bool:
        """Waits for nobody. Whether its client is there and has room for it; who has none loses the connection."""
        socket = self._socket
        try:
            _send(socket, channel.key[0], _AT_ONCE | _MORE)
        except zmq.ZMQError as error:
            if error.errno not in _UNSENT:
                raise
            if error.errno == zmq.EAGAIN:  # on the next one it gets what it has missed
                channel.drop()
            return False
        first: Any = protocol.encode(header)
        if len(first) >= LEAVING_BYTES:
            first = LeavingBytes(first)
        left = 1 + len(frames)
        for frame in (first, *frames):
            left -= 1
            if leaving := type(frame) is LeavingBytes:
                channel.leaves(frame)
            _send(socket, frame, _MORE if left else _LAST, not leaving and len(frame) < LARGE_BYTES)
        self._drains[-1].look()
        return True

    def shut(self, channel: ServerChannel) -> None:
        """End its connection."""
        self._connections.shut(channel.connection.fd)


class ServerChannel:
    """One connection of a client; another one has another.

    Fields:
        user: the name of its client. key: what it is known by. dropped: nothing that comes from it counts any more.
    """

    __slots__ = ("_leaving", "_listener", "connection", "dropped", "key", "user")

    connection: TcpConnection[ServerChannel]

    def __init__(
        self, listener: ServerListener, key: tuple[bytes, str], user: str, leaving: WeakSet[LeavingBytes]
    ) -> None:
        """leaving: what that user was sent."""
        self._listener, self.key, self.user, self._leaving = listener, key, user, leaving
        self.dropped = False

    def __repr__(self) -> str:
        return f"<connection of {self.user}>"

    def send(self, header: protocol.FromServer, frames: Sequence[Any] = ()) -> bool:
        """Waits for nobody. False: its connection has ended, or does now since it takes nothing."""
        return not self.dropped and self._listener.send(self, header, frames)

    def leaves(self, part: LeavingBytes) -> None:
        """It is sent now."""
        self._leaving.add(part)

    @property
    def leaving_bytes(self) -> int:
        return sum(map(len, self._leaving))

    def drop(self) -> None:
        """Have no more to do with it: its connection ends."""
        if not self.dropped:
            self.dropped = True
            self._listener.shut(self)


class _Known:
    """The next message's frames, or a few too many; the first as ZeroMQ has it, which knows who sent it. What is behind
    those is left out little by little, as there may be millions: that gives no frames."""

    def __init__(self) -> None:
        self._behind = False

    def __call__(self, socket: Socket, flags: int) -> Frames:
        frame = _receive_frame(socket, flags, False)
        frames: Frames = [] if self._behind else [frame]
        for _ in range(FRAMES + 1):
            if not frame.more:
                break
            frame = _receive_frame(socket, flags, False)
            if not self._behind:
                frames.append(frame.bytes if len(frame) < LARGE_BYTES else frame.buffer.toreadonly())
        self._behind = frame.more
        return frames


def _loopback(host: str) -> str:
    """
    Raises:
        InvalidConfig: it is another place.
    """
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        address = None
    if address is None or not address.is_loopback:
        raise InvalidConfig(f"without keys a server is only on loopback, not at {host}", field="host")
    return str(address)

"""The listener for remote clients: a ZeroMQ socket that identifies them by their keys."""

from __future__ import annotations

import asyncio
import logging
import re
import resource
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import zmq
import zmq.backend
from zmq.utils import z85

from kaas.errors import InvalidConfig
from kaas.server.clients.frame_reader import FRAMES, FrameReader
from kaas.server.clients.keys import Keys
from kaas.server.clients.leaving import LEAVING_BYTES, LEAVING_FAILURE_BYTES, LeavingBytes, UserLeaving
from kaas.server.clients.tcp_connections import (
    TcpConnection,
    TcpConnections,
    Unfinished,
    is_later,
    keep_alive,
    loopback,
)
from kaas.server.clients.unfinished import wire_bytes
from kaas.wire import protocol
from kaas.wire.connections.connection import LARGE_BYTES, Frames
from kaas.wire.connections.zmq_connection import Socket
from kaas.wire.connections.zmq_listener import ZAP
from kaas.wire.connections.zmq_reader import ZmqReader, end
from kaas.wire.key_files import ServerKeys

FRAME_BYTES = 16 << 20
"""Default of the largest frame."""
ENCRYPTION_BYTES = 33
"""Of an encrypted frame besides its contents: command name, nonce, authentication code, flags (ZeroMQ's RFC 26)."""
BLOCKED_S, BLOCKED_STEPS = 60.0, 6
"""A client that sends a message of more than FRAMES frames is blocked for BLOCKED_S. Each further block is
BLOCKED_FACTOR times as long, up to so many times."""
BLOCKED_FACTOR = 4
QUEUED = 1024
"""Default of the most messages to a client that wait on one connection."""
WAITING_BYTES = 512 << 20
"""Default of the most bytes of one client that have arrived and wait to be taken, besides unfinished messages."""
CONNECTIONS = 64
"""Default of the most connections of one key."""
HANDSHAKE_S = 5.0
"""Seconds in which a connection must have shown its key."""
REFRESH_S = 1.0
"""Seconds until an added or revoked key counts."""
FORGOTTEN = 4096
"""Ended connections whose late messages are ignored."""
GONE_S = 1.0
"""Seconds from the end of a connection to the end of its channel: its last messages are taken first."""
LOCAL_CLIENT = "local"
"""The name of all clients of a server without keys."""

_LAST, _MORE, _AT_ONCE = 0, int(zmq.SNDMORE), int(zmq.DONTWAIT)
_UNSENT = (zmq.EHOSTUNREACH, zmq.EAGAIN)
_OWN = re.compile(rb"\0.{4}", re.DOTALL)

_send = zmq.backend.Socket.send  # pyzmq's own method takes three times as long
_log = logging.getLogger(__name__)

ReceiveFrames = Callable[["ServerChannel", Frames], None]


class ServerListener:
    """Accepts clients' connections. Use an object of this class from one event loop only.

    Fields:
        endpoint: its address. refused: number of refused connections by reason.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        host: str,
        port: int,
        keys: Keys | None,
        server_keys: ServerKeys | None,
        receive: ReceiveFrames,
        *,
        gone: Callable[[ServerChannel], None] = lambda _channel: None,
        changed: Callable[[], None] = lambda: None,
        frame_bytes: int = FRAME_BYTES,
        message_bytes: int | None = None,
        unfinished_bytes: tuple[int, int] | None = None,
        waiting_bytes: int = WAITING_BYTES,
        queued: int = QUEUED,
        connections: int = CONNECTIONS,
        keyless_client: str = LOCAL_CLIENT,
    ) -> None:
        """port: 0 for any. keys: None admits all peers on this machine's loopback, by the name keyless_client.
        receive: takes each message; frames from LARGE_BYTES on are read-only views, others bytes. gone: called with
        each channel that has ended. changed: called when keys have changed. message_bytes: of all frames of a message;
        None for four of the largest frames. unfinished_bytes: of incomplete messages, of one client and of all; None
        for four and for sixteen messages. waiting_bytes: of one client's messages that the loop has not taken yet,
        besides the unfinished ones. connections: of one key.

        Raises:
            InvalidConfig: the address cannot be used, or not without keys.
        """
        self._loop, self._receive, self._gone = loop, receive, gone
        self._changed = changed
        self._keys, self._keyless_client, self._limit = keys, keyless_client, connections
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2  # the rest is for the server itself
        self._closed = False
        self._channels: dict[tuple[bytes, str], ServerChannel] = {}
        self._forgotten: dict[tuple[bytes, str], None] = {}
        self._leaving: dict[str, UserLeaving] = {}
        self._of_key: Counter[str] = Counter()
        self._blocked: set[str] = set()
        self._flooding: set[str] = set()
        self.refused = Counter[str]()
        self._times_blocked: Counter[str] = Counter()
        self._drains: list[ZmqReader] = []
        if keys is None:
            host = loopback(host)
        self._context: zmq.Context[Socket] = zmq.Context()
        self._socket = socket = self._context.socket(zmq.ROUTER)
        socket.router_mandatory = True  # so that a send without a receiver is an error
        # ZeroMQ (4.3.5) aborts the process if it has stopped reading a connection, the peer resets that connection, and
        # then a PING has to go out, or one of the peer's is answered (`!_io_error`). It stops at rcvhwm. So there is
        # none, and `waiting_bytes` bounds the messages instead. It also stops when the socket closes: so no PING goes
        # out by a timer, and TCP finds the peers that are gone.
        socket.sndhwm, socket.rcvhwm = queued, 0
        socket.maxmsgsize = frame_bytes if keys is None else frame_bytes + ENCRYPTION_BYTES
        socket.copy_threshold = LEAVING_FAILURE_BYTES
        socket.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_S * 1000))
        keep_alive(socket)
        if keys is not None and server_keys is not None:
            self._lock(socket, keys, server_keys)
        most_bytes = 4 * frame_bytes if message_bytes is None else message_bytes
        each_bytes, all_bytes = unfinished_bytes or (4 * most_bytes, 16 * most_bytes)
        unfinished = Unfinished(most_bytes, each_bytes, all_bytes, waiting_bytes + each_bytes)
        self._connections = TcpConnections[ServerChannel](
            loop, self._context, socket, unfinished, self._left, _user, self._floods, lambda: self._drains[-1].behind
        )
        self._drains.append(ZmqReader(loop, socket, self._arrived, FrameReader()))
        self._bind(host, port)
        if keys is None:
            _log.warning("INSECURE: all users of this machine may use the server at %s", self.endpoint)
        else:
            self._refreshing = loop.call_later(REFRESH_S, self._refresh, keys)

    def close(self, wait_s: float) -> None:
        """Close the listener. Sent messages still go out to peers that take them within `wait_s` seconds."""
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
            field = "listen.port" if error.errno == zmq.EADDRINUSE else "listen.host"
            message = f"{field}: no server can listen at {host}, port {port}: {error.strerror}"
            raise InvalidConfig(message, field=field) from error
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    # --- admission

    def _lock(self, socket: Socket, keys: Keys, server_keys: ServerKeys) -> None:
        requests = self._context.socket(zmq.REP)
        requests.bind(ZAP)  # before the listener: ZeroMQ admits all peers without it
        self._drains.append(ZmqReader(self._loop, requests, lambda frames: self._admit(requests, keys, *frames)))
        socket.curve_server = True
        socket.curve_secretkey = server_keys.secret_key.encode()
        socket.zap_domain = b"kaas"

    def _admit(self, requests: Socket, keys: Keys, version: bytes, number: bytes, *request: bytes) -> None:
        """Reply to an authentication request of ZeroMQ for a key."""
        _domain, address, _identity, _mechanism, key = request
        public_key = z85.encode(key)
        if keys.by_public_key(public_key.decode()) is None and keys.added():
            self._read_keys(keys)
        client = keys.by_public_key(public_key.decode())
        if client is None:
            self.refused["key"] += 1
            self._refuse("a key that no client has was refused", address.decode())
            self._connections.refused(address.decode())
            reply = [b"400", b"", b"", b""]
        elif why := self._refusal_of(public_key.decode()):
            self.refused["out" if public_key.decode() in self._blocked | self._flooding else "limit"] += 1
            self._refuse("a connection was refused", address.decode(), client=client.name, reason=why)
            reply = [b"500", b"", b"", b""]  # 300 would fit, but then ZeroMQ keeps the connection waiting
        else:
            reply = [b"200", b"", public_key, b""]
        requests.send_multipart([version, number, *reply])

    def _refuse(self, event: str, address: str, **fields: str) -> None:
        """Log a refusal, at a limited rate for each address."""
        _log.warning(event, extra={"address": address, **fields, "limit_by": address})

    def _refusal_of(self, public_key: str) -> str:
        """Return why a known key may not open a connection now; "" if it may."""
        if self._of_key[public_key] >= self._limit:
            return f"its key has {self._limit} connections, as many as it may"
        if len(self._connections) > self._most:
            return f"the server has {len(self._connections)} connections, as many as it may"
        if public_key in self._flooding:
            return "too many bytes of its messages wait"
        return "it sent a message of too many frames a while ago" if public_key in self._blocked else ""

    def _refresh(self, keys: Keys) -> None:
        self._refreshing = self._loop.call_later(REFRESH_S, self._refresh, keys)
        self._read_keys(keys)

    def _read_keys(self, keys: Keys) -> None:
        if keys.refresh():
            self._changed()
            for (_, public_key), channel in list(self._channels.items()):
                client = keys.by_public_key(public_key)
                if client is None or client.name != channel.user:
                    channel.drop()

    # --- messages and connections

    def _arrived(self, frames: Frames) -> None:
        if not frames:
            return
        known = frames.pop(0)
        key = (known.bytes, known.get("User-Id") if self._keys is not None else "")
        channel = self._channels.get(key) or self._came(key, int(known.get("__fd")))
        if channel is None or channel.dropped:
            return
        if len(frames) > FRAMES:
            self._block(channel)
            return
        self._receive(channel, frames)
        channel.connection.taken_bytes += wire_bytes(frames, self._keys is not None)

    def _block(self, channel: ServerChannel) -> None:
        """Disconnect all connections of a channel's key, and block the key for a while."""
        public_key = channel.key[1]
        event = "a client is disconnected, for a message of too many frames"
        seconds = BLOCKED_S * BLOCKED_FACTOR ** min(self._times_blocked[public_key], BLOCKED_STEPS)
        if not self._disconnect_key(channel, event, seconds=seconds):
            return
        self._blocked.add(public_key)
        self._times_blocked[public_key] += 1
        self._loop.call_later(seconds, self._blocked.discard, public_key)

    def _floods(self, channel: ServerChannel) -> None:
        """Disconnect all connections of the key of a channel, since too many bytes of its client wait."""
        event = "a client is disconnected, for too many bytes of waiting messages"
        if not channel.dropped and self._disconnect_key(channel, event):
            self._flooding.add(channel.key[1])
            self._loop.call_later(GONE_S, self._let_in, channel.key[1])

    def _let_in(self, public_key: str) -> None:
        """Let a key in again once all messages that waited are taken, or else it could add to them."""
        if not self._drains[-1].behind:
            self._flooding.discard(public_key)
        elif not self._closed:
            self._loop.call_later(GONE_S, self._let_in, public_key)

    def _disconnect_key(self, channel: ServerChannel, event: str, **fields: float) -> bool:
        """Disconnect all connections of a channel's key. Return False without keys: then only this one ends."""
        channel.drop()
        _log.warning(event, extra={"client": channel.user, "limit_by": channel.user, **fields})
        public_key = channel.key[1]
        if not public_key:  # all clients share it
            return False
        for (_, each), other in self._channels.items():
            if each == public_key:
                other.drop()
        return True

    def _came(self, key: tuple[bytes, str], fd: int) -> ServerChannel | None:
        """Make the channel of a connection's first message. Only ZeroMQ's own identities of five bytes are accepted: a
        peer that chooses one might take over another connection."""
        identity, public_key = key
        connection = self._connections.at(fd)
        if connection is None or key in self._forgotten:
            return None
        if connection.owner is not None and not is_later(identity, connection.owner.key[0]):
            return None  # of an ended connection that had this descriptor before
        client = self._keys.by_public_key(public_key) if self._keys is not None else None
        if (self._keys is not None and client is None) or self._refusal_of(public_key) or not _OWN.fullmatch(identity):
            self._connections.shut(connection)
            return None
        user = self._keyless_client if client is None else client.name
        channel = ServerChannel(self, key, user, self._leaving.setdefault(user, UserLeaving()))
        self._connections.own(connection, channel)
        channel.connection = connection
        self._channels[key] = channel
        self._of_key[public_key] += 1
        return channel

    def _left(self, channel: ServerChannel) -> None:
        """Note that the connection of a channel has ended."""
        public_key = channel.key[1]
        self._of_key[public_key] -= 1
        if not self._of_key[public_key]:
            del self._of_key[public_key]
        self._loop.call_later(GONE_S, self._forget, channel)

    def _forget(self, channel: ServerChannel) -> None:
        del self._channels[channel.key]
        self._forgotten[channel.key] = None  # messages of it may still wait in ZeroMQ
        if len(self._forgotten) > FORGOTTEN:
            del self._forgotten[next(iter(self._forgotten))]
        channel.dropped = True
        if not self._closed:
            self._gone(channel)

    def send(self, channel: ServerChannel, header: protocol.FromServer, frames: Sequence[Any]) -> bool:
        """Send without waiting. Return False if the client is gone or has no room; then its connection ends."""
        socket = self._socket
        try:
            _send(socket, channel.key[0], _AT_ONCE | _MORE)
        except zmq.ZMQError as error:
            if error.errno not in _UNSENT:
                raise
            self._drains[-1].look()
            if error.errno == zmq.EAGAIN:  # its next connection gets the missed replies
                channel.drop()
            return False
        first: Any = protocol.encode(header)
        if len(first) >= (LEAVING_FAILURE_BYTES if type(header) is protocol.Failure else LEAVING_BYTES):
            first = LeavingBytes(first)
        left = 1 + len(frames)
        for part in (first, *frames):
            left -= 1
            frame, copied = part, type(part) is not LeavingBytes and len(part) < LARGE_BYTES
            if not copied:
                frame = channel.leaving.count(part)
            _send(socket, frame, _MORE if left else _LAST, copied)
        self._drains[-1].look()
        return True

    def shut(self, channel: ServerChannel) -> None:
        """End the connection of a channel."""
        self._connections.shut(channel.connection)


class ServerChannel:
    """One connection of a client.

    Fields:
        user: the name of its client. key: ZeroMQ's identity and the public key. dropped: True if its further messages
            are ignored.
    """

    __slots__ = ("_listener", "connection", "dropped", "key", "leaving", "user")

    connection: TcpConnection[ServerChannel]

    def __init__(self, listener: ServerListener, key: tuple[bytes, str], user: str, leaving: UserLeaving) -> None:
        """Begin a channel. leaving: parts on their way to this user."""
        self._listener, self.key, self.user, self.leaving = listener, key, user, leaving
        self.dropped = False

    def __repr__(self) -> str:
        return f"<connection of {self.user}>"

    def send(self, header: protocol.FromServer, frames: Sequence[Any] = ()) -> bool:
        """Send without waiting. Return False if the connection has ended, or ends now because it takes nothing."""
        return not self.dropped and self._listener.send(self, header, frames)

    @property
    def leaving_bytes(self) -> int:
        """Bytes of counted replies on their way to its user, on all connections."""
        return self.leaving.replies.nbytes

    @property
    def leaving_result_bytes(self) -> int:
        """Bytes of results' large frames, likewise."""
        return self.leaving.results.nbytes

    def drop(self) -> None:
        """End the connection and ignore its further messages."""
        if not self.dropped:
            self.dropped = True
            self._listener.shut(self)


def _user(channel: ServerChannel) -> str:
    return channel.user

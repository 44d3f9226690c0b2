"""The TCP connections of a ZeroMQ socket, which itself neither limits them nor lets anybody end one."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket as tcp
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Generic, TypeVar

import zmq
from zmq.utils.monitor import parse_monitor_message

from kaas.server.peers.unfinished import HANDSHAKE_BYTES, IDLE_BYTES_PER_S, Progress, over_budget
from kaas.wire.connections.connection import Frames
from kaas.wire.connections.zmq_connection import Socket
from kaas.wire.connections.zmq_reader import ZmqReader

UNAUTHENTICATED, UNAUTHENTICATED_EACH = 128, 64
"""Connections that have not sent a message yet, in all and of one source address; when more come, the source with the
most of them loses one."""
STRANGER_S = 10.0
"""How long one may be such a connection."""
STRANGER_BYTES = 64 << 10
"""What may have come over one: a greeting and a handshake are below 1 KB."""
REFUSALS, REFUSED_S = 100, 1.0
"""So many keys that nobody knows may come from one address in this time, each for most of a millisecond of ZeroMQ's
thread; from one with more no connection is taken until then."""
LOOK_S, LOOK_S_EACH = 0.1, 0.0004
"""How often all are looked at, and how much more seldom for each of them: it takes about 2 us of the loop."""
LOOK_AGAIN_S = 0.01
"""After one did what it may not."""

_HAPPENED = int(zmq.Event.ACCEPTED | zmq.Event.DISCONNECTED)
_AT_ONCE = struct.pack("ii", 1, 0)
_FAMILIES = (tcp.AF_INET, tcp.AF_INET6)
_BYTES_RECEIVED = slice(128, 136)
"""Of Linux's tcp_info, by which the size of this is meant."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Bytes that may have come of messages whose ends have not: of one message, of those of one client, of all."""

    message_bytes: int
    client_bytes: int
    all_bytes: int


class LeavingBytes(bytearray):
    """Bytes on their way: they live until ZeroMQ has sent them."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # what it holds is of no interest


class TcpConnection(Generic[T]):
    """One, by its descriptor.

    Fields:
        owner: whose it is, once it has sent a message. taken_bytes: of its messages that were taken, as they come over
            it. suspect: it was last seen to do what it may not. unfinished_bytes: that have come since the last message
            that was taken, when it was last looked at and none had been taken since the look before.
    """

    __slots__ = (
        "_heard", "_progress", "_taken_then",
        "fd", "owner", "since_s", "suspect", "taken_bytes", "unfinished_bytes",
    )  # fmt: skip

    def __init__(self, fd: int, since_s: float) -> None:
        self.fd, self.since_s = fd, since_s
        self.owner: T | None = None
        self.taken_bytes = self._taken_then = self.unfinished_bytes = 0
        self._progress = Progress(since_s)
        self.suspect = self._heard = False

    @property
    def silent(self) -> bool:
        """Whether nothing has come over it yet."""
        self._heard = self._heard or _received(self.fd) > 0
        return not self._heard

    def looked_at(self, now_s: float, unfinished_bytes: int) -> bool:
        """Whether it is to end: twice in a row it was seen to have sent more than it may without finishing a message,
        or to have finished none for too long. Twice, as its message may have waited for its turn."""
        if self.taken_bytes != self._taken_then:
            self._taken_then, self.unfinished_bytes = self.taken_bytes, 0
            self._progress = Progress(now_s)
            self.suspect = False
            return False
        beside = HANDSHAKE_BYTES + int(IDLE_BYTES_PER_S * (now_s - self.since_s)) if self.taken_bytes else 0
        self.unfinished_bytes = unfinished = max(0, _received(self.fd) - self.taken_bytes - beside)
        if self.taken_bytes:
            wrong = unfinished > unfinished_bytes or self._progress.stalls(now_s, unfinished)
        else:
            wrong = unfinished > STRANGER_BYTES or now_s - self.since_s > STRANGER_S
        end, self.suspect = wrong and self.suspect, wrong
        return end


class TcpConnections(Generic[T]):
    """Belongs to one event loop. Those of a socket that is bound to a port of TCP.

    ZeroMQ has three gaps that this closes. A message may have any number of frames, and those of an unfinished one
    count towards no limit and no deadline. A peer that has not shown a key yet may open as many connections as there
    are descriptors. And no peer can be put out: here its connection is shut below ZeroMQ, which notices as if the
    network had.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: zmq.Context[Socket],
        socket: Socket,
        unfinished: Unfinished,
        ended: Callable[[T], None],
        client_of: Callable[[T], str],
    ) -> None:
        """Before the socket is bound. unfinished: that may have come of messages whose ends have not. ended: hears of
        the ends of connections that had an owner. client_of: names the client of an owner."""
        self._loop, self._unfinished, self._ended, self._client_of = loop, unfinished, ended, client_of
        self._by_fd: dict[int, TcpConnection[T]] = {}
        self._unauthenticated = UnauthenticatedPeers(UNAUTHENTICATED, UNAUTHENTICATED_EACH)
        self._refused: dict[str, tuple[float, float]] = {}  # by address: how many now count, and when the last came
        self._monitor = context.socket(zmq.PAIR)
        self._monitor.rcvhwm = 0  # or ZeroMQ's own thread waits for this one
        where = f"inproc://{secrets.token_hex(8)}"
        self._socket = socket
        socket.monitor(where, _HAPPENED)
        self._monitor.connect(where)
        self._drain = ZmqReader(loop, self._monitor, self._happened)
        self._looking = loop.call_later(LOOK_S, self._look)

    def __len__(self) -> int:
        return len(self._by_fd)

    def bound(self, endpoint: str) -> None:
        """Where the socket is: this then knows its connections from whatever else may get their descriptors."""
        self._port = int(endpoint.rpartition(":")[2])

    def close(self) -> None:
        """Before the socket. ZeroMQ's own thread would wait for ever to tell a monitor that is gone."""
        self._looking.cancel()
        self._socket.disable_monitor()
        self._drain.close(0.0)

    def owned(self, fd: int, owner: T) -> TcpConnection[T] | None:
        """The connection from which its owner's first message has come; None if it has ended since."""
        with suppress(zmq.Again):
            while True:  # what ZeroMQ told before it passed that message on
                self._happened(self._monitor.recv_multipart(zmq.DONTWAIT))
        connection = self._by_fd.get(fd)
        if connection is None:
            return None
        if connection.owner is not None:  # it had ended already, and this is a later one
            self._ended(connection.owner)
        self._unauthenticated.discard(fd)
        connection.owner = owner
        return connection

    def refused(self, address: str) -> None:
        """Somebody there has shown a key that nobody knows."""
        now_s = self._loop.time()
        self._refused[address] = self._count(address, now_s) + 1, now_s

    def _count(self, address: str, now_s: float) -> float:
        """Refusals that still count."""
        count, last_s = self._refused.get(address, (0.0, now_s))
        return max(0.0, count - REFUSALS * (now_s - last_s) / REFUSED_S)

    def shut(self, fd: int) -> None:
        """End it; `ended` hears of it later, as of others."""
        # if it has ended, ZeroMQ may have closed it, and will not wait with that for us: hence the copy
        with suppress(OSError), tcp.socket(fileno=os.dup(fd)) as connection:
            if connection.family in _FAMILIES and connection.getsockname()[1] == self._port:
                connection.setsockopt(tcp.SOL_SOCKET, tcp.SO_LINGER, _AT_ONCE)  # its peer hears of it even if it sends
                connection.shutdown(tcp.SHUT_RDWR)

    def _happened(self, frames: Frames) -> None:
        told = parse_monitor_message(frames)
        fd = told["value"]
        if told["event"] == zmq.Event.ACCEPTED:
            address = _address(fd)
            self._by_fd[fd] = TcpConnection(fd, self._loop.time())
            self._unauthenticated.add(fd, source_of(address))
            if self._refused and self._count(address, self._loop.time()) >= REFUSALS:
                self._put_out(fd)
            elif (excess := self._unauthenticated.excess(lambda each: self._by_fd[each].silent)) is not None:
                self._put_out(excess)
        elif (connection := self._by_fd.pop(fd, None)) is not None:
            self._unauthenticated.discard(fd)
            if connection.owner is not None:
                self._ended(connection.owner)

    def _look(self) -> None:
        now_s = self._loop.time()
        self._refused = {address: of for address, of in self._refused.items() if self._count(address, now_s)}
        most = self._unfinished
        for fd in [fd for fd, one in self._by_fd.items() if one.looked_at(now_s, most.message_bytes)]:
            self._put_out(fd)
        known = ((one, one.owner) for one in self._by_fd.values())
        senders = [(one.fd, self._client_of(owner), one.unfinished_bytes) for one, owner in known if owner is not None]
        for fd in over_budget(senders, most.client_bytes, most.all_bytes):
            self._put_out(fd)
        wait_s = LOOK_AGAIN_S if any(one.suspect for one in self._by_fd.values()) else LOOK_S
        self._looking = self._loop.call_later(wait_s + LOOK_S_EACH * len(self._by_fd), self._look)

    def _put_out(self, fd: int) -> None:
        self._unauthenticated.discard(fd)
        self.shut(fd)


def _address(fd: int) -> str:
    """Of who is at the other end; "" if it has just gone."""
    with suppress(OSError), tcp.socket(fileno=os.dup(fd)) as connection:
        return str(connection.getpeername()[0])
    return ""


def _received(fd: int) -> int:
    """Bytes that have come over a connection; 0 if it has just ended."""
    with suppress(OSError):
        connection = tcp.socket(tcp.AF_INET, tcp.SOCK_STREAM, 0, fileno=fd)
        try:
            info = connection.getsockopt(tcp.IPPROTO_TCP, tcp.TCP_INFO, _BYTES_RECEIVED.stop)
            return int.from_bytes(info[_BYTES_RECEIVED], "little")
        finally:
            connection.detach()
    return 0


IPV6_PREFIX = 64
"""Bits that a network has in common: one host may use all addresses in it."""


class UnauthenticatedPeers:
    """most: connections in all. most_each: of one source. Beyond either the largest source loses one."""

    def __init__(self, most: int, most_each: int) -> None:
        self._most, self._most_each = most, most_each
        self._sources: dict[int, str] = {}
        self._by_source: dict[str, dict[int, None]] = {}  # of each the oldest first

    def __len__(self) -> int:
        return len(self._sources)

    def add(self, connection: int, source: str) -> None:
        self._sources[connection] = source
        self._by_source.setdefault(source, {})[connection] = None

    def discard(self, connection: int) -> None:
        source = self._sources.pop(connection, None)
        if source is None:
            return
        mine = self._by_source[source]
        del mine[connection]
        if not mine:
            del self._by_source[source]

    def excess(self, silent: Callable[[int], bool]) -> int | None:
        """The connection that ends, so that the limits are kept; None if they are.

        Of the largest source it is the oldest that is silent: a client sends its greeting with its first packet, and a
        bare connect sends nothing. The newest of all may be about to. If none is silent the oldest ends.
        """
        largest = max(self._by_source.values(), key=len, default={})
        if len(self._sources) <= self._most and len(largest) <= self._most_each:
            return None
        oldest, newest = next(iter(largest)), next(reversed(self._sources))
        return next((each for each in largest if each != newest and silent(each)), oldest)


def source_of(address: str) -> str:
    """What counts as one source: an address of IPv4, a network of IPv6; "" for an address that is not known."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if not isinstance(ip, IPv6Address):
        return address
    return str(ip.ipv4_mapped or IPv6Address(int(ip) >> (128 - IPV6_PREFIX) << (128 - IPV6_PREFIX)))

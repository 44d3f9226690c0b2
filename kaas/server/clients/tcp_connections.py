"""The TCP connections of a ZeroMQ socket, which itself can neither limit nor end them."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket as tcp
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Generic, TypeVar

import zmq
from zmq.utils.monitor import parse_monitor_message

from kaas.errors import InvalidConfig
from kaas.server.clients.unfinished import HANDSHAKE_BYTES, IDLE_BYTES_PER_S, Progress, flooding, over_budget
from kaas.wire.connections.connection import Frames
from kaas.wire.connections.zmq_connection import Socket, readable
from kaas.wire.connections.zmq_reader import ZmqReader

UNAUTHENTICATED, UNAUTHENTICATED_EACH = 128, 64
"""The most connections without a message so far, in all and of one source address. With more of them, the source with
the most loses one."""
UNAUTHENTICATED_S = 10.0
"""Seconds until such a connection must have sent a message."""
UNAUTHENTICATED_BYTES = 64 << 10
"""The most bytes of such a connection: a greeting and a handshake are below 1 KB."""
REFUSALS, REFUSED_S = 100, 1.0
"""The most unknown keys from one address in this time, since each takes most of a millisecond of ZeroMQ's thread. An
address with more of them cannot connect until then."""
LOOK_S, LOOK_S_EACH = 0.1, 0.0004
"""Seconds between two checks of all connections, plus seconds for each connection: one check takes about 2 us of the
loop."""
LOOK_AGAIN_S = 0.01
"""Seconds to the next check after a violation."""

PROBE_S, DEAD_S = 5, 15
"""Seconds without a word until a client's machine is asked for an answer, and until it counts as gone."""

_HAPPENED = int(zmq.Event.ACCEPTED | zmq.Event.DISCONNECTED)
_AT_ONCE = struct.pack("ii", 1, 0)
_FAMILIES = (tcp.AF_INET, tcp.AF_INET6)
_BYTES_RECEIVED = slice(128, 136)
"""Of Linux's tcp_info, by which the size of this is meant."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The most bytes of incomplete messages: of one message, of all of one client, of all. waiting_bytes: of one
    client, with its complete messages that were not taken yet."""

    message_bytes: int
    client_bytes: int
    all_bytes: int
    waiting_bytes: int


class TcpConnection(Generic[T]):
    """A connection.

    Fields:
        fd: its descriptor. peer: address and port of its other end, which no other connection has; None if it ended at
            once. owner: set once it has sent a message. taken_bytes: of its taken messages, as sent over it.
            suspect: True if the last check saw a violation. unfinished_bytes: as of the last check, the bytes since
            its last taken message, 0 if a message was taken between the last two checks. waiting_bytes: as of the last
            check, all bytes that are of no taken message.
    """

    __slots__ = (
        "_heard", "_progress", "_taken_then",
        "fd", "owner", "peer", "since_s", "suspect", "taken_bytes", "unfinished_bytes", "waiting_bytes",
    )  # fmt: skip

    def __init__(self, fd: int, since_s: float) -> None:
        self.fd, self.peer, self.since_s = fd, _peer(fd), since_s
        self.owner: T | None = None
        self.taken_bytes = self._taken_then = self.unfinished_bytes = self.waiting_bytes = 0
        self._progress = Progress(since_s)
        self.suspect = self._heard = False

    @property
    def silent(self) -> bool:
        """True if no byte has come over it yet."""
        self._heard = self._heard or received_bytes(self.fd) > 0
        return not self._heard

    def check(self, now_s: float, unfinished_bytes: int) -> bool:
        """Check the connection. Return True if it must end: two checks in a row saw too many bytes of an unfinished
        message, or one that takes too long. Two checks, because a message may have waited for its turn."""
        overhead = HANDSHAKE_BYTES + int(IDLE_BYTES_PER_S * (now_s - self.since_s)) if self.taken_bytes else 0
        self.waiting_bytes = max(0, received_bytes(self.fd) - self.taken_bytes - overhead)
        if self.taken_bytes != self._taken_then:
            self._taken_then, self.unfinished_bytes = self.taken_bytes, 0
            self._progress = Progress(now_s)
            self.suspect = False
            return False
        self.unfinished_bytes = unfinished = self.waiting_bytes
        if self.taken_bytes:
            wrong = unfinished > unfinished_bytes or self._progress.stalls(now_s, unfinished)
        else:
            wrong = unfinished > UNAUTHENTICATED_BYTES or now_s - self.since_s > UNAUTHENTICATED_S
        end, self.suspect = wrong and self.suspect, wrong
        return end

    def shut_down(self) -> None:
        """End it. Another connection that has got its descriptor meanwhile stays: ZeroMQ's thread may close it and
        accept the next one at any time."""
        if self.peer is None:
            return
        with suppress(OSError), tcp.socket(fileno=os.dup(self.fd)) as copy:
            if _peer(copy.fileno()) == self.peer:
                copy.setsockopt(tcp.SOL_SOCKET, tcp.SO_LINGER, _AT_ONCE)  # a sending peer notices it too
                copy.shutdown(tcp.SHUT_RDWR)


class TcpConnections(Generic[T]):
    """All connections of a socket that is bound to a TCP port. Use an object of this class from one event loop only.

    It closes four gaps of ZeroMQ. A message may have any number of frames, and an unfinished one has no limit and no
    deadline. Messages wait without a limit, or with one that is dangerous (`ServerListener`). A peer that has not shown
    a key may open as many connections as there are descriptors. And ZeroMQ cannot disconnect a peer: this class shuts
    the connection below ZeroMQ, which sees it like a failure of the network.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: zmq.Context[Socket],
        socket: Socket,
        unfinished: Unfinished,
        ended: Callable[[T], None],
        client_of: Callable[[T], str],
        floods: Callable[[T], None],
        behind: Callable[[], bool],
    ) -> None:
        """Make it before the socket is bound. unfinished: limits of incomplete messages. ended: called with the owner
        of each connection that has ended. client_of: returns the name of an owner's client. floods: called with the
        owner of the fullest connection of a client of which too many bytes wait. behind: returns False once all
        messages that came were taken."""
        self._loop, self._unfinished, self._ended, self._client_of = loop, unfinished, ended, client_of
        self._floods, self._behind = floods, behind
        self._left_bytes: Counter[str] = Counter()  # of each client, that wait although their connections have ended
        self._by_fd: dict[int, TcpConnection[T]] = {}
        self._unauthenticated = UnauthenticatedPeers(UNAUTHENTICATED, UNAUTHENTICATED_EACH)
        self._refused: dict[str, tuple[float, float]] = {}  # by address: count, and time of the last
        self._monitor = context.socket(zmq.PAIR)
        self._monitor.rcvhwm = 0  # otherwise ZeroMQ's own thread waits for this one
        where = f"inproc://{secrets.token_hex(8)}"
        self._socket = socket
        socket.monitor(where, _HAPPENED)
        self._monitor.connect(where)
        self._drain = ZmqReader(loop, self._monitor, self._happened)
        self._looking = loop.call_later(LOOK_S, self._look)

    def __len__(self) -> int:
        return len(self._by_fd)

    def close(self) -> None:
        """Close it before the socket: ZeroMQ's own thread would wait forever for a monitor that is gone."""
        self._looking.cancel()
        self._socket.disable_monitor()
        self._drain.close(0.0)

    def at(self, fd: int) -> TcpConnection[T] | None:
        """Return the connection at the descriptor of a message that has just arrived; None if it has ended since."""
        self._catch_up()
        return self._by_fd.get(fd)

    def own(self, connection: TcpConnection[T], owner: T) -> None:
        """Set the owner of a connection at its first message."""
        if connection.owner is not None:  # of an ended connection that had this descriptor
            self._ended(connection.owner)
        self._unauthenticated.discard(connection.fd)
        connection.owner = owner

    def refused(self, address: str) -> None:
        """Count an unknown key from an address."""
        now_s = self._loop.time()
        self._refused[address] = self._count(address, now_s) + 1, now_s

    def _count(self, address: str, now_s: float) -> float:
        """Return the number of refusals of an address that still count."""
        count, last_s = self._refused.get(address, (0.0, now_s))
        return max(0.0, count - REFUSALS * (now_s - last_s) / REFUSED_S)

    def shut(self, connection: TcpConnection[T]) -> None:
        """End a connection. `ended` is called later, as for other ends."""
        self._catch_up()
        self._end(connection)

    def _end(self, connection: TcpConnection[T]) -> None:
        """End a connection, unless it has ended: its descriptor may be another connection's by now."""
        if self._by_fd.get(connection.fd) is connection:
            self._unauthenticated.discard(connection.fd)
            connection.shut_down()

    def _catch_up(self) -> None:
        """Handle the events that ZeroMQ has sent so far."""
        while not self._monitor.closed and readable(self._monitor):
            self._happened(self._monitor.recv_multipart(zmq.DONTWAIT))

    def _happened(self, frames: Frames) -> None:
        event = parse_monitor_message(frames)
        fd = event["value"]
        if event["event"] == zmq.Event.ACCEPTED:
            self._by_fd[fd] = accepted = TcpConnection[T](fd, self._loop.time())
            address = accepted.peer[0] if accepted.peer else ""
            self._unauthenticated.add(fd, source_of(address))
            if self._refused and self._count(address, self._loop.time()) >= REFUSALS:
                self._end(accepted)
            elif (excess := self._unauthenticated.excess(lambda each: self._by_fd[each].silent)) is not None:
                self._end(self._by_fd[excess])
        elif (connection := self._by_fd.pop(fd, None)) is not None:
            self._unauthenticated.discard(fd)
            if connection.owner is not None:
                self._left_bytes[self._client_of(connection.owner)] += connection.waiting_bytes
                self._ended(connection.owner)

    def _look(self) -> None:
        self._catch_up()
        now_s = self._loop.time()
        self._refused = {address: of for address, of in self._refused.items() if self._count(address, now_s)}
        most = self._unfinished
        for connection in [one for one in self._by_fd.values() if one.check(now_s, most.message_bytes)]:
            self._end(connection)
        known = [(one, one.owner) for one in self._by_fd.values() if one.owner is not None]
        senders = [(one, self._client_of(owner), one.unfinished_bytes) for one, owner in known]
        for connection in over_budget(senders, most.client_bytes, most.all_bytes):
            self._end(connection)
        if not self._behind():
            self._left_bytes.clear()
        waiting = [(owner, self._client_of(owner), one.waiting_bytes) for one, owner in known]
        for owner in flooding(waiting, self._left_bytes, most.waiting_bytes):
            self._floods(owner)
        wait_s = LOOK_AGAIN_S if any(one.suspect for one in self._by_fd.values()) else LOOK_S
        self._looking = self._loop.call_later(wait_s + LOOK_S_EACH * len(self._by_fd), self._look)


def keep_alive(socket: Socket) -> None:
    """Let the kernel end a socket's connections whose other end does not answer. To be called before it is bound.

    It does so for a silent connection after some probes, and, by TCP_MAXRT, for one with bytes that are not
    acknowledged or find no room at the other end: the probes stop while there are such bytes.
    """
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = socket.tcp_keepalive_intvl = PROBE_S
    socket.tcp_keepalive_cnt = DEAD_S // PROBE_S - 1
    socket.setsockopt(zmq.TCP_MAXRT, DEAD_S * 1000)


def is_later(identity: bytes, other: bytes) -> bool:
    """Return True if ZeroMQ made an identity after another one: it counts them, from a random number on."""
    made, before = (int.from_bytes(each[1:], "big") for each in (identity, other))
    return 0 < (made - before) % (1 << 32) < 1 << 31


def loopback(host: str) -> str:
    """Return the address of a loopback host.

    Raises:
        InvalidConfig: the host is not on loopback.
    """
    try:
        address = ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        address = None
    if address is None or not address.is_loopback:
        raise InvalidConfig(f"without keys a server is only on loopback, not at {host}", field="host")
    return str(address)


def _peer(fd: int) -> tuple[str, int] | None:
    """Return the address and the port of a connection's other end; None if it has just ended."""
    with suppress(OSError), tcp.socket(fileno=os.dup(fd)) as connection:
        if connection.family in _FAMILIES:
            address, port = connection.getpeername()[:2]
            return str(address), int(port)
    return None


def received_bytes(fd: int) -> int:
    """Return the bytes that have come over a connection; 0 if it has just ended."""
    with suppress(OSError):
        connection = tcp.socket(tcp.AF_INET, tcp.SOCK_STREAM, 0, fileno=fd)
        try:
            info = connection.getsockopt(tcp.IPPROTO_TCP, tcp.TCP_INFO, _BYTES_RECEIVED.stop)
            return int.from_bytes(info[_BYTES_RECEIVED], "little")
        finally:
            connection.detach()
    return 0


IPV6_PREFIX = 64
"""Bits of the prefix of a network: one host may use all addresses in it."""


class UnauthenticatedPeers:
    """Connections without a message so far. Beyond `most` in all or `most_each` of one source, the largest source loses
    one."""

    def __init__(self, most: int, most_each: int) -> None:
        self._most, self._most_each = most, most_each
        self._sources: dict[int, str] = {}
        self._by_source: dict[str, dict[int, None]] = {}  # of each the oldest first

    def __len__(self) -> int:
        return len(self._sources)

    def add(self, connection: int, source: str) -> None:
        """Add a connection of a source."""
        self._sources[connection] = source
        self._by_source.setdefault(source, {})[connection] = None

    def discard(self, connection: int) -> None:
        """Remove a connection, if it is there."""
        source = self._sources.pop(connection, None)
        if source is None:
            return
        mine = self._by_source[source]
        del mine[connection]
        if not mine:
            del self._by_source[source]

    def excess(self, silent: Callable[[int], bool]) -> int | None:
        """Return a connection that must end for the limits to be kept; None if they are.

        It is the oldest silent one of the largest source: a client sends its greeting with its first packet, and a
        bare connect sends nothing. The newest of all may still send it. If none is silent, it is the oldest one.
        """
        largest = max(self._by_source.values(), key=len, default={})
        if len(self._sources) <= self._most and len(largest) <= self._most_each:
            return None
        oldest, newest = next(iter(largest)), next(reversed(self._sources))
        return next((each for each in largest if each != newest and silent(each)), oldest)


def source_of(address: str) -> str:
    """Return the source of an address: the address for IPv4, the network for IPv6; "" for an unknown address."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if not isinstance(ip, IPv6Address):
        return address
    return str(ip.ipv4_mapped or IPv6Address(int(ip) >> (128 - IPV6_PREFIX) << (128 - IPV6_PREFIX)))

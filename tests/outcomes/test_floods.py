"""The promise: connections without a key and messages that never end keep no client out, nor take all memory."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kaas.server.clients import tcp_connections, unfinished
from kaas.server.clients.keys import Keys
from kaas.server.clients.tcp_connections import UNAUTHENTICATED, UnauthenticatedPeers, source_of
from kaas.server.clients.unfinished import (
    HANDSHAKE_BYTES,
    IDLE_BYTES_PER_S,
    IDLE_MOST_BYTES,
    MESSAGE_S,
    Progress,
    over_budget,
)
from tests.server.clients.listeners import LOCAL, Client, Open, client_keys, echo
from tests.timeouts import TIMEOUT_S, until

FRAME_BYTES = 1 << 20
ELSEWHERE = "127.0.0.2"
"""Another address of this machine."""
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"%s" + bytes(32)
READY_BODY = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
READY = struct.pack(">BQ", 6, len(READY_BODY)) + READY_BODY


def greeting(mechanism: bytes) -> bytes:
    return GREETING % mechanism.ljust(20, b"\0")


def connected(listener: Open, address: str = LOCAL) -> socket.socket:
    return socket.create_connection((LOCAL, listener.port), TIMEOUT_S, (address, 0))


def ended(connection: socket.socket) -> bool:
    """Return True if the server ends it within some time."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


def there(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    finally:
        connection.settimeout(TIMEOUT_S)


@pytest.mark.slow
@pytest.mark.parametrize("address", [ELSEWHERE, LOCAL])
def test_bare_connects_do_not_end_a_handshake_that_has_begun(tmp_path: Path, address: str) -> None:
    """The network takes longer for one reply than the flood for as many connections as the server keeps."""
    alice = client_keys(tmp_path / "keys", "alice")
    listener = Open(Keys(tmp_path / "keys"))
    echo(listener)
    with closing(listener), closing(connected(listener)) as slow:
        slow.sendall(greeting(b"CURVE"))
        assert slow.recv(64)
        flood = [connected(listener, address) for _ in range(2 * UNAUTHENTICATED)]
        assert ended(flood[0])
        until(lambda: listener.do(lambda: len(listener.listener._connections)) <= UNAUTHENTICATED)
        assert there(slow)
        with closing(Client(listener, alice)) as client:
            client.send(b"hello")
            assert client.receive()[1:] == [b"hello"]
        for each in flood:
            each.close()


def test_the_largest_source_makes_room_and_its_silent_connections_first() -> None:
    newcomers = UnauthenticatedPeers(4, 3)
    for connection, source in enumerate("abab"):
        newcomers.add(connection, source)
    assert newcomers.excess(lambda _: True) is None
    newcomers.add(4, "b")
    assert newcomers.excess(lambda each: each != 1) == 3
    assert newcomers.excess(lambda _: False) == 1
    newcomers.discard(3)
    newcomers.discard(1)
    assert newcomers.excess(lambda _: True) is None
    for connection in (5, 6, 7):
        newcomers.add(connection, "a")
    assert newcomers.excess(lambda each: each == 7) == 0  # the newest may be about to send something
    assert len(newcomers) == 6


def test_one_host_is_one_source() -> None:
    assert source_of("10.0.0.1") == "10.0.0.1"
    assert source_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert source_of("2001:db8::1%eth0") == source_of("2001:db8::ffff:2") != source_of("2001:db8:0:1::1")
    assert source_of("") == ""


BUDGETS = {"each client's": (6 * FRAME_BYTES, 1 << 40), "in all": (1 << 40, 6 * FRAME_BYTES)}


@pytest.fixture
def unlocked(request: pytest.FixtureRequest) -> Iterator[Open]:
    budgets = getattr(request, "param", (1 << 40, 1 << 40))
    listener = Open(None, frame_bytes=FRAME_BYTES, message_bytes=4 * FRAME_BYTES, unfinished_bytes=budgets)
    echo(listener)
    yield listener
    listener.close()


def sender(listener: Open) -> socket.socket:
    """A client that has sent a message, and is about to send another one."""
    connection = connected(listener)
    connection.sendall(greeting(b"NULL") + READY)
    said = b""
    while b"READY" not in said:  # or what follows is part of the handshake
        said += connection.recv(1 << 16)
    connection.sendall(b"\x00\x05hello")
    assert listener.arrived()[1] == [b"hello"]
    return connection


def begin(connection: socket.socket, nbytes: int) -> None:
    """Return so many bytes of a message, in frames that are not the last."""
    frame = struct.pack(">BQ", 3, FRAME_BYTES // 4) + bytes(FRAME_BYTES // 4)
    for _ in range(nbytes // (FRAME_BYTES // 4)):
        connection.sendall(frame)


@pytest.mark.parametrize("unlocked", BUDGETS.values(), ids=BUDGETS, indirect=True)
def test_many_connections_have_one_budget_of_unfinished_messages(
    unlocked: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unfinished, "MESSAGE_S", 1e9)  # no connection ends for another reason
    senders = [sender(unlocked) for _ in range(4)]
    for each in senders[:2]:
        begin(each, 2 * FRAME_BYTES)
    for each in senders[2:]:
        try:
            begin(each, 3 * FRAME_BYTES)  # each of them may have four
        except ConnectionError:
            break
    until(lambda: not all(map(there, senders)))
    until(lambda: unlocked.do(lambda: len(unlocked.listener._connections)) < len(senders))
    with closing(Client(unlocked, None)) as other:
        other.send(b"hello")
        assert other.receive()[1:] == [b"hello"]
    for each in senders:
        each.close()


def test_a_message_that_stalls_ends_its_connection(unlocked: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfinished, "MESSAGE_S", 0.2)
    with closing(sender(unlocked)) as stalled, closing(sender(unlocked)) as idle:
        begin(stalled, FRAME_BYTES)
        assert ended(stalled)
        assert there(idle)


@pytest.mark.parametrize("sealed", [False, True])
def test_bytes_of_messages_that_have_ended_are_known(tmp_path: Path, sealed: bool) -> None:
    """All bytes but the handshake count: otherwise honest clients would seem unfinished after some time."""
    own = client_keys(tmp_path / "keys", "alice") if sealed else None
    listener = Open(Keys(tmp_path / "keys") if sealed else None)
    with closing(listener), closing(Client(listener, own)) as client:
        for size in (0, 1, 221, 222, 223, 254, 255, 256, 70_000) * 20:
            client.send(bytes(size), b"", bytes(size))
            listener.arrived()
        (connection,) = listener.do(lambda: list(listener.listener._connections._by_fd.values()))
        beside = tcp_connections.received_bytes(connection.fd) - listener.do(lambda: connection.taken_bytes)
        assert 0 < beside < HANDSHAKE_BYTES


def test_an_empty_frame_now_and_then_is_no_progress_and_heartbeats_are_no_message() -> None:
    held = Progress(0.0)
    nbytes, now_s = 1 << 20, 1.0
    while not held.stalls(now_s, nbytes):
        nbytes, now_s = nbytes + 35, now_s + 4.0
    assert now_s <= 1.0 + MESSAGE_S + 4.0
    idle = Progress(0.0)
    assert not any(idle.stalls(second, second * IDLE_BYTES_PER_S // 2) for second in range(0, 3600, 10))
    assert idle.stalls(1e6, IDLE_MOST_BYTES + 1)  # a message at the pace of heartbeats ends too
    slow = Progress(0.0)
    assert not any(slow.stalls(second, second * (64 << 10)) for second in range(1, 1000))


def test_the_largest_message_of_a_client_over_its_budget_ends() -> None:
    many = [(1, "a", 30), (2, "a", 50), (3, "b", 60), (4, "b", 0)]
    assert over_budget(many, 80, 140) == []
    assert over_budget(many, 70, 140) == [2]
    assert over_budget(many, 80, 100) == [2]
    assert over_budget(many, 10, 10) == [2, 3, 1]
    assert over_budget([], 1, 1) == []


def test_each_source_has_a_part_of_the_places() -> None:
    assert tcp_connections.UNAUTHENTICATED_EACH < UNAUTHENTICATED

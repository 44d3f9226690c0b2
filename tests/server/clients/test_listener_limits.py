"""Clients have limits at the listener, and unauthenticated peers cannot harm the server."""

from __future__ import annotations

import os
import resource
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import zmq

from kaas.server.clients import listener, tcp_connections
from kaas.server.clients.frame_reader import FRAMES
from kaas.server.clients.keys import Keys
from kaas.server.clients.listener import ENCRYPTION_BYTES
from kaas.server.clients.tcp_connections import UNAUTHENTICATED, UNAUTHENTICATED_BYTES
from kaas.wire import protocol
from kaas.wire.key_files import OwnKeys
from tests.server.clients.listeners import (
    FRAME_BYTES,
    READY,
    Client,
    Connect,
    Crowd,
    Open,
    Plain,
    command,
    echo,
    echoes,
    greeting,
    resident_bytes,
)
from tests.timeouts import TIMEOUT_S, until


def test_a_client_has_a_limited_number_of_connections(
    opened: Open, connect: Connect, alice: OwnKeys, bob: OwnKeys
) -> None:
    clients = [connect(alice) for _ in range(4)]
    for client in clients:
        echoes(client)
    late = connect(alice)
    late.try_to_send(b"one more")
    assert late.disconnected()
    echoes(connect(bob))
    clients[0].close()
    opened.gone.get(timeout=TIMEOUT_S)
    echoes(connect(alice))


def test_a_frame_with_too_many_bytes_disconnects_its_client(connect: Connect, alice: OwnKeys, bob: OwnKeys) -> None:
    other = connect(bob)
    echoes(other)
    client = connect(alice)
    echoes(client, bytes(FRAME_BYTES))
    client.send(bytes(FRAME_BYTES + 1))
    assert client.disconnected()
    echoes(other)


@pytest.mark.parametrize("extra", [1, 2, 3, FRAMES, 3 * FRAMES + 1])
def test_a_message_with_too_many_frames_blocks_its_client(
    opened: Open, connect: Connect, alice: OwnKeys, bob: OwnKeys, extra: int
) -> None:
    other, client, second = connect(bob), connect(alice), connect(alice)
    frames = [b"%d" % number for number in range(FRAMES)]
    echoes(client, *frames)
    for each in (other, second):
        echoes(each)
    client.send(*frames, *[b"more"] * extra)
    assert client.disconnected()
    assert second.disconnected()
    assert connect(alice).refused()
    echoes(other)
    assert opened.received.qsize() == 4


def test_a_blocked_client_can_reconnect_later(
    connect: Connect, alice: OwnKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "BLOCKED_S", 0.01)
    client = connect(alice)
    for _ in range(3):
        client.send(*[b""] * (FRAMES + 1))
        assert client.disconnected()

        def reconnects() -> bool:
            nonlocal client
            client = connect(alice)
            return bool(client.happened() & zmq.Event.HANDSHAKE_SUCCEEDED)

        until(reconnects)


def send_for_ever(peer: Plain, said: bytes) -> None:
    while True:
        peer.socket.sendall(said)


@pytest.mark.parametrize("before", [b"", b"\x00\x05hello"])
def test_a_message_has_an_end(unlocked: Open, before: bytes) -> None:
    """ZeroMQ itself would take frames until memory is full, since a message counts only with its last frame."""
    with closing(Plain(unlocked)) as endless, closing(Client(unlocked, None)) as other:
        endless.socket.sendall(greeting(b"NULL") + READY)
        said = b""
        while b"READY" not in said:  # or the next bytes are part of the handshake
            said += endless.socket.recv(1 << 16)
        endless.socket.sendall(before)
        with pytest.raises(ConnectionError):
            send_for_ever(endless, (b"\x01\x64" + bytes(100)) * 1000)
        echoes(other)
        assert unlocked.received.qsize() == 1 + bool(before)


@pytest.mark.slow
def test_a_client_that_does_not_read_is_disconnected_beyond_the_queue_limit(folder: Path, alice: OwnKeys) -> None:
    opened = Open(Keys(folder), queued=8)
    with closing(opened), closing(Client(opened, alice, rcvhwm=1)) as client:
        client.send(b"hello")
        channel, _ = opened.arrived()

        def fill() -> int:
            sent = 0
            while channel.send(protocol.Done(1), [bytes(1 << 20)]):
                sent += 1
                assert sent < 1000
            return sent

        assert opened.do(fill) >= 8
        assert opened.gone.get(timeout=TIMEOUT_S) is channel  # the client notices when it reads


# --- unauthenticated peers


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n" * 20,
        os.urandom(1000),
        bytes(1000),
        b"\x01\x00" + b"\x04more" * 100,  # ZMTP 1.0
        b"\xff" + bytes(7) + b"\x01\x7f\x01" + bytes(100),  # ZMTP 2.0
        greeting(b"NULL") + READY,
        greeting(b"PLAIN") + command(b"\x05HELLO\x05alice\0"),
        greeting(b"CURVE") + command(b"\x05HELLO" + os.urandom(194)),
        greeting(b"CURVE") + command(b"\x05READY" + bytes(100)),
        greeting(b"CURVE") + command(b"\x08INITIATE" + bytes(500)),
        greeting(b"CURVE") + command(b"\x07MESSAGE" + bytes(500)),
        greeting(b"CURVE") + b"\x00\x05hello",
        greeting(b"CURVE") + struct.pack(">BQ", 6, 2**63),
        greeting(b"CURVE") + struct.pack(">BQ", 6, FRAME_BYTES + ENCRYPTION_BYTES + 1),
    ],
)
def test_a_peer_that_speaks_another_protocol_is_disconnected(
    opened: Open, connect: Connect, plain: Callable[[], Plain], alice: OwnKeys, said: bytes
) -> None:
    client = connect(alice)
    echoes(client)
    peer = plain()
    peer.socket.sendall(said)
    assert peer.disconnected()
    echoes(client)
    assert opened.received.qsize() == 2


@pytest.mark.parametrize("said", [b"", b"\xff", greeting(b"CURVE"), greeting(b"CURVE") + command(bytes(100))[:50]])
def test_a_peer_that_does_not_finish_the_handshake_is_disconnected(
    connect: Connect,
    plain: Callable[[], Plain],
    alice: OwnKeys,
    said: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer = plain()
    peer.socket.sendall(said)
    with monkeypatch.context() as patch:  # a client's handshake may take longer on a busy machine
        patch.setattr(tcp_connections, "UNAUTHENTICATED_S", 0.0)
        assert peer.disconnected()
    echoes(connect(alice))


def test_a_client_that_sends_nothing_after_the_handshake_is_disconnected(
    connect: Connect,
    alice: OwnKeys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent = connect(alice)
    assert silent.happened() & zmq.Event.HANDSHAKE_SUCCEEDED
    monkeypatch.setattr(tcp_connections, "UNAUTHENTICATED_S", 0.0)
    assert silent.disconnected()


def test_unauthenticated_peers_cannot_fill_the_memory(
    connect: Connect,
    plain: Callable[[], Plain],
    alice: OwnKeys,
) -> None:
    """Half of a large frame, and then nothing."""
    peer = plain()
    peer.socket.sendall(greeting(b"CURVE") + struct.pack(">BQ", 6, FRAME_BYTES) + bytes(2 * UNAUTHENTICATED_BYTES))
    assert peer.disconnected()
    echoes(connect(alice))


@pytest.mark.slow
def test_many_unauthenticated_peers_keep_no_client_out(
    opened: Open, connect: Connect, plain: Callable[[], Plain], alice: OwnKeys
) -> None:
    client = connect(alice)
    echoes(client)
    peers = [plain() for _ in range(2 * UNAUTHENTICATED)]
    assert peers[0].disconnected()
    until(lambda: opened.do(lambda: len(opened.listener._connections)) <= UNAUTHENTICATED + 1)
    echoes(client)
    echoes(connect(alice))


def test_half_of_the_descriptors_is_for_those_inside(
    folder: Path, alice: OwnKeys, bob: OwnKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (2, 2))
    opened = Open(Keys(folder))
    echo(opened)
    with closing(opened), closing(Client(opened, alice)) as client:
        echoes(client)
        with closing(Client(opened, bob)) as late:
            late.try_to_send(b"hello")
            assert late.disconnected()
        echoes(client)


@pytest.mark.processes
def test_idle_connections_take_little_memory(folder: Path, alice: OwnKeys) -> None:
    many = 200
    opened = Open(Keys(folder), connections=many + 1)
    echo(opened)
    with closing(opened), closing(Crowd(opened, alice)) as crowd:
        crowd.connect(1)
        before_bytes = resident_bytes()
        crowd.connect(many)
        assert (resident_bytes() - before_bytes) / many <= 100_000

"""The listener admits only clients with a known key, and unauthenticated peers cannot harm the server."""

from __future__ import annotations

import os
import resource
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from kaas.errors import InvalidConfig
from kaas.server.clients import listener, tcp_connections
from kaas.server.clients.keys import Keys
from kaas.server.clients.listener import ENCRYPTION_BYTES, FRAMES
from kaas.server.clients.tcp_connections import UNAUTHENTICATED, UNAUTHENTICATED_BYTES
from kaas.wire import protocol
from kaas.wire.connections import zmq_reader
from kaas.wire.connections.connection import LARGE_BYTES
from kaas.wire.connections.zmq_reader import TURN
from kaas.wire.key_files import OwnKeys
from tests.server.clients.listeners import Client, Crowd, Open, Plain, client_keys, echo, resident_bytes
from tests.timeouts import TIMEOUT_S, until

FRAME_BYTES = 1 << 20
DONE = protocol.encode(protocol.Done(1))


def greeting(mechanism: bytes) -> bytes:
    """Of ZMTP 3.1."""
    return b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32)


def command(body: bytes) -> bytes:
    return struct.pack(">BQ", 6, len(body)) + body


READY = command(b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def alice(folder: Path) -> OwnKeys:
    return client_keys(folder, "alice")


@pytest.fixture
def bob(folder: Path) -> OwnKeys:
    return client_keys(folder, "bob")


@pytest.fixture
def opened(folder: Path, alice: OwnKeys, bob: OwnKeys, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:  # noqa: ARG001
    """A listener for alice and bob that echoes."""
    monkeypatch.setattr(listener, "GONE_S", 0.01)
    monkeypatch.setattr(listener, "REFRESH_S", 0.01)
    opened = Open(Keys(folder), frame_bytes=FRAME_BYTES, message_bytes=4 * FRAME_BYTES, connections=4)
    echo(opened)
    yield opened
    opened.close()


@pytest.fixture
def unlocked() -> Iterator[Open]:
    """A listener without keys that names all clients "all" and echoes."""
    opened = Open(None, frame_bytes=FRAME_BYTES, message_bytes=4 * FRAME_BYTES, keyless_client="all")
    echo(opened)
    yield opened
    opened.close()


@pytest.fixture
def connect(opened: Open) -> Iterator[Callable[..., Client]]:
    with ExitStack() as stack:

        def connect(own: OwnKeys | None, **options: Any) -> Client:
            client = Client(opened, own, **options)
            stack.callback(client.close)
            return client

        yield connect


@pytest.fixture
def plain(opened: Open) -> Iterator[Callable[[], Plain]]:
    with ExitStack() as stack:

        def connect() -> Plain:
            peer = Plain(opened)
            stack.callback(peer.close)
            return peer

        yield connect


def echoes(client: Client, *frames: bytes) -> None:
    client.send(*frames or (b"here",))
    assert client.receive() == [DONE, *(frames or (b"here",))]


Connect = Callable[..., Client]


def test_a_client_and_the_listener_exchange_messages(opened: Open, connect: Connect, alice: OwnKeys) -> None:
    client = connect(alice)
    frames = [b"header", b"", b"x" * LARGE_BYTES]
    echoes(client, *frames)
    channel, arrived = opened.arrived()
    assert channel.user == "alice"
    assert "alice" in repr(channel)
    assert [type(frame) for frame in arrived] == [bytes, bytes, memoryview]
    assert arrived[2].readonly
    assert arrived == frames
    echoes(client)
    assert opened.arrived()[0] is channel


def test_each_connection_is_a_channel_of_its_client(
    opened: Open, connect: Connect, alice: OwnKeys, bob: OwnKeys
) -> None:
    clients = [connect(own) for own in (alice, alice, bob)]
    for number, client in enumerate(clients):
        echoes(client, b"%d" % number)
    channels = {bytes(frames[0]): channel for channel, frames in (opened.arrived() for _ in clients)}
    assert len(set(channels.values())) == 3
    assert [channels[b"%d" % number].user for number in range(3)] == ["alice", "alice", "bob"]
    assert all(opened.do(lambda: [channel.send(protocol.Done(2)) for channel in channels.values()]))
    assert [client.receive() for client in clients] == [[protocol.encode(protocol.Done(2))]] * 3


@pytest.mark.parametrize("turn_s", [0.0, zmq_reader.TURN_S, 1000.0])
def test_more_messages_than_fit_in_a_turn(
    opened: Open, connect: Connect, alice: OwnKeys, turn_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zmq_reader, "TURN_S", turn_s)
    client = connect(alice)
    for number in range(3 * TURN):
        client.send(b"%d" % number)
    assert [client.receive()[1] for _ in range(3 * TURN)] == [b"%d" % number for number in range(3 * TURN)]
    assert opened.received.qsize() == 3 * TURN


def test_an_error_of_the_receiver_does_not_block_later_messages(opened: Open, connect: Connect, alice: OwnKeys) -> None:
    def fail(channel: Any, frames: Any) -> None:
        if frames == [b"bad"]:
            raise ValueError("of mine")
        channel.send(protocol.Done(1), frames)

    opened.on_receive = fail
    client = connect(alice)
    client.send(b"bad")
    echoes(client, b"good")
    assert "of mine" in str(opened.faults.get(timeout=TIMEOUT_S)["exception"])


def test_a_channel_counts_the_bytes_that_its_client_has_not_read(
    opened: Open, connect: Connect, alice: OwnKeys
) -> None:
    client = connect(alice, rcvhwm=1)
    echoes(client)
    channel, _ = opened.arrived()
    answer = protocol.Listed(1, [{"name": "x" * 1000}] * 250)

    def send() -> int:
        assert all(channel.send(answer) for _ in range(64))
        return channel.leaving_bytes

    assert opened.do(send) > 1 << 20
    for _ in range(64):
        assert client.receive() == [protocol.encode(answer)]
    until(lambda: opened.do(lambda: channel.leaving_bytes) == 0)


# --- admission


def unknown_keys(server: OwnKeys) -> OwnKeys:
    public_key, secret_key = (key.decode() for key in zmq.curve_keypair())
    return OwnKeys("peer", public_key, secret_key, server.server_key)


def test_a_key_that_is_not_known_gets_nothing(opened: Open, connect: Connect, alice: OwnKeys) -> None:
    peer = connect(unknown_keys(alice))
    peer.try_to_send(b"let me in")
    assert peer.refused()
    echoes(connect(alice))
    assert opened.received.qsize() == 1


@pytest.mark.slow
def test_too_many_keys_that_are_not_known_shut_their_address(
    opened: Open, connect: Connect, alice: OwnKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_connections, "REFUSALS", 2)
    monkeypatch.setattr(tcp_connections, "REFUSED_S", 1000.0)
    inside = connect(alice)
    echoes(inside)
    for _ in range(2):
        assert connect(unknown_keys(alice)).refused()
    assert connect(alice).disconnected()
    echoes(inside)
    assert opened.received.qsize() == 2
    monkeypatch.setattr(tcp_connections, "REFUSED_S", 0.001)
    until(lambda: bool(connect(alice).happened() & zmq.Event.HANDSHAKE_SUCCEEDED))


def test_a_peer_without_a_key_is_refused(opened: Open, connect: Connect, alice: OwnKeys) -> None:
    peer = connect(None)
    peer.try_to_send(b"let me in")
    assert peer.refused()
    echoes(connect(alice))
    assert opened.received.qsize() == 1


def test_a_peer_with_plain_credentials_is_refused(opened: Open, connect: Connect, alice: OwnKeys) -> None:
    peer = connect(None, plain_username=b"alice", plain_password=b"secret")
    peer.try_to_send(b"let me in")
    assert peer.refused()
    echoes(connect(alice))
    assert opened.received.qsize() == 1


def test_a_peer_with_only_a_clients_public_key_is_disconnected(opened: Open, connect: Connect, alice: OwnKeys) -> None:
    other = unknown_keys(alice)
    peer = connect(msgspec.structs.replace(other, public_key=alice.public_key))
    peer.try_to_send(b"let me in")
    assert peer.disconnected()
    echoes(connect(alice))
    assert opened.received.qsize() == 1


def test_a_client_with_the_wrong_server_key_is_disconnected(opened: Open, connect: Connect, alice: OwnKeys) -> None:
    client = connect(alice, server_key=unknown_keys(alice).public_key)
    client.try_to_send(b"let me in")
    assert client.disconnected()
    assert opened.received.empty()


def test_a_key_is_valid_as_soon_as_its_file_exists(
    folder: Path,
    alice: OwnKeys,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "REFRESH_S", 1000.0)
    opened = Open(Keys(folder))
    echo(opened)
    with closing(opened), closing(Client(opened, client_keys(folder, "carol"))) as client:
        echoes(client)
        assert opened.arrived()[0].user == "carol"


def test_the_removal_of_a_key_disconnects_its_client(
    opened: Open, connect: Connect, alice: OwnKeys, bob: OwnKeys, folder: Path
) -> None:
    client, other = connect(alice), connect(bob)
    echoes(client)
    channel, _ = opened.arrived()
    echoes(other)
    (folder / "clients" / "alice.toml").unlink()
    assert client.disconnected()
    assert opened.gone.get(timeout=TIMEOUT_S) is channel
    assert not opened.do(lambda: channel.send(protocol.Done(1)))
    assert connect(alice).refused()
    echoes(other)


def test_the_renaming_of_a_key_disconnects_its_client(connect: Connect, alice: OwnKeys, folder: Path) -> None:
    client = connect(alice)
    echoes(client)
    file = folder / "clients" / "alice.toml"
    file.write_text(file.read_text().replace("alice", "anna"))
    assert client.disconnected()


# --- identity


@pytest.mark.parametrize("identity", [b"mine", b"\1\2\3\4\5", b"x" * 255])
def test_a_peer_that_sets_its_own_identity_is_disconnected(
    opened: Open, connect: Connect, alice: OwnKeys, identity: bytes
) -> None:
    client = connect(alice, routing_id=identity)
    client.send(b"hello")
    assert client.disconnected()
    assert opened.received.empty()


def test_nothing_of_a_dropped_channel_counts(opened: Open, connect: Connect, alice: OwnKeys) -> None:
    client = connect(alice)
    opened.on_receive = lambda channel, _frames: channel.drop()
    for number in range(10):
        client.try_to_send(b"%d" % number)
    channel, frames = opened.arrived()
    assert frames == [b"0"]
    assert client.disconnected()
    assert opened.gone.get(timeout=TIMEOUT_S) is channel
    assert opened.received.empty()
    opened.do(channel.drop)


def test_the_listener_notices_a_closed_connection(opened: Open, connect: Connect, alice: OwnKeys) -> None:
    client = connect(alice)
    echoes(client)
    channel, _ = opened.arrived()
    client.send(b"last words")
    assert opened.arrived() == (channel, [b"last words"])
    client.close()
    assert opened.gone.get(timeout=TIMEOUT_S) is channel
    assert not opened.do(lambda: channel.send(protocol.Done(1)))
    echoes(connect(alice))
    assert opened.arrived()[0] is not channel


def test_an_old_channel_cannot_end_the_connection_that_has_its_descriptor_now(unlocked: Open) -> None:
    """The kernel gives the lowest free descriptor to the next connection, while the channel still waits to be gone."""
    with closing(Client(unlocked, None)) as client:
        echoes(client)
        old, _ = unlocked.arrived()
    with closing(Client(unlocked, None)) as client:
        echoes(client)
        new, _ = unlocked.arrived()
        assert (new.connection.fd, old.dropped) == (old.connection.fd, False)
        unlocked.do(old.drop)
        echoes(client)


def test_a_late_message_of_an_ended_connection_takes_over_no_other(unlocked: Open) -> None:
    """It names a descriptor that is another connection's by now, of a client that has sent already."""
    with closing(Client(unlocked, None)) as client:
        echoes(client)
        channel, _ = unlocked.arrived()
        identity, user_id = channel.key
        for behind in (1, 2, 1000):
            earlier = (int.from_bytes(identity[1:], "big") - behind) % (1 << 32)
            late = (b"\0" + earlier.to_bytes(4, "big"), user_id)
            assert unlocked.do(lambda: unlocked.listener._came(late, channel.connection.fd)) is None  # noqa: B023
        assert channel.connection.owner is channel
        echoes(client)
        assert unlocked.arrived()[0] is channel
    unlocked.gone.get(timeout=TIMEOUT_S)
    with closing(Client(unlocked, None)) as client:
        echoes(client)
        newer, _ = unlocked.arrived()
        fd = newer.connection.fd
        assert unlocked.do(lambda: unlocked.listener._came(channel.key, fd)) is None  # a channel that is gone
        echoes(client)


# --- how much


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
    monkeypatch.setattr(tcp_connections, "UNAUTHENTICATED_S", 0.1)
    peer = plain()
    peer.socket.sendall(said)
    assert peer.disconnected()
    echoes(connect(alice))


def test_a_client_that_sends_nothing_after_the_handshake_is_disconnected(
    connect: Connect,
    alice: OwnKeys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tcp_connections, "UNAUTHENTICATED_S", 0.5)
    silent = connect(alice)
    assert silent.happened() & zmq.Event.HANDSHAKE_SUCCEEDED
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


# --- without keys


def test_a_listener_without_keys_logs_that_it_is_insecure(caplog: pytest.LogCaptureFixture) -> None:
    with closing(Open(None)) as opened:
        assert "INSECURE" in caplog.text
        assert opened.listener.endpoint in caplog.text


def test_a_peer_of_a_listener_without_keys_is_the_keyless_client(unlocked: Open) -> None:
    with closing(Client(unlocked, None)) as client:
        echoes(client)
        assert unlocked.arrived()[0].user == "all"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com", "*", "eth0"])
def test_a_listener_without_keys_is_only_on_loopback(host: str) -> None:
    with pytest.raises(InvalidConfig, match="only on loopback"):
        Open(None, host)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.2", "::1"])
def test_places_on_loopback(host: str) -> None:
    opened = Open(None, host)
    echo(opened)
    with closing(opened), closing(Client(opened, None, ipv6=True)) as client:
        echoes(client)


def test_a_listener_at_an_unusable_address_is_refused(folder: Path, alice: OwnKeys) -> None:  # noqa: ARG001
    for host in ("192.0.2.1", "no such place"):
        with pytest.raises(InvalidConfig, match=r"listen\.host: no server can listen at"):
            Open(Keys(folder), host)


def test_a_listener_at_a_port_in_use_names_the_port(folder: Path, alice: OwnKeys) -> None:  # noqa: ARG001
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(InvalidConfig, match=r"listen\.port: no server can listen at 127\.0\.0\.1, port") as raised:
            Open(Keys(folder), "127.0.0.1", port=other.getsockname()[1])
    assert raised.value.field == "listen.port"


def test_the_last_message_before_a_close_arrives(alice: OwnKeys, folder: Path) -> None:
    opened = Open(Keys(folder))
    with closing(Client(opened, alice, reconnect_ivl=60_000)) as client:  # one that gives up drops what it has not read
        client.send(b"hello")
        channel, _ = opened.arrived()
        assert opened.do(lambda: channel.send(protocol.Goodbye("at night")))
        opened.close(TIMEOUT_S)
        assert protocol.decode_from_server(client.receive()[0]) == protocol.Goodbye("at night")
        assert client.disconnected()

"""The listener admits only clients with a known key, and exchanges messages with them."""

from __future__ import annotations

import select
import socket
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from kaas.errors import InvalidConfig
from kaas.server.clients import listener, tcp_connections
from kaas.server.clients.keys import Keys
from kaas.server.clients.leaving import LeavingBytes
from kaas.wire import protocol
from kaas.wire.connections import zmq_reader
from kaas.wire.connections.connection import LARGE_BYTES
from kaas.wire.connections.zmq_reader import TURN
from kaas.wire.key_files import OwnKeys
from tests.server.clients.listeners import (
    Client,
    Connect,
    Open,
    client_keys,
    echo,
    echoes,
)
from tests.timeouts import TIMEOUT_S, until


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


def test_messages_are_taken_although_a_reply_to_a_client_that_has_gone_fails_at_that_moment(
    opened: Open, connect: Connect, alice: OwnKeys, bob: OwnKeys
) -> None:
    leaving, client = connect(alice), connect(bob)
    echoes(leaving)
    channel, _ = opened.arrived()
    leaving.close()
    opened.gone.get(timeout=TIMEOUT_S)
    echoes(client)
    opened.arrived()
    socket_of = opened.listener._socket

    def reply_while_a_message_comes() -> None:
        client.send(b"a message")
        changed = [int(socket_of.getsockopt(zmq.FD))]
        assert select.select(changed, [], [], TIMEOUT_S)[0]
        while select.select(changed, [], [], 0)[0]:  # ZeroMQ looks at what has come once in a millisecond
            assert not opened.listener.send(channel, protocol.Done(1), ())

    opened.do(reply_while_a_message_comes)
    assert opened.arrived()[1] == [b"a message"]


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


def test_a_channel_counts_results_apart_until_its_client_has_read_them(
    opened: Open, connect: Connect, alice: OwnKeys
) -> None:
    client = connect(alice, rcvhwm=1)
    echoes(client)
    channel, _ = opened.arrived()
    outputs = [bytes([number]) * (1 << 20) for number in range(16)]
    answers = [protocol.Result(number, ("y",)) for number in range(16)]

    def send() -> tuple[int, int]:
        assert all(channel.send(answer, [output]) for answer, output in zip(answers, outputs, strict=True))
        return channel.leaving_result_bytes, channel.leaving_bytes

    results_bytes, other_bytes = opened.do(send)
    assert results_bytes > 1 << 20
    assert other_bytes == 0
    for answer, output in zip(answers, outputs, strict=True):
        assert client.receive() == [protocol.encode(answer), output]
    until(lambda: opened.do(lambda: channel.leaving_result_bytes) == 0)


def test_a_channel_counts_failures_from_a_smaller_size_on(
    opened: Open, connect: Connect, alice: OwnKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may cause very many, which take no credit."""
    client, sent, send = connect(alice), list[type](), listener._send
    echoes(client)
    channel, _ = opened.arrived()

    def note(socket: zmq.Socket[bytes], frame: Any, *options: Any) -> None:
        sent.append(type(frame))
        send(socket, frame, *options)

    monkeypatch.setattr(listener, "_send", note)
    for answer, kind in (
        (protocol.Failure(1, "InvalidRequest", "x" * 600), LeavingBytes),
        (protocol.Failure(1, "InvalidRequest", "x" * 100), bytes),
        (protocol.Listed(1, [{"name": "x" * 600}]), bytes),
    ):
        assert opened.do(partial(channel.send, answer))
        assert client.receive() == [protocol.encode(answer)]
        assert sent[-1] is kind
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
@pytest.mark.full
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


@pytest.mark.slow
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

"""Connections from other nodes to the pool's router, over tcp: only peers with the key are accepted; breaks mend."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
import zmq

from kaas.wire import messages
from kaas.wire.connections import zmq_connection
from kaas.wire.connections.connect import connect
from kaas.wire.connections.connection import LARGE_BYTES, PROBE_BYTES, ConnectionLost
from kaas.wire.connections.shared_memory import Outbox
from kaas.wire.connections.zmq_connection import INWARD, OUTWARD
from kaas.wire.connections.zmq_reader import TURN
from kaas.wire.messages import CallResult, CancelCall, ExecutorReply, PeerHello, PoolWelcome, Submit
from tests.timeouts import TIMEOUT_S, until
from tests.wire.connections.routers import Running

LOCAL = "127.0.0.1"


@pytest.fixture
def open_pool() -> Iterator[Running]:
    running = Running(LOCAL)
    yield running
    running.close()


@pytest.fixture
def raw(open_pool: Running) -> Iterator[Callable[[bytes], zmq.Socket[bytes]]]:
    """Return sockets of a peer with the key that follows no rule, by their identities."""
    context, address = zmq.Context(), open_pool.address

    def open_raw(identity: bytes) -> zmq.Socket[bytes]:
        dealer = context.socket(zmq.DEALER)
        if identity:
            dealer.identity = identity
        dealer.rcvtimeo = int(TIMEOUT_S * 1000)
        dealer.curve_serverkey, dealer.curve_publickey = address.server_key, address.public_key
        dealer.curve_secretkey = address.secret_key
        dealer.connect(address.tcp)
        return dealer

    yield open_raw
    context.destroy(linger=0)


def echo(pool: Running) -> None:
    """From now on the pool replies to every request with its own frames."""

    def reply(peer: Any, header: Any, frames: Any) -> None:
        pool.router.send(peer, CallResult(header.number), frames)

    pool.on_receive = reply


def test_a_connection_that_is_interrupted_between_two_frames_is_lost(
    open_pool: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the frames of the next message would count as those of this one."""
    connection = open_pool.connect(node="elsewhere")
    assert not connection.in_hand, "the welcome is taken"

    def interrupt(socket: zmq.Socket[bytes], header: Any, _: Any) -> None:
        socket.send(messages.encode(header), zmq.SNDMORE)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(zmq_connection, "send_message", interrupt)
        with pytest.raises(KeyboardInterrupt):
            connection.send(Submit(1), [b"frame"])
    for use in (lambda: connection.send(CancelCall(1)), connection.receive):
        with pytest.raises(ConnectionLost, match="interrupted"):
            use()
    connection.close()


def test_messages_keep_their_order_and_large_frames_are_views(open_pool: Running) -> None:
    echo(open_pool)
    connection = open_pool.connect(node="elsewhere")
    count = 5 * TURN
    for number in range(count):
        connection.send(Submit(number), [b"%d" % number])
    replies = [connection.receive(TIMEOUT_S) for _ in range(count)]
    assert replies == [(CallResult(number), [b"%d" % number]) for number in range(count)]
    connection.send(Submit(1), [bytearray(LARGE_BYTES - 1), memoryview(bytearray(LARGE_BYTES))])
    small, large = connection.receive(TIMEOUT_S)[1]  # type: ignore[index]
    assert (type(small), type(large), large.nbytes, large.readonly) == (bytes, memoryview, LARGE_BYTES, True)
    connection.close()
    with pytest.raises(ConnectionLost, match="closed"):
        connection.receive()


def test_malformed_messages_are_dropped(open_pool: Running, raw: Callable[[bytes], zmq.Socket[bytes]]) -> None:
    senders = [raw(b"no token" + INWARD), raw(b""), raw(b"another" + OUTWARD)]
    hello = messages.encode(PeerHello(messages.VERSION, "client", "", "", 1))
    bad = [b"", b"\xc1", b"\x91" * 100_000, os.urandom(100), messages.encode(Submit(1)), bytes(LARGE_BYTES)]
    for sender in senders:
        for message in bad:
            sender.send_multipart([message, b"and a frame"])
    for sender in senders[1:]:
        sender.send(hello)
    until(lambda: open_pool.do(lambda: open_pool.router.dropped) == 3 * len(bad) + 2)
    senders[0].send(hello)
    assert messages.decode_to_peer(senders[0].recv()) == PoolWelcome(open_pool.address.epoch, False)
    assert open_pool.received.empty()
    assert open_pool.faults.empty()


def test_a_peer_without_an_identity_is_no_peer_whatever_zeromq_calls_it(
    open_pool: Running, raw: Callable[[bytes], zmq.Socket[bytes]]
) -> None:
    # ZeroMQ counts up the last of the identities' bytes: 256 strangers have them all, also those of a peer's sockets.
    hello = messages.encode(PeerHello(messages.VERSION, "client", "", "", 1))
    for _ in range(256):
        raw(b"").send(hello)
    until(lambda: open_pool.do(lambda: open_pool.router.dropped) == 256)
    assert open_pool.greeted.empty()


def test_a_peer_that_has_gone_is_sent_nothing(open_pool: Running) -> None:
    connection = open_pool.connect(node="elsewhere")
    peer, _ = open_pool.greeted.get(timeout=TIMEOUT_S)
    connection.send(CancelCall(1))
    assert open_pool.received.get(timeout=TIMEOUT_S)[1] == CancelCall(1)
    connection.close()

    def noticed() -> bool:
        open_pool.do(lambda: open_pool.router.send(peer, CallResult(1)))
        return open_pool.router.dropped > 0

    until(noticed)


def test_a_peer_over_tcp_shares_no_memory(open_pool: Running) -> None:
    outbox, address, context = Outbox(), open_pool.address, zmq.Context()
    secret = os.urandom(PROBE_BYTES)
    peer = context.socket(zmq.DEALER)
    peer.identity, peer.rcvtimeo = b"token" + INWARD, int(TIMEOUT_S * 1000)
    peer.curve_serverkey, peer.curve_publickey = address.server_key, address.public_key
    peer.curve_secretkey = address.secret_key
    peer.connect(address.tcp)
    hello = PeerHello(messages.VERSION, "client", "", "", os.getpid(), outbox.put(secret).block)
    peer.send_multipart([messages.encode(hello), secret])
    assert messages.decode_to_peer(peer.recv()) == PoolWelcome(address.epoch, False)
    context.destroy(linger=0)
    outbox.close()


def test_a_peer_on_another_node_needs_the_key(open_pool: Running) -> None:
    echo(open_pool)
    connection = open_pool.connect(node="elsewhere")
    assert not connection.shares
    connection.send(Submit(1), [b"x" * LARGE_BYTES])
    assert connection.receive(TIMEOUT_S) == (CallResult(1), [b"x" * LARGE_BYTES])
    connection.close()
    public_key, secret_key = zmq.curve_keypair()
    stranger = msgspec.structs.replace(open_pool.address, public_key=public_key, secret_key=secret_key)
    with pytest.raises(ConnectionLost, match="key"):
        connect(stranger, "elsewhere", "client", "", "", TIMEOUT_S)
    other = msgspec.structs.replace(open_pool.address, server_key=public_key)
    with pytest.raises(ConnectionLost):
        connect(other, "elsewhere", "client", "", "", 0.2)
    assert open_pool.greeted.qsize() == 1


def test_unencrypted_connections_are_refused(open_pool: Running) -> None:
    context = zmq.Context()
    plain = context.socket(zmq.DEALER)
    events = plain.get_monitor_socket(
        zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        | zmq.EVENT_DISCONNECTED
        | zmq.EVENT_CONNECT_RETRIED
    )
    events.rcvtimeo = int(TIMEOUT_S * 1000)
    plain.connect(open_pool.address.tcp)
    plain.send(messages.encode(PeerHello(messages.VERSION, "client", "", "", 1)))
    assert events.recv_multipart()
    context.destroy(linger=0)
    assert open_pool.greeted.empty()


def test_a_connection_that_breaks_is_made_anew(open_pool: Running) -> None:
    echo(open_pool)
    with Cable(open_pool.address.tcp) as cable:
        address = msgspec.structs.replace(open_pool.address, tcp=cable.end)
        connection = connect(address, "elsewhere", "executor", "1", "first", TIMEOUT_S)
        peer, _ = open_pool.greeted.get(timeout=TIMEOUT_S)
        connection.send(Submit(1))
        assert connection.receive(TIMEOUT_S) == (CallResult(1), [])
        assert open_pool.greeted.empty()
        cable.cut()
        assert connection.receive(TIMEOUT_S) == (PoolWelcome(open_pool.address.epoch, False), [])
        again, _ = open_pool.greeted.get(timeout=TIMEOUT_S)
        assert again is peer
        connection.send(ExecutorReply(2))
        replies = [connection.receive(TIMEOUT_S)]
        if replies == [(PoolWelcome(open_pool.address.epoch, False), [])]:  # for the other of its two connections
            replies = [connection.receive(TIMEOUT_S)]
        assert replies == [(CallResult(2), [])]
        connection.close()


def test_a_connection_that_breaks_at_once_is_opened_again(open_pool: Running) -> None:
    echo(open_pool)
    with Cable(open_pool.address.tcp, faults=3) as cable:
        address = msgspec.structs.replace(open_pool.address, tcp=cable.end)
        connection = connect(address, "elsewhere", "executor", "1", "first", TIMEOUT_S)
        connection.send(Submit(1))
        replies: list[Any] = []
        while CallResult(1) not in replies:
            received = connection.receive(TIMEOUT_S)
            assert received is not None
            replies.append(received[0])
        assert {type(reply) for reply in replies} <= {PoolWelcome, CallResult}  # one PoolWelcome after each break
        connection.close()


class Cable:
    """Passes on all tcp traffic until it is cut: then its peers have to connect again.

    faults: so many connections break at once.
    """

    def __init__(self, endpoint: str, faults: int = 0) -> None:
        self._faults = faults
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self._target = (host, int(port))
        self._listening = socket.create_server((LOCAL, 0))
        self._open: list[socket.socket] = []
        self.end = f"tcp://{LOCAL}:{self._listening.getsockname()[1]}"

    def __enter__(self) -> Cable:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()

    def cut(self) -> None:
        for end in self._open:
            with suppress(OSError):  # the other end closed first
                end.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return  # the listening socket is closed
            if self._faults:
                self._faults -= 1
                near.recv(1)
                near.close()
                continue
            far = socket.create_connection(self._target)
            self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it was cut

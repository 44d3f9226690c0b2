"""A client that resets its connection ends nothing else, and its messages that wait are limited."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import zmq

from kaas.server.clients import tcp_connections
from kaas.server.clients.tcp_connections import received_bytes
from kaas.server.clients.unfinished import flooding
from kaas.wire.key_files import OwnKeys
from tests.server.clients.listeners import Connect, Open, echo, echoes
from tests.timeouts import TIMEOUT_S, until

ROOT = Path(__file__).parents[3]


RESET = """
import socket, struct, threading
from contextlib import closing
from tests.server.clients.listeners import READY, Client, Open, Plain, echo, echoes, greeting

PING = b"\\x04\\x07\\x04PING\\0\\0"
opened, taken = Open(None), threading.Event()
opened.on_receive = lambda _channel, _frames: taken.wait()


def peer(said):
    plain = Plain(opened)
    plain.socket.sendall(greeting(b"NULL") + READY)
    while b"READY" not in said:
        said += plain.socket.recv(1 << 16)
    return plain


resetting = peer(b"")
resetting.socket.sendall(PING + b"\\0\\1x" * 400 + (PING + b"\\0\\1x") * 200)  # ZeroMQ reads them all at once
assert b"PONG" in resetting.socket.recv(1 << 16)
opened.arrived()  # so the loop knows this connection, and waits
resetting.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
resetting.close()
peer(b"").close()  # so ZeroMQ's thread has seen the reset
taken.set()
for _ in range(599):
    opened.arrived()
with closing(opened), closing(Client(opened, None)) as client:
    echo(opened)
    echoes(client)
"""


@pytest.mark.processes
def test_a_connection_that_is_reset_while_its_messages_wait_does_not_end_the_server() -> None:
    """ZeroMQ aborts the process, had it stopped reading the connection: the next PING that it reads is answered."""
    assert subprocess.run([sys.executable, "-c", RESET], cwd=ROOT, timeout=TIMEOUT_S, check=False).returncode == 0


def test_no_timer_writes_to_a_connection_that_zeromq_does_not_read(opened: Open) -> None:
    """A heartbeat of the socket would abort the process too, even while the socket closes, after a peer's reset."""
    socket = opened.listener._socket
    assert (socket.rcvhwm, socket.heartbeat_ivl) == (0, 0)


# --- messages that wait


def test_the_bytes_of_a_client_that_wait_are_limited(
    opened: Open, connect: Connect, alice: OwnKeys, bob: OwnKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop is held up until all of them have come."""
    monkeypatch.setattr(tcp_connections, "LOOK_S", 0.0)
    opened.do(opened.listener._connections._look)  # and the next one is due at once
    number, nbytes, sent = 2000, 1000, threading.Event()
    opened.listener._connections._unfinished = tcp_connections.Unfinished(1 << 40, 1 << 40, 1 << 40, 100 * nbytes)
    other, second, client = connect(bob), connect(alice), connect(alice, sndhwm=number)
    for each in (other, second, client):
        echoes(each)
        channel, _ = opened.arrived()
    opened.on_receive = lambda _channel, _frames: sent.wait(TIMEOUT_S)
    client.send(b"first")
    opened.arrived()
    for _ in range(number):
        client.send(bytes(nbytes))
    until(lambda: received_bytes(channel.connection.fd) > number * nbytes)
    sent.set()
    assert client.disconnected()
    assert second.disconnected()
    echo(opened)
    echoes(other)
    assert opened.received.qsize() < number
    until(lambda: bool(connect(alice).happened() & zmq.Event.HANDSHAKE_SUCCEEDED))


def test_waiting_bytes_count_for_their_client_on_all_connections_and_after_these() -> None:
    waiting = [("a1", "alice", 60), ("a2", "alice", 70), ("b1", "bob", 100), ("c1", "carol", 0)]
    assert flooding(waiting, {}, 130) == []
    assert flooding(waiting, {"bob": 20}, 120) == ["a2"]
    assert flooding(waiting, {"bob": 31, "carol": 131, "dave": 1000}, 130) == ["b1", "c1"]

"""Attempts to connect to a server: peers that hang up, and clients that are closed meanwhile."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
import zmq

import kaas
from kaas.client import connecting
from kaas.client.connecting import HANG_UPS, HANG_UPS_SHARE, Connected, ServerEndpoint
from kaas.client.server_connection import HUNG_UP, NO_HOST, NO_LISTENER
from kaas.errors import NotInitialized, Unreachable
from kaas.server.clients.keys import Keys
from kaas.wire import protocol
from kaas.wire.connections.connection import ConnectionLost
from tests.client.fake_server import FakeServer
from tests.server.clients.listeners import Open, client_keys
from tests.timeouts import TIMEOUT_S, until

GREETING_BYTES = 10
"""The part of a peer's greeting that it sends before it receives anything."""
TORN_OFF = struct.pack("ii", 1, 0)
STATUS = {"asked": "status"}


class HangsUp:
    """Accepts each connection, and ends it once data have come.

    Fields:
        came: how many.
    """

    def __init__(self, port: int, *, torn_off: bool) -> None:
        self.came = 0
        self._torn_off = torn_off
        self._socket = socket.create_server(("127.0.0.1", port))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            connected, _ = self._socket.accept()
            with connected:
                if not connected.recv(GREETING_BYTES):  # `close` has connected
                    return
                self.came += 1
                if self._torn_off:
                    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, TORN_OFF)

    def close(self) -> None:
        with socket.create_connection(self._socket.getsockname()) as last:
            last.shutdown(socket.SHUT_WR)
            self._thread.join(TIMEOUT_S)
        self._socket.close()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.close()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads


# --- a server that hangs up


@pytest.mark.slow
def test_a_server_with_another_key_is_distinguished_from_an_absent_server(
    tmp_path: Path, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "HANG_UPS_SHARE", 0.0)
    own = client_keys(tmp_path / "keys", "alice")
    opened = Open(Keys(tmp_path / "keys"))
    another = zmq.curve_keypair()[0].decode()
    try:
        with kaas.Client(opened.listener.endpoint, keys=own, server_key=another, patience_s=TIMEOUT_S) as client:
            error = threads.submit(client.status).exception(TIMEOUT_S / 2)
    finally:
        opened.close()
    assert isinstance(error, Unreachable)
    assert error.reason == HUNG_UP
    assert "server_key" in error.message


def replaced(server: FakeServer, *, torn_off: bool) -> None:
    """For a while another peer hangs up in the server's place, more often than a new client tolerates."""
    other = HangsUp(server.port, torn_off=torn_off)
    until(lambda: other.came > HANG_UPS)
    other.close()


def test_a_server_that_was_met_is_looked_for_further(
    server: FakeServer, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "HANG_UPS_S", 0.0)
    monkeypatch.setattr(connecting, "HANG_UPS_SHARE", 0.0)
    with kaas.Client(server.address, patience_s=TIMEOUT_S) as client:
        assert client.status() == STATUS
        server.stop()
        asked = threads.submit(client.status)
        replaced(server, torn_off=False)
        server.start()
        assert asked.result(TIMEOUT_S) == STATUS


@pytest.mark.parametrize(("torn_off", "share"), [(True, 0.0), (False, HANG_UPS_SHARE)])
def test_a_relay_without_a_server_behind_it_is_no_server_with_another_key(
    server: FakeServer, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, torn_off: bool, share: float
) -> None:
    """A peer that closes connections in order looks like a server with another key, unless a server starts in time."""
    monkeypatch.setattr(connecting, "HANG_UPS_S", 0.0)
    monkeypatch.setattr(connecting, "HANG_UPS_SHARE", share)
    server.stop()
    with kaas.Client(server.address, patience_s=TIMEOUT_S) as client:
        asked = threads.submit(client.status)
        replaced(server, torn_off=torn_off)
        server.start()
        assert asked.result(TIMEOUT_S) == STATUS


@pytest.mark.parametrize(("host", "reason"), [("127.0.0.1", NO_LISTENER), ("n" * 64, NO_HOST)])
def test_an_absent_host_or_listener_is_named(server: FakeServer, host: str, reason: str) -> None:
    """No host has so long a name, so no resolver is queried."""
    server.stop()
    endpoint = ServerEndpoint(f"tcp://{host}:{server.port}", None, 0.0)
    with pytest.raises(Unreachable) as raised:
        endpoint.connect(token_hex(16), threading.Event(), lambda: None)
    assert raised.value.reason == reason
    endpoint.close()


def test_a_warning_names_the_address_of_an_unreachable_server(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning while attempts continue: a user with a wrong port need not wait for the time limit."""
    monkeypatch.setattr(connecting, "LOG_AFTER_S", 0.0)
    server.stop()
    stopped, attempts = threading.Event(), [0]

    def meanwhile() -> None:
        attempts[0] += 1
        if attempts[0] == 3:
            stopped.set()

    endpoint = ServerEndpoint(server.address, None, TIMEOUT_S)
    with pytest.raises(NotInitialized):
        endpoint.connect(token_hex(16), stopped, meanwhile)
    endpoint.close()
    (said,) = caplog.messages
    assert f"{server.address} cannot be reached so far: {NO_LISTENER}" in said
    assert f"{TIMEOUT_S:g} s" in said


# --- closed meanwhile


def begun(
    threads: ThreadPoolExecutor, endpoint: ServerEndpoint, stopped: threading.Event, meanwhile: Any
) -> Future[Connected]:
    return threads.submit(endpoint.connect, token_hex(16), stopped, meanwhile)


def address_of(listening: socket.socket) -> str:
    return f"tcp://127.0.0.1:{listening.getsockname()[1]}"


def over(endpoint: ServerEndpoint) -> None:
    """Wait until the endpoint has released its context."""
    until(lambda: endpoint._context.closed)
    with pytest.raises(NotInitialized):
        endpoint.connect(token_hex(16), threading.Event(), lambda: None)


def test_an_endpoint_is_closed_between_attempts(server: FakeServer, threads: ThreadPoolExecutor) -> None:
    server.stop()
    endpoint, stopped, missed = ServerEndpoint(server.address, None, TIMEOUT_S), threading.Event(), threading.Event()
    connected = begun(threads, endpoint, stopped, missed.set)
    assert missed.wait(TIMEOUT_S)
    stopped.set()
    endpoint.close()
    endpoint.close()
    assert isinstance(connected.exception(TIMEOUT_S), NotInitialized)
    over(endpoint)


@pytest.mark.parametrize("tells", [True, False])
def test_an_endpoint_is_closed_in_an_attempt(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, tells: bool
) -> None:
    """Close while a silent peer is connected. tells: the attempt is stopped as well."""
    monkeypatch.setattr(connecting, "ATTEMPT_S", 10 * TIMEOUT_S)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint, stopped = ServerEndpoint(address_of(silent), None, TIMEOUT_S), threading.Event()
        connected = begun(threads, endpoint, stopped, lambda: None)
        inside, _ = silent.accept()
        if tells:
            stopped.set()
        endpoint.close()
        with inside:
            assert isinstance(connected.exception(TIMEOUT_S), NotInitialized)
            over(endpoint)


@pytest.mark.parametrize("tells", [True, False])
def test_an_endpoint_is_closed_during_its_welcome(
    server: FakeServer, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, tells: bool
) -> None:
    endpoint, stopped = ServerEndpoint(server.address, None, TIMEOUT_S), threading.Event()
    welcomed = connecting._welcome

    def closed_meanwhile(connection: Any) -> protocol.Welcome:
        welcome = welcomed(connection)
        if tells:
            stopped.set()
        endpoint.close()
        return welcome

    monkeypatch.setattr(connecting, "_welcome", closed_meanwhile)
    connected = begun(threads, endpoint, stopped, lambda: None)
    if tells:
        assert isinstance(connected.exception(TIMEOUT_S), NotInitialized)
    else:
        connection, _ = connected.result(TIMEOUT_S)
        with pytest.raises(ConnectionLost):
            connection.send(protocol.Hello(protocol.VERSION, token_hex(16)))
    over(endpoint)


def test_the_close_of_a_connecting_client_ends_its_calls(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "ATTEMPT_S", 10 * TIMEOUT_S)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = kaas.Client(address_of(silent), patience_s=TIMEOUT_S)
        asked = threads.submit(client.status)
        inside, _ = silent.accept()
        with inside:
            client.close()
            assert isinstance(asked.exception(TIMEOUT_S), NotInitialized)
            with pytest.raises(NotInitialized):
                client.status()
            until(lambda: client._endpoint._context.closed)

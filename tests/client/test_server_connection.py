"""Errors of a client for a server that refuses it, or is not the expected one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import zmq

from kaas.client.server_connection import FULL, HUNG_UP, REFUSED, WRONG_PEER, CurveKeys, ServerConnection
from kaas.server.clients.keys import Keys
from kaas.wire import protocol
from kaas.wire.connections.connection import ConnectionLost
from kaas.wire.key_files import OwnKeys
from tests.server.clients.listeners import Open, client_keys, echo
from tests.timeouts import TIMEOUT_S

HELLO = protocol.Hello(protocol.VERSION, "0" * 32)


@pytest.fixture
def alice(tmp_path: Path) -> OwnKeys:
    return client_keys(tmp_path / "keys", "alice")


@pytest.fixture
def opened(tmp_path: Path, alice: OwnKeys) -> Iterator[Open]:  # noqa: ARG001
    """A listener for one connection of alice."""
    opened = Open(Keys(tmp_path / "keys"), connections=1)
    echo(opened)
    yield opened
    opened.close()


def curve(own: OwnKeys, server_key: str = "") -> CurveKeys:
    return CurveKeys(*(key.encode() for key in (server_key or own.server_key, own.public_key, own.secret_key)))


def connect(stack: ExitStack, opened: Open, keys: CurveKeys) -> ServerConnection:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    stack.callback(context.term)
    connection = stack.enter_context(closing(ServerConnection(context, opened.listener.endpoint, keys, TIMEOUT_S)))
    connection.send(HELLO)
    return connection


def refusal(opened: Open, keys: CurveKeys) -> str:
    with ExitStack() as stack, pytest.raises(ConnectionLost) as lost:
        connect(stack, opened, keys).receive(TIMEOUT_S)
    return str(lost.value)


def test_a_key_that_the_server_does_not_know(opened: Open, alice: OwnKeys) -> None:
    public_key, secret_key = zmq.curve_keypair()
    assert refusal(opened, CurveKeys(alice.server_key.encode(), public_key, secret_key)) == REFUSED


def test_more_connections_than_a_key_may_have(opened: Open, alice: OwnKeys) -> None:
    with ExitStack() as stack:
        inside = connect(stack, opened, curve(alice))
        assert inside.receive(TIMEOUT_S) is not None
        assert refusal(opened, curve(alice)) == FULL


def test_a_server_with_another_key(opened: Open, alice: OwnKeys) -> None:
    another = zmq.curve_keypair()[0].decode()
    assert refusal(opened, curve(alice, another)) == HUNG_UP


def test_a_server_without_keys(alice: OwnKeys) -> None:
    unlocked = Open(None)
    try:
        assert refusal(unlocked, curve(alice)) in (WRONG_PEER, HUNG_UP)  # either peer may detect it first
    finally:
        unlocked.close()

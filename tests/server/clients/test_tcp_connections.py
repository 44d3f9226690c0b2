"""A TCP connection ends, and no other one in its place."""

from __future__ import annotations

import os
import socket as tcp
from contextlib import ExitStack

from kaas.server.clients.tcp_connections import TcpConnection


def test_only_the_connection_itself_is_shut_down_and_not_the_next_one_with_its_descriptor() -> None:
    with ExitStack() as closing:
        listener = closing.enter_context(tcp.create_server(("127.0.0.1", 0)))

        def accepted() -> tuple[tcp.socket, tcp.socket]:
            client = closing.enter_context(tcp.create_connection(listener.getsockname()))
            return client, closing.enter_context(listener.accept()[0])

        (_, first), (client, second) = accepted(), accepted()
        ended = TcpConnection[str](first.fileno(), 0.0)
        os.dup2(second.fileno(), first.fileno())
        ended.shut_down()
        client.sendall(b"here")
        assert first.recv(100) == b"here"
        TcpConnection[str](first.fileno(), 0.0).shut_down()
        assert client.recv(100) == b""

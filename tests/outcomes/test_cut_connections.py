"""A client whose network cuts its connection gets its replies over the next one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress

import numpy as np
import pytest

import kaas
from tests.server.servers import Server, scaled
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes


class Relay:
    """Passes bytes between clients and a server.

    Fields:
        port: where it listens. connections: pairs of sockets, to the client and to the server, in order.
    """

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self._server = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.connections: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End the last connection, on both sides."""
        for end in self.connections[-1]:
            with suppress(OSError):  # the other side has closed it
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):  # until it is closed
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(self._server)
                self.connections.append((near, far))
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):  # the other direction may have ended the connection
            while part := source.recv(1 << 16):
                sink.sendall(part)
            sink.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    server = Server(tmp_path_factory.mktemp("server"), insecure=True)
    with closing(server), closing(Relay(server.endpoint)) as relay:
        yield relay


def test_one_cut_costs_one_connection(relay: Relay) -> None:
    """The server, which closes what is left of the cut connection, leaves the next one alone."""
    ones = np.ones(1024, np.float32)
    with kaas.Client(f"tcp://127.0.0.1:{relay.port}", patience_s=TIMEOUT_S) as client:
        function = client.register(scaled(2.0, 1024))
        for cut in range(1, 4):
            assert client.call(function, {"x": ones}).result(TIMEOUT_S)[0] == 2
            assert len(relay.connections) == cut
            relay.cut()
        assert client.call(function, {"x": ones}).result(TIMEOUT_S)[0] == 2

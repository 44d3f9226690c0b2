"""Servers for tests of remote clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.servers import Server

Serve = Callable[..., Server]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One with keys, for a module's tests."""
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start servers one after the other in one folder. They end with the test."""
    servers: list[Server] = []

    def start(settings: dict[str, Any] | None = None, *, insecure: bool = False) -> Server:
        servers.append(Server(tmp_path, settings, insecure=insecure))
        return servers[-1]

    yield start
    for each in servers:
        each.close()

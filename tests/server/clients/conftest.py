"""Listeners and clients of them for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kaas.server.clients import listener
from kaas.server.clients.keys import Keys
from kaas.wire.key_files import OwnKeys
from tests.server.clients.listeners import FRAME_BYTES, Client, Open, Plain, client_keys, echo


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

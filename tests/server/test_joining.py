"""Requests that come again under a key take credit as long as it is not known whether they are the same."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from unittest.mock import Mock

import pytest

from kaas.errors import QueueFull
from kaas.server import idempotency_keys
from kaas.server.binding import InvocationDigest
from kaas.server.building.uploads import AT_ONCE_BYTES
from kaas.server.invocations import Invocations
from kaas.server.reply_tracker import ReplyTracker
from kaas.server.sessions import ClientRun, ClientSession, ConnectedClient
from kaas.wire import protocol
from kaas.wire.rpc.idempotency_cache import IdempotencyCache
from tests.timeouts import TIMEOUT_S

NBYTES = 2 * AT_ONCE_BYTES
"""Hashed by another thread."""


def test_a_refused_request_that_is_cancelled_gets_one_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cancellation comes when the refusal has been sent, and before the loop goes on."""
    monkeypatch.setattr(idempotency_keys, "request_digest", lambda *_: "another")

    async def scenario() -> list[Any]:
        tracker = ReplyTracker(Mock(), Mock(), Mock())
        runs = Invocations(Mock(), Mock(), Mock(), Mock(), tracker)
        client = ConnectedClient(
            "ada", protocol.Limits(8, NBYTES, NBYTES), finished=IdempotencyCache(0, 1.0, lambda *_: None)
        )
        channel, sent = Mock(leaving_bytes=0, leaving_result_bytes=0), list[Any]()
        session = ClientSession(client, channel, "s")

        def send(message: Any, *_: object) -> bool:
            sent.append(message)
            tracker.cancel(session, 1)
            return True

        channel.send.side_effect = send
        run = client.runs["key"] = ClientRun(client, "key", "f", "f", (), 0)
        run.bound = InvocationDigest("a request", "a charge")
        runs.ask(session, protocol.Invoke(1, "f", key="key"), [b"", bytes(NBYTES)])
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*runs._tasks)
        return sent

    assert [each.error for each in asyncio.run(scenario())] == ["KeyReused"]


def test_inputs_that_wait_to_be_hashed_take_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = threading.Event()

    def digest(*_: object) -> str:
        assert hashed.wait(TIMEOUT_S)
        return ""

    monkeypatch.setattr(idempotency_keys, "request_digest", digest)

    async def scenario() -> None:
        tracker = Mock()
        runs = Invocations(Mock(), Mock(), Mock(), Mock(), tracker)
        client = ConnectedClient(
            "ada", protocol.Limits(8, NBYTES + 1, NBYTES), finished=IdempotencyCache(0, 1.0, lambda *_: None)
        )
        session = ClientSession(client, Mock(leaving_bytes=0, leaving_result_bytes=0), "s")
        client.runs["key"] = ClientRun(client, "key", "f", "f", (), 0)
        frames = [b"", bytes(NBYTES)]
        runs.ask(session, protocol.Invoke(1, "f", key="key"), frames)
        try:
            with pytest.raises(QueueFull):
                runs.ask(session, protocol.Invoke(2, "f", key="key"), frames)
        finally:
            hashed.set()
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*runs._tasks)
        runs.ask(session, protocol.Invoke(2, "f", key="key"), frames)
        await asyncio.gather(*runs._tasks)
        assert [call.args[1] for call in tracker.wait.call_args_list] == [1, 2]
        assert (client.questions.count, client.questions.nbytes) == (0, 0)

    asyncio.run(scenario())

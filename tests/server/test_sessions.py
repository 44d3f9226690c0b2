"""Limits of a client's open requests of one kind."""

from __future__ import annotations

from typing import Any

import pytest

from kaas.errors import InvalidRequest, QueueFull
from kaas.server.sessions import ConnectedClient, OpenCounts
from kaas.wire import protocol
from kaas.wire.rpc.idempotency_cache import IdempotencyCache

LIMITS = protocol.Limits(requests=2, credit_bytes=100, frame_bytes=1000)


def client() -> ConnectedClient:
    finished: IdempotencyCache[Any] = IdempotencyCache(0, 0.0)
    return ConnectedClient("alice", LIMITS, finished=finished)


@pytest.mark.parametrize("kind", ["requests", "questions", "storing"])
def test_open_requests_are_limited_in_number_and_bytes(kind: str) -> None:
    alice = client()
    opened: OpenCounts = getattr(alice, kind)
    opened.check(alice, 100)
    opened.take(60)
    opened.check(alice, 40)
    with pytest.raises(QueueFull, match=r"'alice' has 1 .* open, with 60 bytes.* this takes 41"):
        opened.check(alice, 41)
    opened.take(0)
    with pytest.raises(QueueFull) as raised:
        opened.check(alice, 0)
    assert (raised.value.fields["limit"], raised.value.fields["queued"]) == (2, 2)
    opened.give_back(60)
    opened.check(alice, 100)


def test_a_request_that_can_never_be_open_is_refused_at_once() -> None:
    alice = client()
    for _ in range(LIMITS.requests):
        alice.requests.take(50)
    with pytest.raises(InvalidRequest, match="101 bytes"):
        alice.requests.check(alice, 101)


@pytest.mark.parametrize("kind", ["questions", "storing"])
def test_a_large_request_without_credit_may_be_open_alone(kind: str) -> None:
    alice = client()
    opened: OpenCounts = getattr(alice, kind)
    opened.check(alice, 1000)
    opened.take(1000)
    with pytest.raises(QueueFull):
        opened.check(alice, 0)

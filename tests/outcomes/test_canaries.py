"""The promise: a canary, which is charged to no client, gives no client a device for free."""

from __future__ import annotations

import os
import signal

import pytest

from kaas.server.canary import CLIENT
from kaas.wire import protocol
from tests.server.conftest import Serve

pytestmark = pytest.mark.processes

ASKED = 100


def test_concurrent_requests_for_a_canary_run_only_one(serve: Serve) -> None:
    server = serve({"administrators": ["boss"]})
    boss, alice = server.speaker("boss"), server.speaker("alice")
    (executor,) = server.children()
    os.kill(executor, signal.SIGSTOP)
    try:
        for _ in range(ASKED):
            alice.send(protocol.Ask(alice.number(), "health"), b"canary")
        alice.quiet()
    finally:
        os.kill(executor, signal.SIGCONT)
    for _ in range(ASKED):
        answer, _ = alice.receive()
        assert isinstance(answer, protocol.Reply), answer
        assert answer.answer["canary_s"] > 0
    outcomes = [row for row in boss.ask("stats")["outcomes"] if row["client"] == CLIENT]
    assert [row["count"] for row in outcomes] == [1]
    assert alice.ask("health", b"canary")["canary_s"] > 0
    for each in (boss, alice):
        each.close()

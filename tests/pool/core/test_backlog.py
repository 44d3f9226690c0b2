"""Queues have limits. Clients' settings can change while a pool runs; their queued requests and charges stay."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kaas.config import ClientSettings
from kaas.errors import QueueFull
from kaas.pool.core.core import Pool
from kaas.pool.core.requests import Backlog
from kaas.scheduling.events import ClientKnown
from kaas.scheduling.policies.fair_share import FairShare
from tests.pool.core.careful import Careful
from tests.pool.fake_workers import FakeWorkers, begin, call, failure_of, play, settle


def test_a_new_limit_counts_requests_already_queued() -> None:
    backlog = Backlog(10, {"a": ClientSettings(max_queued=1)})
    backlog.enter("a")
    with pytest.raises(QueueFull):
        backlog.enter("a")
    backlog.enter("b")
    backlog.enter("b")
    backlog.regrant({"b": ClientSettings(max_queued=2)})
    backlog.enter("a")
    with pytest.raises(QueueFull):
        backlog.enter("b")
    backlog.leave("b")
    backlog.enter("b")
    for client in ("a", "a", "b", "b"):
        backlog.leave(client)
    backlog.regrant({"a": ClientSettings(max_queued=1)})
    backlog.enter("a")


def test_a_new_weight_keeps_the_charges_of_a_client() -> None:
    accounts = FairShare(1)
    account = accounts.know(ClientKnown(0.0, "a", charged_s=6.0))
    assert account.time_s == 6.0
    assert accounts.know(ClientKnown(1.0, "a", weight=3.0, charged_s=None)) is account
    assert (account.charged_s, account.time_s) == (6.0, 2.0)


def test_queues_have_limits() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        running = await begin(pool.submit(call()))
        queued = await begin(pool.submit(call()))
        error = await failure_of(await begin(pool.submit(call())))
        assert isinstance(error, QueueFull)
        assert (error.client, error.limit, error.queued) == ("alice", 1, 1)
        assert error.message == "client 'alice' may have 1 requests queued, and 1 wait already"
        others = [await begin(pool.submit(replace(call(), client=name))) for name in ("bob", "bob", "carol")]
        error = await failure_of(others.pop())
        assert isinstance(error, QueueFull)
        assert (error.fields, error.message) == (
            {"limit": 3, "queued": 3},
            "the pool queues 3 requests at most, and 3 wait already",
        )
        assert {(o.client, o.outcome, o.count) for o in pool.reports.stats().outcomes} == {
            ("alice", "QueueFull", 1),
            ("carol", "QueueFull", 1),
        }
        queued.cancel()
        await settle()
        full = await begin(pool.submit(replace(call(), client="dave")))
        workers.die(0, "killed")  # the running requests are queued again, beyond all limits
        await settle()
        assert isinstance(await failure_of(await begin(pool.submit(call()))), QueueFull)
        for task in (*others, full, running):
            workers.reply()
            assert await task == "value"
            await settle()
        assert (pool._backlog._total, pool._backlog._queued) == (0, {})

    play(scenario, queue_limit=3, clients={"alice": ClientSettings(max_queued=1)}, policy=Careful)

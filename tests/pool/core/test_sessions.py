"""Programs that end: their queued requests are removed, their runs end, and clients of theirs only are forgotten."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from kaas.config import ClientSettings, Config, Device
from kaas.pool.core.accounts import ClientAccounts, Sessions
from kaas.pool.core.core import Pool
from kaas.pool.executors.transport import WorkerCall
from kaas.scheduling.decisions import Decision
from kaas.scheduling.events import ClientGone, ClientKnown, Event, RequestCancelled
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from kaas.store import SqliteStore
from tests.pool.fake_workers import FakeWorkers, begin, call, failure_of, play, settle
from tests.timeouts import TIMEOUT_S


def test_a_client_ends_with_the_last_session_that_used_it() -> None:
    sessions = Sessions()
    for session, client in [("1", "alice"), ("1", "bob"), ("2", "bob"), ("", "nobody"), ("1", "alice")]:
        sessions.uses(session, client)
    assert sessions.end("1") == ("alice",)
    assert sessions.end("1") == ()
    assert sessions.end("2") == ("bob",)
    assert sessions.end("unknown") == ()


class Listening(FirstComeFirstServed):
    heard: list[Event]

    def handle(self, event: Event) -> list[Decision]:
        if isinstance(event, ClientGone | ClientKnown | RequestCancelled):
            self.heard.append(replace(event, time_s=0.0))
        return super().handle(event)


def of(session: str, client: str, deadline_s: float | None = None) -> WorkerCall:
    return msgspec.structs.replace(call(deadline_s=deadline_s), session=session, client=client)


@pytest.mark.parametrize("times", [1, 2])
def test_the_requests_and_clients_of_a_session_end_with_it(times: int) -> None:
    Listening.heard = []

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        running = await begin(pool.submit(of("1", "alice", deadline_s=60)))
        queued = await begin(pool.submit(of("1", "bob")))
        waiting = await begin(pool.submit(of("1", "alice"), never))
        other = await begin(pool.submit(of("2", "bob")))
        Listening.heard.clear()
        for _ in range(times):
            pool.session_ended("1")
        assert (pool.status().queued, pool.status().waiting, pool.status().running) == (1, 0, 1)
        for task in (running, queued, waiting):
            assert isinstance(await failure_of(task), asyncio.CancelledError)
        assert never.cancelled()
        await settle()
        assert Listening.heard == [
            RequestCancelled(0.0, 1),
            RequestCancelled(0.0, 2),
            ClientGone(0.0, "alice"),
            ClientKnown(0.0, "alice", 2.0, charged_s=None),
            RequestCancelled(0.0, 0),
        ]
        assert len(workers.runs) == 1  # a slot is free when the kernels have ended
        workers.reply()
        await settle()
        workers.reply("other")
        assert await other == "other"
        await settle()
        assert {(o.client, o.device, o.outcome) for o in pool.reports.stats().outcomes} == {
            ("alice", 0, "cancelled"),
            ("alice", None, "cancelled"),
            ("bob", None, "cancelled"),
            ("bob", 0, "succeeded"),
        }
        pool.session_ended("2")
        assert Listening.heard[-1] == ClientGone(0.0, "bob")
        assert (pool._backlog._total, pool._requests.by_id) == (0, {})

    play(scenario, policy=Listening, clients={"alice": ClientSettings(weight=2.0)})


def test_a_client_that_has_used_its_share_waits_in_its_next_program_too() -> None:
    """A tenth of one device: a request of a quarter of a second, and the next one after two and a half seconds."""

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        first = await begin(pool.submit(of("1", "alice")))
        workers.reply()
        await first
        pool.session_ended("1")
        await begin(pool.submit(of("2", "alice")))
        assert (len(workers.runs), pool.status().queued) == (1, 1)

    play(scenario, clients={"alice": ClientSettings(max_share=0.1)})


def test_a_run_of_a_client_whose_session_ended_leaves_no_account(tmp_path: Path) -> None:
    async def main() -> None:
        store = SqliteStore(str(tmp_path / "store"))
        store.open()
        workers = FakeWorkers()
        pool = Pool("test", Config(devices=(Device(),)), workers)
        pool.open((), store)
        await settle()
        for session, client in (("1", "alice"), ("2", "bob")):
            running = await begin(pool.submit(of(session, client)))
            if session == "1":
                pool.session_ended(session)
            workers.reply()
            await asyncio.gather(running, return_exceptions=True)
        await settle()
        await pool.close()
        assert ClientAccounts(store, asyncio.get_running_loop()).charged_s() == {"bob": 0.25}

    asyncio.run(asyncio.wait_for(main(), timeout=TIMEOUT_S))


def test_the_end_of_an_unknown_session_ends_no_request() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        task = await begin(pool.submit(call()))
        pool.session_ended("1")
        workers.reply()
        assert await task == "value"

    play(scenario)

"""A pool that starts again over workers that outlived its process: they are used, and their runs hold their slots."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kaas.config import ClientSettings, Config, Device
from kaas.pool.core import core
from kaas.pool.core.accounts import ClientAccounts
from kaas.pool.core.core import Pool
from kaas.pool.executors.transport import Survivor, WorkerCall, WorkerReply
from kaas.scheduling.decisions import Decision, StartWorker, StopWorker
from kaas.scheduling.events import (
    ClientKnown,
    Event,
    Outcome,
    PhysicalDevice,
    RequestDone,
    Residency,
    Running,
    Tick,
    WorkerAdopted,
    WorkerGone,
    WorkerKind,
    WorkerReady,
)
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from kaas.store import SqliteStore
from tests.pool.fake_workers import INFO, RECORD, TWO_SLOTS, FakeWorkers, begin, call, settle
from tests.timeouts import TIMEOUT_S

LEFT = WorkerCall("f", "bob", None, 0, function="the key of f")

Scenario = Callable[[Pool, FakeWorkers, list[Any]], Awaitable[None]]


class Told(FirstComeFirstServed):
    """Keeps its events and decisions."""

    def __init__(self, story: list[Any], devices: Sequence[PhysicalDevice]) -> None:
        super().__init__(devices)
        self._story = story

    def handle(self, event: Event) -> list[Decision]:
        decisions = super().handle(event)
        self._story.extend([event, *decisions])
        return decisions


def play(scenario: Scenario, *survivors: Survivor, devices: int = 1, **config: Any) -> None:
    """Run a scenario, which also gets the policy's events and decisions."""
    story: list[Any] = []

    async def main() -> None:
        workers = FakeWorkers()
        for survivor in survivors:
            workers.ends[survivor.start.worker] = asyncio.get_running_loop().create_future()
        pool = Pool("test", Config(devices=(Device(),) * devices, policy=partial(Told, story), **config), workers)
        pool.open(survivors)
        await settle()
        await scenario(pool, workers, story)
        await pool.close()

    asyncio.run(asyncio.wait_for(main(), timeout=TIMEOUT_S))


def test_the_policy_receives_adopted_workers_before_it_starts_any() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers, story: list[Any]) -> None:
        now = story[0].time_s
        adopted = [
            WorkerAdopted(now, 7, WorkerKind.EXECUTOR, 0, 1, INFO.memory_bytes),
            WorkerAdopted(now, 5, WorkerKind.EXECUTOR, 2, 2, INFO.memory_bytes),
        ]
        assert [entry for entry in story if isinstance(entry, WorkerAdopted)] == adopted
        loaded = Residency(now, 5, (b"x", b"y"), ())
        assert story[:4] == [adopted[0], adopted[1], loaded, Tick(now)]
        assert story[4] == StartWorker(8, WorkerKind.EXECUTOR, 1)
        assert [device.state for device in pool.status().devices] == ["idle"] * 3
        await begin(pool.submit(call()))
        assert workers.runs[0][0] in (5, 7, 8)

    play(
        scenario,
        Survivor(StartWorker(7, WorkerKind.EXECUTOR, 0), INFO, {}),
        Survivor(StartWorker(5, WorkerKind.EXECUTOR, 2), TWO_SLOTS, {}, (b"x", b"y")),
        devices=3,
    )


def test_the_policy_hears_what_a_new_worker_has_from_the_one_before() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers, story: list[Any]) -> None:
        workers.info = replace(INFO, cached=(b"x", b"y"))
        workers.ends[0].set_result("killed")
        await settle()
        (at,) = [at for at, entry in enumerate(story) if isinstance(entry, WorkerReady) and entry.worker == 1]
        assert story[at + 1] == Residency(story[at].time_s, 1, (b"x", b"y"), ())
        assert pool.status().devices[0].info == INFO

    play(scenario)


def test_an_adopted_worker_keeps_the_client_and_function_of_its_start() -> None:
    async def scenario(_pool: Pool, _workers: FakeWorkers, story: list[Any]) -> None:
        adopted = WorkerAdopted(story[0].time_s, 7, WorkerKind.EXECUTOR, 0, 1, INFO.memory_bytes, "ann", "f")
        assert story[:2] == [adopted, StopWorker(7)]  # with this policy, executors serve all clients

    play(scenario, Survivor(StartWorker(7, WorkerKind.EXECUTOR, 0, "ann", "f"), INFO, {}))


def test_an_abandoned_run_holds_its_slot_and_answers_no_request() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers, story: list[Any]) -> None:
        assert story[0].running == (Running(0, 1, "bob", "the key of f"),)
        assert [(worker, label) for worker, label, _ in workers.runs] == [(0, "f")]
        assert workers.slots == [1]
        first, second = await begin(pool.submit(call("first"))), await begin(pool.submit(call("second")))
        assert workers.slots == [1, 0]  # only one of its slots is free
        assert pool.status().running == 2
        workers.runs[0][2].set_result(WorkerReply(record=RECORD))
        await settle()
        done = next(entry for entry in story if isinstance(entry, RequestDone))
        assert (done.request, done.worker, done.slot, done.outcome) == (0, 0, 1, Outcome.ABANDONED)
        assert workers.slots == [1, 0, 1]
        for _, _, answer in workers.runs[1:]:
            answer.set_result(WorkerReply("value", record=RECORD))
        assert [await first, await second] == ["value", "value"]
        assert {entry.client for entry in pool.reports.stats().outcomes} == {"alice"}

    play(scenario, Survivor(StartWorker(0, WorkerKind.EXECUTOR, 0), TWO_SLOTS, {1: LEFT}))


def test_a_survivor_that_ends_is_replaced_and_its_run_is_not_repeated() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers, story: list[Any]) -> None:
        workers.die(3, "killed")
        await settle()
        gone = next(entry for entry in story if isinstance(entry, WorkerGone))
        assert (gone.worker, gone.reason) == (3, "killed")
        assert pool.status().devices[0].worker == 4
        assert (pool.status().queued, pool.status().running) == (0, 0)
        assert len(workers.runs) == 1

    play(scenario, Survivor(StartWorker(3, WorkerKind.EXECUTOR, 0), INFO, {0: LEFT}))


@pytest.mark.slow
def test_a_run_that_was_left_has_the_run_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "GRACE_S", 0.0)

    async def scenario(pool: Pool, workers: FakeWorkers, story: list[Any]) -> None:
        while not any(isinstance(entry, WorkerGone) for entry in story):
            await asyncio.sleep(0)
        await settle()
        assert workers.killed == [3]
        assert pool.status().running == 0

    play(scenario, Survivor(StartWorker(3, WorkerKind.EXECUTOR, 0), INFO, {0: LEFT}), run_limit_s=1e-6)


def test_the_policy_receives_stored_accounts_and_later_charges_add_to_them(tmp_path: Path) -> None:
    async def main() -> None:
        store = SqliteStore(str(tmp_path / "store"))
        store.open()
        earlier = ClientAccounts(store, asyncio.get_running_loop())
        earlier.charge("alice", 2.0)
        earlier.write()
        heard: list[Any] = []
        workers = FakeWorkers()
        clients = {"bob": ClientSettings(weight=2.0), "alice": ClientSettings(priority=1)}
        pool = Pool("test", Config(devices=(Device(),), policy=partial(Told, heard), clients=clients), workers)
        pool.open((), store)
        now = heard[0].time_s
        known = [ClientKnown(now, "bob", weight=2.0), ClientKnown(now, "alice", priority=1, charged_s=2.0)]
        assert heard[:3] == [*known, Tick(now)]
        await settle()
        answer = await begin(pool.submit(call()))
        workers.reply()
        await answer
        await settle()
        await pool.close()
        assert ClientAccounts(store, asyncio.get_running_loop()).charged_s() == {"alice": 2.25}

    asyncio.run(asyncio.wait_for(main(), timeout=TIMEOUT_S))

"""Requests of a worker that ended: those that ran in parallel run again alone; one that ran alone is at fault."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kaas.errors import DeadlineExceeded, DeviceLost, DeviceUnavailable, ExecutorDied, Quarantined, QueueFull
from kaas.pool.core import core
from kaas.pool.core.core import Pool
from kaas.pool.core.quarantine import CLIENT_WINDOW_S, STORY_LENGTH, Quarantine
from kaas.pool.core.retry_alone import Case, Verdict, charged_s, judge
from kaas.pool.executors.transport import CacheOrder, WorkerCall, WorkerReply
from kaas.scheduling.events import (
    Decision,
    Dispatch,
    Event,
    PhysicalDevice,
    RequestArrived,
    RequestCancelled,
    RequestDone,
    StartWorker,
    Tick,
    WorkerGone,
    WorkerKind,
    WorkerReady,
)
from kaas.store import SqliteStore
from tests.pool.fake_workers import LOST, RECORD, TWO_SLOTS, FakeWorkers, begin, call, failure_of, play, settle


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize(
    ("beside", "alone", "pure", "retries", "verdict"),
    [
        (1, False, True, 0, Verdict.AGAIN),
        (7, False, True, 3, Verdict.AGAIN),
        (1, True, True, 1, Verdict.CHARGED),
        (1, True, True, 0, Verdict.DIED),
        (1, False, False, 0, Verdict.DIED),
        (1, False, False, 1, Verdict.CHARGED),
        (0, False, True, 1, Verdict.CHARGED),
        (0, False, True, 0, Verdict.DIED),
        (0, True, True, 0, Verdict.DIED),
    ],
)
def test_verdicts(beside: int, alone: bool, pure: bool, retries: int, verdict: Verdict, told: bool) -> None:
    wanted = Verdict.FAULT if told and not beside else verdict
    assert judge(Case(beside, told, alone, pure, retries)) is wanted


class Careful:
    """Fills one worker after the other, runs retries alone, and keeps the events of requests."""

    heard: list[Any]

    def __init__(self, devices: Sequence[PhysicalDevice]) -> None:
        self.device = devices[0].index
        self.worker = -1
        self.free: list[int] = []
        self.waiting: list[RequestArrived] = []
        self.running: dict[int, bool] = {}

    def handle(self, event: Event) -> list[Decision]:
        match event:
            case Tick() | WorkerGone():
                self.worker += 1
                self.free.clear()
                self.running.clear()
                return [StartWorker(self.worker, WorkerKind.EXECUTOR, self.device)]
            case WorkerReady():
                self.free = list(range(event.slots))
            case RequestArrived():
                self.heard.append((event.request, event.attempt, event.alone))
                self.waiting.append(event)
            case RequestCancelled():
                self.heard.append(("cancelled", event.request))
                self.waiting = [waiting for waiting in self.waiting if waiting.request != event.request]
            case RequestDone():
                del self.running[event.request]
                self.free.append(event.slot)
        return self._dispatch()

    def _dispatch(self) -> list[Decision]:
        decisions: list[Decision] = []
        while self.waiting and self.free and not any(self.running.values()):
            if self.waiting[0].alone and self.running:
                break
            first = self.waiting.pop(0)
            self.running[first.request] = first.alone
            decisions.append(Dispatch(first.request, self.worker, self.free.pop(0)))
        return decisions


@pytest.fixture(autouse=True)
def no_events() -> None:
    Careful.heard = []


def careful(scenario: Any, **config: Any) -> None:
    play(scenario, workers=FakeWorkers(TWO_SLOTS), policy=Careful, **config)


@pytest.mark.parametrize("both_report_it", [False, True])
def test_neighbours_of_a_fault_run_again_alone_and_the_request_at_fault_gets_the_error(both_report_it: bool) -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        innocent = await begin(pool.submit(call("innocent", retries=0)))
        poison = await begin(pool.submit(call("poison", retries=3)))
        bystander = await begin(pool.submit(call("bystander")))
        workers.reply(WorkerReply(error=LOST))
        if both_report_it:
            workers.runs[0][2].set_result(WorkerReply(error=LOST))
        await settle()
        assert Careful.heard == [(0, 1, False), (1, 1, False), (2, 1, False), (0, 2, True), (1, 2, True)]
        assert [(worker, label) for worker, label, _ in workers.runs[2:]] == [(1, "bystander")]
        workers.reply("third")
        assert await bystander == "third"
        await settle()
        workers.reply("first")
        assert await innocent == "first"
        await settle()
        assert workers.runs[-1][:2] == (1, "poison")
        workers.reply(WorkerReply(error=LOST))
        assert await failure_of(poison) is LOST
        assert (workers.killed, len(workers.runs)) == ([0, 1], 5)
        assert {(o.function, o.outcome) for o in pool.reports.stats().outcomes} == {
            ("innocent", "succeeded"),
            ("bystander", "succeeded"),
            ("poison", "DeviceLost"),
        }

    careful(scenario)


def test_a_death_in_parallel_with_others_costs_no_retry_and_a_death_alone_does() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        tasks = [await begin(pool.submit(call(name, retries=1))) for name in "ab"]
        for worker in range(4):  # in parallel, and then one by one
            workers.die(worker, "killed")
            await settle()
        error = await failure_of(tasks[0])
        assert isinstance(error, ExecutorDied)
        assert (error.attempts, error.reason) == (3, "killed")
        workers.reply("other")
        assert await tasks[1] == "other"

    careful(scenario)


def test_neighbours_of_a_hang_run_again_whatever_their_retries() -> None:
    too_long = DeadlineExceeded("ran longer than the run limit", kernels=("spin",))

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        endless = await begin(pool.submit(call("endless")))
        neighbour = await begin(pool.submit(call("neighbour", retries=0)))
        workers.runs[0][2].set_result(WorkerReply(error=too_long, lost="ran for too long"))
        assert await failure_of(endless) is too_long
        await settle()
        workers.reply("again")
        assert await neighbour == "again"
        assert pool.status().quarantined == ()

    careful(scenario, faults_allowed=0)


class Dedicated:
    """A worker for each request."""

    def __init__(self, devices: Sequence[PhysicalDevice]) -> None:
        self.device = devices[0].index
        self.worker = -1
        self.request = -1

    def handle(self, event: Event) -> list[Decision]:
        match event:
            case RequestArrived():
                self.worker += 1
                self.request = event.request
                return [StartWorker(self.worker, event.kind, self.device, event.client, event.function)]
            case WorkerReady():
                return [Dispatch(self.request, self.worker, 0)]
        return []


@pytest.mark.parametrize("retries", [0, 1])
def test_an_etask_runs_again_only_as_often_as_its_retries_allow(retries: int) -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        task = await begin(pool.submit(replace(call(retries=retries), kind=WorkerKind.ETASK)))
        for worker in range(retries + 1):
            workers.die(worker, "killed")
            await settle()
        error = await failure_of(task)
        assert isinstance(error, ExecutorDied)
        assert (error.attempts, len(workers.runs)) == (retries + 1, retries + 1)

    play(scenario, policy=Dedicated)


def test_a_request_with_faults_by_others_only_does_not_run_for_ever() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        task = await begin(pool.submit(call(retries=0)))
        for _ in range(2):
            with pytest.raises(DeviceUnavailable):
                await pool.caches.carry_out(CacheOrder(WorkerReply(error=LOST)))
            await settle()
        error = await failure_of(task)
        assert isinstance(error, ExecutorDied)
        assert error.__cause__ is LOST
        assert len(workers.runs) == 2

    careful(scenario)


# --- quarantine


def poison(retries: int = 3, label: str = "poison") -> WorkerCall:
    return replace(call(label, retries=retries), function="hash of poison")


async def faults(pool: Pool, workers: FakeWorkers) -> None:
    task = await begin(pool.submit(poison()))
    workers.reply(WorkerReply(error=LOST))
    assert await failure_of(task) is LOST
    await settle()


def test_suspects_of_a_function_in_quarantine_are_not_run_again() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        await faults(pool, workers)
        tasks = [await begin(pool.submit(poison())) for _ in range(2)]
        workers.reply(WorkerReply(error=LOST))
        await settle()
        assert pool.status().quarantined == ()  # the fault is not known to be of one request
        workers.reply(WorkerReply(error=LOST))
        errors = [type(await failure_of(task)) for task in tasks]
        assert errors == [DeviceLost, Quarantined]
        assert len(workers.runs) == 4

    careful(scenario)


def test_runs_on_other_workers_may_end_but_not_run_again_when_their_function_is_quarantined() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        tasks = [await begin(pool.submit(poison())) for _ in range(3)]
        workers.runs[0][2].set_result(WorkerReply(error=LOST))
        workers.runs[1][2].set_result(WorkerReply("right"))
        assert await failure_of(tasks[0]) is LOST
        assert await tasks[1] == "right"
        workers.die(workers.runs[2][0], "killed")
        assert isinstance(await failure_of(tasks[2]), Quarantined)
        assert len(workers.runs) == 3

    play(scenario, devices=3, faults_allowed=0)


def test_waiting_queued_and_later_requests_of_a_quarantined_function_get_its_faults() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        await faults(pool, workers)
        second = await begin(pool.submit(poison()))
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = await begin(pool.submit(poison(), never))
        queued = await begin(pool.submit(poison()))
        other = await begin(pool.submit(call("other")))
        Careful.heard.clear()
        workers.reply(WorkerReply(error=LOST))
        assert await failure_of(second) is LOST
        for task in (waiting, queued, await begin(pool.submit(poison(label="renamed")))):
            error = await failure_of(task)
            assert isinstance(error, Quarantined)
            assert (error.function, error.faults, len(error.story)) == ("poison", 2, 2)
            assert "worker 1 (pid 1) on device 0: illegal address" in error.story[1]
        assert Careful.heard == [("cancelled", 2), ("cancelled", 3)]
        assert [(held.function, held.key, held.faults) for held in pool.status().quarantined] == [
            ("poison", "hash of poison", 2)
        ]
        assert ("renamed", None, "Quarantined", 1) in {
            (o.function, o.device, o.outcome, o.count) for o in pool.reports.stats().outcomes
        }
        await settle()
        workers.reply("other")
        assert await other == "other"
        assert pool.pardon("hash of poison")
        assert not pool.pardon("hash of poison")
        await settle()
        pardoned = await begin(pool.submit(poison()))
        workers.reply("better")
        assert await pardoned == "better"

    play(scenario, policy=Careful)


def test_a_hang_alone_counts_as_a_fault() -> None:
    too_long = DeadlineExceeded("ran longer than the run limit", kernels=("spin",))

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        task = await begin(pool.submit(poison()))
        workers.reply(WorkerReply(error=too_long, lost="ran for too long"))
        assert await failure_of(task) is too_long
        assert isinstance(await failure_of(await begin(pool.submit(poison()))), Quarantined)

    careful(scenario, faults_allowed=0)


def test_a_process_that_ends_without_a_fault_quarantines_no_function() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        task = await begin(pool.submit(poison(retries=1)))
        for worker in range(2):
            workers.die(worker, "killed")
            await settle()
        assert isinstance(await failure_of(task), ExecutorDied)
        assert pool.status().quarantined == ()

    careful(scenario, faults_allowed=0)


def test_a_story_has_an_end() -> None:
    quarantine = Quarantine(0)
    for fault in range(STORY_LENGTH + 3):
        quarantine.fault("f", "label", f"fault {fault}")
    error = quarantine.refusal("f", "alice")
    assert error is not None
    assert (error.faults, len(error.story), error.story[-1]) == (STORY_LENGTH + 3, STORY_LENGTH, "fault 12")


def test_faults_outlive_the_pools_process(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "store"))
    store.open()
    earlier = Quarantine(1, store)
    for fault, held in enumerate((False, True)):
        earlier.fault("key", "poison", f"fault {fault}")
        assert ("key" in earlier) is held
    earlier.fault("other", "other", "once")
    later = Quarantine(1, store)
    assert "key" in later
    refusal = later.refusal("key", "alice")
    assert refusal is not None
    assert refusal.story == ("fault 0", "fault 1")
    later.fault("other", "other", "twice")
    assert "other" in later
    assert later.pardon("key")
    assert "key" not in Quarantine(1, store)
    store.close()


# --- budgets of clients


class Wall:
    now_s = 1.7e9

    def __call__(self) -> float:
        return self.now_s


def test_the_faults_of_a_client_count_whatever_its_functions_are_and_for_an_hour(tmp_path: Path) -> None:
    store, wall = SqliteStore(str(tmp_path / "store")), Wall()
    store.open()
    quarantine = Quarantine(1, store, 2, wall)
    for fault in range(3):
        assert quarantine.refusal("any", "mallory") is None
        quarantine.client_fault("mallory", f"fault {fault}")
        wall.now_s += 60
    for known in (quarantine, Quarantine(1, store, 2, wall)):
        refusal = known.refusal("any", "mallory")
        assert refusal is not None
        assert (refusal.client, refusal.function, refusal.faults) == ("mallory", "", 3)
        assert refusal.retry_s == CLIENT_WINDOW_S - 180
        assert known.refusal("any", "alice") is None
        assert [held.key for held in known.status()] == ["client:mallory"]
    wall.now_s += CLIENT_WINDOW_S - 180
    assert quarantine.refusal("any", "mallory") is None
    assert quarantine.status() == ()
    quarantine.client_fault("mallory", "once more")
    assert quarantine.refusal("any", "mallory") is not None
    assert quarantine.pardon("client:mallory")
    assert Quarantine(1, store, 2, wall).refusal("any", "mallory") is None
    store.close()


def test_a_client_that_changes_its_function_after_each_fault_is_run_no_more_and_others_are() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        for fault in range(3):
            task = await begin(pool.submit(replace(call(), function=f"poison {fault}", client="mallory")))
            workers.reply(WorkerReply(error=LOST))
            assert await failure_of(task) is LOST
            await settle()
        refused = await failure_of(await begin(pool.submit(replace(call(), function="another", client="mallory"))))
        assert isinstance(refused, Quarantined)
        assert (refused.client, refused.faults) == ("mallory", 3)
        task = await begin(pool.submit(call()))
        workers.reply()
        assert await task == "value"

    careful(scenario, client_faults_allowed=2)


# --- what failed work is charged


def charged(pool: Pool, each: WorkerCall) -> tuple[asyncio.Task[Any], list[float]]:
    """Return a running request, and the device seconds of it after its end."""
    request, found = pool.begin(each), list[float]()

    async def end() -> Any:
        try:
            return await request.answer
        finally:
            found.append(-1.0 if request.record is None else request.record.device_s)

    return asyncio.get_running_loop().create_task(end()), found


def test_the_request_that_lost_the_device_is_charged_and_its_neighbour_only_for_its_own_run() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        (good, good_s), (bad, bad_s) = charged(pool, call("good")), charged(pool, call("bad"))
        await settle()
        workers.reply(WorkerReply(error=LOST))
        await settle()
        workers.reply()
        assert await good == "value"
        await settle()
        workers.reply(WorkerReply(error=LOST))
        assert await failure_of(bad) is LOST
        assert good_s == [RECORD.device_s]
        assert bad_s[0] > 0

    careful(scenario)


def test_a_request_that_fails_or_runs_too_long_is_charged_its_time() -> None:
    too_long = DeadlineExceeded("ran longer than the run limit", kernels=("spin",))

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        for reply in (WorkerReply(error=DeviceUnavailable("no")), WorkerReply(error=too_long, lost="ran for too long")):
            task, took_s = charged(pool, call())
            await settle()
            workers.reply(reply)
            assert await failure_of(task) is reply.error
            assert took_s[0] > 0
            await settle()

    careful(scenario)


def test_a_request_is_charged_for_a_process_that_died_only_if_it_ran_alone_or_was_abandoned() -> None:
    case = Case(others=1, reported=False, alone=True, pure=True, retries=0)
    assert charged_s(case, Verdict.DIED, 2.0, 1.0, abandoned=False) == 0.0
    assert charged_s(case, Verdict.AGAIN, 2.0, 1.0, abandoned=True) == 2.0
    assert charged_s(replace(case, others=0), Verdict.DIED, 2.0, 1.0, abandoned=False) == 3.0


# --- limits of queues


def test_queues_have_limits() -> None:
    from kaas.config import ClientSettings

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


@pytest.mark.slow
def test_everything_is_released_when_the_pool_ends_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "GRACE_S", 0.0)

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        error = await failure_of(await begin(pool.submit(poison())))
        assert isinstance(error, DeadlineExceeded)
        assert pool.status().quarantined == ()  # the process did not reply: not the function's fault
        assert (workers.killed, pool._backlog._total) == ([0], 0)

    careful(scenario, run_limit_s=0.02, faults_allowed=0)


def test_a_fault_that_two_requests_report_fails_neither() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        tasks = [await begin(pool.submit(call(name))) for name in "ab"]
        for _, _, answer in workers.runs[:2]:
            answer.set_result(WorkerReply(error=DeviceLost("lost", code=700)))
        await settle()
        for task in tasks:
            workers.reply("again")
            assert await task == "again"
            await settle()

    careful(scenario, faults_allowed=0)

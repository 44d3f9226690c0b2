"""Requests of a worker that ended: those that ran in parallel run again alone; one that ran alone is at fault."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from kaas.errors import DeadlineExceeded, DeviceLost, DeviceUnavailable, ExecutorDied
from kaas.pool.core.core import Pool
from kaas.pool.core.retry_alone import Case, Verdict, judge
from kaas.pool.executors.transport import CacheOrder, WorkerReply
from kaas.scheduling.decisions import Decision, Dispatch, StartWorker
from kaas.scheduling.events import (
    Event,
    PhysicalDevice,
    RequestArrived,
    WorkerKind,
    WorkerReady,
)
from tests.pool.core.careful import Careful, careful
from tests.pool.fake_workers import LOST, FakeWorkers, begin, call, failure_of, play, settle


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

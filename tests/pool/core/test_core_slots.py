"""The pool's core with parallel requests on a worker: their ends, and their charges for a lost device."""

from __future__ import annotations

import asyncio

import pytest

from kaas.errors import DeadlineExceeded, DeviceLost
from kaas.pool.core import runs
from kaas.pool.core.core import Pool
from kaas.pool.executors.transport import WorkerReply
from kaas.scheduling.decisions import Decision, StopWorker
from kaas.scheduling.events import Event, RequestArrived
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from tests.pool.fake_workers import (
    LOST,
    RECORD,
    TIMED_OUT,
    TWO_SLOTS,
    FakeWorkers,
    begin,
    call,
    failure_of,
    no_grace,
    play,
    settle,
)

__all__ = ["no_grace"]


# --- several slots


def test_each_slot_of_a_worker_runs_a_request() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        tasks = [await begin(pool.submit(call(name))) for name in "abc"]
        assert [label for _, label, _ in workers.runs] == ["a", "b"]
        assert workers.slots == [0, 1]
        status = pool.status()
        assert (status.running, status.queued, status.devices[0].running) == (2, 1, (0, 1))
        workers.reply("second")
        assert await tasks[1] == "second"
        await settle()
        assert workers.slots == [0, 1, 1]
        workers.reply("third")
        workers.runs[0][2].set_result(WorkerReply("first"))
        assert [await tasks[0], await tasks[2]] == ["first", "third"]

    play(scenario, workers=FakeWorkers(TWO_SLOTS))


class StopsItsWorker(FirstComeFirstServed):
    """Stops a worker when the second request arrives."""

    def handle(self, event: Event) -> list[Decision]:
        stop: list[Decision] = [StopWorker(0)] if isinstance(event, RequestArrived) and event.request == 1 else []
        return super().handle(event) + stop


def test_a_stopped_worker_finishes_the_runs_in_each_slot() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        tasks = [await begin(pool.submit(call())) for _ in range(2)]
        workers.reply()
        await tasks[1]
        await settle()
        assert (workers.killed, pool.status().devices[0].state) == ([], "stopping")
        workers.runs[0][2].set_result(WorkerReply("last"))
        assert await tasks[0] == "last"
        await settle()
        assert workers.killed == [0]

    play(scenario, workers=FakeWorkers(TWO_SLOTS), policy=StopsItsWorker)


def test_a_request_left_alone_on_a_worker_with_two_slots_gets_its_own_fault() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        good, bad = await begin(pool.submit(call("good"))), await begin(pool.submit(call("bad", retries=0)))
        workers.runs[0][2].set_result(WorkerReply("good"))
        assert await good == "good"
        workers.reply(WorkerReply(error=LOST))
        assert await failure_of(bad) is LOST

    play(scenario, workers=FakeWorkers(TWO_SLOTS))


@pytest.mark.slow
@pytest.mark.usefixtures("no_grace")
def test_run_limit_of_one_gives_its_neighbour_another_run() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        endless = await begin(pool.submit(call("endless", deadline_s=0.01)))
        assert isinstance(await failure_of(endless), DeadlineExceeded)
        neighbour = await begin(pool.submit(call("neighbour")))
        while len(workers.runs) < 3:
            await settle()
        assert workers.runs[-1][:2] == (1, "neighbour")
        workers.reply("again")
        assert await neighbour == "again"

    play(scenario, workers=FakeWorkers(TWO_SLOTS), run_limit_s=0.03)


@pytest.mark.slow
@pytest.mark.usefixtures("no_grace")
def test_limit_of_a_run_that_has_ended_with_its_worker_does_not_count() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        loop = asyncio.get_running_loop()
        endless, neighbour = loop.create_task(pool.submit(call())), loop.create_task(pool.submit(call()))
        await settle()
        passed = loop.time() + 0.02
        while loop.time() < passed:  # both limits have passed before the loop looks
            pass
        assert isinstance(await failure_of(endless), DeadlineExceeded)
        await settle()
        assert workers.runs[-1][0] == 1
        workers.reply("again")
        assert await neighbour == "again"

    play(scenario, workers=FakeWorkers(TWO_SLOTS), run_limit_s=0.02)


TOO_LONG = DeadlineExceeded("'endless' ran longer than the run limit", kernels=("spin",))
TOO_LONG.__cause__ = DeviceLost("launch timed out", code=runs.TIMED_OUT)
EXCEEDED = WorkerReply(error=TOO_LONG, lost="'endless' ran longer than its limit")


@pytest.mark.parametrize("neighbour_first", [False, True])
def test_a_request_that_ran_too_long_gets_its_error_and_its_neighbour_another_run(neighbour_first: bool) -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        endless, neighbour = await begin(pool.submit(call("endless"))), await begin(pool.submit(call("neighbour")))
        if neighbour_first:
            workers.reply(WorkerReply(error=TIMED_OUT, lost=TIMED_OUT.message))
            await settle()
            assert not workers.killed
        workers.runs[0][2].set_result(EXCEEDED)
        assert await failure_of(endless) is TOO_LONG
        await settle()
        assert workers.killed == [0]
        assert [(worker, label) for worker, label, _ in workers.runs[2:]] == [(1, "neighbour")]
        workers.reply("again")
        assert await neighbour == "again"
        assert {(o.outcome, o.count) for o in pool.reports.stats().outcomes} == {
            ("DeadlineExceeded", 1),
            ("succeeded", 1),
        }

    play(scenario, workers=FakeWorkers(TWO_SLOTS))


def test_a_request_that_ended_just_before_its_device_was_lost_has_its_value() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        task = await begin(pool.submit(call()))
        workers.reply(WorkerReply("just in time", record=RECORD, lost="another ran longer than its limit"))
        assert await task == "just in time"
        await settle()
        assert (workers.killed, len(workers.runs)) == ([0], 1)

    play(scenario)


@pytest.mark.slow
@pytest.mark.usefixtures("no_grace")
def test_a_worker_is_killed_although_the_run_that_took_too_long_stays_silent() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        await begin(pool.submit(call("silent")))
        await begin(pool.submit(call("neighbour")))
        workers.reply(WorkerReply(error=TIMED_OUT, lost=TIMED_OUT.message))
        while not workers.killed:
            await settle()
        assert workers.killed == [0]

    play(scenario, workers=FakeWorkers(TWO_SLOTS))


def test_a_worker_is_replaced_when_all_runs_report_the_loss_and_none_ran_too_long() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        for name in ("one", "other"):
            await begin(pool.submit(call(name)))
        for _, _, answer in list(workers.runs):
            answer.set_result(WorkerReply(error=TIMED_OUT, lost=TIMED_OUT.message))
        await settle()
        assert workers.killed == [0]
        assert workers.runs[2][:2] == (1, "one")

    play(scenario, workers=FakeWorkers(TWO_SLOTS))

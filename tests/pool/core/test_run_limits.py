"""The pool's one timer ends runs at their limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kaas.errors import DeadlineExceeded
from kaas.pool.core.core import Pool
from kaas.pool.executors.transport import WorkerCall, WorkerReply
from tests.api.flows import WorkerForEachFlow
from tests.pool.executors.test_etask_workers import etask
from tests.pool.fake_workers import (
    INFO,
    RECORD,
    TIMED_OUT,
    TWO_SLOTS,
    Clock,
    FakeWorkers,
    begin,
    call,
    failure_of,
    play,
    settle,
)

LIMIT_S = 100.0


async def end(workers: FakeWorkers, run: int) -> None:
    workers.runs[run][2].set_result(WorkerReply("value", record=RECORD))
    await settle()


def test_a_run_that_may_have_waited_for_room_has_its_whole_limit_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of three requests needs most of the device's memory, so the executor runs one after the other."""

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        clock = Clock(monkeypatch)
        requests = [await begin(pool.submit(call(label))) for label in ("first", "second", "third")]
        for run, request in enumerate(requests):
            await clock.pass_(0.9 * LIMIT_S)
            await end(workers, run)
            assert await request == "value"
        assert (workers.killed, pool.status().quarantined) == ([], ())

    workers = FakeWorkers(replace(INFO, slots=3))
    play(scenario, workers=workers, run_limit_s=LIMIT_S, client_faults_allowed=0)


def test_a_silent_run_ends_after_its_limit_and_pays_no_more_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        clock = Clock(monkeypatch)
        await begin(pool.submit(call("other")))
        silent = pool.begin(call("silent"))
        await clock.pass_(0.9 * LIMIT_S)
        await end(workers, 0)
        await clock.pass_(LIMIT_S)
        assert workers.killed == []
        await clock.pass_(3.0)  # the grace is over
        assert workers.killed == [0]
        assert isinstance(silent.answer.exception(), DeadlineExceeded)
        assert silent.record is not None
        assert silent.record.device_s == LIMIT_S

    play(scenario, workers=FakeWorkers(TWO_SLOTS), run_limit_s=LIMIT_S)


def test_a_run_that_the_executor_ended_at_its_limit_pays_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    too_long = DeadlineExceeded("ran longer than the run limit", kernels=("spin",))

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        clock = Clock(monkeypatch)
        await begin(pool.submit(call("other")))
        ended = pool.begin(call("ended"))
        await clock.pass_(0.9 * LIMIT_S)
        await end(workers, 0)
        await clock.pass_(LIMIT_S)
        workers.reply(WorkerReply(error=too_long, lost="ran for too long"))
        await settle()
        assert ended.record is not None
        assert ended.record.device_s == LIMIT_S

    play(scenario, workers=FakeWorkers(TWO_SLOTS), run_limit_s=LIMIT_S)


def test_other_runs_that_go_on_ending_keep_no_silent_run_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run waits for the runs in the other slots only, each of which has the limit too."""

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        clock = Clock(monkeypatch)
        silent = await begin(pool.submit(call("silent")))
        for run in range(1, 5):
            await begin(pool.submit(call("other")))
            await clock.pass_(0.55 * LIMIT_S)
            if workers.killed:
                break
            await end(workers, run)
        assert run == 4
        assert isinstance(await failure_of(silent), DeadlineExceeded)

    play(scenario, workers=FakeWorkers(TWO_SLOTS), run_limit_s=LIMIT_S)


def test_an_etask_that_begins_after_a_kernel_has_its_own_limit() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        await begin(pool.submit(WorkerCall("ktask", "a", None, 0)))
        pool._runs.limits.check()  # which then waits for the kTask's limit, with its grace
        error = await failure_of(await begin(pool.submit(etask("a"))))
        assert isinstance(error, DeadlineExceeded)
        assert workers.killed == [1]

    play(scenario, devices=2, policy=WorkerForEachFlow, run_limit_s=1e-3)


def test_a_request_that_reported_a_lost_device_no_longer_counts_as_running() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        for label in ("first", "second"):
            await begin(pool.submit(WorkerCall(label, "a", None, 0)))
        workers.reply(WorkerReply(error=TIMED_OUT, lost=TIMED_OUT.message))
        await settle()
        assert [request.call.label for request, _, _ in pool._runs.limits.runs()] == ["first"]

    play(scenario, workers=FakeWorkers(TWO_SLOTS))


def test_a_request_that_ended_just_before_its_device_was_lost_has_its_record() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        request = pool.begin(WorkerCall("f", "a", None, 0))
        records: list[object] = []
        request.answer.add_done_callback(lambda _: records.append(request.record))
        await settle()
        workers.reply(WorkerReply("value", record=RECORD, lost=TIMED_OUT.message))
        await settle()
        assert (request.answer.result(), records) == ("value", [RECORD])

    play(scenario)

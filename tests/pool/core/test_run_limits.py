"""The pool's one timer ends runs at their limits."""

from __future__ import annotations

from kaas.errors import DeadlineExceeded
from kaas.pool.core.core import Pool
from kaas.pool.executors.transport import WorkerCall, WorkerReply
from tests.api.flows import WorkerForEachFlow
from tests.pool.executors.test_etask_workers import etask
from tests.pool.fake_workers import RECORD, TIMED_OUT, TWO_SLOTS, FakeWorkers, begin, failure_of, play, settle


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

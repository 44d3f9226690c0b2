"""Code is compiled before a request has a device, once for all requests of its kTask."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import msgspec
import pytest

from kaas.errors import CodeUnavailable, CompileLimitExceeded, CompilerDied, KaasError, NotCompiled, QueueFull
from kaas.ktask.request import RETRIES
from kaas.pool.core import compilations
from kaas.pool.core.core import Pool
from kaas.pool.executors.transport import Compilation, WorkerCall, WorkerReply
from tests.pool.fake_workers import TWO_SLOTS, FakeWorkers, begin, call, failure_of, play, settle

LIMIT = CompileLimitExceeded("too long", limit_s=1.0)


def of(task: str, client: str = "alice", session: str = "") -> WorkerCall:
    return msgspec.structs.replace(call(task), task=task, client=client, session=session)


def isolated(scenario: Any, **config: Any) -> None:
    play(scenario, isolation="fence", **config)


def test_a_request_takes_no_device_while_its_code_is_compiled_and_others_go_on() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        slow = await begin(pool.submit(of("slow")))
        again = await begin(pool.submit(of("slow", "bob")))
        assert pool.status().waiting == 2
        quick = await begin(pool.submit(of("quick")))
        assert [task for task, _ in workers.compilations] == ["slow", "quick"]
        workers.compilations[1][1].set_result(Compilation(0.0))
        await settle()
        workers.reply("quick")
        assert await quick == "quick"
        assert pool.status().waiting == 2
        workers.compilations[0][1].set_result(Compilation(2.0))
        await settle()
        for task in (slow, again):
            workers.reply()
            assert await task == "value"
        last = await begin(pool.submit(of("slow")))
        workers.reply()
        assert await last == "value"
        assert len(workers.compilations) == 2

    isolated(scenario)


def test_code_beyond_a_limit_is_an_error_of_its_requests_also_later_and_of_no_other() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        first, second = await begin(pool.submit(of("bomb"))), await begin(pool.submit(of("bomb")))
        workers.compilations[0][1].set_result(Compilation(1.0, LIMIT))
        for task in (first, second, await begin(pool.submit(of("bomb")))):
            assert isinstance(await failure_of(task), CompileLimitExceeded)
        assert (pool.status().waiting, workers.runs, len(workers.compilations)) == (0, [], 1)
        with pytest.raises(CompileLimitExceeded):
            pool.begin(of("bomb"))
        other = await begin(pool.submit(of("other")))
        workers.compilations[1][1].set_result(Compilation(0.0))
        await settle()
        workers.reply()
        assert await other == "value"

    isolated(scenario)


KILLED = Compilation(0.5, lost="killed by SIGKILL")


def test_code_whose_compiler_is_killed_is_compiled_again() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        first, second = await begin(pool.submit(of("f"))), await begin(pool.submit(of("f")))
        for made in (KILLED, Compilation(1.0)):
            workers.compilations[-1][1].set_result(made)
            await settle()
        assert len(workers.compilations) == 2
        for task in (first, second):
            workers.reply()
            assert await task == "value"

    isolated(scenario)


def test_code_whose_compilers_are_all_killed_is_an_error_now_and_not_later() -> None:
    paid: list[float] = []

    class Meter:
        def compiled(self, client: str, function: str, processor_s: float) -> None:  # noqa: ARG002
            paid.append(processor_s)

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        assert pool.compilations is not None
        pool.compilations.meter = Meter()
        first, second = await begin(pool.submit(of("f"))), await begin(pool.submit(of("f")))
        for count in range(1, RETRIES + 2):
            assert len(workers.compilations) == count
            workers.compilations[-1][1].set_result(KILLED)
            await settle()
        for task in (first, second):
            assert isinstance(error := await failure_of(task), CompilerDied)
            assert (error.attempts, error.reason) == (RETRIES + 1, "killed by SIGKILL")
        later = await begin(pool.submit(of("f")))
        workers.compilations[-1][1].set_result(Compilation(1.0))
        await settle()
        workers.reply()
        assert await later == "value"
        assert len(workers.compilations) == RETRIES + 2

    isolated(scenario)
    assert paid == [0.5 * (RETRIES + 1), 1.0]


def test_code_that_cannot_be_written_is_an_error_now_and_not_later() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        full = CodeUnavailable("no room", reason="No space left on device")
        task = await begin(pool.submit(of("f")))
        workers.compilations[0][1].set_result(Compilation(0.5, full))
        await settle()
        assert await failure_of(task) is full
        assert not workers.runs
        later = await begin(pool.submit(of("f")))
        workers.compilations[1][1].set_result(Compilation(1.0))
        await settle()
        workers.reply()
        assert await later == "value"

    isolated(scenario)


def test_a_request_whose_deadline_passes_before_its_code_is_compiled_says_so() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        late = pool.begin(msgspec.structs.replace(of("slow"), deadline_s=5.0))
        other = pool.begin(msgspec.structs.replace(of("quick"), deadline_s=60.0))
        await settle()
        workers.compilations[1][1].set_result(Compilation(0.0))
        await settle()
        assert other.compilation is not None
        assert other.compilation.ended_s is not None
        told = [each.deadline_exceeded(each.arrived_s + 100.0, 60.0).message for each in (late, other)]
        assert told[0] == "'slow' did not end in 5.0 s: its code is still being compiled after 100.000 s"
        assert "still running after 100.000 s" in told[1]
        assert late.compile_s(late.arrived_s + 100.0) == 100.0
        assert other.compile_s(other.arrived_s + 100.0) < 100.0
        workers.reply("quick")
        await settle()

    isolated(scenario)


def test_an_error_of_a_request_that_the_queue_refuses_is_nobodys(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        first = await begin(pool.submit(of("bomb")))
        with pytest.raises(QueueFull):
            pool.begin(of("bomb"))
        workers.compilations[0][1].set_result(Compilation(1.0, LIMIT))
        await failure_of(first)
        gc.collect()

    isolated(scenario, queue_limit=1)
    assert "never retrieved" not in caplog.text


def test_a_request_that_leaves_ends_no_compilation() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        left, stays = await begin(pool.submit(of("f"))), await begin(pool.submit(of("f")))
        left.cancel()
        assert isinstance(await failure_of(left), asyncio.CancelledError)
        workers.compilations[0][1].set_result(Compilation(1.0))
        await settle()
        workers.reply()
        assert await stays == "value"

    isolated(scenario)


def test_a_request_that_leaves_at_the_moment_of_its_error_breaks_nothing() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        inputs: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        request = pool.begin(call("f"), inputs)
        inputs.set_exception(LIMIT)
        request.answer.cancel()
        pool.cancelled(request)
        await settle()
        other = await begin(pool.submit(call("g")))
        workers.reply()
        assert await other == "value"

    play(scenario)


@pytest.mark.parametrize("error", [KaasError("no process"), OSError(28, "no space left on device")])
def test_requests_go_on_where_no_process_can_be_started(error: Exception) -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        task = await begin(pool.submit(of("f")))
        workers.compilations[0][1].set_exception(error)
        await settle()
        workers.reply()
        assert await task == "value"

    isolated(scenario)


def test_remote_clients_pay_for_their_code_and_programs_of_the_pools_user_do_not() -> None:
    paid: list[tuple[str, str, float]] = []

    class Meter:
        def compiled(self, client: str, function: str, processor_s: float) -> None:
            paid.append((client, function, processor_s))

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        assert pool.compilations is not None
        pool.compilations.meter = Meter()
        for each in (of("a"), of("b", session="program"), of("c", "bob")):
            task = await begin(pool.submit(each))
            workers.compilations[-1][1].set_result(Compilation(0.5, LIMIT if each.task == "c" else None))
            await settle()
            if each.task == "c":
                await failure_of(task)
            else:
                workers.reply()
                await task

    isolated(scenario)
    assert paid == [("alice", "a", 0.5), ("bob", "c", 0.5)]


LACKS = WorkerReply(error=NotCompiled("the cache was cleaned"))


def test_code_that_an_executor_lacks_is_compiled_again_and_the_request_runs() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        task = await begin(pool.submit(of("f")))
        workers.compilations[-1][1].set_result(Compilation(1.0))
        await settle()
        for _ in range(RETRIES):
            workers.reply(LACKS)
            await settle()
            assert (pool.status().waiting, len(workers.compilations)) == (1, len(workers.runs) + 1)  # it has no slot
            workers.compilations[-1][1].set_result(Compilation(0.0))
            await settle()
        other = await begin(pool.submit(of("f", "bob")))  # beside it, if there is room: none has ended a worker
        for _, _, reply in workers.runs[-2:]:
            reply.set_result(WorkerReply("value"))
        assert (await task, await other) == ("value", "value")

    play(scenario, isolation="fence", workers=FakeWorkers(TWO_SLOTS))


def test_a_request_whose_code_is_always_lacking_fails() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        task = await begin(pool.submit(of("f")))
        for _ in range(RETRIES + 1):
            workers.compilations[-1][1].set_result(Compilation(0.0))
            await settle()
            workers.reply(LACKS)
            await settle()
        assert isinstance(await failure_of(task), NotCompiled)
        assert (len(workers.runs), pool.status().waiting) == (RETRIES + 1, 0)

    isolated(scenario)


def test_code_that_cannot_be_compiled_again_is_an_error_of_its_request() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        task = await begin(pool.submit(of("f")))
        left = await begin(pool.submit(of("g")))
        for _, made in list(workers.compilations):
            made.set_result(Compilation(0.0))
        await settle()
        workers.reply(LACKS)
        await settle()
        workers.compilations[-1][1].set_result(Compilation(1.0, LIMIT))
        assert isinstance(await failure_of(task), CompileLimitExceeded)
        workers.reply(LACKS)
        await settle()
        left.cancel()
        assert isinstance(await failure_of(left), asyncio.CancelledError)
        workers.compilations[-1][1].set_result(Compilation(0.0))
        await settle()
        assert (pool.status().waiting, len(workers.runs)) == (0, 2)

    isolated(scenario)


def test_without_isolation_and_for_etasks_workers_compile() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        task = await begin(pool.submit(of("f" if pool.compilations is None else "")))
        workers.reply()
        assert await task == "value"
        assert workers.compilations == []

    play(scenario)
    isolated(scenario)


def test_the_names_of_compiled_ktasks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilations, "REMEMBERED", 2)

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        for name in ("a", "b", "c"):
            task = await begin(pool.submit(of(name)))
            workers.compilations[-1][1].set_result(Compilation(0.0))
            await settle()
            workers.reply()
            await task
        assert pool.compilations is not None
        assert list(pool.compilations.done) == ["b", "c"]

    isolated(scenario)

"""Executors start, end and survive their pool: their calls fail with them, or go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kaas.errors import KaasError
from kaas.pool.executors import executors
from kaas.pool.executors.payloads import Survived
from kaas.pool.executors.transport import WorkerLost, WorkerReply
from kaas.pool.executors.worker_transports import WorkerTransports
from kaas.scheduling.decisions import Dispatch, StartWorker
from kaas.scheduling.events import WorkerKind
from kaas.wire import messages
from kaas.wire.messages import ExecutorReply, RegisterFunction, RunInvocation
from kaas.worker.epochs import Adoption, Orphan
from tests.pool.executors.executor_stage import (
    FUNCTION,
    OUTPUT,
    PEER,
    RECORD,
    START,
    FakePeer,
    Stage,
    begin,
    play,
    small,
)
from tests.pool.fake_workers import INFO, settle

# --- workers


def test_a_worker_has_started_when_its_process_and_its_connection_exist() -> None:
    async def scenario(stage: Stage) -> None:
        with pytest.raises(KaasError, match="no worker 5"):
            stage.greet(FakePeer("early"), worker=5)
        starting = await begin(stage.executors.start(START))
        stage.greet()
        await settle()
        assert not starting.done()
        stage.hosts.started.set_result(INFO)
        assert await starting is INFO
        assert await stage.executors.ended(3) == "3 ended"

    play(scenario, opened=False)


def test_all_calls_to_a_worker_fail_when_it_ends() -> None:
    async def scenario(stage: Stage) -> None:
        waits = [await stage.run(small()), await stage.run(Survived()), await begin(stage.executors.evict(3, [b"x"]))]
        stage.executors.kill(3)
        for wait in waits:
            with pytest.raises(WorkerLost):
                await wait
        assert (stage.hosts.killed, stage.router.forgotten) == ([3], [PEER])
        with pytest.raises(WorkerLost):
            await (await stage.run(small()))
        stage.say(ExecutorReply(1, RECORD), OUTPUT)
        stage.executors.kill(3)

    play(scenario)


def test_a_new_connection_fails_pending_calls_and_registers_functions_again() -> None:
    again = FakePeer("again")

    async def scenario(stage: Stage) -> None:
        run = await stage.run(small())
        stage.greet(again)
        with pytest.raises(WorkerLost, match="connection"):
            await run
        stage.router.sent.clear()
        run = await stage.run(small())
        assert [(peer, type(header)) for peer, header, _ in stage.router.sent] == [
            (again, RegisterFunction),
            (again, RunInvocation),
        ]
        stage.say(ExecutorReply(2, RECORD), OUTPUT)
        assert not run.done()
        stage.say(ExecutorReply(2, RECORD), OUTPUT, peer=again)
        assert (await run).record == RECORD

    play(scenario)


def test_no_other_process_takes_the_place_of_a_worker() -> None:
    async def scenario(stage: Stage) -> None:
        stage.hosts.strangers.add(7)
        run = await stage.run(small())
        with pytest.raises(KaasError, match="process 7 is not worker 3"):
            stage.greet(FakePeer("thief", pid=7))
        stage.say(ExecutorReply(1, RECORD), peer=FakePeer("thief", pid=7))
        await settle()
        assert not run.done()
        stage.say(ExecutorReply(1, RECORD), OUTPUT)
        assert (await run).error is None

    play(scenario)


def adoption(**running: Orphan) -> Adoption:
    slots = {int(slot.removeprefix("slot")): orphan for slot, orphan in running.items()}
    return Adoption(START, INFO, slots, frozenset({FUNCTION.key}), (b"x",))


def test_survivors_report_their_runs_and_the_functions_they_know() -> None:
    async def scenario(stage: Stage) -> None:
        stage.hosts.adoptions = [adoption(slot1=Orphan("bob", "f", "f of bob"))]
        finding = await begin(stage.executors.survivors())
        stage.greet()
        stage.say(messages.Orphaned(1, RECORD))  # before the pool has adopted the executor
        stage.hosts.adopting.set()
        (survivor,) = await finding
        assert (survivor.start, survivor.info, survivor.cached) == (START, INFO, (b"x",))
        (call,) = survivor.running.values()
        assert (call.label, call.client, call.function, call.payload) == ("f of bob", "bob", "f", Survived())
        assert await stage.executors.run(call, Dispatch(0, 3, 1)) == WorkerReply(record=RECORD)
        await stage.run(small())
        assert stage.router.headers() == [RunInvocation(1, 0)]  # the executor knows the function already

    play(scenario, opened=False)


def test_an_orphan_is_waited_for() -> None:
    async def scenario(stage: Stage) -> None:
        wait = await stage.run(Survived(), slot=1)
        stage.say(messages.Orphaned(0, RECORD))
        await settle()
        assert not wait.done()
        stage.say(messages.Orphaned(1))
        assert await wait == WorkerReply()

    play(scenario)


def test_a_survivor_without_a_connection_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "GREETING_LIMIT_S", 0)

    async def scenario(stage: Stage) -> None:
        stage.hosts.adoptions = [adoption()]
        stage.hosts.adopting.set()
        assert await stage.executors.survivors() == []
        assert stage.hosts.killed == [3]

    play(scenario, opened=False)


def test_each_worker_is_reached_the_way_of_its_kind() -> None:
    class Told:
        """Returns the name of the called method."""

        def __init__(self, name: str) -> None:
            self.name = name
            self.killed: list[int] = []

        def __getattr__(self, method: str) -> Callable[..., Awaitable[str]]:
            async def call(*_: Any) -> str:
                return f"{self.name}.{method}"

            return call

        def kill(self, worker: int) -> None:
            self.killed.append(worker)

    async def main() -> None:
        of_executors, of_etasks = Told("executors"), Told("etasks")
        workers: Any = WorkerTransports(of_executors, of_etasks)  # type: ignore[arg-type]
        assert await workers.start(START) == "executors.start"
        assert await workers.start(StartWorker(4, WorkerKind.ETASK, 1)) == "etasks.start"
        for worker, kind in ((3, "executors"), (4, "etasks")):
            for method in ("run", "ended", "stop"):
                arguments = (None, Dispatch(0, worker, 0)) if method == "run" else (worker,)
                assert await getattr(workers, method)(*arguments) == f"{kind}.{method}"
        for method in ("cache_command", "prefetch", "evict", "write_back", "discard"):
            assert await getattr(workers, method)(3, None) == f"executors.{method}"
        workers.kill(4)
        workers.kill(3)
        assert (of_executors.killed, of_etasks.killed) == ([3], [4])

    asyncio.run(main())

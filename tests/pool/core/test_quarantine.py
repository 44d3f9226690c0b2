"""A function that ends devices, or a client of such functions, is refused, with its story, until it is pardoned."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from kaas.errors import DeadlineExceeded, DeviceLost, ExecutorDied, Quarantined
from kaas.pool.core import core
from kaas.pool.core.core import Pool
from kaas.pool.core.quarantine import CLIENT_WINDOW_S, STORY_LENGTH, Quarantine
from kaas.pool.executors.transport import WorkerCall, WorkerReply
from kaas.store import SqliteStore
from tests.pool.core.careful import Careful, careful
from tests.pool.fake_workers import LOST, FakeWorkers, begin, call, failure_of, play, settle


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
        assert pool.quarantine.pardon("hash of poison")
        assert not pool.quarantine.pardon("hash of poison")
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


@pytest.mark.slow
def test_everything_is_released_when_the_pool_ends_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "GRACE_S", 0.0)

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        error = await failure_of(await begin(pool.submit(poison())))
        assert isinstance(error, DeadlineExceeded)
        assert pool.status().quarantined == ()  # the process did not reply: not the function's fault
        assert (workers.killed, pool._backlog._total) == ([0], 0)

    careful(scenario, run_limit_s=0.02, faults_allowed=0)


# --- budgets of clients


class Clocks:
    """now_s: of the clock that runs on. set_s: by how much the operator has set the wall clock."""

    now_s = 0.0
    set_s = 0.0

    def wall(self) -> float:
        return 1.7e9 + self.now_s + self.set_s

    def clock(self) -> float:
        return self.now_s


def test_the_faults_of_a_client_count_whatever_its_functions_are_and_for_an_hour(tmp_path: Path) -> None:
    store, clocks = SqliteStore(str(tmp_path / "store")), Clocks()
    store.open()
    quarantine = Quarantine(1, store, 2, clocks.wall, clocks.clock)
    for fault in range(3):
        assert quarantine.refusal("any", "mallory") is None
        quarantine.client_fault("mallory", f"fault {fault}")
        clocks.now_s += 60
    for known in (quarantine, Quarantine(1, store, 2, clocks.wall, clocks.clock)):
        refusal = known.refusal("any", "mallory")
        assert refusal is not None
        assert (refusal.client, refusal.function, refusal.faults) == ("mallory", "", 3)
        assert refusal.retry_s == CLIENT_WINDOW_S - 180
        assert known.refusal("any", "alice") is None
        assert [held.key for held in known.status()] == ["client:mallory"]
    clocks.now_s += CLIENT_WINDOW_S - 180
    assert quarantine.refusal("any", "mallory") is None
    assert quarantine.status() == ()
    quarantine.client_fault("mallory", "once more")
    assert quarantine.refusal("any", "mallory") is not None
    assert quarantine.pardon("client:mallory")
    assert Quarantine(1, store, 2, clocks.wall, clocks.clock).refusal("any", "mallory") is None
    store.close()


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_a_step_of_the_wall_clock_moves_no_fault(tmp_path: Path, step_s: float) -> None:
    store, clocks = SqliteStore(str(tmp_path / "store")), Clocks()
    store.open()
    quarantine = Quarantine(1, store, 2, clocks.wall, clocks.clock)
    for fault in range(3):
        quarantine.client_fault("mallory", f"fault {fault}")
    clocks.set_s = step_s
    refusal = quarantine.refusal("any", "mallory")
    assert refusal is not None
    assert refusal.retry_s == CLIENT_WINDOW_S
    later = Quarantine(1, store, 2, clocks.wall, clocks.clock).refusal("any", "mallory")
    assert (later is None) == (step_s > 0)  # by the clock that is shown, an hour has passed
    assert later is None or later.retry_s <= CLIENT_WINDOW_S
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


def test_the_end_of_a_clients_executor_that_runs_nothing_is_a_fault_of_the_client() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        async def ran() -> None:
            task = await begin(pool.submit(call()))
            workers.reply()
            assert await task == "value"

        await ran()
        (ada, spare) = workers.ends
        workers.ends[spare].set_result("killed")  # it serves no client
        await settle()
        await ran()
        workers.ends[ada].set_result("killed")
        await settle()
        assert isinstance(await failure_of(await begin(pool.submit(call()))), Quarantined)

    play(scenario, isolation="process", client_faults_allowed=0)

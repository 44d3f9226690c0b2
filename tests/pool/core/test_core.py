"""The pool's core over workers made of futures: every request is answered, whatever workers and policies do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from kaas.errors import DeadlineExceeded, DeviceUnavailable, ExecutorDied, PolicyError, PoolStopped, UnknownSymbol
from kaas.pool.core.core import Pool
from kaas.pool.executors.transport import WorkerCall, WorkerReply
from kaas.scheduling.decisions import (
    Decision,
    Dispatch,
    PolicyFactory,
    StartWorker,
    StopWorker,
    WakeAt,
)
from kaas.scheduling.events import (
    Event,
    PhysicalDevice,
    RequestArrived,
    Tick,
    WorkerKind,
    WorkerReady,
)
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from tests.pool.fake_workers import LOST, FakeWorkers, begin, call, failure_of, no_grace, play, settle

__all__ = ["no_grace"]


def test_value_status_and_stats() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        first = await begin(pool.submit(call()))
        second = await begin(pool.submit(call()))
        status = pool.status(("f",))
        assert (status.queued, status.running, status.functions) == (1, 1, ("f",))
        assert [device.state for device in status.devices] == ["busy"]
        workers.reply("one")
        assert await first == "one"
        await settle()
        workers.reply("two")
        assert await second == "two"
        await settle()
        assert pool.status().devices[0].state == "idle"
        stats = pool.reports.stats(reset=True)
        kernels = next(stage for stage in stats.stages if stage.stage == "kernels")
        assert (kernels.count, kernels.function, kernels.client) == (2, "f", "alice")
        assert kernels.p50_s == pytest.approx(0.25, rel=0.03)
        assert stats.hit_rate() == pytest.approx(2 / 3)
        assert {(tier.tier, tier.objects, tier.nbytes) for tier in stats.tiers} == {("device", 4, 40), ("store", 2, 20)}
        assert [(o.outcome, o.count, o.device) for o in stats.outcomes] == [("succeeded", 2, 0)]
        assert pool.reports.stats().stages == ()

    play(scenario)


def test_executors_error_reaches_its_caller_only() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        bad = await begin(pool.submit(call()))
        good = await begin(pool.submit(call()))
        error = UnknownSymbol("no such kernel", symbol="sale", near=("scale",))
        workers.reply(WorkerReply(error=error))
        assert await failure_of(bad) is error
        await settle()
        workers.reply()
        assert await good == "value"
        assert len(workers.runs) == 2

    play(scenario)


def test_a_request_whose_inputs_are_not_ready_blocks_no_other() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        inputs: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        early = await begin(pool.submit(call("early"), inputs))
        late = await begin(pool.submit(call("late")))
        assert [label for _, label, _ in workers.runs] == ["late"]
        assert pool.status().waiting == 1
        workers.reply()
        await late
        inputs.set_result(None)
        await settle()
        workers.reply()
        assert await early == "value"

    play(scenario)


def test_request_of_a_dead_worker_runs_again_elsewhere() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        task = await begin(pool.submit(call()))
        workers.die(workers.runs[-1][0], "killed")
        await settle()
        assert [worker for worker, _, _ in workers.runs] == [0, 1]
        workers.reply("again")
        assert await task == "again"

    play(scenario)


def test_idle_worker_that_dies_is_replaced_and_costs_no_attempt() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        workers.die(0, "killed")
        await settle()
        task = await begin(pool.submit(call(retries=0)))
        workers.reply()
        assert await task == "value"
        assert pool.status().devices[0].worker == 1

    play(scenario)


@pytest.mark.parametrize("retries", [0, 2])
def test_out_of_retries(retries: int) -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        task = await begin(pool.submit(call(retries=retries)))
        for _ in range(retries + 1):
            workers.die(workers.runs[-1][0], "killed")
            await settle()
        error = await failure_of(task)
        assert isinstance(error, ExecutorDied)
        assert (error.attempts, error.reason) == (retries + 1, "killed")
        assert len(workers.runs) == retries + 1

    play(scenario)


def test_a_lost_device_ends_its_worker_and_fails_the_request_that_ran_alone() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        task = await begin(pool.submit(call(retries=3)))
        following = await begin(pool.submit(call()))
        workers.reply(WorkerReply(error=LOST))
        assert await failure_of(task) is LOST
        await settle()
        assert (workers.killed, len(workers.runs)) == ([0], 2)
        workers.reply()
        assert await following == "value"

    play(scenario)


def test_cancelled_in_the_queue() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        running = await begin(pool.submit(call("running")))
        queued = await begin(pool.submit(call("queued")))
        queued.cancel()
        assert isinstance(await failure_of(queued), asyncio.CancelledError)
        workers.reply()
        await running
        await settle()
        assert len(workers.runs) == 1
        assert ("queued", "cancelled") in {(o.function, o.outcome) for o in pool.reports.stats().outcomes}

    play(scenario)


def test_cancelled_while_running_frees_the_caller_now_and_the_slot_later() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        running = await begin(pool.submit(call()))
        following = await begin(pool.submit(call()))
        running.cancel()
        assert isinstance(await failure_of(running), asyncio.CancelledError)
        await settle()
        assert len(workers.runs) == 1
        workers.reply()
        await settle()
        assert len(workers.runs) == 2
        workers.reply()
        assert await following == "value"

    play(scenario)


def test_deadline_in_the_queue_and_while_running() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        running = await begin(pool.submit(call(deadline_s=0.02)))
        queued = await begin(pool.submit(call(deadline_s=0.01)))
        for task, limit in ((queued, 0.01), (running, 0.02)):
            error = await failure_of(task)
            assert isinstance(error, DeadlineExceeded)
            assert error.deadline_s == limit <= error.waited_s
        assert (pool.status().queued, pool.status().running) == (0, 1)
        workers.reply()
        await settle()
        assert pool.status().running == 0
        assert len(workers.runs) == 1

    play(scenario)


@pytest.mark.slow
@pytest.mark.usefixtures("no_grace")
def test_run_limit_ends_the_worker() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        endless = await begin(pool.submit(call()))
        following = await begin(pool.submit(call()))
        error = await failure_of(endless)
        assert isinstance(error, DeadlineExceeded)
        assert "run limit" in error.message
        await settle()
        assert workers.killed == [0]
        assert len(workers.runs) == 2
        workers.reply()
        assert await following == "value"

    play(scenario, run_limit_s=0.02)


def test_devices_that_never_start() -> None:
    workers = FakeWorkers()
    workers.refuse_to_start = DeviceUnavailable("no driver")

    async def scenario(pool: Pool, _: FakeWorkers) -> None:
        error = await failure_of(await begin(pool.submit(call())))
        assert isinstance(error, DeviceUnavailable)
        assert "no driver" in error.message
        assert [device.state for device in pool.status().devices] == ["lost", "lost"]

    play(scenario, devices=2, workers=workers)


def test_start_that_takes_too_long() -> None:
    workers = FakeWorkers()
    workers.hang_at_start = True

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        assert isinstance(await failure_of(await begin(pool.submit(call()))), DeviceUnavailable)
        assert workers.killed == [0, 1, 2]

    play(scenario, workers=workers, start_limit_s=0.01)


def test_closing_fails_every_request_with_pool_stopped() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tasks = [await begin(pool.submit(call(), inputs)) for inputs in (None, None, never)]
        await pool.close()
        for task in [*tasks, await begin(pool.submit(call()))]:
            assert isinstance(await failure_of(task), PoolStopped)
        assert workers.killed == [0]

    play(scenario)


class FailsAtFifthRequest(FirstComeFirstServed):
    error: type[BaseException] = ZeroDivisionError

    def handle(self, event: Event) -> list[Decision]:
        if isinstance(event, RequestArrived) and event.request == 4:
            raise self.error("boom")
        return super().handle(event)


class IsCancelledAtFifthRequest(FailsAtFifthRequest):
    error = asyncio.CancelledError


@pytest.mark.parametrize("policy", [FailsAtFifthRequest, IsCancelledAtFifthRequest])
def test_policy_that_raises_fails_every_waiter(policy: PolicyFactory) -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        waiters = [await begin(pool.submit(call())) for _ in range(5)]
        for task in [*waiters, await begin(pool.submit(call()))]:
            error = await failure_of(task)
            assert isinstance(error, PolicyError)
            assert any("request=4" in line for line in error.story)
        assert "boom" in str(pool.status().broken)
        workers.reply()
        await settle()

    play(scenario, policy=policy)


class Restless:
    """Stops its worker soon after a request came, and asks for the time."""

    def __init__(self, devices: Sequence[PhysicalDevice]) -> None:
        self.device = devices[0].index
        self.ticks = 0

    def handle(self, event: Event) -> list[Decision]:
        match event:
            case Tick() if self.ticks == 0:
                self.ticks = 1
                return [StartWorker(0, WorkerKind.EXECUTOR, self.device)]
            case Tick():
                self.ticks += 1
                return [StopWorker(0)]
            case RequestArrived():
                return [Dispatch(event.request, 0, 0), WakeAt(event.time_s + 0.01)]
            case WorkerReady():
                return []
        return []


def test_stopped_worker_finishes_first() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        task = await begin(pool.submit(call()))
        while pool.status().devices[0].state != "stopping":
            await settle()
        assert workers.killed == []
        workers.reply()
        assert await task == "value"
        await settle()
        assert workers.killed == [0]

    play(scenario, policy=Restless)


def test_fault_in_the_transport_fails_the_waiters() -> None:
    class Faulty(FakeWorkers):
        async def run(self, call: WorkerCall, dispatch: Dispatch) -> WorkerReply:
            raise TypeError(f"not my day: {call}, {dispatch}")

    async def scenario(pool: Pool, _: FakeWorkers) -> None:
        tasks = [await begin(pool.submit(call())) for _ in range(3)]
        for task in tasks:
            assert "not my day" in str(await failure_of(task))

    play(scenario, workers=Faulty())

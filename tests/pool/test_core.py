"""The pool's core over workers made of futures: every request is answered, whatever workers and policies do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kaas.config import Config, Device
from kaas.errors import (
    DeadlineExceeded,
    DeviceLost,
    DeviceUnavailable,
    ExecutorDied,
    InvalidRequest,
    KaasError,
    PolicyError,
    PoolStopped,
    UnknownSymbol,
)
from kaas.executor.tiers import TierUse
from kaas.pool import core
from kaas.pool.core import Pool
from kaas.pool.events import (
    Decision,
    Dispatch,
    Event,
    Evict,
    InputsReady,
    ObjectUse,
    PhysicalDevice,
    Prefetch,
    RequestArrived,
    Residency,
    StartWorker,
    StopWorker,
    Tick,
    WakeAt,
    WorkerKind,
    WorkerReady,
)
from kaas.pool.policies.fcfs import FirstComeFirstServed
from kaas.pool.status import WorkerInfo
from kaas.pool.transport import Call, Order, Reply, WorkerLost
from kaas.pool.wire import RunRecord
from tests.patience import PATIENCE_S

INFO = WorkerInfo(1, "node", "fake", 1 << 30, (8, 0))
TWO_SLOTS = replace(INFO, slots=2)
TIERS = {"device": TierUse(2, 20, compulsory=1), "store": TierUse(1, 10)}
RECORD = RunRecord({"kernels": 0.25, "total": 0.5}, TIERS, [b"x"], [], 0.25)


class FakeWorkers:
    """A transport whose workers do as the test says."""

    def __init__(self, info: WorkerInfo = INFO) -> None:
        self.info = info
        self.runs: list[tuple[int, str, asyncio.Future[Reply]]] = []
        self.slots: list[int] = []
        self.ends: dict[int, asyncio.Future[str]] = {}
        self.killed: list[int] = []
        self.stopped: list[int] = []
        self.trouble = ""
        self.orders: list[tuple[int, Any]] = []
        self.decided: list[tuple[int, Any]] = []
        self.refuses: KaasError | None = None
        self.slow: dict[int, asyncio.Future[None]] = {}
        self.refuse_to_start: Exception | None = None
        self.hang_at_start = False

    async def start(self, start: StartWorker) -> WorkerInfo:
        self.ends[start.worker] = asyncio.get_running_loop().create_future()
        if self.refuse_to_start is not None:
            raise self.refuse_to_start
        if self.hang_at_start:
            raise WorkerLost(await asyncio.shield(self.ends[start.worker]))
        return self.info

    async def run(self, worker: int, slot: int, call: Call) -> Reply:
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.slots.append(slot)
        self.runs.append((worker, call.label, answer))
        return await answer

    async def upkeep(self, worker: int, order: Order) -> Reply:
        self.orders.append((worker, order.payload))
        if worker in self.slow:
            await self.slow[worker]
        return self.upkept(worker, order.payload)

    async def prefetch(self, worker: int, named: Mapping[bytes, Call]) -> Reply:
        self.decided.append((worker, {key: call.label for key, call in named.items()}))
        return self.upkept(worker)

    async def evict(self, worker: int, keys: Sequence[bytes]) -> Reply:
        self.decided.append((worker, keys))
        return self.upkept(worker, Reply(record=RunRecord({}, {}, [], list(keys), 0.0)))

    async def write_back(self, worker: int, keys: Sequence[bytes]) -> Reply:
        self.decided.append((worker, keys))
        if worker in self.slow:
            await self.slow[worker]
        return self.upkept(worker)

    async def discard(self, worker: int, keys: Sequence[bytes]) -> Reply:
        return await self.evict(worker, keys)

    def upkept(self, worker: int, payload: Any = None) -> Reply:
        if worker in self.ends and self.ends[worker].done():
            raise WorkerLost("gone")
        if self.refuses is not None:
            return Reply(error=self.refuses)
        return payload if isinstance(payload, Reply) else Reply(record=RECORD)

    async def ended(self, worker: int) -> str:
        return await self.ends[worker]

    async def stop(self, worker: int) -> str:
        self.stopped.append(worker)
        return self.trouble

    def kill(self, worker: int) -> None:
        self.killed.append(worker)
        self.die(worker, "killed")

    def die(self, worker: int, why: str) -> None:
        if not self.ends[worker].done():
            self.ends[worker].set_result(why)
        for at, _, answer in self.runs:
            if at == worker and not answer.done():
                answer.set_exception(WorkerLost(why))

    def reply(self, value: Any = "value") -> None:
        """Let the last run end."""
        self.runs[-1][2].set_result(value if isinstance(value, Reply) else Reply(value, record=RECORD))


async def settle() -> None:
    """Let everything happen that can."""
    for _ in range(50):
        await asyncio.sleep(0)


def call(label: str = "f", *, deadline_s: float | None = None, retries: int = 3) -> Call:
    return Call(label, "alice", deadline_s, retries)


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool ends workers right at its run limit."""
    monkeypatch.setattr(core, "GRACE_S", 0.0)


LOST = DeviceLost("illegal address", call="cuStreamSynchronize", code=700)

Scenario = Callable[[Pool, FakeWorkers], Awaitable[None]]


def play(scenario: Scenario, *, devices: int = 1, workers: FakeWorkers | None = None, **config: Any) -> None:
    async def main() -> None:
        transport = workers or FakeWorkers()
        pool = Pool("test", Config(devices=(Device(),) * devices, **config), transport)
        pool.open()
        await settle()
        await scenario(pool, transport)
        await pool.close()

    asyncio.run(asyncio.wait_for(main(), timeout=PATIENCE_S))


async def begin(submission: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    task = asyncio.get_running_loop().create_task(submission)
    await settle()
    return task


async def failure_of(task: asyncio.Task[Any]) -> BaseException:
    with pytest.raises((KaasError, asyncio.CancelledError)) as caught:
        await task
    return caught.value


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
        stats = pool.stats(reset=True)
        kernels = next(stage for stage in stats.stages if stage.stage == "kernels")
        assert (kernels.count, kernels.function, kernels.client) == (2, "f", "alice")
        assert kernels.p50_s == pytest.approx(0.25, rel=0.03)
        assert stats.hit_rate() == pytest.approx(2 / 3)
        assert {(tier.tier, tier.objects, tier.nbytes) for tier in stats.tiers} == {("device", 4, 40), ("store", 2, 20)}
        assert [(o.outcome, o.count, o.device) for o in stats.outcomes] == [("succeeded", 2, 0)]
        assert pool.stats().stages == ()

    play(scenario)


def test_executors_error_reaches_its_caller_only() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        bad = await begin(pool.submit(call()))
        good = await begin(pool.submit(call()))
        error = UnknownSymbol("no such kernel", symbol="sale", near=("scale",))
        workers.reply(Reply(error=error))
        assert await failure_of(bad) is error
        await settle()
        workers.reply()
        assert await good == "value"
        assert len(workers.runs) == 2

    play(scenario)


def test_inputs_that_are_not_ready_block_nobody() -> None:
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


def test_lost_device_ends_its_worker_and_is_the_fault_of_who_ran_alone() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        task = await begin(pool.submit(call(retries=3)))
        following = await begin(pool.submit(call()))
        workers.reply(Reply(error=LOST))
        assert await failure_of(task) is LOST
        await settle()
        assert (workers.killed, len(workers.runs)) == ([0], 2)
        workers.reply()
        assert await following == "value"

    play(scenario)


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
        workers.runs[0][2].set_result(Reply("first"))
        assert [await tasks[0], await tasks[2]] == ["first", "third"]

    play(scenario, workers=FakeWorkers(TWO_SLOTS))


class StopsItsWorker(FirstComeFirstServed):
    """Once it runs a second request."""

    def handle(self, event: Event) -> list[Decision]:
        stop: list[Decision] = [StopWorker(0)] if isinstance(event, RequestArrived) and event.request == 1 else []
        return super().handle(event) + stop


def test_a_stopped_worker_finishes_what_runs_in_each_slot() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        tasks = [await begin(pool.submit(call())) for _ in range(2)]
        workers.reply()
        await tasks[1]
        await settle()
        assert (workers.killed, pool.status().devices[0].state) == ([], "stopping")
        workers.runs[0][2].set_result(Reply("last"))
        assert await tasks[0] == "last"
        await settle()
        assert workers.killed == [0]

    play(scenario, workers=FakeWorkers(TWO_SLOTS), policy=StopsItsWorker)


def test_who_was_alone_in_two_slots_gets_its_own_fault() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        good, bad = await begin(pool.submit(call("good"))), await begin(pool.submit(call("bad", retries=0)))
        workers.runs[0][2].set_result(Reply("good"))
        assert await good == "good"
        workers.reply(Reply(error=LOST))
        assert await failure_of(bad) is LOST

    play(scenario, workers=FakeWorkers(TWO_SLOTS))


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


# --- a request that ran for too long, as its worker says

TIMED_OUT = DeviceLost("'endless' ran longer than its limit", code=core.TIMED_OUT)
TOO_LONG = DeadlineExceeded("'endless' ran longer than the run limit", kernels=("spin",))
TOO_LONG.__cause__ = DeviceLost("launch timed out", code=core.TIMED_OUT)
EXCEEDED = Reply(error=TOO_LONG, lost="'endless' ran longer than its limit")


@pytest.mark.parametrize("neighbour_first", [False, True])
def test_who_ran_for_too_long_gets_its_error_and_its_neighbour_another_run(neighbour_first: bool) -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        endless, neighbour = await begin(pool.submit(call("endless"))), await begin(pool.submit(call("neighbour")))
        if neighbour_first:
            workers.reply(Reply(error=TIMED_OUT, lost=TIMED_OUT.message))
            await settle()
            assert not workers.killed
        workers.runs[0][2].set_result(EXCEEDED)
        assert await failure_of(endless) is TOO_LONG
        await settle()
        assert workers.killed == [0]
        assert [(worker, label) for worker, label, _ in workers.runs[2:]] == [(1, "neighbour")]
        workers.reply("again")
        assert await neighbour == "again"
        assert {(o.outcome, o.count) for o in pool.stats().outcomes} == {("DeadlineExceeded", 1), ("succeeded", 1)}

    play(scenario, workers=FakeWorkers(TWO_SLOTS))


def test_who_ended_just_before_the_device_was_lost_has_its_value() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        task = await begin(pool.submit(call()))
        workers.reply(Reply("just in time", record=RECORD, lost="another ran longer than its limit"))
        assert await task == "just in time"
        await settle()
        assert (workers.killed, len(workers.runs)) == ([0], 1)

    play(scenario)


@pytest.mark.usefixtures("no_grace")
def test_nobody_waits_for_ever_for_who_ran_too_long() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        await begin(pool.submit(call("silent")))
        await begin(pool.submit(call("neighbour")))
        workers.reply(Reply(error=TIMED_OUT, lost=TIMED_OUT.message))
        while not workers.killed:
            await settle()
        assert workers.killed == [0]

    play(scenario, workers=FakeWorkers(TWO_SLOTS))


def test_all_have_told_and_nobody_ran_for_too_long() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        for name in ("one", "other"):
            await begin(pool.submit(call(name)))
        for _, _, answer in list(workers.runs):
            answer.set_result(Reply(error=TIMED_OUT, lost=TIMED_OUT.message))
        await settle()
        assert workers.killed == [0]
        assert workers.runs[2][:2] == (1, "one")

    play(scenario, workers=FakeWorkers(TWO_SLOTS))


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
        assert ("queued", "cancelled") in {(o.function, o.outcome) for o in pool.stats().outcomes}

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


def test_closing_answers_everybody() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tasks = [await begin(pool.submit(call(), inputs)) for inputs in (None, None, never)]
        await pool.close()
        for task in [*tasks, await begin(pool.submit(call()))]:
            assert isinstance(await failure_of(task), PoolStopped)
        assert workers.killed == [0]

    play(scenario)


class FailsAtFifthRequest(FirstComeFirstServed):
    def handle(self, event: Event) -> list[Decision]:
        if isinstance(event, RequestArrived) and event.request == 4:
            raise ZeroDivisionError("boom")
        return super().handle(event)


def test_policy_that_raises_fails_every_waiter() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        waiters = [await begin(pool.submit(call())) for _ in range(5)]
        for task in [*waiters, await begin(pool.submit(call()))]:
            error = await failure_of(task)
            assert isinstance(error, PolicyError)
            assert any("request=4" in line for line in error.story)
        assert "boom" in str(pool.status().broken)
        workers.reply()
        await settle()

    play(scenario, policy=FailsAtFifthRequest)


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
        async def run(self, worker: int, slot: int, call: Call) -> Reply:
            raise TypeError(f"not my day: {worker}, {slot}, {call}")

    async def scenario(pool: Pool, _: FakeWorkers) -> None:
        tasks = [await begin(pool.submit(call())) for _ in range(3)]
        for task in tasks:
            assert "not my day" in str(await failure_of(task))

    play(scenario, workers=Faulty())


# --- caches


class Listening(FirstComeFirstServed):
    """Keeps what it hears of the devices' caches."""

    heard: list[Residency]

    def handle(self, event: Event) -> list[Decision]:
        if isinstance(event, Residency):
            self.heard.append(event)
        return super().handle(event)


def test_orders_about_caches_go_to_the_workers_and_what_they_did_to_the_policy() -> None:
    Listening.heard = []

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        await pool.upkeep(Order("all"))
        await pool.upkeep(Order("one", "f", "bob"), device=1)
        assert [(order, worker) for worker, order in workers.orders] == [("all", 0), ("all", 1), ("one", 1)]
        assert [(event.worker, event.loaded, event.evicted) for event in Listening.heard] == [
            (0, (b"x",), ()),
            (1, (b"x",), ()),
            (1, (b"x",), ()),
        ]
        for device in (-1, 2):
            with pytest.raises(InvalidRequest, match="devices 0 to 1"):
                await pool.upkeep(Order("none"), device=device)
        stats = pool.stats()
        assert not stats.outcomes
        assert {(t.function, t.client, t.device, t.tier, t.objects) for t in stats.tiers} == {
            ("", "", 0, "device", 2),
            ("", "", 0, "store", 1),
            ("", "", 1, "device", 2),
            ("", "", 1, "store", 1),
            ("f", "bob", 1, "device", 2),
            ("f", "bob", 1, "store", 1),
        }

    play(scenario, devices=2, policy=Listening)


def test_an_order_that_fails() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        error = UnknownSymbol("no such kernel", symbol="sale", near=("scale",))
        with pytest.raises(UnknownSymbol):
            await pool.upkeep(Order(Reply(error=error)))
        assert not workers.killed
        with pytest.raises(DeviceLost):
            await pool.upkeep(Order(Reply(error=DeviceLost("illegal address", call="c", code=700, code_name="n"))))
        assert workers.killed == [0]
        await settle()
        await pool.upkeep(Order("next"))
        assert workers.orders[-1] == (1, "next")
        workers.die(1, "killed")
        with pytest.raises(DeviceUnavailable):
            await pool.upkeep(Order("late"))

    play(scenario)


def test_an_order_beside_a_request_does_not_get_its_fault() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        task = await begin(pool.submit(call(retries=0)))
        with pytest.raises(DeviceUnavailable, match="illegal address") as caught:
            await pool.upkeep(Order(Reply(error=LOST)))
        assert caught.value.__cause__ is LOST
        assert workers.killed == [0]
        await settle()
        workers.reply("again")
        assert await task == "again"

    play(scenario)


@pytest.mark.usefixtures("no_grace")
@pytest.mark.parametrize("order", [lambda pool: pool.upkeep(Order("o")), lambda pool: pool.write_back(0, b"k")])
def test_a_worker_that_answers_no_order_is_ended(order: Callable[[Pool], Awaitable[None]]) -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        workers.slow[0] = asyncio.get_running_loop().create_future()
        with pytest.raises(DeviceUnavailable, match=r"worker 0 on device 0: it answered nothing for 0\.0"):
            await order(pool)
        assert workers.killed == [0]
        await settle()
        await pool.upkeep(Order("next"))
        assert workers.orders[-1] == (1, "next")

    play(scenario, run_limit_s=0.02)


def test_an_order_waits_for_its_worker_to_start() -> None:
    workers = FakeWorkers()
    workers.hang_at_start = True

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        waiting = await begin(pool.upkeep(Order("early")))
        assert not workers.orders
        await pool.close()
        with pytest.raises(DeviceUnavailable):
            await waiting
        with pytest.raises(PoolStopped):
            await pool.upkeep(Order("late"))

    play(scenario, workers=workers)


def pins(pool: Pool) -> list[list[tuple[str, str, str]]]:
    return [[(pin.target, pin.state, pin.reason) for pin in device.pins] for device in pool.status().devices]


def test_pins_are_repeated_on_new_workers() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        await pool.pin(b"both", Order("pin both", "f"))
        await pool.pin(b"one", Order("pin one"), 1)
        await pool.pin(b"gone", Order("never again"))
        pool.unpin(b"gone")
        await pool.pin(b"some", Order("pin on 1"))
        pool.unpin(b"some", 0)
        assert pins(pool) == [
            [("f", "held", "")],
            [("f", "held", ""), (b"one".hex(), "held", ""), (b"some".hex(), "held", "")],
        ]
        workers.orders.clear()
        workers.die(0, "killed")
        await settle()
        assert workers.orders == [(2, "pin both")]
        assert pins(pool)[0] == [("f", "held", "")]
        workers.orders.clear()
        workers.die(2, "killed")
        workers.die(1, "killed")
        await settle()
        assert sorted(workers.orders) == [(3, "pin both"), (4, "pin both"), (4, "pin on 1"), (4, "pin one")]
        workers.orders.clear()
        pool.unpin()
        workers.die(4, "killed")
        await settle()
        assert not workers.orders
        assert pins(pool) == [[], []]

    play(scenario, devices=2)


def test_a_pin_that_a_new_worker_cannot_hold_is_seen_to_be_lost() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        await pool.pin(b"weights", Order("pin"))
        workers.hang_at_start = True
        workers.die(0, "killed")
        await settle()
        assert [state for _, state, _ in pins(pool)[0]] == ["loading"]
        workers.hang_at_start = False
        workers.refuses = KaasError("its owner has ended")
        workers.die(1, "killed")
        await settle()
        lost = (b"weights".hex(), "lost", "KaasError: its owner has ended")
        assert pins(pool) == [[lost]]
        workers.orders.clear()
        workers.refuses = None
        workers.die(2, "killed")
        await settle()
        assert pins(pool) == [[lost]]
        assert not workers.orders
        await pool.pin(b"weights", Order("pin"))
        assert [state for _, state, _ in pins(pool)[0]] == ["held"]

    play(scenario)


def test_a_pin_whose_worker_is_replaced_meanwhile_is_carried_out_again() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        workers.slow[1] = asyncio.get_running_loop().create_future()
        pinning = await begin(pool.pin(b"weights", Order("pin")))
        workers.die(0, "killed")
        await settle()
        assert workers.orders == [(0, "pin"), (1, "pin")]
        workers.slow[1].set_result(None)
        await pinning
        await settle()
        assert workers.orders[2:] == [(2, "pin")]
        assert [state for device in pins(pool) for _, state, _ in device] == ["held", "held"]

    play(scenario, devices=2)


def test_a_pin_whose_worker_dies_while_it_loads_is_carried_out_by_the_next() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        await pool.pin(b"weights", Order("pin"))
        workers.slow[1] = asyncio.get_running_loop().create_future()
        workers.die(0, "killed")
        await settle()
        assert [state for _, state, _ in pins(pool)[0]] == ["loading"]
        workers.slow[1].set_exception(WorkerLost("killed"))  # its call fails before its end is known
        await settle()
        assert [state for _, state, _ in pins(pool)[0]] == ["loading"]
        workers.die(1, "killed")
        await settle()
        assert workers.orders == [(0, "pin"), (1, "pin"), (2, "pin")]
        assert [state for _, state, _ in pins(pool)[0]] == ["held"]

    play(scenario)


def test_a_pin_that_fails_is_none() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        workers.refuses = KaasError("too large")
        with pytest.raises(KaasError, match="too large"):
            await pool.pin(b"weights", Order("pin"))
        assert pins(pool) == [[]]

    play(scenario)


class Eager(FirstComeFirstServed):
    """Prefetches what every request reads, and evicts what has come."""

    def handle(self, event: Event) -> list[Decision]:
        match event:
            case RequestArrived() | InputsReady():
                return [*super().handle(event), Prefetch(0, (b"w", b"x", b"unknown"))]
            case Residency() if event.loaded:
                return [*super().handle(event), Evict(0, event.loaded)]
        return super().handle(event)


def reading(label: str, *keys: bytes | None) -> Call:
    return Call(label, "alice", None, 0, tuple(ObjectUse(key, 8) for key in keys))


def test_decisions_about_caches_are_carried_out_for_what_requests_can_name() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        first = await begin(pool.submit(reading("first", b"w", None)))
        assert workers.decided == [(0, {b"w": "first"}), (0, (b"x",))]
        workers.decided.clear()
        inputs: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        pending = await begin(pool.submit(reading("pending", b"w", b"x"), inputs))
        assert workers.decided == [(0, {b"w": "first"}), (0, (b"x",))]
        workers.decided.clear()
        inputs.set_result(None)
        await settle()
        assert workers.decided[0] == (0, {b"w": "pending", b"x": "pending"})
        pending.cancel()
        await settle()
        workers.decided.clear()
        workers.reply()
        await first
        await settle()
        second = await begin(pool.submit(reading("second", b"y")))
        assert not [decided for decided in workers.decided if isinstance(decided[1], dict)]
        workers.reply()
        await second
        assert not pool._caches._references._requests

    play(scenario, policy=Eager)


def test_a_decision_about_caches_that_fails_shows_in_the_figures() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        workers.refuses = KaasError("no room")
        task = await begin(pool.submit(reading("f", b"w")))
        workers.reply()
        await task
        outcomes = {(o.function, o.client, o.device, o.outcome) for o in pool.stats().outcomes}
        assert outcomes == {("", "", 0, "KaasError"), ("f", "alice", 0, "succeeded")}

    play(scenario, policy=Eager)


def test_inputs_that_exist_when_the_request_comes_are_not_told_again() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        ready = asyncio.get_running_loop().create_future()
        ready.set_result(None)
        task = await begin(pool.submit(call(), ready))
        workers.reply("value")
        assert await task == "value"

    play(scenario)

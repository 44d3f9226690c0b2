"""The pool's core carries out cache commands of programs, pins, and decisions of a policy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import ClassVar

import pytest
from msgspec import structs

from kaas.errors import (
    DeviceLost,
    DeviceUnavailable,
    ExecutorDied,
    InvalidRequest,
    KaasError,
    PoolStopped,
    UnknownSymbol,
)
from kaas.pool.core.core import Pool
from kaas.pool.executors.transport import CacheOrder, WorkerCall, WorkerLost, WorkerReply
from kaas.scheduling.decisions import (
    Decision,
    Dispatch,
    Evict,
    EvictTo,
    Prefetch,
)
from kaas.scheduling.events import (
    Event,
    InputsReady,
    ObjectUse,
    Ordered,
    RequestArrived,
    Residency,
    WorkerGone,
)
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from tests.pool.fake_workers import LOST, Clock, FakeWorkers, begin, call, no_grace, play, settle

__all__ = ["no_grace"]


class Listening(FirstComeFirstServed):
    """Keeps the events about the devices' caches."""

    heard: list[Residency]

    def handle(self, event: Event) -> list[Decision]:
        if isinstance(event, Residency):
            self.heard.append(event)
        return super().handle(event)


def test_workers_carry_out_cache_commands_and_the_policy_receives_the_results() -> None:
    Listening.heard = []

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        await pool.caches.carry_out(CacheOrder("all"))
        await pool.caches.carry_out(CacheOrder("one", "f", "bob"), device=1)
        assert [(order, worker) for worker, order in workers.orders] == [("all", 0), ("all", 1), ("one", 1)]
        assert [(event.worker, event.loaded, event.evicted) for event in Listening.heard] == [
            (0, (b"x",), ()),
            (1, (b"x",), ()),
            (1, (b"x",), ()),
        ]
        for device in (-1, 2):
            with pytest.raises(InvalidRequest, match="devices 0 to 1"):
                await pool.caches.carry_out(CacheOrder("none"), device=device)
        stats = pool.reports.stats()
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
            await pool.caches.carry_out(CacheOrder(WorkerReply(error=error)))
        assert not workers.killed
        with pytest.raises(DeviceLost):
            await pool.caches.carry_out(
                CacheOrder(WorkerReply(error=DeviceLost("illegal address", call="c", code=700, code_name="n")))
            )
        assert workers.killed == [0]
        await settle()
        await pool.caches.carry_out(CacheOrder("next"))
        assert workers.orders[-1] == (1, "next")
        workers.die(1, "killed")
        with pytest.raises(DeviceUnavailable):
            await pool.caches.carry_out(CacheOrder("late"))

    play(scenario)


def test_a_cache_command_in_parallel_with_a_request_is_not_at_fault_for_a_lost_device() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        task = await begin(pool.submit(call(retries=0)))
        with pytest.raises(DeviceUnavailable, match="illegal address") as caught:
            await pool.caches.carry_out(CacheOrder(WorkerReply(error=LOST)))
        assert caught.value.__cause__ is LOST
        assert workers.killed == [0]
        await settle()
        workers.reply("again")
        assert await task == "again"

    play(scenario)


@pytest.mark.usefixtures("no_grace")
@pytest.mark.parametrize(
    "order", [lambda pool: pool.caches.carry_out(CacheOrder("o")), lambda pool: pool.caches.write_back(0, b"k")]
)
def test_a_worker_that_answers_no_order_is_ended(order: Callable[[Pool], Awaitable[None]]) -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        workers.slow[0] = asyncio.get_running_loop().create_future()
        with pytest.raises(DeviceUnavailable, match=r"worker 0 on device 0: it sent no reply for 0\.0"):
            await order(pool)
        assert workers.killed == [0]
        await settle()
        await pool.caches.carry_out(CacheOrder("next"))
        assert workers.orders[-1] == (1, "next")

    play(scenario, run_limit_s=0.02)


def test_a_command_may_wait_for_the_room_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        clock = Clock(monkeypatch)
        workers.slow[0] = asyncio.get_running_loop().create_future()
        running = await begin(pool.submit(call()))
        pinning = await begin(pool.caches.carry_out(CacheOrder("pin")))
        for _ in range(2):
            await clock.pass_(90.0)
            workers.reply()
            await running
            running = await begin(pool.submit(call()))
        workers.slow[0].set_result(None)
        await pinning
        assert workers.killed == []

    play(scenario, run_limit_s=100.0)


def test_an_order_waits_for_its_worker_to_start() -> None:
    workers = FakeWorkers()
    workers.hang_at_start = True

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        waiting = await begin(pool.caches.carry_out(CacheOrder("early")))
        assert not workers.orders
        await pool.close()
        with pytest.raises(DeviceUnavailable):
            await waiting
        with pytest.raises(PoolStopped):
            await pool.caches.carry_out(CacheOrder("late"))

    play(scenario, workers=workers)


def pins(pool: Pool) -> list[list[tuple[str, str, str]]]:
    return [[(pin.target, pin.state, pin.reason) for pin in device.pins] for device in pool.status().devices]


def test_pins_are_repeated_on_new_workers() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        await pool.caches.pin(b"both", CacheOrder("pin both", "f"))
        await pool.caches.pin(b"one", CacheOrder("pin one"), 1)
        await pool.caches.pin(b"gone", CacheOrder("never again"))
        pool.caches.unpin(b"gone")
        await pool.caches.pin(b"some", CacheOrder("pin on 1"))
        pool.caches.unpin(b"some", 0)
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
        pool.caches.unpin()
        workers.die(4, "killed")
        await settle()
        assert not workers.orders
        assert pins(pool) == [[], []]

    play(scenario, devices=2)


def test_a_pin_that_a_new_worker_cannot_hold_is_seen_to_be_lost() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        await pool.caches.pin(b"weights", CacheOrder("pin"))
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
        await pool.caches.pin(b"weights", CacheOrder("pin"))
        assert [state for _, state, _ in pins(pool)[0]] == ["held"]

    play(scenario)


def test_a_pin_whose_worker_is_replaced_meanwhile_is_carried_out_again() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        workers.slow[1] = asyncio.get_running_loop().create_future()
        pinning = await begin(pool.caches.pin(b"weights", CacheOrder("pin")))
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
        await pool.caches.pin(b"weights", CacheOrder("pin"))
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
            await pool.caches.pin(b"weights", CacheOrder("pin"))
        assert pins(pool) == [[]]

    play(scenario)


class Eager(FirstComeFirstServed):
    """Prefetches the inputs of each request, and evicts the loaded objects."""

    def handle(self, event: Event) -> list[Decision]:
        match event:
            case RequestArrived() | InputsReady():
                return [*super().handle(event), Prefetch(0, (b"w", b"x", b"unknown"))]
            case Residency() if event.loaded:
                return [*super().handle(event), Evict(0, event.loaded)]
        return super().handle(event)


def reading(label: str, *keys: bytes | None) -> WorkerCall:
    return WorkerCall(label, "alice", None, 0, tuple(ObjectUse(key, 8) for key in keys))


def test_cache_decisions_are_carried_out_for_objects_that_requests_can_name() -> None:
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
        assert pool.caches.references is not None
        assert not pool.caches.references._requests

    play(scenario, policy=Eager)


class Orders(FirstComeFirstServed):
    """For each request that arrives: orders about caches, and victims."""

    heard: ClassVar[list[Event]] = []

    def handle(self, event: Event) -> list[Decision]:
        self.heard.append(event)
        decided = [
            structs.replace(each, victims=(b"v",)) if isinstance(each, Dispatch) else each
            for each in super().handle(event)
        ]
        if isinstance(event, RequestArrived) and event.attempt == 1:
            decided.append(Prefetch(0, (b"x", b"unknown"), 1, (b"u",)))
            decided.append(Evict(0, (b"y",), 2, EvictTo.HOST))
            decided.append(Prefetch(0, (b"unknown",), 3))
        return decided


def answers() -> list[Ordered]:
    heard = [replace(event, time_s=0.0) for event in Orders.heard if isinstance(event, Ordered)]
    return sorted(heard, key=lambda event: event.order)


def test_a_policy_hears_what_came_of_each_of_its_orders() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        Orders.heard.clear()
        task = await begin(pool.submit(reading("f", b"x")))
        assert workers.decided == [(0, {b"x": "f"}), (0, (b"y",), EvictTo.HOST)]
        assert workers.victims == [(b"v",), (b"u",)]
        assert answers() == [
            Ordered(0.0, 0, 1, (b"x",), (b"unknown",)),
            Ordered(0.0, 0, 2, (b"y",)),
            Ordered(0.0, 0, 3, (), (b"unknown",)),
        ]
        moved = [type(event) for event in Orders.heard if isinstance(event, Residency | Ordered)]
        assert moved.count(Residency) == 2
        workers.reply()
        await task
        workers.refuses = KaasError("no room")
        Orders.heard.clear()
        task = await begin(pool.submit(reading("f", b"x")))
        assert [(each.order, each.loaded, each.refused) for each in answers()] == [
            (1, (), (b"x", b"unknown")),
            (2, (), (b"y",)),
            (3, (), (b"unknown",)),
        ]
        workers.reply()
        await task

    play(scenario, policy=Orders)


def test_the_end_of_a_worker_answers_its_orders() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        Orders.heard.clear()
        evicted = workers.slow[0] = asyncio.get_running_loop().create_future()
        task = await begin(pool.submit(reading("f", b"x")))
        assert [event.order for event in answers()] == [1, 3]
        workers.die(0, "killed")
        await settle()
        evicted.set_result(None)
        await settle()
        assert any(isinstance(event, WorkerGone) and event.worker == 0 for event in Orders.heard)
        assert not [event for event in answers() if (event.worker, event.order) == (0, 2)]
        with pytest.raises(ExecutorDied):
            await task

    play(scenario, policy=Orders)


def test_a_decision_about_caches_that_fails_shows_in_the_figures() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        workers.refuses = KaasError("no room")
        task = await begin(pool.submit(reading("f", b"w")))
        workers.reply()
        await task
        outcomes = {(o.function, o.client, o.device, o.outcome) for o in pool.reports.stats().outcomes}
        assert outcomes == {("", "", 0, "KaasError"), ("f", "alice", 0, "succeeded")}

    play(scenario, policy=Eager)


def test_a_request_whose_inputs_are_ready_runs() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        ready = asyncio.get_running_loop().create_future()
        ready.set_result(None)
        task = await begin(pool.submit(call(), ready))
        workers.reply("value")
        assert await task == "value"

    play(scenario)

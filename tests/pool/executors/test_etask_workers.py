"""Behaviour of the pool's core that differs for workers of eTasks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kaas.errors import DeadlineExceeded, DeviceUnavailable, KaasError
from kaas.pool.core.core import Pool
from kaas.pool.executors import registered_etasks
from kaas.pool.executors.registered_etasks import ETasks
from kaas.pool.executors.transport import CacheOrder, WorkerCall
from kaas.scheduling.events import WorkerKind
from kaas.wire import specs
from tests.api.flows import WorkerForEachFlow
from tests.pool.fake_workers import FakeWorkers, Scenario, begin, failure_of, settle
from tests.pool.fake_workers import play as play_core


class SlowToClose(FakeWorkers):
    """Workers whose `stop` ends when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = asyncio.Event()

    async def stop(self, worker: int) -> str:
        self.stopped.append(worker)
        await self.closed.wait()
        return "its close() raised"


def play(scenario: Scenario, workers: FakeWorkers | None = None, **config: Any) -> None:
    play_core(scenario, workers=workers, policy=WorkerForEachFlow, **config)


def etask(client: str, label: str = "step") -> WorkerCall:
    return WorkerCall(label, client, None, 0, function=f"etask:{label}", kind=WorkerKind.ETASK)


def test_a_worker_closes_before_it_is_killed_and_another_starts() -> None:
    workers = SlowToClose()

    async def scenario(pool: Pool, _: FakeWorkers) -> None:
        first = await begin(pool.submit(etask("a")))
        (device,) = pool.status().devices
        assert (device.worker_kind, device.client, device.serves) == ("etask", "a", "step")
        second = await begin(pool.submit(etask("b")))
        assert workers.stopped == []
        workers.reply()
        assert await first == "value"
        await settle()
        assert (workers.stopped, workers.killed, pool.status().devices[0].state) == ([0], [], "stopping")
        workers.closed.set()
        await settle()
        assert workers.killed == [0]
        workers.reply()
        assert await second == "value"
        assert pool.status().devices[0].client == "b"

    play(scenario, workers)


def test_a_pool_that_ends_lets_idle_workers_close() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        idle = await begin(pool.submit(etask("a")))
        workers.reply()
        await idle
        busy = await begin(pool.submit(etask("b")))
        await pool.close()
        assert workers.stopped == [0]
        assert sorted(workers.killed) == [0, 1]
        assert isinstance(await failure_of(busy), KaasError)

    play(scenario, devices=2)


def test_orders_about_caches_are_for_executors() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        await begin(pool.submit(etask("a")))
        with pytest.raises(DeviceUnavailable):
            await pool.caches.carry_out(CacheOrder("order"))
        await begin(pool.submit(WorkerCall("ktask", "a", None, 0)))
        await pool.caches.pin(b"target", CacheOrder("order"))
        await begin(pool.submit(etask("b")))
        await settle()
        assert [worker for worker, _ in workers.orders] == [1]

    play(scenario, devices=3)


def test_an_etask_ends_right_at_the_run_limit() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        error = await failure_of(await begin(pool.submit(etask("a"))))
        assert isinstance(error, DeadlineExceeded)
        assert workers.killed == [0]

    play(scenario, run_limit_s=1e-3)


def test_calls_that_arrive_before_their_etask_wait_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        known, order = ETasks(), list[int]()

        async def ask(number: int) -> None:
            await known.get("key")
            order.append(number)

        early = [asyncio.ensure_future(ask(number)) for number in (0, 1)]
        await settle()
        early.append(asyncio.ensure_future(ask(2)))
        known.register(specs.encode(specs.ETaskSpec("key", "step")), b"code")
        early.append(asyncio.ensure_future(ask(3)))
        await asyncio.gather(*early)
        assert order == [0, 1, 2, 3]
        known.register(specs.encode(specs.ETaskSpec("key", "other")), b"other")
        assert known["key"].code == b"code"
        monkeypatch.setattr(registered_etasks, "REGISTRATION_LIMIT_S", 0.0)
        with pytest.raises(KaasError, match="does not know"):
            await known.get("never")

    asyncio.run(scenario())

"""A pool whose devices come and go with the load: what its callers and its operator see."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kaas.config import Device
from kaas.errors import DeviceUnavailable, PoolStopped
from kaas.pool.core.core import Pool
from kaas.pool.executors.transport import WorkerReply
from kaas.scheduling.sharing.devices import RETRY_S
from kaas.share import Scale
from tests.pool.fake_workers import RECORD, Clock, FakeWorkers, begin, call, failure_of, play, settle

IDLE_S = 60.0


def scale(least: int, most: int) -> Scale:
    return Scale(least, most, Device(), IDLE_S)


def replied(value: str) -> WorkerReply:
    return WorkerReply(value, record=RECORD)


def states(pool: Pool) -> list[str]:
    return [device.state for device in pool.status().devices]


async def grown(pool: Pool, workers: FakeWorkers, clock: Clock) -> list[asyncio.Task[Any]]:
    """Let two requests run on two devices."""
    tasks = [await begin(pool.submit(call())) for _ in range(2)]
    await clock.pass_(5.0)
    assert len(workers.runs) == 2
    return tasks


def test_devices_come_under_load_and_go_when_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        clock = Clock(monkeypatch)
        assert states(pool) == ["idle", "absent"]
        tasks = await grown(pool, workers, clock)
        assert states(pool) == ["busy", "busy"]
        for _, _, answer in workers.runs:
            answer.set_result(replied("value"))
        assert await asyncio.gather(*tasks) == ["value", "value"]
        await settle()
        assert states(pool) == ["idle", "idle"]
        await clock.pass_(IDLE_S + 1)
        assert sorted(states(pool)) == ["absent", "idle"]
        assert pool.reports.measured().devices == {"absent": 1, "idle": 1}

    play(scenario, devices=scale(1, 2))


def test_a_device_drains_before_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        clock = Clock(monkeypatch)
        one, other = await grown(pool, workers, clock)
        workers.runs[0][2].set_result(replied("one"))
        assert await one == "one"
        await clock.pass_(IDLE_S - 1)
        third = await begin(pool.submit(call()))
        await clock.pass_(2.0)
        assert states(pool) == ["busy", "busy"], "both were needed within the time"
        workers.runs[2][2].set_result(replied("third"))
        assert await third == "third"
        await clock.pass_(IDLE_S + 1)
        assert states(pool) == ["absent", "busy"], "the idle one goes"
        workers.runs[1][2].set_result(replied("other"))
        assert await other == "other"

    play(scenario, devices=scale(1, 2), run_limit_s=1000.0)


@pytest.mark.parametrize("killed", [False, True])
def test_a_busy_device_that_goes_ends_its_requests_even_if_its_executor_is_killed(
    monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        clock = Clock(monkeypatch)
        task = await begin(pool.submit(call()))
        await settle()
        assert states(pool) == ["busy"]
        pool._presence._carry_out(pool._presence.scaler.begin((), clock.now_s))  # type: ignore[union-attr]
        await settle()
        assert states(pool) == ["draining"]
        later = await begin(pool.submit(call()))
        assert len(workers.runs) == 1, "nothing begins on a device that drains"
        if killed:
            workers.die(0, "killed by SIGKILL")
        else:
            workers.reply("value")
            assert await task == "value"
        await clock.pass_(5.0)
        await clock.pass_(5.0)
        while not (task.done() and later.done()):
            workers.reply("again")
            await settle()
        assert await later == "again"
        assert await task in ("value", "again")

    play(scenario, devices=scale(0, 1))


def test_from_none_the_first_request_brings_a_device() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        await pool.reports.started()
        assert states(pool) == ["absent", "absent"]
        task = await begin(pool.submit(call()))
        await asyncio.sleep(0.01)
        await settle()
        assert sorted(states(pool)) == ["absent", "busy"]
        workers.reply("value")
        assert await task == "value"

    play(scenario, devices=scale(0, 2))


def test_a_pool_starts_although_a_device_does_not_if_another_one_does() -> None:
    class OneFails(FakeWorkers):
        async def start(self, start: Any) -> Any:
            self.refuse_to_start = RuntimeError("no driver") if start.device == 0 else None
            return await super().start(start)

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        await pool.reports.started()
        task = await begin(pool.submit(call()))
        await asyncio.sleep(0.01)
        await settle()
        assert states(pool) == ["absent", "busy"]
        workers.reply("value")
        assert await task == "value"

    play(scenario, devices=scale(1, 2), workers=OneFails())


def test_a_request_is_refused_once_no_device_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = FakeWorkers()
    workers.refuse_to_start = RuntimeError("no driver")

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        clock = Clock(monkeypatch)
        with pytest.raises(DeviceUnavailable, match=r"device 0, of kind 'software', cannot be used: .*no driver"):
            await pool.reports.started()
        task = await begin(pool.submit(call()))
        for _ in range(5):
            await clock.pass_(RETRY_S)
        assert "no device of the pool starts: RuntimeError: no driver" in str(await failure_of(task))
        workers.refuse_to_start = None
        await clock.pass_(RETRY_S)
        later = await begin(pool.submit(call()))
        workers.reply("value")
        assert await later == "value"

    play(scenario, devices=scale(1, 2), workers=workers)


def test_a_device_that_does_not_come_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        clock = Clock(monkeypatch)
        workers.hang_at_start = True
        tasks = [await begin(pool.submit(call())) for _ in range(2)]
        await clock.pass_(2.0)
        assert states(pool) == ["busy", "starting"]
        await clock.pass_(31.0)
        assert states(pool) == ["busy", "absent"], "Ray, or the machine, has no device to give"
        workers.hang_at_start = False
        await clock.pass_(RETRY_S)
        assert states(pool) == ["busy", "busy"]
        for _, _, answer in workers.runs:
            answer.set_result(replied("value"))
        assert await asyncio.gather(*tasks) == ["value", "value"]

    play(scenario, devices=scale(1, 2), start_limit_s=30.0)


def test_a_pool_closes_while_a_device_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        clock = Clock(monkeypatch)
        workers.hang_at_start = True
        tasks = [await begin(pool.submit(call())) for _ in range(2)]
        await clock.pass_(2.0)
        assert states(pool) == ["busy", "starting"]
        await pool.close()
        for task in tasks:
            assert isinstance(await failure_of(task), PoolStopped)
        await clock.pass_(2 * IDLE_S)
        assert set(workers.killed) >= set(workers.ends)

    play(scenario, devices=scale(1, 2))

"""The utilisation of devices, as a pool tells it a policy that asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from kaas.config import Config, Device
from kaas.errors import KaasError
from kaas.pool.core.core import Pool
from kaas.pool.executors.transport import WorkerReply
from kaas.scheduling.events import Event, Utilisation
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from kaas.wire.specs import RunRecord
from tests.pool.fake_workers import FakeWorkers, begin, call, settle
from tests.timeouts import TIMEOUT_S

Story = list[tuple[int, float]]
Scenario = Callable[[Pool, "UsedWorkers", Story], Awaitable[None]]


class Measuring(FirstComeFirstServed):
    """Keeps the utilisations that it hears, by device."""

    utilisation_every_s = 0.001

    def __init__(self, story: Story, devices: Sequence[Any]) -> None:
        super().__init__(devices)
        self._story = story

    def handle(self, event: Event) -> list[Any]:
        if isinstance(event, Utilisation):
            self._story.append((event.device, event.busy))
        return super().handle(event)


class UsedWorkers(FakeWorkers):
    """Workers whose kernels have the share `busy` of the time, by the test's clock: a second for each question."""

    def __init__(self) -> None:
        super().__init__()
        self.busy = 0.0
        self.kernels_s: dict[int, float] = {}
        self.clock_s: dict[int, float] = {}
        self.answers: WorkerReply | None = None
        self.sampled: dict[str, float] = {}

    async def discard(self, worker: int, keys: Sequence[bytes]) -> WorkerReply:
        assert not keys
        self.upkept(worker)
        self.clock_s[worker] = self.clock_s.get(worker, 100.0) + 1.0
        self.kernels_s[worker] = self.kernels_s.get(worker, 50.0) + self.busy
        use = {"kernels": self.kernels_s[worker], "clock": self.clock_s[worker], **self.sampled}
        return self.answers or WorkerReply(record=RunRecord(use, {}, (), (), 0.0))


def play(scenario: Scenario, devices: int = 1) -> None:
    async def main() -> None:
        story: Story = []
        workers = UsedWorkers()
        pool = Pool("test", Config(devices=(Device(),) * devices, policy=partial(Measuring, story)), workers)
        pool.open()
        await settle()
        await scenario(pool, workers, story)
        await pool.close()

    asyncio.run(asyncio.wait_for(main(), timeout=TIMEOUT_S))


async def until(reached: Callable[[], object]) -> None:
    while not reached():
        await asyncio.sleep(0)


async def asked_no_more(workers: UsedWorkers) -> None:
    """Wait for ten periods in which no worker was asked."""
    loop, quiet_s = asyncio.get_running_loop(), 10 * Measuring.utilisation_every_s
    asked, since_s = 0.0, loop.time()
    while loop.time() - since_s < quiet_s:
        await asyncio.sleep(0)
        if sum(workers.clock_s.values()) != asked:
            asked, since_s = sum(workers.clock_s.values()), loop.time()


def test_the_figure_of_a_gpu_is_that_of_its_driver_and_other_processes_keep_no_pool_awake() -> None:
    async def scenario(pool: Pool, workers: UsedWorkers, story: Story) -> None:
        await settle()
        workers.busy, workers.sampled = 0.25, {"busy": 0.75}
        answer = await begin(pool.submit(call()))
        await until(lambda: story)
        workers.busy = 0.0
        workers.reply()
        await answer
        await asked_no_more(workers)
        assert set(story) == {(0, 0.75)}

    play(scenario)


def test_a_device_is_told_while_there_are_requests_and_until_it_is_idle() -> None:
    async def scenario(pool: Pool, workers: UsedWorkers, story: Story) -> None:
        await settle()
        assert workers.clock_s == {}  # an idle pool asks nothing
        workers.busy = 0.75
        answer = await begin(pool.submit(call()))
        await until(lambda: len(story) >= 3)
        assert set(story) == {(0, 0.75)}
        workers.busy = 0.0
        workers.reply()
        await answer
        await until(lambda: story[-1] == (0, 0.0))
        await asked_no_more(workers)
        assert story[-1] == (0, 0.0)
        story.clear()
        workers.busy = 0.5
        second = await begin(pool.submit(call()))
        await until(lambda: story)
        assert story[0] == (0, 0.5)  # the time without requests does not count
        workers.reply()
        await second

    play(scenario)


def test_a_share_is_between_0_and_1() -> None:
    async def scenario(pool: Pool, workers: UsedWorkers, story: Story) -> None:
        workers.busy = 3.0  # two slots at a time, each with kernels on a half of the device
        answer = await begin(pool.submit(call()))
        await until(lambda: story)
        workers.busy = -1.0
        await until(lambda: len(set(story)) == 2)
        assert {busy for _, busy in story} == {0.0, 1.0}
        workers.reply()
        await answer

    play(scenario)


def test_workers_that_end_or_refuse_are_left_out() -> None:
    async def scenario(pool: Pool, workers: UsedWorkers, story: Story) -> None:
        workers.busy = 1.0
        answer = await begin(pool.submit(call()))
        await until(lambda: {device for device, _ in story} == {0, 1})
        idle = next(number for number in (0, 1) if number != workers.runs[0][0])
        workers.die(idle, "killed")
        await until(lambda: pool.status().devices[idle].worker == 2)
        story.clear()
        await until(lambda: {device for device, _ in story} == {0, 1})
        workers.answers = WorkerReply(error=KaasError("it is lost"))
        workers.reply()
        await answer
        workers.answers, workers.busy = None, 0.0
        await asked_no_more(workers)
        assert {story[-1], story[-2]} == {(0, 0.0), (1, 0.0)}

    play(scenario, devices=2)

"""The device seconds that policies receive for requests, and the status of devices that a policy never uses."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from kaas.errors import DeadlineExceeded, DeviceUnavailable
from kaas.pool.core.core import Pool
from kaas.pool.core.retry_alone import Case, Verdict, charged_s
from kaas.pool.executors.transport import WorkerCall, WorkerReply
from kaas.scheduling.decisions import Decision
from kaas.scheduling.events import Event, RequestDone, WorkerGone
from kaas.scheduling.policies.exclusive import Exclusive
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from kaas.wire.specs import RunRecord
from tests.pool.core.careful import careful
from tests.pool.executors.test_etask_workers import etask
from tests.pool.fake_workers import LOST, RECORD, FakeWorkers, begin, call, failure_of, play, settle

HEARD: list[RequestDone] = []
GONE: list[WorkerGone] = []


class Hearing:
    """Records the device seconds of requests, and the ends of workers."""

    def handle(self, event: Event) -> list[Decision]:
        if isinstance(event, RequestDone):
            HEARD.append(event)
        elif isinstance(event, WorkerGone):
            GONE.append(event)
        return super().handle(event)  # type: ignore[misc, no-any-return]


class Shared(Hearing, FirstComeFirstServed):
    pass


class Own(Hearing, Exclusive):
    pass


@pytest.fixture(autouse=True)
def no_events() -> None:
    HEARD.clear()
    GONE.clear()


@pytest.mark.parametrize(("occupied_s", "device_s"), [(2.0, 2.0), (None, RECORD.device_s)])
def test_a_request_is_charged_its_occupied_time_or_else_its_device_time(
    occupied_s: float | None, device_s: float
) -> None:
    """Kernels are a part of a kTask's time; the whole call of an eTask is device time."""
    record = msgspec.structs.replace(RECORD, occupied_s=occupied_s)

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        running = await begin(pool.submit(call()))
        workers.reply(WorkerReply("value", record=record))
        await running

    play(scenario, policy=Shared)
    assert [event.device_s for event in HEARD] == [device_s]


@pytest.mark.parametrize(("isolation", "device_s"), [("none", 0.0), ("process", 3.0)])
def test_an_executor_with_walls_does_not_say_for_itself_how_long_it_had_the_device(
    monkeypatch: pytest.MonkeyPatch, isolation: str, device_s: float
) -> None:
    claims = msgspec.structs.replace(RECORD, device_s=0.0, occupied_s=0.0)

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        running = await begin(pool.submit(call()))
        monkeypatch.setattr(pool._runs, "_ran_s", lambda _: 3.0)
        workers.reply(WorkerReply("value", record=claims))
        await running

    play(scenario, policy=Shared, isolation=isolation)
    assert [event.device_s for event in HEARD] == [device_s]


def test_the_first_request_of_an_executor_of_its_own_pays_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        ticks = iter(range(100, 10_000, 100))
        monkeypatch.setattr(pool._manager, "_loop", SimpleNamespace(time=lambda: float(next(ticks))))
        for _ in range(2):
            running = await begin(pool.submit(call()))
            await settle()
            workers.reply()
            await running

    play(scenario, policy=Own)
    first, second = HEARD
    assert first.device_s >= 100 + RECORD.device_s
    assert second.device_s == RECORD.device_s


def test_the_start_of_an_etasks_process_is_charged_and_is_no_run_time() -> None:
    record = RunRecord({"start": 3.0, "run": 0.125}, {}, (), (), 3.125)

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        running = await begin(pool.submit(etask("a")))
        workers.reply(WorkerReply("value", record=record))
        await running
        assert [profile.run_s for profile in pool.stats().profiles] == [0.125]

    play(scenario, policy=Shared)
    assert [event.device_s for event in HEARD] == [3.125]


@pytest.mark.parametrize(
    ("reply", "charged"),
    [
        (WorkerReply(error=LOST), True),  # alone on the device, so the request is at fault
        (WorkerReply(error=DeadlineExceeded("ran too long"), lost="ran too long"), True),
        (None, False),  # its worker was killed, and the request runs again
    ],
)
def test_a_request_that_ends_its_worker_is_charged_for_its_run(reply: WorkerReply | None, charged: bool) -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        running = await begin(pool.submit(call()))
        if reply is None:
            workers.die(0, "killed")
        else:
            workers.reply(reply)
        await settle()
        (gone,) = GONE
        assert [request for request, device_s in gone.device_s if device_s > 0] == [0] * charged
        if charged:
            await failure_of(running)
        else:
            workers.reply()
            await running

    play(scenario, policy=Shared)


class OneDevice(FirstComeFirstServed):
    """Knows of the first device only."""

    def __init__(self, devices: list[object]) -> None:
        super().__init__(devices[:1])  # type: ignore[arg-type]


def test_a_device_that_the_policy_never_starts_is_unused_and_not_lost() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        assert [device.state for device in pool.status().devices] == ["idle", "unused"]
        assert pool.reports.measured().devices == {"idle": 1, "unused": 1}
        workers.refuse_to_start = DeviceUnavailable("no driver")
        workers.die(0, "killed")
        await settle()
        assert [device.state for device in pool.status().devices] == ["lost", "unused"]

    play(scenario, devices=2, policy=OneDevice)


def test_a_device_whose_worker_was_stopped_is_unused() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        assert [device.state for device in pool.status().devices] == ["unused", "unused"]
        running = await begin(pool.submit(call()))
        await settle()
        workers.reply()
        await running
        pool._manager.stop(pool._manager.workers[0])
        await settle()
        assert [device.state for device in pool.status().devices] == ["unused", "unused"]

    play(scenario, devices=2, policy="exclusive")


# --- charges of failed work


def charged(pool: Pool, each: WorkerCall) -> tuple[asyncio.Task[Any], list[float]]:
    """Return a running request, and the device seconds of it after its end."""
    request, found = pool.begin(each), list[float]()

    async def end() -> Any:
        try:
            return await request.answer
        finally:
            found.append(-1.0 if request.record is None else request.record.device_s)

    return asyncio.get_running_loop().create_task(end()), found


def test_the_request_that_lost_the_device_is_charged_and_its_neighbour_only_for_its_own_run() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        (good, good_s), (bad, bad_s) = charged(pool, call("good")), charged(pool, call("bad"))
        await settle()
        workers.reply(WorkerReply(error=LOST))
        await settle()
        workers.reply()
        assert await good == "value"
        await settle()
        workers.reply(WorkerReply(error=LOST))
        assert await failure_of(bad) is LOST
        assert good_s == [RECORD.device_s]
        assert bad_s[0] > 0

    careful(scenario)


def test_a_request_that_fails_or_runs_too_long_is_charged_its_time() -> None:
    too_long = DeadlineExceeded("ran longer than the run limit", kernels=("spin",))

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        for reply in (WorkerReply(error=DeviceUnavailable("no")), WorkerReply(error=too_long, lost="ran for too long")):
            task, took_s = charged(pool, call())
            await settle()
            workers.reply(reply)
            assert await failure_of(task) is reply.error
            assert took_s[0] > 0
            await settle()

    careful(scenario)


def test_a_request_is_charged_for_a_process_that_died_only_if_it_ran_alone_or_was_abandoned() -> None:
    case = Case(others=1, reported=False, alone=True, pure=True, retries=0)
    assert charged_s(case, Verdict.DIED, 2.0, 1.0, abandoned=False) == 0.0
    assert charged_s(case, Verdict.AGAIN, 2.0, 1.0, abandoned=True) == 2.0
    assert charged_s(replace(case, others=0), Verdict.DIED, 2.0, 1.0, abandoned=False) == 3.0

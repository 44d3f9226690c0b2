"""The device seconds that policies receive for requests, and the status of devices that a policy never uses."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from kaas.errors import DeadlineExceeded, DeviceUnavailable
from kaas.pool.core.core import Pool
from kaas.pool.executors.transport import WorkerReply
from kaas.scheduling.events import Decision, Event, RequestDone, WorkerGone
from kaas.scheduling.policies.exclusive import Exclusive
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
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

"""Losses of devices are reported with their cause: in the status, in metrics, and when a pool starts."""

from __future__ import annotations

import asyncio

import pytest

from kaas.config import Config, Device
from kaas.errors import DeviceUnavailable
from kaas.pool.core.core import Pool
from tests.pool.fake_workers import FakeWorkers, play, settle


def test_a_device_that_cannot_start_is_an_error_with_its_cause() -> None:
    async def scenario() -> None:
        workers = FakeWorkers()
        workers.refuse_to_start = DeviceUnavailable("no CUDA driver on this machine")
        pool = Pool("p", Config(devices=(Device("gpu"),)), workers)
        pool.open()
        with pytest.raises(DeviceUnavailable, match=r"device 0, of kind 'gpu'.*no CUDA driver on this machine"):
            await pool.reports.started()
        await pool.close()

    asyncio.run(scenario())


def test_a_device_that_is_lost_after_the_start_reports_its_cause() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        await pool.reports.started()
        workers.refuse_to_start = DeviceUnavailable("the driver is gone")
        workers.ends[0].set_result("killed by SIGKILL")
        while pool.status().devices[0].state != "lost":
            await settle()
        assert pool.status().devices[0].reason == "DeviceUnavailable: the driver is gone"
        found = pool.reports.measured()
        assert found.lost == {0: "DeviceUnavailable: the driver is gone"}
        assert found.worker_starts == {0: 1}
        assert found.worker_ends == {(0, "died"): 1, (0, "not started"): 3}

    play(scenario)


def test_a_worker_that_is_replaced_leaves_no_trouble_behind() -> None:
    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        await pool.reports.started()
        workers.ends[0].set_result("killed by SIGKILL")
        while pool.events.starts[0] < 2:
            await settle()
        assert pool.status().devices[0].reason == ""
        assert pool.reports.measured().lost == {}
        assert pool.reports.measured().worker_starts == {0: 2}

    play(scenario)

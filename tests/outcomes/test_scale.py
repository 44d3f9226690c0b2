"""Devices that come and go with the load, as users get them: no request is lost."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import kaas
from kaas.errors import InvalidConfig, PoolStopped
from kaas.scheduling.recording import replay
from kaas.wire.status.status import Status
from softgpu import Model, Takes
from tests.timeouts import TIMEOUT_S, until

pytestmark = pytest.mark.processes

CODE = """.version 8.0
.target sm_80
.address_size 64
.visible .entry slow(.param .u64 y) { .reg .b64 %y; ld.param.u64 %y, [y]; st.global.u32 [%y], 7; ret; }"""
KERNEL_S = 0.2
REQUESTS = 120
"""Far more than one device runs while another starts."""


def states() -> list[str]:
    return [device.state for device in kaas.status().devices]


def there(status: Status | None = None) -> int:
    """Return the number of devices that can run requests."""
    return sum(device.state in ("idle", "busy") for device in (status or kaas.status()).devices)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[kaas.Function]:
    """A function of a pool with a scale of 1 to 3 devices."""
    device = kaas.Device(memory_bytes=64 << 20, model=Model(kernels={"slow": Takes(KERNEL_S)}))
    record = tmp_path / "record"
    scale = kaas.Scale(1, 3, device, idle_s=1.0)
    kaas.init(config=kaas.Config(devices=scale, record=str(record)), ray=False, name=f"scale {tmp_path}")
    y = kaas.Buffer("y", 1, "uint32")
    task = kaas.KTask([kaas.Kernel(kaas.Library.from_ptx(CODE), "slow", 1, 1, [kaas.Out(y)])], [y], name="slow")
    function = kaas.register(task)
    assert int(function.call().result(TIMEOUT_S)[0]) == 7
    yield function
    kaas.shutdown()
    assert replay(record).difference is None


def test_one_device_while_idle_more_under_load_and_one_again_some_time_later(slow: kaas.Function) -> None:
    until(lambda: there() == 1)
    assert states().count("absent") == 2
    calls = [slow.call() for _ in range(REQUESTS)]
    until(lambda: there() > 1)
    assert [int(call.result(TIMEOUT_S)[0]) for call in calls] == [7] * REQUESTS
    until(lambda: states().count("absent") == 2)
    assert int(slow.call().result(TIMEOUT_S)[0]) == 7
    assert "absent" in str(kaas.status())


def test_no_request_is_lost_when_executors_are_killed_while_devices_come_and_go(slow: kaas.Function) -> None:
    for _ in range(2):
        calls = [slow.call() for _ in range(REQUESTS // 2)]
        until(lambda: there() > 1)
        victim = next(each.info.pid for each in kaas.status().devices if each.info is not None and each.index)
        os.kill(victim, signal.SIGKILL)
        assert [int(call.result(TIMEOUT_S)[0]) for call in calls] == [7] * (REQUESTS // 2)
        until(lambda: states().count("absent") == 2)


def test_a_pool_ends_while_a_device_comes(slow: kaas.Function) -> None:
    calls = [slow.call() for _ in range(REQUESTS)]
    until(lambda: "starting" in states())
    kaas.shutdown()
    for call in calls:
        with contextlib.suppress(PoolStopped):
            assert int(call.result(TIMEOUT_S)[0]) == 7


def test_a_pool_without_a_device_gets_one_for_its_first_request(tmp_path: Path) -> None:
    kaas.init(devices=kaas.Scale(0, 1), ray=False, name=f"scale {tmp_path}")
    try:
        assert states() == ["absent"]
        y = kaas.Buffer("y", 1, "uint32")
        task = kaas.KTask([kaas.Kernel(kaas.Library.from_ptx(CODE), "slow", 1, 1, [kaas.Out(y)])], [y])
        assert int(kaas.call(task, {}).result(TIMEOUT_S)[0]) == 7
    finally:
        kaas.shutdown()


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((2, 1), "min is at most max: not 2 devices at least and 1 at most"),
        ((0, 0), "max is a number of devices from 1 to 4096, not 0"),
        ((-1, 1), "min is a number of devices from 0 to 4096, not -1"),
        ((1.0, 2), "min is a number of devices"),
        ((True, 2), "min is a number of devices"),
        ((1, 5000), "max is a number of devices from 1 to 4096, not 5000"),
        ((1, 2, None, -1.0), "idle_s is seconds from 0 on, not -1"),
        ((1, 2, None, float("nan")), "idle_s is seconds"),
    ],
)
def test_a_scale_that_is_none(numbers: tuple[int, int], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        kaas.Scale(*numbers)


def test_a_scale_is_of_devices() -> None:
    with pytest.raises(InvalidConfig, match=r"devices is a kaas.Scale, or one or more kaas.Device"):
        kaas.Config(devices=kaas.Scale(1, 2, "gpu"))

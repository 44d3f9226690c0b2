"""The promise of constants that outlive their executor: the next one has them, with the right bytes, or loads them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.errors import DeadlineExceeded, DeviceLost, KaasError
from softgpu import Fault
from tests.outcomes.test_held_constants import SPOIL
from tests.server.servers import STEPS
from tests.timeouts import TIMEOUT_S, until

pytestmark = pytest.mark.processes

MIB = 1 << 20
COUNT = 6 * MIB  # of floats: 24 MiB
READ = 1024  # of them
NAMES = ("x", "z")
HANG = """.version 8.0
.target sm_80
.address_size 64
.visible .entry hang(.param .u64 y)
{
again:
  bra again;
}"""
LEVELS = pytest.mark.parametrize("isolation", ["none", "fence"])


@contextmanager
def pool(
    isolation: str, memory_bytes: int = 256 * MIB, faults: tuple[Fault, ...] = (), **settings: Any
) -> Iterator[None]:
    device = kaas.Device("software", memory_bytes, faults=faults)
    config = kaas.Config(devices=(device,), isolation=isolation, **settings)
    kaas.init(ray=False, name=f"kept {token_hex(4)}", config=config)
    try:
        yield
    finally:
        kaas.shutdown()


def constants(seed: int, count: int = COUNT) -> dict[str, Any]:
    """Two, of so many floats each."""
    random = np.random.default_rng(seed)
    return {name: random.normal(size=count).astype(np.float32) for name in NAMES}


def summed(count: int = COUNT) -> kaas.KTask:
    """Outputs 2 * x and 2 * z, of their first numbers."""
    outs = [kaas.Buffer(f"{name}_out", READ, "float32") for name in NAMES]
    kernels = []
    for name, out in zip(NAMES, outs, strict=True):
        arguments: list[Any] = [kaas.In(kaas.Buffer(name, count, "float32")), kaas.Out(out)]
        kernels.append(kaas.Kernel(STEPS, "scale", READ // 256, 256, [*arguments, kaas.f32(2.0), kaas.u32(READ)]))
    return kaas.KTask(kernels, outs)


def task_of(code: str, symbol: str, *arguments: Any) -> kaas.Function:
    y = kaas.Buffer("y", READ, "float32")
    kernel = kaas.Kernel(kaas.Library.from_ptx(code), symbol, 1, 1, [*arguments, kaas.Out(y)])
    return kaas.register(kaas.KTask([kernel], [y]), {})


def check(function: kaas.Function, given: dict[str, Any]) -> None:
    outputs = kaas.call(function, {}, deadline_s=TIMEOUT_S).result(TIMEOUT_S)
    for name, output in zip(NAMES, outputs.values() if isinstance(outputs, dict) else outputs, strict=True):
        np.testing.assert_array_equal(output, 2 * given[name][:READ])


def loaded() -> tuple[int, int]:
    """The constants that requests since the last call have found on the device, and those that they have loaded."""
    rows = [row for row in kaas.stats(reset=True).tiers if row.tier == "device"]
    return sum(row.objects for row in rows), sum(row.compulsory + row.capacity for row in rows)


def executor() -> int:
    until(lambda: kaas.status().devices[0].info is not None)
    info = kaas.status().devices[0].info
    assert info is not None
    return info.pid


def end(how: signal.Signals = signal.SIGKILL) -> None:
    """End the executor, and wait until the pool has another."""
    before = executor()
    os.kill(before, how)
    replaced(before)


def replaced(before: int) -> None:
    until(lambda: (info := kaas.status().devices[0].info) is not None and info.pid != before)


def device_memory() -> int:
    """Bytes of the machine's memory in the file of the device's memory that the pool holds."""
    found = []
    for each in Path(f"/proc/{kaas.status().pid}/fd").iterdir():
        with suppress(OSError):  # it is closed
            if "kaas-device" in os.readlink(each):
                found.append(os.stat(each).st_blocks * 512)
    (nbytes,) = found
    return nbytes


@LEVELS
def test_the_next_executor_has_the_constants_of_one_that_was_killed(isolation: str) -> None:
    given = constants(1)
    with pool(isolation):
        function = kaas.register(summed(), given)
        check(function, given)
        assert loaded() == (0, 2)
        for _ in range(2):
            end()
            check(function, given)
            assert loaded() == (2, 0)


@LEVELS
def test_the_run_limit_leaves_the_constants(isolation: str) -> None:
    given = constants(2)
    with pool(isolation, run_limit_s=1.0):
        function, hangs = kaas.register(summed(), given), task_of(HANG, "hang")
        check(function, given)
        before = executor()
        with pytest.raises(DeadlineExceeded):
            kaas.call(hangs, {}).result(TIMEOUT_S)
        replaced(before)
        loaded()
        check(function, given)
        assert loaded() == (2, 0)


@LEVELS
def test_after_a_device_error_nothing_is_adopted(isolation: str) -> None:
    given = constants(3)
    x = kaas.Buffer("x", READ, "float32")
    faults = SPOIL.replace("ld.param.u64 %rd1, [x]", "mov.u64 %rd1, 8")
    with pool(isolation):
        function, faulting = kaas.register(summed(), given), task_of(faults, "spoil", kaas.In(x))
        check(function, given)
        before = executor()
        with pytest.raises(DeviceLost):
            kaas.call(faulting, {"x": np.zeros(READ, np.float32)}).result(TIMEOUT_S)
        replaced(before)
        assert device_memory() == 0
        loaded()
        check(function, given)
        assert loaded() == (0, 2)


@LEVELS
@pytest.mark.parametrize("kind", ["device_lost", "ecc"])
def test_a_device_that_disappears_leaves_nothing(isolation: str, kind: str) -> None:
    """Each executor loses its device at its third kernel, in its second request."""
    given = constants(11)
    with pool(isolation, faults=(Fault(kind, at=3),)):
        function = kaas.register(summed(), given)
        check(function, given)
        before = executor()
        with pytest.raises(DeviceLost):
            check(function, given)
        replaced(before)
        assert device_memory() == 0
        loaded()
        check(function, given)
        assert loaded() == (0, 2)


@LEVELS
def test_after_a_crash_nothing_is_adopted(isolation: str) -> None:
    given = constants(4)
    with pool(isolation):
        function = kaas.register(summed(), given)
        check(function, given)
        loaded()
        end(signal.SIGSEGV)
        assert device_memory() == 0
        check(function, given)
        assert loaded() == (0, 2)


@LEVELS
def test_adopted_memory_is_memory_of_the_device_and_makes_room(isolation: str) -> None:
    """Two functions of 48 MiB in turns, on a device with room for one."""
    given = [constants(seed) for seed in (5, 6)]
    with pool(isolation, 56 * MIB):
        functions = [kaas.register(summed(), each) for each in given]
        for _ in range(2):
            for function, each in zip(functions, given, strict=True):
                check(function, each)
                assert loaded() == (0, 2)
                end()
                assert device_memory() == 48 * MIB
                check(function, each)
                assert loaded() == (2, 0)


def test_other_objects_use_the_memory_of_constants_that_leave() -> None:
    """Without windows, constants and all else come from two sources of the driver's memory."""
    given, x = constants(7), np.ones(14 * MIB, np.float32)
    buffer, out = kaas.Buffer("x", x.size, "float32"), kaas.Buffer("y", READ, "float32")
    arguments: list[Any] = [kaas.In(buffer), kaas.Out(out), kaas.f32(2.0), kaas.u32(READ)]
    with pool("none", 80 * MIB):
        function = kaas.register(summed(), given)
        other = kaas.register(kaas.KTask([kaas.Kernel(STEPS, "scale", READ // 256, 256, arguments)], [out]), {})
        for _ in range(3):
            check(function, given)
            np.testing.assert_array_equal(kaas.call(other, {"x": x}).result(TIMEOUT_S), 2 * x[:READ])


@LEVELS
def test_small_constants_are_loaded_again(isolation: str) -> None:
    given = constants(9, READ)
    with pool(isolation):
        function = kaas.register(summed(READ), given)
        check(function, given)
        loaded()
        end()
        check(function, given)
        assert loaded() == (0, 2)


@LEVELS
def test_a_killed_load_leaves_no_half_constants(isolation: str) -> None:
    given = constants(10)
    with pool(isolation):
        function = kaas.register(summed(), given)
        for _ in range(3):
            asked = kaas.call(function, {}, deadline_s=TIMEOUT_S)
            with suppress(ProcessLookupError):
                os.kill(executor(), signal.SIGKILL)
            with suppress(KaasError):
                asked.result(TIMEOUT_S)
            check(function, given)

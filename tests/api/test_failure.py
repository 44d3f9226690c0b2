"""Failures of executors as callers see them through Ray: the error arrives, and the executor's process ends."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from typer.testing import CliRunner

import kaas
import softgpu
from kaas import errors
from kaas.cli.main import app
from tests.api.conftest import DEVICE_BYTES, crash_task, numbers, scale_task, spin_task
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.ray

OUTPUT = kaas.Library.from_file(Path(softgpu.__file__).parent / "tests" / "compiler" / "kernels" / "output.ptx")
LIMIT_S = 3.0
FOR_EVER = 1 << 60


@pytest.fixture(scope="module", autouse=True)
def pool_with_limit(start: Callable[..., bool]) -> None:
    start(config=kaas.Config((kaas.Device("software", DEVICE_BYTES),), slots=2, run_limit_s=LIMIT_S))
    ray.get(kaas.invoke(scale_task(), {"x": numbers()}, scalars={"factor": 1}))


def checked_task() -> kaas.KTask:
    x, out = kaas.Buffer("x", 3, "int32"), kaas.Buffer("out", 3, "int32")
    kernels = [
        kaas.Kernel(OUTPUT, "twice", 1, 1, [kaas.Scalar("times", "i32")]),
        kaas.Kernel(OUTPUT, "checked", 1, 3, [kaas.In(x), kaas.Out(out)]),
    ]
    return kaas.KTask(kernels, [out])


def raised(ref: Any) -> Any:
    """Return the error of a reference, without Ray's wrapping."""
    with pytest.raises(errors.KaasError) as caught:
        ray.get(ref, timeout=TIMEOUT_S)
    return caught.value.cause  # type: ignore[attr-defined]  # Ray's


def worker() -> int | None:
    (device,) = kaas.status().devices
    return device.worker


@pytest.mark.full
def test_a_hung_kernel_is_named_and_its_neighbour_runs_again() -> None:
    before = worker()
    hung = kaas.invoke(spin_task(), {}, scalars={"steps": FOR_EVER})
    neighbours = [kaas.invoke(spin_task(), {}, scalars={"steps": 50_000_000}) for _ in range(60)]
    error = raised(hung)
    assert type(error) is errors.DeadlineExceeded
    assert (error.task, error.kernels, error.deadline_s) == (spin_task().label, ("spin",), LIMIT_S)
    assert len({int(value[0]) for value in ray.get(neighbours, timeout=TIMEOUT_S)}) == 1
    assert worker() != before


def test_the_error_of_an_assertion_has_its_place_and_the_output() -> None:
    x = np.array([1, 1, -1], np.int32)
    error = raised(kaas.invoke(checked_task(), {"x": x}, scalars={"times": 2}, retries=0))
    assert type(error) is errors.DeviceLost
    assert (error.kernel, error.task, error.code_name) == ("checked", checked_task().label, "CUDA_ERROR_ASSERT")
    where = r"output\.cu:\d+: void checked.*: block: \[0,0,0\], thread: \[2,0,0\] Assertion `x\[i\] > 0"
    assert re.search(where, error.message)
    assert error.printed.startswith("told by 0\ntold by 1\ntold by -1\n")


def test_a_function_that_ends_devices_is_put_in_quarantine_until_it_is_pardoned() -> None:
    task = crash_task()
    for _ in range(2):
        assert type(raised(kaas.invoke(task, {}))) is errors.DeviceLost
    function = kaas.register(crash_task())  # the same content, once more
    for ref in (kaas.invoke(task, {}), function.remote()):
        error = raised(ref)
        assert type(error) is errors.Quarantined
        assert (error.function, error.faults, len(error.story)) == (task.label, 2, 2)
        assert all("on device 0: " in line and "crash" in line for line in error.story)
    assert [(held.function, held.faults) for held in kaas.status().quarantined] == [(task.label, 2)]
    printed = CliRunner().invoke(app, ["status", "--ray"]).stdout
    assert f"in quarantine after 2 faults: {task.label} of " in printed
    assert kaas.pardon(function)
    assert not kaas.pardon(task)
    assert kaas.status().quarantined == ()
    assert type(raised(kaas.invoke(task, {}))) is errors.DeviceLost
    np.testing.assert_array_equal(
        ray.get(kaas.invoke(scale_task(), {"x": numbers()}, scalars={"factor": 1})), numbers()
    )


@pytest.mark.full
def test_a_stopped_executor_is_replaced() -> None:
    n = 100_000
    kept = ray.get(kaas.invoke(scale_task(n), {"x": numbers(n)}, scalars={"factor": 2}, keep=True))
    (device,) = kaas.status().devices
    assert device.info is not None
    os.kill(device.info.pid, signal.SIGSTOP)
    loading = kaas.prefetch(kaas.put(numbers(n)))
    np.testing.assert_array_equal(kept.get(), numbers(n) * 2)  # computed anew
    error = raised(loading)
    assert type(error) is errors.DeviceUnavailable
    assert worker() != device.worker


class Stdout(io.StringIO):
    """A driver's stdout, with an event that is set once a text was written to it."""

    def __init__(self, awaited: str) -> None:
        super().__init__()
        self._awaited = awaited
        self.seen = threading.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._awaited in self.getvalue():
            self.seen.set()
        return written


def test_output_of_kernels_appears_at_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = Stdout("77|-77|5|5|5|5|k|%")
    monkeypatch.setattr(sys, "stdout", stdout)
    unused = kaas.Buffer("unused", 1, "int32", init="zero")
    kernels = [
        kaas.Kernel(OUTPUT, "numbers", 1, 1, [kaas.i32(77), kaas.u32(5), kaas.i64(6), kaas.u64(7)]),
        kaas.Kernel(OUTPUT, "lanes", 1, 1, [kaas.InOut(unused), kaas.i32(0)]),
    ]
    ray.get(kaas.invoke(kaas.KTask(kernels, [unused]), {}))
    assert stdout.seen.wait(TIMEOUT_S)  # Ray brings it from the executor's stdout, a little later


def test_times_of_kernels_are_reported_on_request() -> None:
    kaas.stats(reset=True)
    x = kaas.put(numbers())
    function = kaas.register(scale_task())
    ray.get(function.remote(x=x, factor=2))
    assert kaas.stats().kernels == ()
    profiled = function.options(profile=True)
    for factor in range(2):
        np.testing.assert_array_equal(ray.get(profiled.remote(x=x, factor=factor)), numbers() * np.float32(factor))
    np.testing.assert_array_equal(
        ray.get(kaas.invoke(scale_task(), {"x": x}, scalars={"factor": 3}, client="alice", profile=True)),
        numbers() * np.float32(3),
    )
    of_mine, of_alice = sorted(kaas.stats().kernels, key=lambda kernel: kernel.client == "alice")
    assert (of_mine.function, of_mine.index, of_mine.symbol, of_mine.launches) == (scale_task().label, 0, "scale", 2)
    assert (of_alice.function, of_alice.client, of_alice.launches) == (scale_task().label, "alice", 1)
    assert of_mine.total_s > 0
    assert of_mine.mean_s == of_mine.total_s / 2
    assert not of_mine.graph
    with pytest.raises(errors.InvalidRequest, match="profile"):
        kaas.invoke(scale_task(), {"x": x}, scalars={"factor": 3}, profile=1)  # type: ignore[arg-type]

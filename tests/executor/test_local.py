"""kTasks in this process: `run_local`, and checks without a run."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.config import Device
from kaas.errors import DeviceUnavailable, InvalidRequest, MissingInput, RequestTooLarge, UnknownSymbol, WrongScalar
from kaas.executor.local import check, executor_for, run, run_local
from kaas.executor.profile import KernelTime
from tests.executor.conftest import KERNELS
from tests.timeouts import TIMEOUT_S

A, B = kaas.Buffer("a", 64, "int32"), kaas.Buffer("b", 64, "int32")

pytestmark = pytest.mark.usefixtures("softgpu")


@pytest.fixture(scope="module")
def scale(library: kaas.Library) -> kaas.KTask:
    args: list[Any] = [kaas.In(A), kaas.Out(B), kaas.Scalar("factor", "i32"), kaas.i32(64)]
    return kaas.KTask([kaas.Kernel(library, "scale", 1, 64, args)], [B])


@pytest.mark.parametrize("device", [None, 1, Device("software"), Device("software", memory_bytes=1 << 20)])
def test_runs_here(scale: kaas.KTask, device: Device | int | None) -> None:
    a = np.arange(128, dtype=np.int32)
    for value, expected in ((a[:64], 3 * a[:64]), (kaas.View(a, 256), 3 * a[64:])):
        outputs = run_local(scale, {"a": value}, scalars={"factor": 3}, device=device)
        np.testing.assert_array_equal(outputs["b"], expected)
    assert executor_for(device) is executor_for(device)


def test_stage_times(scale: kaas.KTask) -> None:
    stages = run(scale, {"a": np.zeros(64, np.int32)}, scalars={"factor": 1}).stats.stages
    assert stages["total"] > stages["kernels"] > 0


def test_kernel_times(scale: kaas.KTask) -> None:
    a, times = np.arange(64, dtype=np.int32), list[KernelTime]()
    outputs = run_local(scale, {"a": a}, scalars={"factor": 3}, profile=times.extend)
    np.testing.assert_array_equal(outputs["b"], 3 * a)
    assert [(time.symbol, time.index, time.launches, time.seconds > 0) for time in times] == [("scale", 0, 1, True)]


def test_mistakes_are_typed_errors(scale: kaas.KTask) -> None:
    with pytest.raises(MissingInput):
        run_local(scale, scalars={"factor": 3})
    with pytest.raises(WrongScalar):
        run_local(scale, {"a": np.zeros(64, np.int32)}, scalars={"factor": "three"})
    with pytest.raises(DeviceUnavailable):
        run_local(scale, {"a": np.zeros(64, np.int32)}, scalars={"factor": 3}, device=9)
    with pytest.raises(InvalidRequest, match="limit_s"):
        run_local(scale, {"a": np.zeros(64, np.int32)}, scalars={"factor": 3}, limit_s=0)


def test_check_runs_nothing(scale: kaas.KTask, library: kaas.Library) -> None:
    assert check(scale).inputs == (0,)
    with pytest.raises(UnknownSymbol):
        check(kaas.KTask([kaas.Kernel(library, "scal", 1, 64, [kaas.Out(B)])], [B]))
    big = kaas.Buffer("big", 2 << 20)
    fill = kaas.KTask([kaas.Kernel(library, "fill", 1, 64, [kaas.Out(big), kaas.i32(0), kaas.i32(1)])], [big])
    with pytest.raises(RequestTooLarge) as caught:
        check(fill, Device("software", memory_bytes=1 << 20))
    assert caught.value.excess_bytes == 1 << 20
    args: list[Any] = [kaas.In(big), kaas.Out(B), kaas.i32(0), kaas.i32(1)]
    scaled = kaas.KTask([kaas.Kernel(library, "scale", 1, 64, args)], [B])
    with pytest.raises(RequestTooLarge) as caught:
        check(scaled, Device("software", memory_bytes=1 << 20))
    assert caught.value.excess_bytes == (1 << 20) + 256


ALONE = """
import sys
import numpy as np
import kaas
from kaas.executor.local import run_local

b = kaas.Buffer("b", 64, "int32")
fill = kaas.Kernel(kaas.Library.from_file(sys.argv[1]), "fill", 1, 64, [kaas.Out(b), kaas.i32(7), kaas.i32(64)])
print(run_local(kaas.KTask([fill], [b]))["b"].sum())
"""


@pytest.mark.processes
def test_a_new_process_needs_no_preparation() -> None:
    command = [sys.executable, "-c", ALONE, str(KERNELS / "simple.ptx")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert (done.returncode, done.stdout) == (0, f"{7 * 64}\n"), done.stderr


ENDLESS = """
import sys
import kaas

library = kaas.Library.from_file(sys.argv[1])
started, go = (kaas.Buffer(name, 64, "int32", init="zero") for name in ("started", "go"))

def launched(symbol):
    return kaas.KTask([kaas.Kernel(library, symbol, 1, 1, [kaas.InOut(started), kaas.InOut(go)])], [started, go])

print(kaas.run_local(launched("straight"), limit_s=60)["go"][1])
try:
    kaas.run_local(launched("together"), limit_s=1.0)
except kaas.errors.DeadlineExceeded as error:
    print(error.kernels)
"""


@pytest.mark.processes
def test_an_endless_kernel_ends_at_its_limit() -> None:
    endless = KERNELS.parents[2] / "softgpu" / "softgpu" / "tests" / "compiler" / "kernels" / "endless.ptx"
    done = subprocess.run(
        [sys.executable, "-c", ENDLESS, str(endless)], capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    assert (done.returncode, done.stdout) == (0, "1\n('together',)\n"), done.stderr

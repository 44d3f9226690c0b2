"""CUDA_MPS_ACTIVE_THREAD_PERCENTAGE bounds the multiprocessors of a process, as MPS does on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

SMS, TAKES_MS = 132, 4.0
PROGRAM = """
import json
import softgpu
from softgpu import Model, Takes

kernels = {"waves": Takes(4e-3), "half": Takes(4e-3, share=0.5)}
models = Model(sms=SMS, blocks_per_sm=1, kernels=kernels), Model(kernels=kernels)
softgpu.load([softgpu.Device(1 << 26, model) for model in models])
from cuda.core import Device, EventOptions, LaunchConfig, ObjectCode, launch
from softgpu.tests.driver.calls import Gate

HEAD = b".version 8.0\\n.target sm_80\\n.address_size 64\\n"
PTX = HEAD + b".visible .entry waves() { ret; }\\n.visible .entry half() { ret; }"
found = []
for ordinal in range(2):
    device = Device(ordinal)
    device.set_current()
    code, stream = ObjectCode.from_ptx(PTX), device.create_stream()
    row = [device.properties.multiprocessor_count, device.resources.sm.sm_count]
    for name in ("waves", "half"):
        gate, kernel, options = Gate(), code.get_kernel(name), EventOptions(timing_enabled=True)
        gate.hold(stream.handle)
        first = stream.record(options=options)
        launch(stream, LaunchConfig(grid=132, block=1), kernel)
        last = stream.record(options=options)
        gate.open.set()
        stream.sync()
        row.append(round(last - first, 2))
    found.append(row)
print(json.dumps(found))
""".replace("SMS", str(SMS))


def found(percentage: str | None) -> list[list[float]]:
    """The facts of each of two devices: its multiprocessors, twice, and the milliseconds of kernels. The second has as
    many as the machine has processors."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_MPS")}
    if percentage is not None:
        environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = percentage
    program = [sys.executable, "-c", PROGRAM]
    ended = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    rows: list[list[float]] = json.loads(ended.stdout)
    return rows


def test_a_process_has_a_part_of_the_multiprocessors() -> None:
    bounded, shared = found("25")
    assert bounded == [33, 33, 4 * TAKES_MS, 2 * TAKES_MS]  # four waves; half of the device on a quarter
    everything = found(None)
    processors = everything[1][0]
    part = -(-processors // 4)
    assert shared == [part, part, pytest.approx(TAKES_MS * processors / part), max(1, processors / 2 / part) * TAKES_MS]


@pytest.mark.parametrize(("percentage", "sms"), [("0.5", 1), ("24.3", 33), ("100", 132), ("99.9", 132)])
def test_parts_are_rounded_up(percentage: str, sms: int) -> None:
    assert found(percentage)[0][:2] == [sms, sms]


@pytest.mark.parametrize("percentage", ["", "0", "-5", "101", "all", "nan", "25%"])
def test_what_is_no_percentage_bounds_nothing(percentage: str) -> None:
    assert found(percentage)[0] == [SMS, SMS, TAKES_MS, TAKES_MS]

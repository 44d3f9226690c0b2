"""On a GPU: outputs equal the software GPU's, cold and warm; and mistakes that only a GPU can make."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kaas
from kaas.config import Device
from kaas.errors import LaunchLimit, RequestTooLarge
from kaas.executor.local import executor_for, run, run_local
from tests.gpu import stored

pytestmark = pytest.mark.gpu

GPU = Device("gpu")


def library() -> kaas.Library:
    return kaas.Library.from_file(Path(__file__).parent / "kernels" / "cases.ptx")


def test_there_are_cases() -> None:
    assert len(stored.names()) >= 12


@pytest.mark.parametrize("name", stored.names())
def test_outputs_are_those_of_the_software_gpu(name: str) -> None:
    case = stored.load(name)
    for _ in range(3):  # the plan is made, then its graph is launched again as it is, or re-pointed
        outputs = run_local(case.task, case.inputs, scalars=case.scalars, device=GPU)
        stored.assert_same(outputs, case.outputs, case.rtol)


def test_inputs_are_never_written() -> None:
    case = stored.load("advance")
    before = {name: value.copy() for name, value in case.inputs.items()}
    run_local(case.task, case.inputs, scalars=case.scalars, device=GPU)
    stored.assert_same(case.inputs, before, 0)


def test_stage_times_add_up() -> None:
    case = stored.load("nearest_neighbours")
    stats = run(case.task, case.inputs, device=GPU).stats
    assert 0 < stats.device_s < stats.stages["total"]


def test_the_device_describes_itself() -> None:
    info = executor_for(GPU).device.info()
    assert info.kind == "gpu"
    assert info.compute_capability >= (8, 0)
    assert info.memory_bytes > 1 << 30


def test_launch_beyond_the_device_is_refused_before_it_runs() -> None:
    x = kaas.Buffer("x", 64, "uint32")
    too_wide = kaas.KTask([kaas.Kernel(library(), "advance", 1, 2048, [kaas.InOut(x), kaas.u32(64)])], [x])
    with pytest.raises(LaunchLimit) as caught:
        run_local(too_wide, {"x": np.zeros(64, np.uint32)}, device=GPU)
    assert (caught.value.limit, caught.value.given) == (1024, 2048)


def test_a_request_beyond_the_memory_has_its_excess() -> None:
    x = kaas.Buffer("x", 1 << 46)
    task = kaas.KTask([kaas.Kernel(library(), "collatz", 1, 32, [kaas.Out(x), kaas.u32(1)])], [x])
    with pytest.raises(RequestTooLarge) as caught:
        run_local(task, {}, device=GPU)
    assert caught.value.excess_bytes > 1 << 45

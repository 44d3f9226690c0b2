"""The workloads keep the ratios of Table 1, and as kTasks and eTasks they compute one result."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

import kaas
from kaas.papers.small import steps
from kaas.papers.small.testbed import SMALL
from kaas.papers.workloads import GB, MB, WORKLOADS, Workload

EACH = pytest.mark.parametrize("workload", WORKLOADS.values(), ids=list(WORKLOADS))


def ones(workload: Workload) -> np.ndarray:
    return np.ones(SMALL.bytes(workload.input_bytes) // 4, np.float32)  # what a step makes of a client's bytes


@EACH
def test_constants_are_as_large_for_their_device_as_in_table_1(workload: Workload) -> None:
    held = sum(each.nbytes for each in SMALL.constants(workload, 1.0).values())
    assert held / SMALL.bytes(16 * GB) == pytest.approx(workload.constant_bytes / (16 * GB), rel=0.01)


@EACH
def test_no_two_constants_of_any_replicas_have_the_same_contents(workload: Workload) -> None:
    """A cache keeps equal contents once, and the memory limit would be gone."""
    contents = [each.tobytes() for value in (1.0, 2.0) for each in SMALL.constants(workload, value).values()]
    assert len(set(contents)) == len(contents) == 2 * workload.constants


@EACH
def test_the_kernels_of_a_request_take_the_time_of_table_1(workload: Workload, tmp_path: Path) -> None:
    task = SMALL.task(workload)
    assert isinstance(task.iterations, int)
    model = tomllib.loads(Path(SMALL.prepare(tmp_path)["SOFTGPU_MODEL"]).read_text())
    launch_s, _ = model["kernels"][task.kernels[0].symbol]
    assert len(task.kernels) * task.iterations * launch_s == pytest.approx(workload.gpu_s * SMALL.slow)


def test_a_cold_copy_over_the_kernels_is_that_of_the_paper() -> None:
    """2 GB at 12 GB/s take 167 ms, 4.3 times the 39 ms of cGEMM's kernels."""
    cgemm = WORKLOADS["cgemm"]
    held = sum(each.nbytes for each in SMALL.constants(cgemm, 1.0).values())
    assert held / SMALL.copy_rate() / SMALL.kernels_s(cgemm) == pytest.approx(2 * GB / 12e9 / 39e-3, rel=0.01)
    assert cgemm.constant_bytes == 2000 * MB


@pytest.mark.usefixtures("softgpu")
@pytest.mark.parametrize("value", [1.0, 7.0])
@EACH
def test_a_ktask_gives_its_replicas_answer(workload: Workload, value: float) -> None:
    inputs = {**SMALL.constants(workload, value), "x": ones(workload)}
    y = kaas.run_local(SMALL.task(workload), inputs, device=kaas.Device("software"))["y"]
    np.testing.assert_allclose(y[:256], SMALL.answer(workload, value), rtol=1e-5)


@pytest.mark.usefixtures("softgpu")
@EACH
def test_an_etask_gives_the_answer_of_the_ktask(workload: Workload) -> None:
    from kaas.papers.small import etasks

    task = getattr(etasks, workload.name.capitalize())()
    for _ in range(2):
        np.testing.assert_allclose(task(ones(workload))[:256], SMALL.answer(workload, etasks.VALUE), rtol=1e-5)


def test_the_steps_pass_on_what_the_kernels_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(steps, "sleep", waited.append)
    data = bytes([1, 2, 3])
    np.testing.assert_array_equal(steps.resnet50_before({"data": data})["x"], np.array([1, 2, 3], np.float32))
    scores = np.array([0.5, 0.25], np.float32)
    np.testing.assert_array_equal(steps.resnet50_after({"y": scores.tobytes()})["score"], scores[:1])
    assert sum(waited) == pytest.approx(WORKLOADS["resnet50"].cpu_s * SMALL.slow)

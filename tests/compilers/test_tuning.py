"""MetaSchedule's trials on the software GPU: correct schedules are kept and used, bad candidates do no harm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.relax.frontend import nn

import kaas
from kaas.errors import DeviceUnavailable
from tests.compilers.lowering_cases import TARGET, Compiled, bound
from tvm_backend import lowering, targets, trials, tuning
from tvm_backend.compiling import TUNE_DEVICE, Options
from tvm_backend.constants import Names
from tvm_backend.errors import CompileError
from tvm_backend.lowering import by_dlight
from tvm_backend.measuring import REPEATS
from tvm_backend.progress import Progress
from tvm_backend.rewrites import ASYNCHRONOUS, EXPLICIT
from tvm_backend.trials import Bench, TrialFailed, bench, build

TRIALS = 4
TURING = targets.parsed("sm_75+ptx")
"""A target whose candidates copy nothing ahead: the software GPU has no code for such copies."""

ENDLESS = """.version 7.0
.target sm_80
.address_size 64
.visible .entry endless(.param .u64 x) {
LOOP: bra LOOP;
}
"""


class Head(nn.Module):  # type: ignore[misc]  # TVM has no types
    def __init__(self) -> None:
        self.first, self.second = nn.Linear(32, 48), nn.Linear(48, 16)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.second(nn.op.relu(self.first(x)))


@pytest.fixture(scope="module")
def where() -> Iterator[Bench]:
    with bench("software") as made:
        yield made


def tuned(folder: Path, steps: list[Progress]) -> Compiled:
    module, weights = bound(Head(), {"x": (32, 32)})
    return Compiled(
        module, 1, weights, tuning.Tuning("head", TRIALS, TURING, "software", folder, steps.append).schedule
    )


def test_schedules_of_trials_are_correct_and_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Progress] = []
    monkeypatch.setattr(
        tuning, "faster", lambda *_: True
    )  # on the software GPU the faster schedule is a matter of chance
    first = tuned(tmp_path, steps)
    x = np.random.default_rng(1).standard_normal((32, 32), dtype=np.float32)
    module, weights = bound(Head(), {"x": (32, 32)})
    hidden = np.maximum(x @ weights["first.weight"].T + weights["first.bias"], 0)
    expected = hidden @ weights["second.weight"].T + weights["second.bias"]
    np.testing.assert_allclose(first.run(x)[0], expected, rtol=1e-4, atol=1e-4)
    assert steps[0] == Progress("tune", 0, TRIALS, "2 functions")
    assert steps[-1] == Progress("tune", TRIALS, TRIALS)
    kernels = [(kernel.grid, kernel.block) for kernel in first.variant.task.kernels]

    def refused(*_: object) -> None:
        raise AssertionError("nothing is left to try")

    monkeypatch.setattr(tuning.Tuning, "tune", refused)
    again = tuned(tmp_path, steps)
    assert [(kernel.grid, kernel.block) for kernel in again.variant.task.kernels] == kernels
    usual = Compiled(module, 1, weights)
    assert [(kernel.grid, kernel.block) for kernel in usual.variant.task.kernels] != kernels


@pytest.mark.full
def test_candidates_that_copy_ahead_are_built() -> None:
    module, _ = bound(Head(), {"x": (32, 32)})
    task = tuning.worthwhile(lowering.fused(module, TARGET, Names({})), TARGET)[0]
    search = tuning.context(task, learned=False, seed=1)
    modules = []
    for schedule in search.generate_design_space():
        assert all(rule.apply(schedule) for rule in search.space_generator.postprocs)
        modules.append(schedule.mod)
    pipelined = [each for each in modules if ASYNCHRONOUS in each.script() and EXPLICIT in each.script()]
    assert pipelined
    for each in pipelined:
        images = trials.ktask(each, TARGET).kernels[0].library.images
        assert any(b"cp.async.wait_group" in image.data for image in images if image.kind == "ptx")


def sums(scale: float) -> tvm.IRModule:
    a, k = te.placeholder((64, 64), name="a"), te.reduce_axis((0, 64), "k")
    y = te.compute((64,), lambda i: te.sum(a[i, k] * scale, axis=k), name="y")
    return tvm.IRModule({"main": te.create_prim_func([a, y])})


def test_a_schedule_that_gives_something_else_is_not_taken(where: Bench, tmp_path: Path) -> None:
    with TARGET.tvm:
        right, wrong = by_dlight(sums(1)), by_dlight(sums(2))
    verdicts = [tuning.faster(wrong, right, TARGET, where, tmp_path) for _ in range(2)]
    assert verdicts == [False, False]


def test_a_schedule_that_cannot_be_built_is_not_taken(where: Bench, tmp_path: Path) -> None:
    with TARGET.tvm:
        usual = by_dlight(sums(1))
    assert not tuning.faster(sums(1), usual, TARGET, where, tmp_path)  # without threads nothing runs on a GPU
    assert tuning.faster(usual, sums(1), TARGET, where, tmp_path)


def candidate(folder: Path, library: kaas.Library, symbol: str, *values: int) -> Path:
    x = kaas.Buffer("x", 1, "int32")
    kernel = kaas.Kernel(library, symbol, 1, 1, [kaas.Out(x), *map(kaas.i32, values)])
    path = folder / symbol
    path.write_bytes(kaas.KTask([kernel], [x], kaas.Scalar(REPEATS, "i64")).to_msgpack())
    return path


@pytest.mark.parametrize("symbol", [pytest.param("stray", marks=pytest.mark.full), "trapped"])
def test_a_candidate_that_faults_is_one_trial_less(where: Bench, tmp_path: Path, symbol: str) -> None:
    faults = kaas.Library.from_file(Path(__file__).parents[1] / "gpu" / "kernels" / "faults.ptx")
    with pytest.raises(TrialFailed, match="DeviceLost"):
        where.measure(candidate(tmp_path, faults, symbol, -1))
    assert min(where.measure(candidate(tmp_path, faults, symbol, 7))) > 0


@pytest.mark.full
def test_a_candidate_that_does_not_end_is_one_trial_less(tmp_path: Path) -> None:
    with bench("software") as where, TARGET.tvm:
        good = build(by_dlight(sums(1)), TARGET, tmp_path / "good")
        where.measure(good)
        where.limit_s = 1.0
        with pytest.raises(TrialFailed, match="not done within 1 s"):
            where.measure(candidate(tmp_path, kaas.Library.from_ptx(ENDLESS), "endless"))
        where.limit_s = 60.0
        assert min(where.measure(good)) > 0


def test_without_a_gpu_nothing_is_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    module, _ = bound(Head(), {"x": (32, 32)})
    made = tuning.Tuning("head", 1, TARGET, "gpu", tmp_path, lambda _: None)
    with pytest.raises(DeviceUnavailable, match="measured on a GPU"):
        Compiled(module, schedule=made.schedule)


def test_another_device_s_result_is_not_taken_from_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    def options_with(tune: int) -> str:
        return str(Options.checked("model.onnx", "sm_80", None, None, tune))

    monkeypatch.delenv(TUNE_DEVICE, raising=False)
    on_gpu, untuned = options_with(4), options_with(0)
    monkeypatch.setenv(TUNE_DEVICE, "software")
    assert options_with(4) != on_gpu
    assert options_with(0) == untuned


def test_records_that_are_damaged_are_thrown_away(tmp_path: Path) -> None:
    for name in ("database_workload.json", "chosen_workload.json"):
        (tmp_path / name).write_text("[[")
    (tmp_path / "trials").write_text("64")
    with tuning.records(tmp_path) as kept:
        assert (kept.trials, len(kept.database), len(kept.chosen())) == (0, 0, 0)
        kept.finish(3)
    with tuning.records(tmp_path) as kept:
        assert kept.trials == 3


def test_a_runtime_that_cannot_write_records_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "version", lambda _: "0.1.15.post2")
    with pytest.raises(CompileError, match=r"apache-tvm-ffi < 0\.1\.15"):
        tuning.check_runtime("head")

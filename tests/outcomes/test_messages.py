"""Errors of a program name their object and the remedy, at the place of the mistake."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import ray
from typer.testing import CliRunner

import kaas
from kaas import errors
from kaas.cli.main import app
from kaas.config import POLICY_NAMES
from kaas.ktask.request import check_constants
from kaas.scheduling.policies import POLICIES
from tests.api.conftest import crash_task
from tests.lanes import spread


def test_a_policy_that_does_not_exist_is_refused_where_it_is_written() -> None:
    said = r"no policy 'fair'; there are fcfs, .*, of which adaptive, .* are fair; .* module:Class$"
    with pytest.raises(errors.InvalidConfig, match=said) as raised:
        kaas.Config(policy="fair")
    assert raised.value.field == "policy"


def test_the_policies_that_a_configuration_knows_are_those_there_are() -> None:
    assert tuple(POLICIES) == POLICY_NAMES
    assert getattr(POLICIES["cfs_affinity"], "fair", False), "a configuration's message says so"
    for name in POLICIES:
        kaas.Config(policy=name)


def test_the_error_for_another_configuration_names_both_values_and_remedies() -> None:
    running = kaas.Config(policy="cfs_affinity", slots=2, devices=(kaas.Device(),))
    with pytest.raises(errors.ConfigMismatch) as raised:
        kaas.Config(policy="fcfs", slots=2).refuse_other("kaas", running.described())
    error = raised.value
    assert error.differences == ("policy",)
    assert "policy is 'cfs_affinity' there and 'fcfs' here" in error.message
    assert all(way in error.message for way in ("kaas.init() without policy", "another name=", "kaas.shutdown()"))
    with pytest.raises(errors.ConfigMismatch, match=r"call kaas\.init\(ray=False, name='mine'\) without policy;"):
        kaas.Config(policy="fcfs", slots=2).refuse_other("mine", running, ray=False)
    kaas.Config(policy="cfs_affinity", slots=2).refuse_other("kaas", running)


@pytest.mark.processes
@pytest.mark.parametrize("command", spread(["inspect", "check", "run"], 1))
def test_a_file_of_something_else_is_named(tmp_path: Path, command: str) -> None:
    path = tmp_path / "notes.kaas"
    path.write_text("hello")
    ended = subprocess.run([sys.executable, "-m", "kaas.cli", command, str(path)], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "notes.kaas is neither a model" in ended.stderr
    assert "kTask in JSON" in ended.stderr


def test_a_model_that_is_no_whole_zip_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.kaas"
    path.write_text("hello")
    with pytest.raises(errors.CorruptModel, match=r"notes.kaas .* it is no zip file, as `kaas compile` .* write them"):
        kaas.load(path)
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(errors.CorruptModel, match="its end is missing"):
        kaas.load(path)


def test_the_error_for_an_open_dimension_names_the_option_that_closes_it(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("tvm")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    taken = helper.make_tensor_value_info("ids", floats, ["batch", "sequence", 8])
    given = helper.make_tensor_value_info("y", floats, ["batch", "sequence", 8])
    graph = helper.make_graph([helper.make_node("Relu", ["ids"], ["y"])], "graph", [taken], [given])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "model.onnx")
    ended = CliRunner().invoke(app, ["compile", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "model.kaas")])
    assert isinstance(ended.exception, errors.InvalidModel)
    assert "--shape ids=<batch>x<sequence>x8" in str(ended.exception)


@pytest.mark.ray
def test_an_error_that_ray_get_raises_is_short(start: Callable[..., bool]) -> None:
    """Besides the message there are only Ray's line about the process, the place where Ray took the error, and one
    place in the pool's code."""
    start(devices=[kaas.Device("software", 64 << 20)], config=kaas.Config(faults_allowed=0))
    for ref in (kaas.invoke(crash_task(), {}), kaas.register(crash_task()).remote()):
        with pytest.raises(errors.KaasError) as raised:
            ray.get(ref)
        told = str(raised.value)
        assert told.count(f"{Path(kaas.__file__).parent}/") == 1, told
        assert len(told.partition("kTask 'crash")[0].splitlines()) <= 10, told


@pytest.mark.ray
def test_inside_an_etask_the_cause_is_the_users_own(start: Callable[..., bool]) -> None:
    @kaas.etask
    def fails() -> None:
        raise ValueError("of the user's")

    start(config=None)
    with pytest.raises(errors.ETaskFailed) as raised:
        ray.get(fails.remote())
    assert "of the user's" in str(raised.value)
    assert "kaas/pool/core/core.py" not in str(raised.value)


def test_errors_distinguish_a_scalar_from_an_input() -> None:
    code = kaas.Library.from_file(Path(__file__).parents[1] / "api" / "kernels" / "steps.ptx")
    x, y = kaas.Buffer("x", 256, "float32"), kaas.Buffer("y", 256, "float32")
    factor = kaas.Scalar("factor", "f32")
    task = kaas.KTask([kaas.Kernel(code, "scale", 1, 256, [kaas.In(x), kaas.Out(y), factor, kaas.u32(256)])], [y])
    ones = np.ones(256, np.float32)
    with pytest.raises(errors.UnexpectedInput, match=r"'factor': that is a scalar, .* scalars=\{'factor': \.\.\.\}"):
        kaas.run_local(task, {"x": ones, "factor": 2.0})
    with pytest.raises(errors.UnexpectedInput, match=r"no input 'scalars'; give scalars by name: factor=\.\.\.$"):
        kaas.run_local(task, {"x": ones, "scalars": {"factor": 2.0}})
    said = r"scalar 'factor' \(f32\) was not given: .* scalars=\{'factor'.* factor=\.\.\. in call\(\)"
    with pytest.raises(errors.MissingScalar, match=said):
        kaas.run_local(task, {"x": ones})
    with pytest.raises(errors.UnexpectedInput, match=r"'factor' is a scalar, and no constant: each call"):
        check_constants(task, ["factor"])

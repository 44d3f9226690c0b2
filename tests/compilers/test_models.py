"""Compiled models are correct: by `run_local`, in a pool from a .kaas file, and without TVM.

An output is right if its largest error is a thousandth of the largest magnitude in PyTorch's answer at most, and if the
largest element of each row is in the same place.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("onnx")

import kaas
import tvm_backend
from benchmarks.models import MODELS, Model, relative_error, same_top1
from benchmarks.models import __main__ as timed
from kaas.executor.local import executor_for
from tests.lanes import spread
from tests.timeouts import TIMEOUT_S

# `python -m benchmarks.models` has the slowest cases: BERT's other ten layers, ResNet-50 for eight pictures
SUITE = {name: (1,) if name == "resnet50" else model.batch_sizes for name, model in MODELS.items() if name != "bert"}
LARGE_LAST = [*list(SUITE)[2:], *list(SUITE)[:2]]
CASES = [(name, batch) for name in LARGE_LAST for batch in SUITE[name]]
TOLERANCE = 1e-3
DEVICE = kaas.Device("software", 256 << 20)


@pytest.fixture(scope="module", autouse=True)
def nothing_stored() -> Iterator[None]:
    """Turn the store off, so that every model is compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KAAS_MODEL_CACHE", "0")
        yield


@pytest.fixture(scope="module")
def local_device(softgpu: tuple[int, ...]) -> Iterator[None]:  # noqa: ARG001 - it provides the device
    """Empty the device of `run_local` afterwards: the models fill it, and other tests of this process need it."""
    yield
    executor_for().flush()


@pytest.fixture(scope="module")
def pool() -> Iterator[None]:
    kaas.init(ray=False, devices=[DEVICE], name="models")
    yield
    kaas.shutdown()


@cache
def compiled(name: str) -> kaas.CompiledModel:
    """Return a model compiled from its ONNX graph, once for all tests, to PTX only, which the software GPU runs."""
    return MODELS[name].compiled(SUITE[name], target="ptx")


def check(model: Model, given: Any, expected: dict[str, Any]) -> None:
    """Check the outputs: one array, or a tuple of several."""
    outputs = given if isinstance(given, tuple) else (given,)
    assert len(outputs) == len(model.outputs)
    for name, value in zip(model.outputs, outputs, strict=True):
        assert (value.shape, value.dtype) == (expected[name].shape, expected[name].dtype)
        assert relative_error(value, expected[name]) <= TOLERANCE, name
        assert same_top1(value, expected[name]), name


@pytest.mark.usefixtures("local_device")
@pytest.mark.parametrize(("name", "batch"), spread(CASES, 2))
def test_run_local(name: str, batch: int) -> None:
    model = MODELS[name]
    check(model, compiled(name).run_local(*model.inputs(batch).values()), model.answers(batch))


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("name", spread(LARGE_LAST, 2))
def test_saved_loaded_registered_and_called(name: str, tmp_path: Path) -> None:
    """Each batch size finds its kTask by the shapes of the inputs."""
    model = MODELS[name]
    compiled(name).save(tmp_path / "model.kaas")
    loaded = kaas.load(tmp_path / "model.kaas")
    assert [variant.task for variant in loaded.variants] == [variant.task for variant in compiled(name).variants]
    function = loaded.register()
    for batch in SUITE[name]:
        check(model, function.call(**model.inputs(batch)).result(TIMEOUT_S), model.answers(batch))


@pytest.mark.usefixtures("pool")
def test_registered_as_compiled_and_called() -> None:
    model = MODELS["mlp"]
    function = compiled("mlp").register()
    for batch in model.batch_sizes:
        check(model, function.call(*model.inputs(batch).values()).result(TIMEOUT_S), model.answers(batch))


@pytest.mark.usefixtures("local_device")
@pytest.mark.parametrize("name", spread(LARGE_LAST, 2))
def test_from_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    model = MODELS[name]
    network = model.network()
    inputs = tuple(torch.from_numpy(value) for value in model.inputs().values())
    made = tvm_backend.compile(torch.export.export(network, inputs), target="ptx", name=name)
    with torch.inference_mode():
        answered = network(*inputs)
    values = answered if isinstance(answered, tuple) else (answered,)
    expected = {name: value.numpy() for name, value in zip(model.outputs, values, strict=True)}
    check(model, made.run_local(*model.inputs().values()), expected)


def test_the_benchmark_times_right_answers_only() -> None:
    model = MODELS["bert_short"]
    answers = model.answers()
    timed.check(model, answers, answers)
    for wrong in (np.nan, 1e4):  # with 1e4, another element is the largest
        changed = {name: value.copy() for name, value in answers.items()}
        changed["end"][0, -1] = wrong
        with pytest.raises(AssertionError, match="bert_short: end is not PyTorch's"):
            timed.check(model, changed, answers)


def test_a_saved_model_runs_without_its_compiler(tmp_path: Path) -> None:
    model = MODELS["mlp"]
    compiled("mlp").save(tmp_path / "mlp.kaas")
    np.save(tmp_path / "x.npy", model.inputs(16)["x"])
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['tvm', 'tvm_backend', 'onnx', 'torch', 'ray']))\n"
        "import kaas, numpy; folder = sys.argv[1]\n"
        "numpy.save(folder + '/y.npy', kaas.load(folder + '/mlp.kaas').run_local(numpy.load(folder + '/x.npy')))"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    check(model, np.load(tmp_path / "y.npy"), model.answers(16))

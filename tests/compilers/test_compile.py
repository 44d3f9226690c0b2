"""tvm_backend.compile: its options, its progress, and when it compiles again."""

from __future__ import annotations

import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm  # noqa: F401 - before the software GPU's driver is loaded: TVM would take it for NVIDIA's

import kaas
import tvm_backend
from kaas.errors import DeviceUnavailable, InvalidTarget
from tests.compilers.onnx_cases import perceptron, perceptron_result
from tvm_backend import compiling, errors, lowering
from tvm_backend.errors import CompileError, InvalidOption, Place
from tvm_backend.progress import Progress
from tvm_backend.store import SWITCH

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def lowerings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Return a list that collects the names of lowered functions; the test has a store of its own."""
    lowered: list[str] = []
    usual = lowering.lowered

    def counting(module: Any, *more: Any) -> Any:
        lowered.extend(variable.name_hint for variable in module.functions)
        return usual(module, *more)

    monkeypatch.setattr(lowering, "lowered", counting)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(SWITCH, "1")
    return lowered


@pytest.mark.usefixtures("softgpu")
def test_a_compiled_model_is_found_and_a_different_one_is_compiled(lowerings: list[str], tmp_path: Path) -> None:
    path = tmp_path / "network.onnx"
    onnx.save(perceptron(2), path)
    steps: list[Progress] = []
    first = tvm_backend.compile(path, target="compute_80", progress=steps.append)
    assert lowerings == ["main"]
    stages = [step.stage for step in steps if step.done == step.total]
    assert stages == ["cache", "import", "lower", "library", "tasks"]
    assert pickle.loads(pickle.dumps(steps)) == steps

    steps.clear()
    again = tvm_backend.compile(path, target="compute_80", progress=steps.append)
    assert lowerings == ["main"]
    assert steps[-1] == Progress("cache", 1, 1, "found")
    assert (again.name, again.variants, again.library) == (first.name, first.variants, first.library)
    assert all(np.array_equal(array, first.constants[name]) for name, array in again.constants.items())

    other = perceptron(2, seed=1)  # the same graph with other weights
    onnx.save(other, path)
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(
        tvm_backend.compile(path, target="compute_80").run_local(x), perceptron_result(other, x), rtol=1e-5
    )
    assert len(lowerings) == 2
    for stored in (tmp_path / "cache" / "kaas" / "models").iterdir():
        stored.write_bytes(b"damaged")
    tvm_backend.compile(path, target="compute_80")
    assert len(lowerings) == 3


@pytest.mark.parametrize(
    "options", [{"name": "other"}, {"target": "compute_90"}, {"batch_sizes": (2,)}, {"example_inputs": np.ones((2, 4))}]
)
def test_keys_differ_by_options(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = perceptron(2)
    keys = set()
    for given in ({}, options, {"target": "sm_80+ptx"}):
        keys.add(keyed(monkeypatch, tmp_path, partial(tvm_backend.compile, made, **given)))
    assert len(keys) == 2


def keyed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiled: Callable[[], Any]) -> str:
    """Return the key that a compilation looks up in the store; the compilation is ended there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(SWITCH, "1")
    monkeypatch.setattr("tvm_backend.store.Store.get", _found)
    with pytest.raises(LookupError) as caught:
        compiled()
    return str(caught.value)


def _found(_store: Any, key: str) -> None:
    raise LookupError(key)


def test_a_tuned_model_is_not_taken_for_another_device_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("tvm_backend.store.Store.get", _found)
    with pytest.raises(DeviceUnavailable):
        tvm_backend.compile(perceptron(2), tune=1)


def test_external_data_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "network.onnx"
    keys = set()
    for seed in (0, 1, 0):
        (tmp_path / "weights").unlink(missing_ok=True)
        onnx.save(perceptron(2, seed=seed), path, save_as_external_data=True, location="weights", size_threshold=0)
        keys.add(keyed(monkeypatch, tmp_path, lambda: tvm_backend.compile(path)))
    assert len(keys) == 2


def test_another_process_finds_a_compiled_model_without_tvm(lowerings: list[str], tmp_path: Path) -> None:
    path = tmp_path / "network.onnx"
    onnx.save(perceptron(2), path)
    made = tvm_backend.compile(path, target="compute_80")
    assert lowerings == ["main"]
    program = (
        "import sys, tvm_backend\n"
        "model = tvm_backend.compile(sys.argv[1], target='compute_80')\n"
        "print(model.variants[0].task.key, *sys.modules)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, str(path)]
    words = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    assert words[0] == made.variants[0].task.key
    assert not {"tvm", "onnx", "torch"} & set(words)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"target": 80}, "target"), ({"batch_sizes": ()}, "batch_sizes"), ({"batch_sizes": (0,)}, "batch_sizes"),
        ({"batch_sizes": "8"}, "batch_sizes"), ({"tune": -1}, "tune"), ({"tune": True}, "tune"), ({"name": ""}, "name"),
    ],
)  # fmt: skip
def test_options_that_mean_nothing(options: dict[str, Any], option: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        tvm_backend.compile(perceptron(2), **options)
    assert caught.value.option == option


def test_unknown_targets() -> None:
    with pytest.raises(InvalidTarget):
        tvm_backend.compile(perceptron(2), target="sm_10")


def test_one_thread_at_a_time_uses_tvm(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def lowered(*_: Any) -> Any:
        with ThreadPoolExecutor(1) as other:
            taken.append(other.submit(compiling._tvm.acquire, blocking=False).result())
        raise ValueError

    monkeypatch.setattr(lowering, "lowered", lowered)
    with pytest.raises(CompileError):
        tvm_backend.compile(perceptron(2))
    assert taken == [False]


def test_an_error_of_tvm_is_a_compile_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("InternalError: Check failed\nwith a second line")

    monkeypatch.setattr(lowering, "lowered", fails)
    with pytest.raises(CompileError, match=r"cannot lower graph: InternalError: Check failed$") as caught:
        tvm_backend.compile(perceptron(2))
    assert caught.value.stage == "lower"
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("kind", [kind for _, kind in inspect.getmembers(errors, inspect.isclass)
                                  if issubclass(kind, CompileError)])  # fmt: skip
def test_errors_survive_pickling(kind: type[CompileError]) -> None:
    values = {"model": "m", "stage": "import", "path": "p", "input": "i", "names": ("a",), "option": "o",
              "operators": (Place("a", "b", "c"),), "buffer": "b"}  # fmt: skip
    declared = {name for base in kind.__mro__ for name in inspect.get_annotations(base)}
    error = kind("wrong", **{name: value for name, value in values.items() if name in declared})
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.message, again.fields) == (kind, "wrong", error.fields)
    assert isinstance(again, kaas.KaasError)


def test_names(tmp_path: Path) -> None:
    names = {
        compiling.Options.checked(model, "sm_80", None, name, 0).name
        for model, name in ((tmp_path / "a b.onnx", None), (perceptron(), None), ("x.pt2", "given"))
    }
    assert names == {"a_b", "graph", "given"}

"""`kaas compile`: it writes a file from a file with the installed compiler, and one line for each mistake."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm  # noqa: F401 - before the software GPU's driver is loaded: TVM would take it for NVIDIA's
from onnx import helper
from typer.testing import CliRunner

import kaas
from kaas.cli import compiling
from kaas.cli.main import app
from kaas.errors import InvalidRequest, MissingPackage
from tests.compilers.onnx_cases import model, perceptron, perceptron_result, value
from tvm_backend.errors import UnsupportedOperators

ROOT = Path(__file__).parent.parent.parent
TVM = EntryPoint("tvm", "tvm_backend:compile", compiling.GROUP)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[EntryPoint]:
    """Return the list of compilers that the command finds; the test may change it."""
    compilers = [TVM]
    monkeypatch.setattr(compiling, "entry_points", lambda group: EntryPoints(compilers).select(group=group))
    monkeypatch.chdir(tmp_path)
    return compilers


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["compile", *arguments])


def test_the_package_brings_the_entry_point() -> None:
    project = tomllib.loads((ROOT / "compilers" / "tvm_backend" / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][TVM.group] == {TVM.name: TVM.value}


@pytest.mark.usefixtures("softgpu")
def test_a_file_out_of_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = perceptron("N")
    onnx.save(made, "network.onnx")
    result = run("network.onnx", "--target", "compute_80", "--batch-size", "1", "--batch-size", "3")
    assert result.exit_code == 0, result.output
    assert "written network.kaas" in result.stdout
    assert capfd.readouterr().err == "", "a success warns of nothing"
    compiled = kaas.load(tmp_path / "network.kaas")
    assert compiled.name == "network"
    assert compiled.about["target"] == "compute_80"
    x = np.ones((3, 4), np.float32)
    np.testing.assert_allclose(compiled.run_local(x), perceptron_result(made, x), rtol=1e-5)


def test_options_reach_the_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    class Made:
        def save(self, path: Path) -> None:
            path.write_bytes(b"saved")

    def compiler(path: Path, examples: Any, **options: Any) -> Made:
        seen.update(options, path=path, shapes={name: example.shape for name, example in examples.items()})
        return Made()

    monkeypatch.setattr("tvm_backend.compiling.compile", compiler)
    more = ["--name", "n", "--tune", "3", "--shape", "a=1x384", "--shape", "b=4", "-o", "out.kaas"]
    assert run("x.onnx", "--compiler", "tvm", *more).exit_code == 0
    assert (tmp_path / "out.kaas").read_bytes() == b"saved"
    assert seen.pop("progress") is not None
    assert seen == {
        "path": Path("x.onnx"), "shapes": {"a": (1, 384), "b": (4,)}, "name": "n", "tune": 3, "batch_sizes": None,
        "target": "sm_80+ptx",
    }  # fmt: skip


def test_shapes_alone_are_examples() -> None:
    made = model([helper.make_node("Relu", ["x"], ["y"])], [value("x", ["batch", "length"])], ["y"])
    onnx.save(made, "open.onnx")
    assert "leaves length open" in str(run("open.onnx").exception)
    result = run("open.onnx", "--target", "compute_80", "--shape", "x=2x5")
    assert result.exit_code == 0, result.output
    assert kaas.load("open.kaas").variants[0].inputs[0].shape == (2, 5)


def test_without_a_compiler(installed: list[EntryPoint]) -> None:
    installed.clear()
    error = run("x.onnx").exception
    assert isinstance(error, MissingPackage)
    assert error.message.startswith("no compiler is installed: pip install './compilers/tvm_backend[onnx]' in a clone")
    assert "'./kaas_gpu_tvm-….whl[onnx]'" in error.message


def test_compilers_by_name(installed: list[EntryPoint]) -> None:
    installed.append(EntryPoint("other", "nowhere:compile", TVM.group))
    for arguments, message in ((["x.onnx"], "several"), (["x.onnx", "--compiler", "third"], "no compiler 'third'")):
        error = run(*arguments).exception
        assert isinstance(error, InvalidRequest)
        assert message in error.message
        assert error.message.endswith("one of other, tvm")


def test_mistakes() -> None:
    onnx.save(model([helper.make_node("NonZero", ["x"], ["y"])], [value("x", [3])], ["y"]), "bad.onnx")
    assert isinstance(run("bad.onnx").exception, UnsupportedOperators)
    assert "cannot be read" in str(run("none.onnx").exception)
    assert "no folder" in str(run("bad.onnx", "-o", "nowhere/x.kaas").exception)
    for shape in ("x", "x=", "=3", "x=3y4", "x=0"):
        assert "--shape takes" in str(run("bad.onnx", "--shape", shape).exception)

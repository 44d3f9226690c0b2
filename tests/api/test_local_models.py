"""Models in this process: `run_local`, files without a compiler at hand, and the commands."""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import kaas
from kaas import errors
from kaas.cli.main import app, main
from kaas.executor.local import executor_for
from tests.api.models import LARGEST, adder, doubler, expected, inputs

pytestmark = pytest.mark.usefixtures("softgpu")

ROOT = Path(__file__).parent.parent.parent
runner = CliRunner()


@pytest.mark.parametrize("batch", [1, LARGEST])
def test_run_local(batch: int) -> None:
    model = adder(1, LARGEST)
    x, mask = inputs(batch).values()
    for outputs in (model.run_local(x, mask), model.run_local(x, mask=mask), model.run_local(mask=mask, x=x)):
        assert outputs._fields == ("sum", "more")
        for array, right in zip(outputs, expected(x), strict=True):
            np.testing.assert_array_equal(array, right)
    np.testing.assert_array_equal(doubler(batch).run_local(x, device=1), 2 * x)


def test_constants_stay_on_the_device_and_give_way() -> None:
    device = kaas.Device("software", memory_bytes=96 << 10)
    model, other = adder(1, LARGEST), adder(LARGEST)
    executor = executor_for(device)
    x, mask = inputs(LARGEST).values()

    def loaded(model: kaas.CompiledModel) -> int:
        """Objects that a run had to bring to the device."""
        result = model.run({"x": x, "mask": mask}, device=device)
        np.testing.assert_array_equal(result.outputs["sum"], expected(x)[0])
        return len(result.stats.loaded)

    assert [loaded(model), loaded(model)] == [2, 0]
    assert len(executor.cached()) == 2
    assert loaded(other) == 2  # the constants are equal, but are not compared
    for _ in range(6):
        loaded(adder(LARGEST))  # of models that no variable names any more: their room is free
    assert executor.cache.used_bytes <= executor.cache.device.capacity_bytes
    assert [loaded(model), loaded(model)] == [2, 0]


@pytest.mark.parametrize(
    ("call", "expected_error"),
    [
        (lambda model: model.run_local(np.zeros((3, 256), np.float32), np.zeros(3, np.bool_)), errors.NoVariant),
        (lambda model: model.run_local(np.zeros((1, 256), np.float32)), errors.MissingInput),
        (lambda model: model.run_local(*[np.zeros(1)] * 3), errors.InvalidRequest),
        (lambda model: model.run_local(bytes(1024), bytes(1), bytes(1)), errors.InvalidRequest),
        (
            lambda model: model.run_local(np.zeros((1, 512), np.float32)[:, ::2], np.zeros(1, bool)),
            errors.NotContiguous,
        ),
        (lambda model: model.run_local(**inputs(1), device=9), errors.DeviceUnavailable),
    ],
)
def test_invalid_local_runs_are_refused(
    call: Callable[[kaas.CompiledModel], object], expected_error: type[errors.KaasError]
) -> None:
    with pytest.raises(expected_error) as caught:
        call(adder(1, LARGEST))
    assert type(caught.value) is expected_error


@pytest.mark.processes
def test_a_file_runs_without_any_compiler(tmp_path: Path) -> None:
    adder(1).save(tmp_path / "adder.kaas")
    x = inputs(1)["x"]
    np.save(tmp_path / "x.npy", x)
    program = f"""
import sys
for name in ("tvm", "torch", "onnx", "tvm_backend"):
    sys.modules[name] = None
import numpy as np
import kaas
model = kaas.load({str(tmp_path / "adder.kaas")!r})
assert "ray" not in sys.modules
outputs = model.run_local(np.load({str(tmp_path / "x.npy")!r}), np.zeros(1, np.bool_))
np.save({str(tmp_path / "sum.npy")!r}, outputs.sum)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "sum.npy"), expected(x)[0])


def test_a_file_by_hand(tmp_path: Path) -> None:
    """The example of docs/models.md, with its hashes filled in."""
    library = doubler(1).library
    (image,) = library.images
    code = f"code/{hashlib.sha256(image.data).hexdigest()}.ptx"
    tensors = struct.pack("<Q", 2) + b"{}"
    found = re.search(r"```json\n(.*?)```", (ROOT / "docs" / "models.md").read_text(), re.DOTALL)
    assert found is not None
    manifest = json.loads(found[1])
    manifest["code"] = [code]
    manifest["variants"][0]["task"]["kernels"][0]["kernel"]["library"] = library.hash
    with zipfile.ZipFile(tmp_path / "hand.kaas", "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        archive.writestr(code, image.data)
        archive.writestr("constants.safetensors", tensors)
    x = inputs(1)["x"]
    np.testing.assert_array_equal(kaas.load(tmp_path / "hand.kaas").run_local(x), 2 * x)


# --- commands


@pytest.fixture
def file(tmp_path: Path) -> Path:
    adder(1, LARGEST).save(tmp_path / "model.json")  # its bytes decide, not its name
    return tmp_path / "model.json"


def test_inspect(file: Path) -> None:
    result = runner.invoke(app, ["inspect", str(file)])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert re.fullmatch(r"model adder: 2 constants of 16,384 bytes; ptx of [\d,]+ bytes", lines[0])
    assert lines[1] == "  compiler: none"
    assert "variant adder-1: 1 kernels in 2 launches, 8,192 bytes of constants, 3,072 bytes of arena" in lines
    assert "variant adder-8: 1 kernels in 2 launches, 16,384 bytes of constants, 24,576 bytes of arena" in lines
    assert "  input  mask: bool[8]" in lines
    assert "  output more: float32[8, 256]" in lines
    assert re.search(r"add +│ 2 +│ 2 +│ 1, 256", result.stdout), result.stdout


def test_check(file: Path) -> None:
    result = runner.invoke(app, ["check", str(file)])
    assert result.exit_code == 0, result.output
    assert result.stdout.count("ok adder-") == 2


def test_run(file: Path, tmp_path: Path) -> None:
    x, mask = inputs(LARGEST).values()
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "mask").write_bytes(mask.tobytes())
    given = ["--input", f"x={tmp_path / 'x.npy'}", "--input", f"mask={tmp_path / 'mask'}"]
    result = runner.invoke(app, ["run", str(file), *given, "--output", str(tmp_path / "out"), "--profile"])
    assert result.exit_code == 0, result.output
    assert f"sum: float32[{LARGEST}, 256]" in result.stdout
    assert "without the graph" in result.stdout
    for name, right in zip(("sum", "more"), expected(x), strict=True):
        np.testing.assert_array_equal(np.load(tmp_path / "out" / f"{name}.npy"), right)


def test_one_input_needs_no_name(tmp_path: Path) -> None:
    x = inputs(1)["x"]
    np.save(tmp_path / "x.npy", x)
    doubler(1).save(tmp_path / "model.kaas")
    (tmp_path / "task.json").write_text(doubler(1).variants[0].task.to_json())
    for file in ("model.kaas", "task.json"):
        given = [str(tmp_path / file), "--input", str(tmp_path / "x.npy"), "--output", str(tmp_path / file[:4])]
        result = runner.invoke(app, ["run", *given])
        assert result.exit_code == 0, result.output
        np.testing.assert_array_equal(np.load(tmp_path / file[:4] / "y.npy"), 2 * x)


def test_an_input_is_one_array_given_once(tmp_path: Path) -> None:
    doubler(1).save(tmp_path / "model.kaas")
    np.save(tmp_path / "x.npy", inputs(1)["x"])
    with (tmp_path / "several.npy").open("wb") as file:
        np.savez(file, x=inputs(1)["x"])
    for words, names in (("cannot read .*several", ["several"]), ("'x' is given twice", ["x", "x"])):
        given = [argument for name in names for argument in ("--input", str(tmp_path / f"{name}.npy"))]
        refused = runner.invoke(app, ["run", str(tmp_path / "model.kaas"), *given]).exception
        assert isinstance(refused, errors.InvalidRequest)
        assert re.search(words, refused.message)


@pytest.mark.parametrize("extra", [["--input", "x.npy"], ["--scalar", "factor=2"], ["--input", "mask=none.npy"]])
def test_run_refuses(file: Path, extra: list[str]) -> None:
    assert isinstance(runner.invoke(app, ["run", str(file), *extra]).exception, errors.InvalidRequest)


def test_a_damaged_file_is_an_error_of_one_line(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_bytes(file.read_bytes()[:100])
    monkeypatch.setattr(sys, "argv", ["kaas", "inspect", str(file)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1
    told = capsys.readouterr().err
    assert told.startswith(f"CorruptModel: {file} is no model that can be read: ")
    assert told.count("\n") == 1

"""The command line: what it prints, and that an error is one line and exit status 1."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import ray
from typer.testing import CliRunner

import kaas
from kaas import errors
from kaas.cli.files import unlike
from kaas.cli.main import app, main
from kaas.profiles import read_profiles
from tests.api.conftest import N, numbers, scale_task
from tests.timeouts import TIMEOUT_S

runner = CliRunner()
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def task_file(tmp_path: Path) -> Path:
    path = tmp_path / "scale.json"
    path.write_text(scale_task(name="scaling").to_json())
    return path


@pytest.fixture
def x_file(tmp_path: Path) -> Path:
    path = tmp_path / "x.npy"
    np.save(path, numbers())
    return path


def test_inspect(task_file: Path) -> None:
    result = runner.invoke(app, ["inspect", str(task_file)])
    assert result.exit_code == 0
    assert "kTask scaling" in result.stdout
    assert "scale(x) → y" in result.stdout


@pytest.mark.usefixtures("softgpu")
def test_check(task_file: Path, tmp_path: Path) -> None:
    assert "ok scaling: 1 kernels" in runner.invoke(app, ["check", str(task_file)]).stdout
    (tmp_path / "bad.json").write_text(scale_task(symbol="scales").to_json())
    error = runner.invoke(app, ["check", str(tmp_path / "bad.json")]).exception
    assert isinstance(error, errors.UnknownSymbol)


@pytest.mark.usefixtures("softgpu")
@pytest.mark.parametrize("raw", [False, True])
def test_run_here(task_file: Path, x_file: Path, tmp_path: Path, raw: bool) -> None:
    if raw:
        x_file = tmp_path / "x.bin"
        x_file.write_bytes(numbers().tobytes())
    arguments = [
        "run",
        str(task_file),
        "--input",
        f"x={x_file}",
        "--scalar",
        "factor=3",
        "--output",
        str(tmp_path / "o"),
    ]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert f"y: float32[{N}]" in result.stdout
    assert "kernels" in result.stdout
    np.testing.assert_allclose(np.load(tmp_path / "o" / "y.npy"), numbers() * np.float32(3))


@pytest.mark.usefixtures("softgpu")
def test_run_prints_the_times_of_kernels(task_file: Path, x_file: Path) -> None:
    result = runner.invoke(app, ["run", str(task_file), "--input", f"x={x_file}", "--scalar", "factor=3", "--profile"])
    assert result.exit_code == 0, result.output
    assert re.search(r"scale +│ 1 +│ \d+\.\d{3} +│ 100\.0%", result.stdout), result.stdout
    assert "without the graph" in result.stdout


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (["--input", "x"], errors.InvalidRequest),
        (["--input", "x=nowhere.npy"], errors.InvalidRequest),
        (["--scalar", "factor=two"], errors.InvalidRequest),
    ],
)
def test_run_refuses(task_file: Path, extra: list[str], expected: type[kaas.KaasError]) -> None:
    assert isinstance(runner.invoke(app, ["run", str(task_file), *extra]).exception, expected)


def test_error_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.json").write_text('{"kaas": 99, "libraries": {}}')
    monkeypatch.setattr(sys, "argv", ["kaas", "inspect", str(tmp_path / "bad.json")])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1
    assert capsys.readouterr().err == "InvalidGraph: this kTask is written in format 99; this version reads 1\n"


def kaas_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kaas.cli", *arguments],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "120", **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.mark.ray
def test_demo() -> None:
    ended = kaas_command("demo", "--seconds", "2", "--vertices", "96")
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"\d+ results, all equal to NumPy's", ended.stdout)
    assert "what Ray prints then, of a worker that died, is about that one" in " ".join(ended.stdout.split())
    assert re.search(r"SIGKILL for the executor of device \d", ended.stdout)
    for client, due in {"ann": 25, "bob": 25, "cy": 50}.items():
        assert re.search(rf"{client} .*{due}%", ended.stdout)


@pytest.mark.ray
@pytest.mark.usefixtures("pool")
def test_status_and_run_on_a_pool(task_file: Path, x_file: Path, tmp_path: Path) -> None:
    status = runner.invoke(app, ["status", "--ray"])  # others of this user may have a pool of that name without Ray
    assert status.exit_code == 0, status.output
    assert "software" in status.stdout
    assert "policy adaptive" in status.stdout
    address = ray.get_runtime_context().gcs_address
    assert status.stderr == f"pool kaas on the Ray at {address}\n"  # it took whichever Ray runs here
    missing = kaas_command("stats", "--name", "none", "--address", address)
    assert (missing.returncode, missing.stderr.splitlines()[-1]) == (
        1,
        f"NotInitialized: no pool 'none' runs on the Ray at {address}",
    )
    nowhere = kaas_command("stats", "--name", "none", RAY_ADDRESS=address)
    words = f"no pool 'none' runs on this machine without Ray, and no pool 'none' runs on the Ray at {address}"
    said, _, _ = nowhere.stderr.splitlines()[-1].partition(". Without Ray run here: ")  # others of this user, if any
    assert said == f"NotInitialized: {words}"
    arguments = ["--ray", "--profile", "--input", f"x={x_file}", "--scalar", "factor=2", "--output", str(tmp_path)]
    result = runner.invoke(app, ["run", str(task_file), *arguments])
    assert result.exit_code == 0, result.output
    assert "request" in result.stdout
    assert re.search(r"scale +│ 1 +│ \d+\.\d{3} +│ 100\.0%", result.stdout), result.stdout
    assert kaas.status().devices  # the command did not start the pool, so it left it running
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), numbers() * np.float32(2))


@pytest.mark.ray
@pytest.mark.usefixtures("pool")
def test_profile_in_a_pool_on_ray(task_file: Path, tmp_path: Path) -> None:
    file = tmp_path / "profiles.jsonl"
    arguments = ["--ray", "--sms", "1", "--quota", "0.5", "--scalar", "factor=2", "--profiles", str(file), "--json"]
    result = runner.invoke(app, ["profile", str(task_file), *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    ((point,),) = (each["points"] for each in json.loads(result.stdout)["functions"])
    assert (point["sms"], point["quota"]) == (1, 0.5)
    assert point["rate_per_s"] > 1
    assert kaas.status().shares == ()
    assert [len(each.points) for each in read_profiles(file)] == [1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", "/dev/zero"),
        ("check", "/dev/zero"),
        ("simulate", "/dev/zero"),
        ("replay", "/dev/zero"),
        ("bench", "file", "none.json", "--trace", "/dev/zero"),
        ("bench", "file", "none.json", "--inputs", "/dev/zero"),
    ],
)
def test_a_device_is_no_file(arguments: tuple[str, ...]) -> None:
    """To read it whole would have no end."""
    refused = runner.invoke(app, [*arguments])
    assert refused.exit_code == 2
    assert "/dev/zero is a device" in " ".join(refused.output.replace("│", "").split())


def test_a_function_of_a_module_is_no_file_that_an_output_could_replace(tmp_path: Path) -> None:
    output = tmp_path / "profiles.jsonl"
    output.touch()
    unlike(output, None, Path("mine:served"))
    with pytest.raises(errors.InvalidRequest, match="it is read"):
        unlike(output, None, output)

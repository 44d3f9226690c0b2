"""Every example runs as it stands, under 100 lines."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaas
from examples import cgemm, chained_gemm, chained_matmul, jacobi, nearest_neighbours, pipeline, server
from kaas.executor.local import check, run_local
from kaas.executor.plan.plan import Plan
from tests.code.present import present
from tests.timeouts import TIMEOUT_S

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def pool(start: Callable[..., bool]) -> None:
    start(devices=[kaas.Device("software", memory_bytes=128 << 20)] * 2, name="examples")


def example(name: str) -> Any:
    """An example, skipped where a package is missing that KaaS itself does not need."""
    package = {"from_cupy": "cupy", "from_numba": "numba_cuda", "from_triton": "triton"}.get(name)
    missing = package is not None and not present(package)
    return pytest.param(name, marks=pytest.mark.skipif(missing, reason=f"needs {package}"))


@pytest.mark.ray
@pytest.mark.usefixtures("pool", "softgpu")
@pytest.mark.parametrize("name", [example(name) for name in EXAMPLES])
def test_example_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    importlib.import_module(f"examples.{name}").main()
    assert capsys.readouterr().out.strip()


@pytest.mark.processes
def test_the_server_runs_without_ray() -> None:
    assert "80 pictures" in run_alone("examples/server.py")


def run_alone(*arguments: str) -> str:
    """Return the output of a Python program, in a process of its own."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_is_short(name: str) -> None:
    assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) < 100


TASKS = [
    nearest_neighbours.build(32, 8, 2),
    jacobi.build(64),
    chained_matmul.build(64),
    pipeline.build(9, 9),
    server.build(9),
    cgemm.build(100, 100, 250),
    chained_gemm.build(64, 96, 256),
]


@pytest.mark.usefixtures("softgpu")
@pytest.mark.parametrize("task", TASKS, ids=lambda task: str(task.label))
def test_example_fits_its_code(task: kaas.KTask) -> None:
    assert isinstance(check(task), Plan)


@pytest.mark.usefixtures("softgpu")
@pytest.mark.parametrize(("vertices", "searches"), [(40, 1), (64, 32), (65, 33)])
def test_nearest_neighbours_of_any_size(vertices: int, searches: int) -> None:
    rng = np.random.default_rng(4)
    a = nearest_neighbours.random_graph(vertices, 5, rng)
    x = nearest_neighbours.random_starts(vertices, searches, rng)
    task = nearest_neighbours.build(vertices, searches, 3)
    v = run_local(task, {"A": a, "X": x})["V"]
    np.testing.assert_allclose(v, nearest_neighbours.reference(a, x, 3), rtol=1e-5, atol=1e-6)

"""The examples' kTasks, random graphs and faults in the software GPU's strict and memcheck modes.

A process has these modes from its start.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from softgpu import MEMCHECK_VARIABLE, STRICT_VARIABLE
from tests.ahead import begun
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
TESTS = (
    "tests/examples/test_gpu_cases.py",
    "tests/executor/test_random_graphs.py",
    "tests/executor/test_run.py",
    "tests/faults/test_recoverable.py",
)
MODES = {
    "strict, seed 0": {STRICT_VARIABLE: "0"},
    "strict, seed 1, memcheck": {STRICT_VARIABLE: "1", MEMCHECK_VARIABLE: "1"},
}


def run(mode: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *TESTS],
        cwd=ROOT,
        env=os.environ | MODES[mode],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    with begun(request, "test_nothing_changes", run, MODES) as begun_runs:
        yield begun_runs


@pytest.mark.parametrize("mode", MODES)
def test_nothing_changes(runs: dict[str, Future[subprocess.CompletedProcess[str]]], mode: str) -> None:
    ended = runs[mode].result()
    assert ended.returncode == 0, ended.stdout[-10_000:] + ended.stderr[-2_000:]
    assert " passed" in ended.stdout

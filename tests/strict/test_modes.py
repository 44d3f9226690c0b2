"""The examples' kTasks, random graphs, and faults, once more in the software GPU's strict and memcheck modes, which a
process has from its start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kaas.softgpu import MEMCHECK_VARIABLE, STRICT_VARIABLE

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
LIMIT_S = 300.0


@pytest.mark.parametrize("mode", MODES)
def test_nothing_changes(mode: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS],
        cwd=ROOT,
        env=os.environ | MODES[mode],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-10_000:] + ended.stderr[-2_000:]
    assert " passed" in ended.stdout

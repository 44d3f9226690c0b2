"""Runs the driver's cases, a process for each file: a process loads one driver, and in these its kernels are in C."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from softgpu.tests.driver.fake import build_fake
from tests.ahead import begun
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.full

CASES = Path(__file__).with_name("cases")
ROOT = Path(__file__).parents[4]


NAMES = sorted(path.stem for path in CASES.glob("case_*.py"))


def run(name: str) -> subprocess.CompletedProcess[str]:
    options = ["-p", "no:cacheprovider", "-o", "python_files=case_*.py"]
    command = [sys.executable, "-m", "pytest", *options, str(CASES / f"{name}.py")]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    """The cases' processes; their driver is built before."""
    build_fake()
    with begun(request, "test_case", run, NAMES) as begun_runs:
        yield begun_runs


@pytest.mark.parametrize("name", NAMES)
def test_case(runs: dict[str, Future[subprocess.CompletedProcess[str]]], name: str) -> None:
    done = runs[name].result()
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout

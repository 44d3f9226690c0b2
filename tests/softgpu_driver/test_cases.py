"""Runs the driver's cases, a process for each file: a process loads one driver, and in these its kernels are in C."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("cases")
ROOT = Path(__file__).parents[2]
LIMIT_S = 120.0


@pytest.mark.parametrize("name", sorted(path.stem for path in CASES.glob("case_*.py")))
def test_case(name: str) -> None:
    options = ["-p", "no:cacheprovider", "-o", "python_files=case_*.py"]
    command = [sys.executable, "-m", "pytest", *options, str(CASES / f"{name}.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout

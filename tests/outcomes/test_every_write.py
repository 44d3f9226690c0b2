"""Whichever write fails: the request that needs it gets an error with a name, all others go on, nothing acknowledged
is lost, also after a restart, and all works again when there is room."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MEMORY = Path("/dev/shm")
"""A disk whose speed does not matter to the test."""
CALLS = {"server": 100, "pool": 30, "files": 15}
"""The least number of system calls of each scenario that can fail."""


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    library = tmp_path_factory.mktemp("preloaded") / "failing_writes.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "failing_writes.c", "-ldl"], check=True, timeout=60
    )
    return library


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as place:
        yield Path(place)


def broken(preloaded: Path, folder: Path, scenario: str, stride: int) -> list[str]:
    """Return the promises that a scenario has broken, with each stride-th system call failing in turn."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.outcomes.every_write", scenario, folder, str(stride)],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(preloaded)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert all(runs * stride > CALLS[scenario] for runs in found["runs"].values()), found
    return list(found["broken"])


@pytest.mark.processes
@pytest.mark.parametrize(("scenario", "stride"), [("server", 23), ("pool", 7), ("files", 3)])
def test_some_writes(preloaded: Path, folder: Path, scenario: str, stride: int) -> None:
    assert broken(preloaded, folder, scenario, stride) == []


@pytest.mark.processes
@pytest.mark.full
@pytest.mark.parametrize("scenario", CALLS)
def test_every_write(preloaded: Path, folder: Path, scenario: str) -> None:
    assert broken(preloaded, folder, scenario, 1) == []

"""Cached objects outlive an executor that is killed at any step, and the next one has them with the right bytes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kaas.executor.cache.journal import CacheFiles
from tests.timeouts import TIMEOUT_S

pytestmark = [pytest.mark.processes, pytest.mark.parametrize("isolation", ["none", "fence"])]

ROOT = Path(__file__).parents[3]
KILLS = 3


@pytest.fixture
def files() -> Iterator[CacheFiles]:
    made = CacheFiles.made()
    yield made
    made.close()


def keeper(files: CacheFiles, action: str, *arguments: Any, status: int = 0) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.executor.cache.keeper", action, *map(str, [*files, *arguments])]
    done = subprocess.run(
        command, cwd=ROOT, pass_fds=files, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == status, done.stderr
    found: dict[str, Any] = json.loads(done.stdout) if not status else {}
    return found


def test_a_kill_at_any_step_leaves_whole_objects(files: CacheFiles, isolation: str) -> None:
    traced = keeper(files, "traced", isolation)
    assert traced["states"] > 8
    for kill in range(KILLS):
        files.spoil()
        keeper(files, "killed", isolation, (kill + 1) * traced["steps"] // (KILLS + 1), status=-signal.SIGKILL)
        adopted = keeper(files, "adopted", isolation)
        assert adopted["right"]
        assert adopted["there"] == adopted["named"]
        assert 3 * adopted["named"] <= adopted["used"] / (1 << 20) <= 4 * adopted["named"]

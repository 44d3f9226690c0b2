"""Short runs of the benchmarks of remote clients: results that do not depend on the machine's speed must hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.history.__main__ import NAMESPACES
from benchmarks.history.nemesis import LONGEST_S
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.full

ROOT = Path(__file__).parent.parent.parent


def reported(name: str, *arguments: str) -> dict[str, Any]:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--json", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def broken(report: dict[str, Any], *bars: str) -> dict[str, Any]:
    """The bars of these that do not hold."""
    return {bar: report["bars"][bar] for bar in bars if report["bars"][bar][0] > report["bars"][bar][2]}


def test_a_soak() -> None:
    report = reported("soak", "--minutes", "2")
    assert broken(report, "unanswered", "wrong", "twice", "memory_growth") == {}, report
    assert report["detail"]["charged"] == report["detail"]["requests"] > 0
    killed = [report["detail"][f"{what} killed"] for what in ("servers", "executors", "clients")]
    assert killed == [1, 4, 11]


def test_hostile_clients() -> None:
    report = reported("hostile", "--mutated", "8000", "--replayed", "800")
    assert broken(report, "crashes") == {}, report
    assert report["detail"]["attack, sent"] > 6_000
    assert report["detail"].keys() >= {"attack, bombs: CompileLimitExceeded"}, report
    assert report["detail"]["requests"] > 100


def may_make_namespaces() -> bool:
    made = ["unshare", *NAMESPACES, "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        return subprocess.run(made, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(("seed", "isolation"), [(0, "fence"), (1, "process")])
def test_a_history_under_faults(seed: int, isolation: str) -> None:
    if not may_make_namespaces():
        pytest.skip("this user may not make namespaces of networks, mounts and processes")
    report = reported("history", "--minutes", "0.5", "--seed", str(seed), "--isolation", isolation)
    assert broken(report, "violations") == {}, report
    assert report["detail"]["operations"] > 100
    faults = {f"faults: {what}" for what in LONGEST_S} & report["detail"].keys()
    assert len(faults) > len(LONGEST_S) / 2, "some find no victim, such as a process that has just ended"

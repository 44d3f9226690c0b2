"""The server of an experiment says why it does not start, and does not outlive the experiment."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kaas.errors import DeviceUnavailable
from kaas.papers.experiment_server import serve
from kaas.papers.small.testbed import SmallTestbed
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes

_PARENT = """
import subprocess, sys
from kaas.scheduling.comparing.parent_end import end_with_parent
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], preexec_fn=end_with_parent)
print(child.pid, flush=True)
input()
"""


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    message = "the server did not start: InvalidConfig: .*no_such_policy"
    with pytest.raises(DeviceUnavailable, match=message), serve(tmp_path, "no_such_policy", SmallTestbed(devices=1), 1):
        pass


def test_a_signal_to_the_experiments_group_leaves_the_server_to_the_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[tuple[int, int]] = []

    class NotedProcess(subprocess.Popen[str]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            groups.append((self.pid, os.getpgid(self.pid)))

    monkeypatch.setattr(subprocess, "Popen", NotedProcess)
    with pytest.raises(DeviceUnavailable), serve(tmp_path, "no_such_policy", SmallTestbed(devices=1), 1):
        pass
    ((server, group),) = groups
    assert server == group


def test_a_server_ends_with_an_experiment_that_is_killed() -> None:
    command = [sys.executable, "-c", _PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.kill()
            assert select.select([child], [], [], TIMEOUT_S)[0]
        finally:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(child, signal.SIGKILL)
            os.close(child)


@pytest.mark.full
@pytest.mark.ray
def test_an_experiment_whose_terminal_closes_says_what_is_left(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kaas.cli", "papers", "kaas", "--figure", "table1", "--folder", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as experiment:
        assert experiment.stdout is not None
        started = experiment.stdout.readline()
        experiment.send_signal(signal.SIGHUP)
        rest = experiment.stdout.read()
    (left,) = re.findall(r"^to measure into .*: (\d+);", started)
    assert f"left to measure: {left}. The same command goes on with them" in rest
    assert experiment.returncode == 128 + signal.SIGHUP

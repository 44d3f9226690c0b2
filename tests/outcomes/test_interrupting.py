"""Ctrl-C ends a program's wait, even while its kernels run on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.timeouts import TIMEOUT_S, readable

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
BEGINS = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
import kaas
from kaas.executor import local
from tests.api.conftest import spin_task
def spin(steps):
    return kaas.run_local(spin_task(), scalars={"steps": steps})["out"].tolist()
short = spin(1000)
"""
ENDLESS = """
print("begins", flush=True)
spin(1 << 60)
"""
ENDS_SOON = """
local.GRACE_S = 300.0
try:
    print("begins", flush=True)  # the signal may come before this returns
    spin(1_500_000_000)
except KeyboardInterrupt:
    print("interrupted", spin(1000) == short, flush=True)
"""
OF_A_MODEL = """
args = [kaas.Out(kaas.Buffer("out", 1, "uint32")), kaas.i64(1 << 60)]
task = kaas.KTask([kaas.Kernel(spin_task().kernels[0].library, "spin", 1, 1, args)], ["out"])
model = kaas.CompiledModel("spins", [kaas.Variant(task, ())], {})
print("begins", flush=True)
model.run_local()
"""


@pytest.fixture
def program() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Start programs that report when they begin to wait."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        command = [sys.executable, "-c", BEGINS + code]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, env=environment))
        stdout = started[-1].stdout
        assert stdout is not None, "a pipe"
        assert readable(stdout)
        assert stdout.readline() == "begins\n"
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()


@pytest.mark.parametrize("code", [ENDLESS, OF_A_MODEL], ids=["kTask", "model"])
def test_an_endless_kernel_of_run_local(code: str, program: Callable[[str], subprocess.Popen[str]]) -> None:
    endless = program(code)
    endless.send_signal(signal.SIGINT)
    _, said = endless.communicate(timeout=TIMEOUT_S)
    assert endless.returncode == -signal.SIGINT
    assert said.rstrip().endswith("KeyboardInterrupt")


def test_a_device_is_usable_after_an_interrupted_kernel_has_ended(
    program: Callable[[str], subprocess.Popen[str]],
) -> None:
    ends = program(ENDS_SOON)
    ends.send_signal(signal.SIGINT)
    said, _ = ends.communicate(timeout=TIMEOUT_S)
    assert said == "interrupted True\n"

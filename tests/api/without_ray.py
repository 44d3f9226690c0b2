"""Pools of plain processes for tests, the programs beside them, and the ends of their processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kaas
import kaas.api.program
from kaas.wire.status.status import Status
from kaas.worker.processes import pidfd
from tests.api.conftest import DEVICE_BYTES, scale_task, spin_task
from tests.timeouts import readable

ROOT = Path(__file__).parents[2]
DEVICES = [kaas.Device("software", DEVICE_BYTES)] * 2
LARGE_DEVICE = kaas.Device("software", 512 << 20)
FOR_EVER = 1 << 60
LONG = 500_000_000
"""Steps of about half a second."""
STAYS = "import sys, kaas\n{}\nsys.stdin.read()"
"""A program that prints a line when it has done its work, and stays until it is killed."""


@pytest.fixture(scope="module", autouse=True)
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Pools of these tests have their names in a folder of their own."""
    folder = tmp_path_factory.mktemp("runtime", numbered=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        yield folder


@pytest.fixture(scope="module")
def pool(runtime: Path) -> Iterator[None]:  # noqa: ARG001 - where it has its name
    """The pool of most tests here."""
    assert kaas.init(ray=False, devices=DEVICES)
    yield
    kaas.shutdown()


@pytest.fixture
def another() -> Iterator[Callable[..., bool]]:
    """`kaas.init` of a pool for one test, which ends with it.

    Tests that need one come last in their file: the pool that `pool` started ends here.
    """
    kaas.shutdown()
    yield lambda **wanted: kaas.init(ray=False, **{"devices": DEVICES[:1], **wanted})
    kaas.shutdown()


def scaled(x: Any, factor: float = 2.0, **options: Any) -> kaas.Future:
    return kaas.call(scale_task(), {"x": x}, scalars={"factor": factor}, **options)


def spin(steps: int = LONG, **options: Any) -> kaas.Future:
    return kaas.call(spin_task(), {}, scalars={"steps": steps}, **options)


def until(reached: Callable[[Status], Any]) -> Status:
    """Poll the pool until its status meets a condition."""
    while not reached(status := kaas.status()):
        pass
    return status


def executors() -> list[int]:
    return [
        device.info.pid for device in until(lambda status: all(d.info for d in status.devices)).devices if device.info
    ]


def program(code: str) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(ROOT), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
    )


def words(other: subprocess.Popen[str]) -> list[str]:
    assert other.stdout is not None
    return other.stdout.readline().split()


def watched(*pids: int) -> list[int]:
    found = [pidfd(pid) for pid in pids]
    return [file for file in found if file is not None]


def all_end(files: list[int]) -> bool:
    """Return True if all of the processes end in time."""
    for file in files:
        if not readable(file):
            return False
        os.close(file)
    return True


class Elsewhere:
    """A policy that the pool's process cannot import."""

    def __call__(self, devices: Any) -> Any:
        raise AssertionError(devices)

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("import no_such_module",)

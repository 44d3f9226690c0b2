"""Programs that end, or are interrupted, while the pool that they start opens: the pool then ends too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kaas.store import SqliteStore
from kaas.worker.processes import pidfd
from tests.timeouts import readable

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
BEGINS = """
import kaas
from tests.api.test_opening import Waits
def init(**wanted):
    return kaas.init(ray=False, devices=[kaas.Device("software", 16 << 20)], name="opening", **wanted)
"""
WAITS = "init(config=kaas.Config(store=Waits({folder!r})))"
INTERRUPTED = f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
try:
    {WAITS}
except KeyboardInterrupt:
    print(init(), kaas.status().pid, flush=True)
"""


class Waits(SqliteStore):
    """A pool that has this one never comes to be open."""

    def __init__(self, folder: str) -> None:
        super().__init__(":memory:")
        self._folder = Path(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return Waits, (str(self._folder),)

    def open(self) -> None:
        (self._folder / "begun").write_text(f"{os.getpid()}\n")
        (self._folder / "never").read_text()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts programs with pools that have their names in a folder of the test's."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
    for pipe in ("begun", "never"):
        os.mkfifo(tmp_path / pipe)
    started: list[subprocess.Popen[str]] = []

    def start(code: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", BEGINS + code.format(folder=str(tmp_path))]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()


def words(file: int) -> list[str]:
    """Return the words of the next line; an unbuffered program writes it in pieces."""
    line = b""
    while not line.endswith(b"\n"):
        assert readable(file)
        piece = os.read(file, 1 << 10)
        assert piece, f"it ended after {line!r}"
        line += piece
    return line.decode().split()


def opening(folder: Path) -> int:
    """A descriptor of the pool's process, which does not get any further."""
    begun = os.open(folder / "begun", os.O_RDONLY | os.O_NONBLOCK)
    try:
        [pid] = words(begun)
    finally:
        os.close(begun)
    watched = pidfd(int(pid))
    assert watched is not None
    return watched


def ends(process: int) -> None:
    assert readable(process)
    os.close(process)


def test_an_opening_pool_ends_when_its_program_is_killed(
    tmp_path: Path, program: Callable[[str], subprocess.Popen[str]]
) -> None:
    first = program(WAITS)
    pool = opening(tmp_path)
    second = program("print(init(), flush=True)")  # it waits until the first has opened its pool, or has ended
    first.kill()
    ends(pool)
    assert second.stdout is not None
    assert words(second.stdout.fileno()) == ["True"]


def test_a_program_that_is_interrupted_while_its_pool_opens_can_start_another(
    tmp_path: Path, program: Callable[[str], subprocess.Popen[str]]
) -> None:
    only = program(INTERRUPTED)
    pool = opening(tmp_path)
    only.send_signal(signal.SIGINT)
    ends(pool)
    assert only.stdout is not None
    began, pid = words(only.stdout.fileno())
    assert began == "True"
    again = pidfd(int(pid))
    assert again is not None
    only.kill()
    ends(again)

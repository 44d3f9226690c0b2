"""Processes that are killed at any step of an export of constants cost no answer, and leave nothing half made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.errors import ExecutorDied
from tests.outcomes.test_held_constants import (
    HOLDER,
    READ,
    check,
    constants,
    held_files,
    holders,
    pool,
    scaled,
)
from tests.timeouts import TIMEOUT_S, until

pytestmark = pytest.mark.processes

EVERY = 4
"""Steps from one kill to the next."""
KILLER = """
import os, signal, sys

MODULE, BEGINS, STEP = {module!r}, {begins!r}, {step!r}
FUNCTIONS = ("main", "_made", "sealed_file", "take", "__init__", "close")
FILES = ("holder_process.py", "device_memory.py")
left = []


def trace(frame, event, _):
    code = frame.f_code
    if code.co_name not in FUNCTIONS or not code.co_filename.endswith(FILES):
        return None
    if event == "call" and code.co_name == BEGINS and left:
        left[0] = 0  # it has done what it was to be killed in
    elif event == "call" and code.co_name == BEGINS:
        left.append(number)
    if event == "line" and left:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
    return trace


if MODULE in sys.orig_argv:
    import threading

    with open(STEP) as step:  # here, since code in a sandbox opens no file
        number = int(step.read())
    with open(STEP, "w") as step:
        step.write(str(number + {every}))

    threading.settrace(trace)
    sys.settrace(trace)
"""


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the programs' start; `kill_in` writes what kills them."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def kill_in(folder: Path, module: str, begins: str) -> Path:
    """Kill each process of a module at another step, counted from the first call of a function.

    Return the file with the step at which the next process that starts is killed.
    """
    step = folder / "step"
    step.write_text("1")
    code = KILLER.format(module=module, begins=begins, step=str(step), every=EVERY)
    (folder / "sitecustomize.py").write_text(code)
    return step


def test_a_holder_is_killed_at_any_step_of_an_export(killed: Path) -> None:
    step = kill_in(killed, HOLDER, "_made")
    with pool():
        made: list[tuple[kaas.Function, Any]] = []
        while not holders() or not held_files():
            x = constants(len(made))
            made.append((kaas.register(scaled(2.0), {"x": x}), x))
            check(*made[-1], 2.0, "alice")
        assert int(step.read_text()) > 5 * EVERY
        before = held_files()
        check(*made[-1], 2.0, "bob")
        assert held_files() == before
        for each in made:
            check(*each, 2.0, "bob")


def test_an_executor_is_killed_at_any_step_as_it_maps_constants(killed: Path) -> None:
    x = constants(1)
    step = kill_in(killed, "kaas.worker.executor_process", "take")
    with pool():
        function = kaas.register(scaled(2.0), {"x": x})
        while True:
            try:
                y = kaas.call(function, {}, client="alice", deadline_s=TIMEOUT_S).result(TIMEOUT_S)
            except ExecutorDied:
                continue
            np.testing.assert_array_equal(y, 2 * x[:READ])
            break
        assert int(step.read_text()) > 5 * EVERY
        assert len(held_files()) == 1
        until(lambda: len(holders()) == 1)

"""Holders and eTasks that are killed at any step of an export of constants cost no other eTask its constants."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import ray

import kaas
from kaas.errors import DeviceUnavailable, ExecutorDied
from tests.api.test_device_constants import COUNT, READ, constants, holders, scaled
from tests.timeouts import TIMEOUT_S, until

pytestmark = [pytest.mark.ray, pytest.mark.full]

DEVICE_BYTES = 12 << 20
EVERY = 16
"""Steps from one kill to the next."""
KILLER = """
import os, signal, sys

HOLDER, STEP = "kaas.worker.held.constants_holder", {step!r}
FILES = ("constants_holder.py", "device_memory.py")
left = []


def trace(frame, event, _):
    code = frame.f_code
    if not code.co_filename.endswith(FILES):
        return None
    if event == "call" and code.co_name == "found" and not left:
        left.append(number)
    if event == "line" and left:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
    return trace


class Watch:
    def find_spec(self, name, path=None, target=None):
        global number
        if name == HOLDER:  # which a holder imports, and no other process
            sys.meta_path.remove(self)
            with open(STEP) as step:
                number = int(step.read())
            with open(STEP, "w") as step:
                step.write(str(number + {every}))
            sys.settrace(trace)


if "default_worker.py" in "".join(sys.orig_argv):
    sys.meta_path.insert(0, Watch())
"""
TRACED = ("etask_constants.py", "device_memory.py", "device_array.py")


@pytest.fixture(scope="module")
def step(own_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:  # noqa: ARG001 - none runs
    """The file with the step at which the next holder is killed, in a pool of one device."""
    folder = tmp_path_factory.mktemp("start")
    step = folder / "step"
    step.write_text("1")
    (folder / "sitecustomize.py").write_text(KILLER.format(step=str(step), every=EVERY))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
        device = kaas.Device("software", DEVICE_BYTES)
        kaas.init(config=kaas.Config(devices=(device,), policy="exclusive", etask_workers=2), address="local")
        yield step


@kaas.etask
class _Reader:
    """Reads constants with a kernel of its own."""

    def __init__(self) -> None:
        self.x: Any = None

    def map(self, function: kaas.Function) -> None:
        self.x = None
        self.x = kaas.device_constants(function)["x"]

    def run(self) -> Any:
        return kaas.run_local(scaled(), {"x": self.x}, scalars={"factor": 2.0})["y"]

    def killed(self, function: kaas.Function, number: int) -> int:
        """Map constants, unless this process is killed before, at the step of this number; return the steps left."""
        import signal

        left = number

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal left
            if not frame.f_code.co_filename.endswith(TRACED):
                return None
            if event == "line":
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        try:
            self.map(function)
        finally:
            sys.settrace(None)
        return left


Reader: Any = _Reader  # type checkers take it for the class


def get(ref: Any) -> Any:
    return ray.get(ref, timeout=TIMEOUT_S)


def check(reader: Any, seed: int) -> None:
    np.testing.assert_array_equal(get(reader.run.remote()), 2 * constants(seed)[:READ])


def cause(ref: Any) -> BaseException | None:
    """Return the error of an eTask, or what its code has raised; None without one."""
    try:
        get(ref)
    except kaas.KaasError as error:
        found: BaseException = error.cause  # type: ignore[attr-defined]  # Ray's
        return found.__cause__ or found
    return None


def test_a_holder_is_killed_at_any_step_of_an_export(step: Path) -> None:
    function = kaas.register(scaled(), {"x": constants(1)})
    reader = Reader.options(client="alice")
    while (error := cause(reader.map.remote(function))) is not None:
        assert isinstance(error, DeviceUnavailable)
    assert int(step.read_text()) > 4 * EVERY
    check(reader, 1)
    other = Reader.options(client="bob")
    get(other.map.remote(function))
    check(other, 1)
    until(lambda: len(holders()) == 1)


def test_an_etask_is_killed_at_any_step_as_it_maps_constants(step: Path) -> None:
    step.write_text("1000000")
    function = kaas.register(scaled(), {"x": constants(2)})
    reader = Reader.options(client="mallory")
    number = 1
    while (error := cause(reader.killed.remote(function, number))) is not None:
        assert isinstance(error, ExecutorDied)
        number += EVERY
    assert number > 2 * EVERY
    check(reader, 2)
    get(reader.map.remote(kaas.register(scaled(), {"x": constants(3)})))
    check(reader, 3)
    large = 2 * COUNT  # of the 12 MB of the device: those that killed eTasks had leave
    get(reader.map.remote(kaas.register(scaled(large), {"x": constants(4, large)})))
    assert len(holders()) == 1

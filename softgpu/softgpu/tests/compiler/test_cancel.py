"""Launches that are ended from outside, in whatever way their kernels loop."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.timeouts import TIMEOUT_S

ENDLESS = (Path(__file__).parent / "kernels" / "endless.ptx").read_text()


class Launch(threading.Thread):
    """A launch on a thread of its own; `failure` is how it ended."""

    def __init__(self, gpu: Any, name: str, grid: int, block: int) -> None:
        super().__init__(daemon=True)
        self.started, self.go, self.stop = (np.zeros(n, np.uint32) for n in (1, 2048, 1))
        self._gpu, self._what = gpu, (name, grid, block)
        self.failure = ""

    def run(self) -> None:
        try:
            self._gpu.run(ENDLESS, *self._what, self.started, self.go, stop=self.stop)
        except RuntimeError as error:
            self.failure = str(error)

    def wait_until_started(self, threads: int) -> None:
        end = time.monotonic() + TIMEOUT_S
        while self.started[0] < threads:
            assert time.monotonic() < end
            assert not self.failure

    def finish(self) -> str:
        self.join(TIMEOUT_S)
        assert not self.is_alive()
        return self.failure


@pytest.mark.parametrize("name", ["together", "apart", "barriers", "nested", "cases"])
@pytest.mark.parametrize("block", [1, 32, 100])
def test_an_endless_kernel(gpu: Any, name: str, block: int) -> None:
    launch = Launch(gpu, name, 1, block)
    launch.start()
    launch.wait_until_started(block if name == "barriers" else min(block, 32))
    launch.stop[0] = 1
    assert launch.finish().startswith("702: cancelled while block (0, 0, 0), warp ")


def test_threads_of_the_runner_stop_too(gpu: Any) -> None:
    """Blocks that have to run in parallel to start are on threads of their own, if there are two cores."""
    launch = Launch(gpu, "together", 5000, 32)
    launch.start()
    launch.wait_until_started(32)
    launch.stop[0] = 1
    assert launch.finish().startswith("702: cancelled while block (")


def test_a_kernel_without_loops_is_stopped_between_blocks(gpu: Any) -> None:
    launch = Launch(gpu, "straight", 100, 32)
    launch.stop[0] = 1
    launch.run()
    assert launch.failure.startswith("702: cancelled while block (0, 0, 0), warp 0")
    assert launch.started[0] == 0
    launch.stop[0], launch.failure = 0, ""
    launch.run()
    assert launch.failure == ""
    assert launch.started[0] == 3200


@pytest.mark.parametrize("name", ["together", "barriers", "nested", "cases"])
def test_kernels_end_by_themselves_when_their_flag_is_set(gpu: Any, name: str) -> None:
    launch = Launch(gpu, name, 3, 64)
    launch.go[:2] = 6
    launch.run()
    assert launch.failure == ""
    assert launch.started[0] == 192

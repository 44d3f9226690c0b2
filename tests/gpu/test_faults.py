"""Faults without injection, on a GPU and on the software GPU: kernels that fail, and memory that runs out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kaas.config import Device
from kaas.errors import InputFailed, OutOfDeviceMemory, RequestTooLarge
from kaas.executor.device.device import open_device
from kaas.executor.executor import Executor, InputSource, RunRequest
from kaas.executor.local import run_local
from tests.gpu import stored
from tests.gpu.faults import SYMBOLS
from tests.gpu.taken import MIB, check, reading
from tests.timeouts import TIMEOUT_S

ROOT = Path(__file__).parents[2]
ROOM_BYTES = 4 * MIB


@pytest.fixture
def small(kind: str) -> Iterator[Executor]:
    made = Executor(open_device(kind, 0), cache_bytes=ROOM_BYTES)
    yield made
    made.close()


@pytest.mark.processes
@pytest.mark.parametrize("symbol", SYMBOLS)
def test_a_kernel_that_fails_loses_the_device_for_its_process(kind: str, symbol: str) -> None:
    command = [sys.executable, "-m", "tests.gpu.faults", kind, symbol]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    printed = [line for line in ended.stdout.split() if line.isdigit() or line.startswith("CUDA_ERROR")]
    assert printed == ["7", SYMBOLS[symbol], SYMBOLS[symbol]], ended.stdout + ended.stderr
    assert ended.returncode == 0
    case = stored.load("sobel")  # other processes keep the device
    outputs = run_local(case.task, case.inputs, scalars=case.scalars, device=Device(kind))
    stored.assert_same(outputs, case.outputs, case.rtol)


def test_a_request_beyond_the_budget_is_refused_and_changes_nothing(small: Executor) -> None:
    check(small, MIB, 1)
    before = small.cache.sizes
    with pytest.raises(RequestTooLarge) as caught:
        check(small, 2 * ROOM_BYTES, 2)
    assert caught.value.excess_bytes >= ROOM_BYTES
    assert small.cache.sizes == before
    assert check(small, MIB, 1).hits == 1


def test_pinned_objects_leave_no_room(small: Executor) -> None:
    small.load([InputSource(np.ones(3 * MIB // 4, np.float32), key=b"pinned")], pin=True)
    with pytest.raises(OutOfDeviceMemory):
        check(small, 2 * MIB, 1)
    small.unpin()
    assert check(small, 2 * MIB, 1).evicted == (b"pinned",)


def test_an_input_that_cannot_be_had(small: Executor) -> None:
    def fetch() -> Any:
        raise ConnectionError("the store is gone")

    with pytest.raises(InputFailed, match="the store is gone"):
        small.run(RunRequest(reading(MIB), {"w": InputSource(key=b"w", fetch=fetch)}, {}))
    assert not small.cache.sizes
    assert not small.cache.pinned
    check(small, MIB, 3)


@pytest.mark.processes
def test_memory_that_others_took(kind: str) -> None:
    """The test runs in a new process."""
    command = [sys.executable, "-m", "tests.gpu.taken", kind]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_driver_tells_the_utilisation_of_a_whole_gpu(small: Executor, kind: str) -> None:
    """Not of a part of a GPU (MIG), and not of a software device."""
    busy = small.device.utilisation()
    assert busy is None or 0.0 <= busy <= 1.0
    assert busy is None or kind == "gpu"

"""Requests in several slots of an executor, which a test can hold up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.executor.device.monitor import DeviceMonitor
from kaas.executor.executor import InputSource, RunRequest, RunResult
from kaas.executor.slots import Slot
from tests.timeouts import TIMEOUT_S

KIB = 1024
N = 256  # elements of the buffers: 1 KiB
A, B, C = (kaas.Buffer(name, N, "int32") for name in "abc")


@pytest.fixture(scope="module")
def task(library: kaas.Library) -> kaas.KTask:
    """c = a + b; its arena has 1 KiB when both come from the cache."""
    return kaas.KTask(
        [kaas.Kernel(library, "add", 2, 128, [kaas.In(A), kaas.In(B), kaas.Out(C), kaas.i32(N)])], [C]
    )  # fmt: skip


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


class Waits:
    """Counts the threads that have begun to wait in a DeviceMonitor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._begun = threading.Semaphore(0)
        wait = DeviceMonitor.wait

        def watched(monitor: DeviceMonitor) -> None:
            self._begun.release()
            wait(monitor)

        monkeypatch.setattr(DeviceMonitor, "wait", watched)

    def one_more(self) -> None:
        """Return once one more thread waits. It sees every change that the caller then makes under the lock."""
        assert self._begun.acquire(timeout=TIMEOUT_S)


class Stop:
    """Holds up the request in one slot, with all its reserved memory, until `go_on` lets it end or fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int = 0) -> None:
        self._there, self._go_on = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        copy_out = Slot.copy_out

        def stopped(slot: Slot, *args: Any) -> Any:
            if slot.number == number and not self._go_on.is_set():
                self._there.set()
                assert self._go_on.wait(TIMEOUT_S)
                if self._error is not None:
                    raise self._error
            return copy_out(slot, *args)

        monkeypatch.setattr(Slot, "copy_out", stopped)

    def reached(self) -> None:
        assert self._there.wait(TIMEOUT_S)

    def go_on(self, error: BaseException | None = None) -> None:
        self._error = error
        self._go_on.set()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    return Waits(monkeypatch)


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Stop:
    return Stop(monkeypatch)


def array(value: int, n: int = N) -> np.ndarray[Any, Any]:
    return np.full(n, value, np.int32)


def source(value: int) -> InputSource:
    return InputSource(key=bytes([value]), fetch=lambda: array(value))


def request(task: kaas.KTask, a: int | InputSource, b: int | InputSource, client: str = "") -> RunRequest:
    sources = [value if isinstance(value, InputSource) else source(value) for value in (a, b)]
    return RunRequest(task, dict(zip("ab", sources, strict=True)), {}, client)


def check(future: Future[RunResult], expected: int) -> RunResult:
    result = future.result(TIMEOUT_S)
    np.testing.assert_array_equal(result.outputs["c"], array(expected))
    return result

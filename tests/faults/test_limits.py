"""Requests that run for too long are ended. The error names kTask and kernels; requests in parallel fail too."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import kaas
import softgpu as software
from kaas.errors import DeadlineExceeded, DeviceLost
from kaas.executor.device.device import OpenDevice
from kaas.executor.device.monitor import Watchdog, Watched
from kaas.executor.executor import InputSource, RunRequest
from tests.faults.conftest import ORDINAL, Open, new_context
from tests.faults.test_sticky import chain
from tests.faults.workload import right
from tests.timeouts import TIMEOUT_S

ENDLESS = kaas.Library.from_file(Path(software.__file__).parent / "tests" / "compiler" / "kernels" / "endless.ptx")
LIMIT_S = 1.5
"""Longer than a kernel takes to start, even on a busy machine."""


@pytest.fixture(autouse=True)
def reset(forgiven: None) -> Iterator[None]:  # noqa: ARG001
    yield
    new_context()


def endless(symbol: str, limit_s: float | None = None) -> RunRequest:
    started, go = kaas.Buffer("started", 1, "int32", init="zero"), kaas.Buffer("go", 64, "int32", init="zero")
    kernel = kaas.Kernel(ENDLESS, symbol, 1, 32, [kaas.InOut(started), kaas.InOut(go)])
    return RunRequest(kaas.KTask([kernel], [started], name=f"{symbol} for ever"), {}, {}, limit_s=limit_s)


@pytest.mark.slow
def test_a_hung_kernel_is_found(opened: Open, library: kaas.Library) -> None:
    executor, case = opened(run_limit_s=LIMIT_S), chain(library)
    right(case, executor.run)
    software.inject(software.Fault("hang", at=3), ORDINAL)
    with pytest.raises(DeadlineExceeded, match=f"run limit of {LIMIT_S} s, and was ended in kernel add") as caught:
        executor.run(case.request)
    error = caught.value
    assert (error.task, error.deadline_s, error.kernels) == (case.request.task.label, LIMIT_S, ("add",))
    assert isinstance(error.__cause__, DeviceLost)
    assert error.__cause__.code_name == "CUDA_ERROR_LAUNCH_TIMEOUT"
    assert executor.lost is not None
    with pytest.raises(DeviceLost, match="ran longer than its limit"):
        executor.run(case.request)
    executor.close()
    new_context()
    right(case, opened(run_limit_s=LIMIT_S).run)


@pytest.mark.slow
def test_the_kernels_are_known_before_the_error_is_raised(
    opened: Open, library: kaas.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, case = opened(run_limit_s=LIMIT_S), chain(library)
    ending, cancel, end = threading.Event(), OpenDevice.cancel, Watchdog.end

    def slow_cancel(device: OpenDevice) -> tuple[str, ...]:
        running = cancel(device)
        assert ending.wait(TIMEOUT_S)
        return running

    def end_now(watchdog: Watchdog, watched: Watched) -> None:
        ending.set()
        end(watchdog, watched)

    monkeypatch.setattr(OpenDevice, "cancel", slow_cancel)
    monkeypatch.setattr(Watchdog, "end", end_now)
    software.inject(software.Fault("hang"), ORDINAL)
    with pytest.raises(DeadlineExceeded) as caught:
        executor.run(case.request)
    assert caught.value.kernels == ("scale",)


@pytest.mark.slow
def test_a_request_in_parallel_gets_another_error(opened: Open) -> None:
    executor = opened(slots=3)
    neighbour, hung = endless("apart"), endless("together", limit_s=LIMIT_S)
    for request in (neighbour, hung):
        executor.prepare(request.task)
    with ThreadPoolExecutor(2) as threads:
        other = threads.submit(executor.run, neighbour)
        while software.running(ORDINAL) != ("apart",):
            assert not other.done()
        with pytest.raises(DeadlineExceeded) as caught:
            executor.run(hung)
        assert caught.value.kernels == ("together",)
        with pytest.raises(DeviceLost, match="kTask 'together for ever' ran longer than its limit") as lost:
            other.result(TIMEOUT_S)
        assert (lost.value.task, lost.value.code, lost.value.printed) == ("together for ever", 702, "")


def test_a_limit_beyond_all_floats(opened: Open, library: kaas.Library) -> None:
    executor, case = opened(run_limit_s=10**400), chain(library)
    for _ in range(2):
        right(case, executor.run)


def test_a_limit_that_cannot_be_kept_leaves_nothing_behind(
    opened: Open, library: kaas.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, case = opened(run_limit_s=TIMEOUT_S), chain(library)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError, match="can't start new thread"):
            executor.run(case.request)
    right(case, executor.run)


def test_waiting_does_not_count(opened: Open, library: kaas.Library) -> None:
    executor, case = opened(run_limit_s=TIMEOUT_S), chain(library)
    fetching, fetched = threading.Event(), threading.Event()

    def fetch() -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        fetching.set()
        assert fetched.wait(TIMEOUT_S)
        return np.arange(1000, dtype=np.int32)

    slow = RunRequest(case.request.task, {**case.request.inputs, "a": InputSource(key=b"slow", fetch=fetch)}, {})
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(executor.run, slow)
        assert fetching.wait(TIMEOUT_S)
        second = threads.submit(executor.run, case.request)
        assert not executor._watchdog._limits
        fetched.set()
        assert first.result(TIMEOUT_S).outputs.keys() == second.result(TIMEOUT_S).outputs.keys()


def test_the_shorter_limit_counts(opened: Open, library: kaas.Library) -> None:
    executor, case = opened(run_limit_s=TIMEOUT_S), chain(library)
    right(case, executor.run)
    software.inject(software.Fault("hang"), ORDINAL)
    request = RunRequest(case.request.task, case.request.inputs, {}, limit_s=0.1)
    with pytest.raises(DeadlineExceeded) as caught:
        executor.run(request)
    assert caught.value.deadline_s == 0.1


def test_no_request_is_watched_without_a_limit(opened: Open, library: kaas.Library) -> None:
    executor, case = opened(), chain(library)
    right(case, executor.run)
    assert executor._watchdog._thread is None


# --- the watchdog alone


def test_each_is_ended_at_its_own_limit_and_once() -> None:
    ended: list[str] = []
    all_ended = threading.Event()

    def overrun(watched: Watched) -> None:
        ended.append(watched.task)
        if watched.task == "last":
            all_ended.set()

    watchdog = Watchdog(overrun)
    never = Watched("never", TIMEOUT_S)
    left = Watched("left", 0.02)
    watchdog.begin(never)
    while watchdog._wakes_s == math.inf:
        pass  # until the thread sleeps, and for long
    watchdog.begin(left)
    watchdog.end(left)
    requests = [Watched(name, limit_s) for name, limit_s in (("last", 0.06), ("first", 0.03))]
    for request in requests:
        watchdog.begin(request)
    assert all_ended.wait(TIMEOUT_S)
    assert ended == ["first", "last"]
    assert [watched.exceeded for watched in (never, left, *requests)] == [False, False, True, True]
    for request in (never, *requests):
        watchdog.end(request)
    thread = watchdog._thread
    assert thread is not None
    watchdog.close()
    assert not thread.is_alive()
    watchdog.begin(Watched("too late", 0.01))
    assert ended == ["first", "last"]

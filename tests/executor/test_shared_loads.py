"""Several slots: an object that two requests want is fetched and loaded once, even if one request fails."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import kaas
from kaas.errors import DeviceError, InputFailed
from kaas.executor.device.streams import Stream
from kaas.executor.executor import Executor, InputSource
from tests.executor.conftest import MakeExecutor
from tests.executor.slots import KIB, Stop, Waits, array, check, request, stop, task, threads, waits
from tests.timeouts import TIMEOUT_S

__all__ = ["stop", "task", "threads", "waits"]


def test_an_object_that_two_requests_want_is_fetched_once(
    make_executor: MakeExecutor, task: kaas.KTask, threads: ThreadPoolExecutor, waits: Waits
) -> None:
    executor = make_executor(64 * KIB, slots=2)
    fetching, fetched = threading.Event(), threading.Event()
    times: list[int] = []

    def fetch() -> Any:
        times.append(1)
        fetching.set()
        assert fetched.wait(TIMEOUT_S)
        return array(7)

    shared = InputSource(key=b"shared", fetch=fetch)
    first = threads.submit(executor.run, request(task, shared, 1))
    assert fetching.wait(TIMEOUT_S)
    second = threads.submit(executor.run, request(task, shared, 2))
    waits.one_more()
    fetched.set()
    results = check(first, 8), check(second, 9)
    assert len(times) == 1
    assert sorted(result.stats.misses for result in results) == [1, 2]
    assert sum(executor.cache.sizes.values()) == 3 * KIB


def test_an_object_on_its_way_is_a_hit_for_another_request(
    make_executor: MakeExecutor, task: kaas.KTask, threads: ThreadPoolExecutor, stop: Stop
) -> None:
    executor = make_executor(64 * KIB, slots=2)
    first = threads.submit(executor.run, request(task, 1, 2), 0)
    stop.reached()
    assert check(threads.submit(executor.run, request(task, 2, 1), 1), 3).stats.hits == 2
    stop.go_on()
    assert check(first, 3).stats.misses == 2


def test_two_requests_that_want_two_objects_in_different_orders(
    make_executor: MakeExecutor, task: kaas.KTask, threads: ThreadPoolExecutor
) -> None:
    executor = make_executor(64 * KIB, slots=2)
    both = threading.Barrier(2)
    times: list[int] = []

    def shared(value: int) -> InputSource:
        def fetch() -> Any:
            times.append(value)
            both.wait(TIMEOUT_S)  # each request has one object, and wants the other's
            return array(value)

        return InputSource(key=bytes([value]), fetch=fetch)

    futures = [threads.submit(executor.run, request(task, shared(a), shared(b))) for a, b in ((1, 2), (2, 1))]
    for future in futures:
        check(future, 3)
    assert sorted(times) == [1, 2]


def test_a_request_that_waited_for_a_failed_fetch_fetches_the_object_itself(
    make_executor: MakeExecutor, task: kaas.KTask, threads: ThreadPoolExecutor, waits: Waits
) -> None:
    executor = make_executor(64 * KIB, slots=2)
    fetching, fail = threading.Event(), threading.Event()

    def broken() -> Any:
        fetching.set()
        assert fail.wait(TIMEOUT_S)
        raise LookupError("gone")

    first = threads.submit(executor.run, request(task, InputSource(key=b"\7", fetch=broken), 1))
    assert fetching.wait(TIMEOUT_S)
    second = threads.submit(executor.run, request(task, 7, 2))
    waits.one_more()
    fail.set()
    with pytest.raises(InputFailed, match="gone"):
        first.result(TIMEOUT_S)
    check(second, 9)
    assert not executor.cache.pinned


def first_copy_fails(monkeypatch: pytest.MonkeyPatch, executor: Executor) -> tuple[threading.Event, threading.Event]:
    """Make the executor's first copy to the device set the first event, wait for the second one, and fail."""
    copying, fail = threading.Event(), threading.Event()
    copy_in = Stream.copy_in

    def refused(stream: Stream, *args: Any) -> None:
        if stream is executor._host_to_device._stream and not copying.is_set():
            copying.set()
            assert fail.wait(TIMEOUT_S)
            raise DeviceError("no copies today", call="cuMemcpyHtoDAsync", code=1, code_name="CUDA_ERROR")
        copy_in(stream, *args)

    monkeypatch.setattr(Stream, "copy_in", refused)
    return copying, fail


def test_a_request_that_waited_for_a_failed_copy_loads_the_object_itself(
    make_executor: MakeExecutor,
    task: kaas.KTask,
    threads: ThreadPoolExecutor,
    waits: Waits,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = make_executor(64 * KIB, 64 * KIB, slots=3)
    check(threads.submit(executor.run, request(task, 1, 2)), 3)
    copying, fail = first_copy_fails(monkeypatch, executor)
    first = threads.submit(executor.run, request(task, 3, 4))
    assert copying.wait(TIMEOUT_S)
    others = [threads.submit(executor.run, request(task, 3, 1)), threads.submit(executor.run, request(task, 2, 3))]
    for _ in others:
        waits.one_more()
    fail.set()
    with pytest.raises(DeviceError, match="no copies today"):
        first.result(TIMEOUT_S)
    for future, expected in zip(others, (4, 5), strict=True):
        check(future, expected)
    assert executor.cache.sizes.keys() == executor.cache.host.sizes.keys() == {b"\1", b"\2", b"\3"}
    assert not executor.cache.pinned


def test_an_object_whose_copy_failed_is_unusable_until_its_loader_has_freed_it(
    make_executor: MakeExecutor,
    task: kaas.KTask,
    threads: ThreadPoolExecutor,
    waits: Waits,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = make_executor(64 * KIB, 64 * KIB, slots=2)
    check(threads.submit(executor.run, request(task, 1, 2)), 3)
    copying, fail = first_copy_fails(monkeypatch, executor)
    giving_back, go_on = threading.Event(), threading.Event()
    synchronize = executor._host_to_device.synchronize

    def synchronized() -> None:
        giving_back.set()
        assert go_on.wait(TIMEOUT_S)
        synchronize()

    monkeypatch.setattr(executor._host_to_device, "synchronize", synchronized)
    first = threads.submit(executor.run, request(task, 3, 4))
    assert copying.wait(TIMEOUT_S)
    second = threads.submit(executor.run, request(task, 3, 1))
    waits.one_more()
    fail.set()
    assert giving_back.wait(TIMEOUT_S)
    waits.one_more()
    go_on.set()
    with pytest.raises(DeviceError, match="no copies today"):
        first.result(TIMEOUT_S)
    check(second, 4)
    assert not executor.cache.pinned


def test_an_object_that_others_use_stays_when_its_loader_fails(
    make_executor: MakeExecutor, task: kaas.KTask, threads: ThreadPoolExecutor, stop: Stop
) -> None:
    executor = make_executor(64 * KIB, 64 * KIB, slots=2)
    first = threads.submit(executor.run, request(task, 1, 2), 0)
    stop.reached()
    check(threads.submit(executor.run, request(task, 1, 3), 1), 4)
    stop.go_on(DeviceError("not today", call="cuGraphLaunch", code=1, code_name="CUDA_ERROR"))
    with pytest.raises(DeviceError, match="not today"):
        first.result(TIMEOUT_S)
    assert executor.cache.sizes.keys() == executor.cache.host.sizes.keys() == {b"\1", b"\3"}
    assert not executor.cache.pinned

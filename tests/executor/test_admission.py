"""Several slots: requests that do not fit wait for room, in the order of their arrival."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.errors import OutOfDeviceMemory
from kaas.executor.executor import InputSource, RunRequest
from tests.executor.conftest import MakeExecutor
from tests.executor.slots import KIB, N, Stop, Waits, array, check, request, source, stop, task, threads, waits

__all__ = ["stop", "task", "threads", "waits"]


def test_a_request_that_does_not_fit_waits_for_room(
    make_executor: MakeExecutor, task: kaas.KTask, threads: ThreadPoolExecutor, stop: Stop, waits: Waits
) -> None:
    executor = make_executor(4 * KIB, slots=2)  # one request and an object
    first = threads.submit(executor.run, request(task, 1, 2), 0)
    stop.reached()
    second = threads.submit(executor.run, request(task, 3, 4), 1)
    waits.one_more()
    stop.go_on()
    check(first, 3)
    assert check(second, 7).stats.evicted
    assert executor.cache.used_bytes <= 4 * KIB


def test_no_request_overtakes_one_that_waits_for_room(
    make_executor: MakeExecutor, task: kaas.KTask, threads: ThreadPoolExecutor, stop: Stop, waits: Waits
) -> None:
    executor = make_executor(5 * KIB, slots=4)
    futures = [threads.submit(executor.run, request(task, 1, 2), 0)]
    stop.reached()
    for slot, (a, b) in enumerate(((3, 4), (1, 2), (2, 1)), start=1):  # the second and the third would fit
        futures.append(threads.submit(executor.run, request(task, a, b), slot))
        waits.one_more()
    assert executor.cache.pinned == {b"\1", b"\2"}
    admitted: list[int | None] = []
    take = executor._memory.take

    def watched(inputs: Any, slot: int | None, *more: Any) -> Any:
        lease = take(inputs, slot, *more)
        if hasattr(lease, "reservation"):
            admitted.append(slot)
        return lease

    executor._memory.take = watched  # type: ignore[method-assign,assignment]
    stop.go_on()
    for future, expected in zip(futures, (3, 7, 3, 3), strict=True):
        check(future, expected)
    assert admitted[0] == 1  # the others must fetch evicted objects again first


def test_no_request_waits_for_pinned_objects(
    make_executor: MakeExecutor, task: kaas.KTask, threads: ThreadPoolExecutor, stop: Stop
) -> None:
    executor = make_executor(5 * KIB, slots=2)
    executor.load([source(8), source(9)], pin=True)
    first = threads.submit(executor.run, request(task, 8, 9), 0)
    stop.reached()
    with pytest.raises(OutOfDeviceMemory, match="pinned objects leave 512 too few"):
        executor.load([source(1), InputSource(array(1, N * 5 // 2), key=b"large")])
    stop.go_on()
    check(first, 17)
    executor.unpin()
    executor.load([source(1), InputSource(array(1, N * 5 // 2), key=b"large")])


def test_an_idle_slots_arena_gives_way(make_executor: MakeExecutor, task: kaas.KTask, library: kaas.Library) -> None:
    executor = make_executor(8 * KIB, slots=2)
    x = kaas.Buffer("x", 6 * N, "int32")
    fill = kaas.KTask([kaas.Kernel(library, "fill", 12, 128, [kaas.Out(x), kaas.i32(1), kaas.i32(6 * N)])], [x])
    for _ in range(2):
        executor.run(RunRequest(fill, {}, {}), 0)
        assert executor.cache.arenas[0] == 6 * KIB
        result = executor.run(request(task, 1, 2), 1)
        np.testing.assert_array_equal(result.outputs["c"], array(3))
        assert executor.cache.arenas == {1: KIB}
        assert executor._memory._pool.used_bytes() == executor.cache.used_bytes


def test_an_arena_of_a_waiting_request_gives_way(
    make_executor: MakeExecutor, task: kaas.KTask, library: kaas.Library, threads: ThreadPoolExecutor, stop: Stop,
    waits: Waits,
) -> None:  # fmt: skip
    executor = make_executor(9 * KIB, slots=3)
    x = kaas.Buffer("x", 4 * N, "int32")
    fill = kaas.KTask([kaas.Kernel(library, "fill", 8, 128, [kaas.Out(x), kaas.i32(1), kaas.i32(4 * N)])], [x])
    executor.run(RunRequest(fill, {}, {}), 2)
    first = threads.submit(executor.run, request(task, 1, 2), 0)
    stop.reached()
    large = InputSource(array(5, 7 * N), key=b"large", offset_bytes=0)
    second = threads.submit(executor.run, request(task, large, large), 1)
    waits.one_more()
    third = threads.submit(executor.run, request(task, 3, 4), 2)
    waits.one_more()
    stop.go_on()
    check(first, 3)
    check(second, 10)
    check(third, 7)

"""Streams, events and threads."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from softgpu import strict_mode
from softgpu.tests.driver.calls import Error, Gate, Kernels, device_array, fails, kernel_params, launch, ok, synchronize
from softgpu.tests.driver.fake import DEVICE_BYTES
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.usefixtures("ctx")

NON_BLOCKING = driver.CUstream_flags.CU_STREAM_NON_BLOCKING


def test_a_stream_has_flags_priority_context_and_device(ctx: Any) -> None:
    stream = ok(driver.cuStreamCreateWithPriority(NON_BLOCKING, -9))
    assert ok(driver.cuStreamGetFlags(stream)) == NON_BLOCKING
    assert ok(driver.cuStreamGetPriority(stream)) == -5
    assert int(ok(driver.cuStreamGetCtx(stream))) == int(ctx)
    assert int(ok(driver.cuStreamGetDevice(stream))) == 0
    other = ok(driver.cuStreamCreate(0))
    assert ok(driver.cuStreamGetId(stream)) != ok(driver.cuStreamGetId(other))
    ok(driver.cuStreamQuery(stream))
    ok(driver.cuStreamDestroy(stream))
    fails(Error.CUDA_ERROR_INVALID_HANDLE, driver.cuStreamSynchronize, stream)
    fails(Error.CUDA_ERROR_INVALID_HANDLE, driver.cuStreamDestroy, stream)
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuStreamCreate, 8)


def test_events_measure_time() -> None:
    first, second = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
    fails(Error.CUDA_ERROR_INVALID_HANDLE, driver.cuEventElapsedTime, first, second)
    ok(driver.cuEventQuery(first))
    ok(driver.cuEventRecord(first, 0))
    address, _ = device_array(np.zeros(1 << 20, np.uint8))
    ok(driver.cuMemsetD8(address, 1, 1 << 20))
    ok(driver.cuEventRecord(second, 0))
    ok(driver.cuEventSynchronize(second))
    assert 0 < ok(driver.cuEventElapsedTime(first, second)) < 10_000


def test_events_without_timing() -> None:
    timed = ok(driver.cuEventCreate(0))
    untimed = ok(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
    for event in (timed, untimed):
        ok(driver.cuEventRecord(event, 0))
    synchronize()
    fails(Error.CUDA_ERROR_INVALID_HANDLE, driver.cuEventElapsedTime, timed, untimed)
    ok(driver.cuEventDestroy(untimed))
    fails(Error.CUDA_ERROR_INVALID_HANDLE, driver.cuEventRecord, untimed, 0)


def test_host_functions_run_in_order() -> None:
    seen: list[int] = []
    address, log = device_array(np.zeros(8, np.int32))

    def look(_: int | None) -> None:
        seen.extend(log[:2].tolist())

    host = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(look)
    append = Kernels()["append"]
    launch(append, (address, 5), (None, ctypes.c_int))
    ok(driver.cuLaunchHostFunc(0, driver.CUhostFn(ctypes.cast(host, ctypes.c_void_p).value), 0))
    launch(append, (address, 6), (None, ctypes.c_int))
    synchronize()
    assert seen == [1, 5]
    assert log[:3].tolist() == [2, 5, 6]


def test_kernels_of_two_streams_run_side_by_side() -> None:
    """Each kernel ends only when the other has begun; one thread submits both."""
    address, _ = device_array(np.zeros(1, np.int32))
    meet = Kernels()["meet"]
    for _ in range(2):
        launch(meet, (address,), (None,), stream=ok(driver.cuStreamCreate(NON_BLOCKING)))
    synchronize()


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open.set()


def stream(flags: Any = NON_BLOCKING) -> Any:
    return ok(driver.cuStreamCreate(flags))


def test_work_runs_without_a_wait(gate: Gate) -> None:
    gate.note(stream())
    assert gate.reached.wait(TIMEOUT_S)


def test_queries_of_a_busy_stream_and_event(gate: Gate) -> None:
    busy, other, event = stream(), stream(), ok(driver.cuEventCreate(0))
    gate.hold(busy)
    ok(driver.cuEventRecord(event, busy))
    fails(Error.CUDA_ERROR_NOT_READY, driver.cuStreamQuery, busy)
    fails(Error.CUDA_ERROR_NOT_READY, driver.cuEventQuery, event)
    fails(Error.CUDA_ERROR_NOT_READY, driver.cuEventElapsedTime, event, event)
    ok(driver.cuStreamQuery(other))
    ok(driver.cuStreamSynchronize(other))
    gate.open.set()
    ok(driver.cuEventSynchronize(event))
    ok(driver.cuStreamQuery(busy))


def test_a_stream_waits_for_an_event_as_it_was_recorded(gate: Gate) -> None:
    """Recording the event again, behind the gate, does not move the wait."""
    busy, waiting, event = stream(), stream(), ok(driver.cuEventCreate(0))
    ok(driver.cuEventRecord(event, busy))
    ok(driver.cuStreamWaitEvent(waiting, event, 0))
    gate.hold(busy)
    ok(driver.cuEventRecord(event, busy))
    ok(driver.cuStreamSynchronize(waiting))
    ok(driver.cuStreamWaitEvent(waiting, event, 0))
    fails(Error.CUDA_ERROR_NOT_READY, driver.cuStreamQuery, waiting)
    ok(driver.cuEventDestroy(event))  # while it is waited for
    gate.open.set()
    ok(driver.cuStreamSynchronize(waiting))


@pytest.mark.parametrize("blocking", [True, False])
def test_the_default_stream_waits_for_blocking_streams(gate: Gate, blocking: bool) -> None:
    gate.hold(stream(0 if blocking else NON_BLOCKING))
    gate.note(0)
    assert gate.reached.wait(TIMEOUT_S if not blocking else 0.01) != blocking
    gate.open.set()
    synchronize()
    assert gate.reached.is_set()


@pytest.mark.parametrize("blocking", [True, False])
def test_blocking_streams_wait_for_the_default_stream(gate: Gate, blocking: bool) -> None:
    gate.hold(0)
    gate.note(stream(0 if blocking else NON_BLOCKING))
    assert gate.reached.wait(TIMEOUT_S if not blocking else 0.01) != blocking
    gate.open.set()
    synchronize()
    assert gate.reached.is_set()


def test_submitted_arguments_and_sources_may_change_at_once(gate: Gate) -> None:
    """Kernel parameters and a small pageable source are the program's again when the call returns."""
    busy, source = stream(), np.arange(8, dtype=np.int32)
    address, seen = device_array(np.zeros(8, np.int32))
    value = ctypes.c_int(5)
    gate.hold(busy)
    ok(driver.cuMemcpyHtoDAsync(address, source.ctypes.data, source.nbytes, busy))
    launch(Kernels()["add"], (address, 8, value.value), (None, ctypes.c_int, ctypes.c_int), stream=busy)
    source[:] = 0
    assert not seen.any()
    gate.open.set()
    ok(driver.cuStreamSynchronize(busy))
    assert seen.tolist() == list(range(5, 13))


def test_destroying_a_stream_leaves_its_work(gate: Gate) -> None:
    busy = stream()
    gate.hold(busy)
    gate.note(busy)
    ok(driver.cuStreamDestroy(busy))
    fails(Error.CUDA_ERROR_INVALID_HANDLE, driver.cuStreamQuery, busy)
    gate.open.set()
    assert gate.reached.wait(TIMEOUT_S)


def test_memory_freed_in_order_is_kept_until_then(gate: Gate) -> None:
    busy = stream()
    before = ok(driver.cuMemGetInfo())[0]
    address = ok(driver.cuMemAllocAsync(4096, busy))
    gate.hold(busy)
    ok(driver.cuMemFreeAsync(address, busy))
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuMemFreeAsync, address, busy)
    assert ok(driver.cuMemGetInfo())[0] == before - 4096
    gate.open.set()
    ok(driver.cuStreamSynchronize(busy))
    assert ok(driver.cuMemGetInfo())[0] == before


def test_memory_about_to_be_freed_makes_room() -> None:
    main, size = stream(), DEVICE_BYTES[0] // 4 * 3
    for allocate, where in ((driver.cuMemAllocAsync, (main,)), (driver.cuMemAlloc, ())):
        address = ok(driver.cuMemAllocAsync(size, main))
        ok(driver.cuMemsetD8Async(address, 1, size, main))
        ok(driver.cuMemFreeAsync(address, main))
        ok(driver.cuMemFree(ok(allocate(size, *where))))


@pytest.mark.parametrize("seed", [None, 0, 1])
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=40))
def test_programs_that_wait_where_they_must(
    library: ctypes.CDLL, seed: int | None, steps: list[tuple[int, int]]
) -> None:
    """Steps append to a list, from any stream, once the step that appended to it last is done."""
    strict_mode(library, seed)
    streams, append = [stream() for _ in range(4)], Kernels()["append"]
    logs = [device_array(np.zeros(64, np.int32)) for _ in range(3)]
    done: dict[int, Any] = {}
    for number, (on, log) in enumerate(steps):
        if log in done:
            ok(driver.cuStreamWaitEvent(streams[on], done[log], 0))
        launch(append, (logs[log][0], number), (None, ctypes.c_int), stream=streams[on])
        done[log] = ok(driver.cuEventCreate(0))
        ok(driver.cuEventRecord(done[log], streams[on]))
    for log, event in done.items():
        ok(driver.cuEventSynchronize(event))
        expected = [number for number, (_, at) in enumerate(steps) if at == log]
        assert logs[log][1][: 1 + len(expected)].tolist() == [len(expected), *expected]
    strict_mode(library, None)
    for made in streams:
        ok(driver.cuStreamDestroy(made))
    for address, _ in logs:
        ok(driver.cuMemFree(address))


def test_an_instance_is_changed_for_later_launches(gate: Gate) -> None:
    busy, graph = stream(), ok(driver.cuGraphCreate(0))
    address, seen = device_array(np.zeros(8, np.int32))
    append = Kernels()["append"]
    node = ok(driver.cuGraphAddKernelNode(graph, None, 0, kernel_params(append, (address, 1), (None, ctypes.c_int))))
    instance = ok(driver.cuGraphInstantiate(graph, 0))
    ok(driver.cuGraphLaunch(instance, busy))
    other = kernel_params(append, (address, 2), (None, ctypes.c_int))
    ok(driver.cuGraphExecKernelNodeSetParams(instance, node, other))
    gate.hold(busy)
    ok(driver.cuGraphLaunch(instance, busy))
    ok(driver.cuGraphLaunch(instance, stream()))  # launches of an instance never overlap
    ok(driver.cuGraphExecDestroy(instance))  # launched already
    assert seen[:2].tolist() == [1, 1]
    gate.open.set()
    synchronize()
    assert seen[:4].tolist() == [3, 1, 2, 2]


def test_host_functions_may_not_wait(gate: Gate) -> None:
    said: list[Any] = []
    main = stream()
    look = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: said.append(driver.cuStreamSynchronize(main)[0]))
    ok(driver.cuLaunchHostFunc(main, driver.CUhostFn(ctypes.cast(look, ctypes.c_void_p).value), 0))
    gate.note(main)
    ok(driver.cuStreamSynchronize(main))
    assert said == [Error.CUDA_ERROR_NOT_PERMITTED]


def test_nothing_runs_after_a_failed_kernel(gate: Gate) -> None:
    busy, waiting, event = stream(), stream(), ok(driver.cuEventCreate(0))
    kernels = Kernels()
    gate.hold(busy)
    launch(kernels["trap"], (), (), stream=busy)
    gate.note(busy)
    ok(driver.cuEventRecord(event, busy))
    ok(driver.cuStreamWaitEvent(waiting, event, 0))
    gate.open.set()
    fails(Error.CUDA_ERROR_LAUNCH_FAILED, driver.cuStreamSynchronize, waiting)
    assert not gate.reached.is_set()


def test_work_of_one_stream_never_overlaps(ctx: Any) -> None:
    address, seen = device_array(np.zeros(1, np.int32))
    touch = Kernels()["touch"]
    stream = ok(driver.cuStreamCreate(NON_BLOCKING))

    def run(_: int) -> None:
        driver.cuCtxSetCurrent(ctx)
        for _ in range(200):
            assert launch(touch, (address,), (None,), stream=stream) == Error.CUDA_SUCCESS

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(run, range(4)))
    ok(driver.cuStreamSynchronize(stream))
    assert seen[0] == 800


def test_allocation_from_many_threads(ctx: Any) -> None:
    before = ok(driver.cuMemGetInfo())
    barrier = threading.Barrier(4)

    def run(seed: int) -> None:
        driver.cuCtxSetCurrent(ctx)
        barrier.wait()
        for i in range(200):
            address = ok(driver.cuMemAlloc(1 + (seed * 977 + i * 131) % 5000))
            ok(driver.cuMemsetD8(address, seed, 1))
            ok(driver.cuMemFree(address))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(run, range(4)))
    assert ok(driver.cuMemGetInfo()) == before

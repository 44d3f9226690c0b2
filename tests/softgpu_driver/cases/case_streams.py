"""Streams, events and threads."""

from __future__ import annotations

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from tests.softgpu_driver.calls import Error, Kernels, device_array, fails, launch, ok

pytestmark = pytest.mark.usefixtures("ctx")

NON_BLOCKING = driver.CUstream_flags.CU_STREAM_NON_BLOCKING


def test_what_a_stream_says_of_itself(ctx: Any) -> None:
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
    assert seen == [1, 5]
    assert log[:3].tolist() == [2, 5, 6]


def test_kernels_of_two_streams_run_side_by_side(ctx: Any) -> None:
    """Each kernel ends only when the other has begun."""
    address, _ = device_array(np.zeros(1, np.int32))
    meet = Kernels()["meet"]

    def run(_: int) -> Error:
        driver.cuCtxSetCurrent(ctx)
        return launch(meet, (address,), (None,), stream=ok(driver.cuStreamCreate(NON_BLOCKING)))

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(run, range(2))) == [Error.CUDA_SUCCESS] * 2


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

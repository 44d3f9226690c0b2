"""Green contexts and their streams: whose memory and errors they have, and every order of ends."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from cuda.bindings import driver

from softgpu import Model
from softgpu.model import describe_time
from softgpu.tests.driver.calls import NO_STREAM, Error, Kernels, device_array, fails, launch, ok, synchronize
from softgpu.tests.driver.partitions import (
    ADD_TYPES,
    COUNT,
    NON_BLOCKING,
    SM,
    SMS,
    add,
    described,
    green_of,
    partitions,
    stream_of,
    view_of,
    whole,
)

pytestmark = pytest.mark.usefixtures("ctx", "with_sms")

NO_GREEN = driver.CUgreenCtx(0)
DESTROYED = Error.CUDA_ERROR_CONTEXT_IS_DESTROYED
DETACHED = Error.CUDA_ERROR_STREAM_DETACHED
INVALID_CONTEXT, INVALID_VALUE = Error.CUDA_ERROR_INVALID_CONTEXT, Error.CUDA_ERROR_INVALID_VALUE
INVALID_CONFIGURATION = Error.CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION


def test_streams_tell_their_green_context() -> None:
    primary = ok(driver.cuCtxGetCurrent())
    (one, two), _ = partitions(32, 2)
    green, other = green_of(one), green_of(two)
    view, stream = view_of(green), stream_of(green)
    assert int(ok(driver.cuStreamGetGreenCtx(stream))) == int(green)
    assert int(ok(driver.cuStreamGetGreenCtx(ok(driver.cuStreamCreate(0))))) == 0
    assert int(ok(driver.cuStreamGetCtx(stream))) == int(view)
    context, its = ok(driver.cuStreamGetCtx_v2(stream))
    assert (int(context), int(its)) == (int(primary), int(green))
    assert ok(driver.cuStreamGetDevResource(stream, SM)).sm.smCount == 32
    assert ok(driver.cuStreamGetPriority(ok(driver.cuGreenCtxStreamCreate(green, NON_BLOCKING, -9)))) == -5
    ok(driver.cuCtxSetCurrent(view))
    assert int(ok(driver.cuCtxGetCurrent())) == int(view)
    inside = ok(driver.cuStreamCreate(0))
    assert int(ok(driver.cuStreamGetGreenCtx(inside))) == int(ok(driver.cuStreamGetGreenCtx(NO_STREAM))) == int(green)
    assert ok(driver.cuCtxGetDevResource(view, SM)).sm.smCount == 32
    fails(Error.CUDA_ERROR_INVALID_HANDLE, driver.cuStreamGetCtx_v2, driver.CUstream(2))  # one for each thread
    ids = {ok(driver.cuGreenCtxGetId(each)) for each in (green, other)} | {ok(driver.cuCtxGetId(primary))}
    assert len(ids) == 3
    assert ok(driver.cuGreenCtxGetId(NO_GREEN)) == ok(driver.cuGreenCtxGetId(green))
    assert int(ok(driver.cuCtxPopCurrent())) == int(view)
    fails(INVALID_CONTEXT, driver.cuGreenCtxGetId, NO_GREEN)


def test_memory_and_kernels_are_those_of_the_primary_context() -> None:
    (partition,), _ = partitions(32, 1)
    green = green_of(partition)
    address, seen = device_array(np.zeros(COUNT, np.int32))
    streams = [stream_of(green), ok(driver.cuStreamCreate(NON_BLOCKING))]
    ok(driver.cuCtxPushCurrent(view_of(green)))
    inside, other = device_array(np.zeros(COUNT, np.int32))
    for stream in (*streams, NO_STREAM, ok(driver.cuStreamCreate(0))):
        add(stream, address)
        add(stream, inside)
        ok(driver.cuStreamSynchronize(stream))
    ok(driver.cuGreenCtxDestroy(green))
    assert (seen == 4).all()
    assert (other == 4).all()
    ok(driver.cuMemFree(inside))


def test_a_green_context_has_an_occupancy_of_its_own() -> None:
    kernel = Kernels()["add"]
    _, most = ok(driver.cuOccupancyMaxPotentialBlockSize(kernel, None, 0, 0))
    blocks, _ = ok(driver.cuOccupancyMaxPotentialBlockSize(kernel, None, 0, 0))
    (partition,), _ = partitions(12, 1)
    ok(driver.cuCtxSetCurrent(view_of(green_of(partition))))
    assert ok(driver.cuOccupancyMaxPotentialBlockSize(kernel, None, 0, 0)) == (blocks * 12 // SMS, most)


def test_an_error_sticks_to_all_of_them() -> None:
    (one, two), _ = partitions(32, 2)
    green, other = green_of(one), green_of(two)
    stream, beside = stream_of(green), stream_of(other)
    assert launch(Kernels()["trap"], (), (), stream=stream) == 0
    fails(Error.CUDA_ERROR_LAUNCH_FAILED, driver.cuStreamSynchronize, stream)
    fails(Error.CUDA_ERROR_LAUNCH_FAILED, driver.cuStreamSynchronize, beside)
    fails(Error.CUDA_ERROR_LAUNCH_FAILED, driver.cuCtxSynchronize)
    fails(Error.CUDA_ERROR_LAUNCH_FAILED, driver.cuGreenCtxStreamCreate, other, NON_BLOCKING, 0)
    fails(Error.CUDA_ERROR_LAUNCH_FAILED, driver.cuGreenCtxCreate, described(whole()), 0, 1)
    ok(driver.cuGreenCtxDestroy(green))


def test_calls_that_are_refused() -> None:
    (partition,), _ = partitions(32, 1)
    described_partition = described(partition)
    fails(INVALID_VALUE, driver.cuGreenCtxCreate, described_partition, 0, 2)
    fails(INVALID_VALUE, driver.cuGreenCtxCreate, described_partition, 1, 1)
    fails(INVALID_VALUE, driver.cuGreenCtxCreate, driver.CUdevResourceDesc(0), 0, 1)
    fails(INVALID_CONTEXT, driver.cuGreenCtxDestroy, NO_GREEN)
    fails(INVALID_CONTEXT, driver.cuCtxFromGreenCtx, NO_GREEN)
    green = green_of(partition)
    fails(INVALID_VALUE, driver.cuGreenCtxStreamCreate, green, 0, 0)
    fails(INVALID_CONTEXT, driver.cuCtxSetCurrent, driver.CUcontext(int(green)))
    fails(INVALID_CONTEXT, driver.cuGreenCtxDestroy, driver.CUgreenCtx(int(view_of(green))))
    fails(INVALID_CONTEXT, driver.cuCtxDestroy, view_of(green))


def test_the_number_of_multiprocessors_stays_while_a_green_context_knows_it(library: ctypes.CDLL) -> None:
    partition = whole()
    green = green_of(partition)
    assert describe_time(library, 0, Model(sms=64)) == int(INVALID_VALUE)
    assert describe_time(library, 0, Model(sms=SMS, launch_latency_s=1e-6)) == 0
    ok(driver.cuGreenCtxDestroy(green))
    assert describe_time(library, 0, Model(sms=64)) == 0
    fails(INVALID_CONFIGURATION, driver.cuDevSmResourceSplitByCount, 1, partition, 0, 8)


# --- ends


def test_a_stream_outlives_its_green_context_but_is_of_no_use() -> None:
    (partition,), _ = partitions(32, 1)
    green, address = green_of(partition), device_array(np.zeros(COUNT, np.int32))[0]
    stream, view = stream_of(green), view_of(green)
    ok(driver.cuCtxPushCurrent(view))
    add(stream, address)
    ok(driver.cuGreenCtxDestroy(green))
    for call in (driver.cuStreamSynchronize, driver.cuStreamQuery, driver.cuStreamGetCtx, driver.cuStreamGetGreenCtx):
        fails(DETACHED, call, stream)
    assert launch(Kernels()["add"], (address, COUNT, 1), ADD_TYPES, stream=stream) == DETACHED
    ok(driver.cuStreamDestroy(stream))
    for call in (driver.cuGreenCtxDestroy, driver.cuCtxFromGreenCtx, driver.cuGreenCtxGetId):
        fails(INVALID_CONTEXT, call, green)
    fails(INVALID_CONTEXT, driver.cuCtxSetCurrent, view)
    fails(INVALID_CONTEXT, driver.cuCtxGetDevResource, view, SM)
    synchronize()  # the primary context is current again


def test_a_green_context_keeps_the_primary_one() -> None:
    (partition,), _ = partitions(32, 1)
    green = green_of(partition)
    ok(driver.cuDevicePrimaryCtxRelease(0))
    assert ok(driver.cuDevicePrimaryCtxGetState(0))[1] == 1
    add(stream_of(green), device_array(np.zeros(COUNT, np.int32))[0])
    ok(driver.cuGreenCtxDestroy(green))
    assert ok(driver.cuDevicePrimaryCtxGetState(0))[1] == 0
    ok(driver.cuDevicePrimaryCtxRetain(0))


def test_a_reset_of_the_primary_context_ends_its_green_ones() -> None:
    (partition,), _ = partitions(32, 1)
    green = green_of(partition)
    stream, view = stream_of(green), view_of(green)
    ok(driver.cuDevicePrimaryCtxReset(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
    fails(DESTROYED, driver.cuGreenCtxGetId, green)
    fails(DESTROYED, driver.cuGreenCtxStreamCreate, green, NON_BLOCKING, 0)
    fails(DESTROYED, driver.cuGreenCtxGetDevResource, green, SM)
    fails(INVALID_CONTEXT, driver.cuCtxSetCurrent, view)
    fails(Error.CUDA_ERROR_INVALID_HANDLE, driver.cuStreamSynchronize, stream)
    ok(driver.cuGreenCtxDestroy(green))
    assert ok(driver.cuDevicePrimaryCtxGetState(0))[1] == 1  # it has no reference to the new one
    ok(driver.cuGreenCtxDestroy(green_of(partition)))


def test_a_context_that_was_current_is_never_mistaken_for_a_later_one() -> None:
    """Addresses of contexts are used again; the thread's stack knows the difference."""
    (partition,), _ = partitions(32, 1)
    primary, green = ok(driver.cuCtxGetCurrent()), green_of(partition)
    first = int(view_of(green))
    ok(driver.cuCtxPushCurrent(view_of(green)))
    ok(driver.cuGreenCtxDestroy(green))
    for _ in range(200):
        later = green_of(partition)
        if int(view_of(later)) == first:
            break
        ok(driver.cuGreenCtxDestroy(later))
    assert int(view_of(later)) == first
    assert int(ok(driver.cuCtxGetCurrent())) == int(primary)

"""Faults on demand: the error that each gives, what it sticks to, and that the next request is unharmed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from softgpu.faults import Fault, forgive_faults, inject_fault
from softgpu.tests.driver.calls import NO_STREAM, Error, Kernels, device_array, fails, launch, ok, synchronize
from softgpu.watch import running_kernels

pytestmark = pytest.mark.usefixtures("ctx", "forgiven")

STICKY = {
    "launch_failure": Error.CUDA_ERROR_LAUNCH_FAILED,
    "illegal_address": Error.CUDA_ERROR_ILLEGAL_ADDRESS,
    "ecc": Error.CUDA_ERROR_ECC_UNCORRECTABLE,
}


@pytest.fixture
def forgiven(library: ctypes.CDLL) -> Iterator[None]:
    yield
    forgive_faults(library)


def test_an_allocation_fails_once(library: ctypes.CDLL) -> None:
    before = ok(driver.cuMemGetInfo())[0]
    assert inject_fault(library, 0, Fault("out_of_memory", at=3)) == 0
    first, second = ok(driver.cuMemAlloc(512)), ok(driver.cuMemAllocAsync(512, NO_STREAM))
    fails(Error.CUDA_ERROR_OUT_OF_MEMORY, driver.cuMemAllocAsync, 512, NO_STREAM)
    third = ok(driver.cuMemAlloc(512))
    for address in (first, second, third):
        ok(driver.cuMemFree(address))
    assert ok(driver.cuMemGetInfo())[0] == before


@pytest.mark.parametrize("kind", STICKY)
def test_a_kernel_fails_for_its_context(library: ctypes.CDLL, ctx: Any, kind: str) -> None:
    address, seen = device_array(np.zeros(8, np.int32))
    append = Kernels()["append"]
    broken = ok(driver.cuCtxCreate(None, 0, 0))
    assert inject_fault(library, 0, Fault(kind, at=2)) == 0
    for value in range(3):
        launch(append, (address, value), (None, ctypes.c_int))
    fails(STICKY[kind], driver.cuCtxSynchronize)
    assert b"kernel append" in library.softgpu_last_error()
    fails(STICKY[kind], driver.cuMemAlloc, 512)
    assert seen[:2].tolist() == [1, 0]
    ok(driver.cuCtxDestroy(broken))
    driver.cuCtxSetCurrent(ctx)
    assert launch(append, (address, 7), (None, ctypes.c_int)) == Error.CUDA_SUCCESS
    synchronize()
    assert seen[:3].tolist() == [2, 0, 7]


def test_a_hang_ends_with_its_context(library: ctypes.CDLL, ctx: Any) -> None:
    empty = Kernels()["empty"]
    hung = ok(driver.cuCtxCreate(None, 0, 0))
    assert inject_fault(library, 0, Fault("hang")) == 0
    assert launch(empty, (), ()) == Error.CUDA_SUCCESS
    fails(Error.CUDA_ERROR_NOT_READY, driver.cuStreamQuery, NO_STREAM)
    driver.cuCtxSetCurrent(ctx)
    ok(driver.cuCtxSynchronize())
    ok(driver.cuCtxDestroy(hung))


def test_a_hang_that_is_ended_has_timed_out(library: ctypes.CDLL) -> None:
    assert inject_fault(library, 0, Fault("hang")) == 0
    launch(Kernels()["empty"], (), ())
    while driver.cuStreamQuery(NO_STREAM)[0] == Error.CUDA_ERROR_NOT_READY:
        library.softgpu_end_hangs()  # once it does hang, this ends it
    fails(Error.CUDA_ERROR_LAUNCH_TIMEOUT, driver.cuCtxSynchronize)


def test_a_cancel_names_the_running_kernels(library: ctypes.CDLL) -> None:
    """Two kernels hang; the failure, whichever of them it is of, names both."""
    kernels, arguments = Kernels(), {"empty": ((), ()), "append": ((0, 0), (ctypes.c_void_p, ctypes.c_int))}
    assert running_kernels(library, 0) == ()
    for name, (values, types) in arguments.items():
        stream = ok(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        assert inject_fault(library, 0, Fault("hang")) == 0
        launch(kernels[name], values, types, stream=stream)
        while name not in running_kernels(library, 0):
            fails(Error.CUDA_ERROR_NOT_READY, driver.cuStreamQuery, stream)
    assert sorted(running_kernels(library, 0)) == ["append", "empty"]
    assert running_kernels(library, 1) == ()
    assert library.softgpu_cancel(0) == 0
    fails(Error.CUDA_ERROR_LAUNCH_TIMEOUT, driver.cuCtxSynchronize)
    said = library.softgpu_last_error().decode()
    assert "hung until it was cancelled" in said
    assert {"append", "empty"} <= set(said.partition("there ran: ")[2].split())
    while running_kernels(library, 0):  # the failure of one is reported while the other may still be ending
        pass


def test_a_lost_device_fails_in_every_context(library: ctypes.CDLL, ctx: Any) -> None:
    empty = Kernels()["empty"]
    other = ok(driver.cuCtxCreate(None, 0, 0))
    assert inject_fault(library, 0, Fault("device_lost")) == 0
    launch(empty, (), ())
    fails(Error.CUDA_ERROR_UNKNOWN, driver.cuCtxSynchronize)
    fails(Error.CUDA_ERROR_DEVICE_UNAVAILABLE, driver.cuCtxCreate, None, 0, 0)
    driver.cuCtxSetCurrent(ctx)
    fails(Error.CUDA_ERROR_UNKNOWN, driver.cuMemAlloc, 512)
    far = ok(driver.cuCtxCreate(None, 0, 1))
    ok(driver.cuMemFree(ok(driver.cuMemAlloc(512))))
    ok(driver.cuCtxDestroy(far))
    ok(driver.cuCtxDestroy(other))


def test_a_slow_copy_takes_longer(library: ctypes.CDLL) -> None:
    address, _ = device_array(np.zeros(8, np.int32))
    host = ok(driver.cuMemHostAlloc(32, 0))
    first, last = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
    assert inject_fault(library, 0, Fault("slow_copy", seconds=0.02)) == 0
    ok(driver.cuEventRecord(first, NO_STREAM))
    ok(driver.cuMemcpyHtoDAsync(address, int(host), 32, NO_STREAM))
    ok(driver.cuEventRecord(last, NO_STREAM))
    synchronize()
    assert ok(driver.cuEventElapsedTime(first, last)) >= 20


def allocations_that_fail(library: ctypes.CDLL, seed: int) -> list[bool]:
    assert inject_fault(library, 0, Fault("out_of_memory", rate=0.3, seed=seed)) == 0
    failed = []
    for _ in range(50):
        status, address = driver.cuMemAlloc(512)
        failed.append(status == Error.CUDA_ERROR_OUT_OF_MEMORY)
        if not failed[-1]:
            ok(driver.cuMemFree(address))
    forgive_faults(library)
    return failed


def test_a_seed_repeats_its_faults(library: ctypes.CDLL) -> None:
    first = allocations_that_fail(library, 1)
    assert first == allocations_that_fail(library, 1) != allocations_that_fail(library, 2)
    assert 5 < sum(first) < 25


def test_impossible_faults() -> None:
    with pytest.raises(ValueError, match="a fault is one of"):
        Fault("fire")
    with pytest.raises(ValueError, match="at counts from 1"):
        Fault("hang", at=0)
    with pytest.raises(ValueError, match="a rate is more than 0"):
        Fault("ecc", rate=2.0)
    for numbers in ({"at": 1.5}, {"at": "1"}, {"rate": 0.5, "seed": -1}):
        with pytest.raises(ValueError, match="whole numbers"):
            Fault("ecc", **numbers)

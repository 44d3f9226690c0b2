"""Copies and sets in two and three dimensions, between contexts, and many at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from softgpu.tests.driver.calls import NO_STREAM, Error, device_array, fails, ok, synchronize, view

pytestmark = pytest.mark.usefixtures("ctx")

BAD = Error.CUDA_ERROR_INVALID_VALUE
DEVICE = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
WIDTH, HEIGHT, DEPTH = 5, 3, 2


def cube(params: Any, source: Any, target: Any) -> Any:
    """A copy of a corner of 8 x 4 x 3 bytes to the same place in another."""
    params.srcMemoryType = params.dstMemoryType = DEVICE
    params.srcDevice, params.dstDevice = source, target
    params.srcPitch = params.dstPitch = 8
    params.WidthInBytes, params.Height = WIDTH, HEIGHT
    if hasattr(params, "Depth"):
        params.Depth, params.srcHeight, params.dstHeight = DEPTH, 4, 4
    return params


def expected(depth: int) -> np.ndarray:
    whole = np.zeros((3, 4, 8), np.uint8)
    whole[:depth, :HEIGHT, :WIDTH] = np.arange(96, dtype=np.uint8).reshape(3, 4, 8)[:depth, :HEIGHT, :WIDTH]
    return whole.ravel()


@pytest.fixture
def source() -> Any:
    return device_array(np.arange(96, dtype=np.uint8))[0]


def test_three_dimensions(source: Any) -> None:
    ctx = ok(driver.cuCtxGetCurrent())
    calls: list[tuple[Any, Any]] = [
        (lambda p: driver.cuMemcpy3D(p), driver.CUDA_MEMCPY3D),
        (lambda p: driver.cuMemcpy3DAsync(p, NO_STREAM), driver.CUDA_MEMCPY3D),
        (lambda p: driver.cuMemcpy3DPeer(p), driver.CUDA_MEMCPY3D_PEER),
        (lambda p: driver.cuMemcpy3DPeerAsync(p, NO_STREAM), driver.CUDA_MEMCPY3D_PEER),
    ]
    for call, kind in calls:
        target, seen = device_array(np.zeros(96, np.uint8))
        params = cube(kind(), source, target)
        if kind is driver.CUDA_MEMCPY3D_PEER:
            fails(Error.CUDA_ERROR_INVALID_CONTEXT, call, params)
            params.srcContext = params.dstContext = ctx
        ok(call(params))
        synchronize()
        np.testing.assert_array_equal(seen, expected(DEPTH))


def test_two_dimensions(source: Any) -> None:
    calls: list[Any] = [driver.cuMemcpy2DUnaligned, lambda p: driver.cuMemcpy2DAsync(p, NO_STREAM)]
    for call in calls:
        target, seen = device_array(np.zeros(96, np.uint8))
        params: Any = cube(driver.CUDA_MEMCPY2D(), source, target)
        ok(call(params))
        synchronize()
        np.testing.assert_array_equal(seen, expected(1))


def test_straight_copies_on_the_device(source: Any) -> None:
    ctx = ok(driver.cuCtxGetCurrent())
    target, seen = device_array(np.zeros(96, np.uint8))
    ok(driver.cuMemcpyDtoDAsync(target, source, 48, NO_STREAM))
    ok(driver.cuMemcpyPeerAsync(int(target) + 48, ctx, int(source) + 48, ctx, 48, NO_STREAM))
    synchronize()
    assert (seen == np.arange(96)).all()


def test_many_copies_at_once(source: Any) -> None:
    target, seen = device_array(np.zeros(96, np.uint8))
    attributes = driver.CUmemcpyAttributes()
    attributes.srcAccessOrder = driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    to = [target, driver.CUdeviceptr(int(target) + 90)]
    sources = [source, driver.CUdeviceptr(int(source) + 4)]
    stream = ok(driver.cuStreamCreate(1))
    ok(driver.cuMemcpyBatchAsync(to, sources, [4, 2], 2, [attributes], [0], 1, stream))
    ok(driver.cuStreamSynchronize(stream))
    assert seen.nonzero()[0].tolist() == [1, 2, 3, 90, 91]
    assert seen[90:92].tolist() == [4, 5]
    fails(BAD, driver.cuMemcpyBatchAsync, to, sources, [4, 97], 2, [attributes], [0], 1, stream)


LARGE = (4 << 20) + 130
"""Bytes of a copy that goes past the caches, and has a first and a last line in parts."""


@pytest.mark.parametrize(("source_at", "target_at"), [(0, 0), (1, 0), (0, 1), (63, 64), (7, 33)])
def test_large_copies_at_any_address(source_at: int, target_at: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, LARGE + 64, np.uint8)
    target, seen = device_array(np.zeros(LARGE + 128, np.uint8))
    ok(driver.cuMemcpyHtoD(int(target) + target_at, data[source_at:].ctypes.data, LARGE))
    np.testing.assert_array_equal(seen[target_at : target_at + LARGE], data[source_at : source_at + LARGE])
    assert not seen[:target_at].any()
    assert not seen[target_at + LARGE :].any()


@pytest.mark.parametrize("shift", [-64, -1, 1, 64, 4 << 20])
def test_large_copies_whose_ends_overlap(shift: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, LARGE + abs(shift), np.uint8)
    base, seen = device_array(data)
    source, target = max(0, -shift), max(0, shift)
    ok(driver.cuMemcpyDtoD(int(base) + target, int(base) + source, LARGE))
    np.testing.assert_array_equal(seen[target : target + LARGE], data[source : source + LARGE])


@pytest.mark.parametrize(("bits", "later"), [(8, False), (8, True), (16, False), (16, True), (32, False), (32, True)])
def test_sets_of_rows(bits: int, *, later: bool) -> None:
    kind = np.dtype(f"u{bits // 8}")
    target, seen = device_array(np.zeros((4, 8), kind))
    arguments = (target, 8 * kind.itemsize, 7, 3, 2)
    if later:
        call = {8: driver.cuMemsetD2D8Async, 16: driver.cuMemsetD2D16Async, 32: driver.cuMemsetD2D32Async}[bits]
        ok(call(*arguments, NO_STREAM))
    else:
        ok({8: driver.cuMemsetD2D8, 16: driver.cuMemsetD2D16, 32: driver.cuMemsetD2D32}[bits](*arguments))
    synchronize()
    assert seen.reshape(4, 8)[:2, :3].tolist() == [[7] * 3] * 2
    assert seen.sum() == 42


def test_sets_of_16_bits() -> None:
    target, seen = device_array(np.zeros(8, np.uint16))
    ok(driver.cuMemsetD16(target, 3, 2))
    ok(driver.cuMemsetD16Async(int(target) + 8, 4, 2, NO_STREAM))
    synchronize()
    assert seen.tolist() == [3, 3, 0, 0, 4, 4, 0, 0]


MAPPED, REGISTERED, MANAGED = "mapped", "registered", "managed"
SETS = {1: driver.cuMemsetD8, 2: driver.cuMemsetD16, 4: driver.cuMemsetD32}
SETS_OF_ROWS = {1: driver.cuMemsetD2D8, 2: driver.cuMemsetD2D16, 4: driver.cuMemsetD2D32}


def hosts_own(kind: str) -> tuple[int, int, np.ndarray]:
    """64 bytes that host and device share: the address for each, and what the host sees."""
    if kind == MANAGED:
        address = int(ok(driver.cuMemAllocManaged(64, driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL)))
        return address, address, view(address, np.uint8, 64)
    seen = np.zeros(64, np.uint8)
    if kind == REGISTERED:
        address = seen.ctypes.data
        ok(driver.cuMemHostRegister(address, 64, 2))
    else:
        address = int(ok(driver.cuMemHostAlloc(64, 2)))
        seen = view(address, np.uint8, 64)
    return address, int(ok(driver.cuMemHostGetDevicePointer(address, 0))), seen


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("kind", [MAPPED, REGISTERED, MANAGED])
def test_a_set_of_memory_that_the_host_sees_has_ended_when_the_call_returns(kind: str, width: int) -> None:
    address, there, seen = hosts_own(kind)
    for value in range(1, 51):
        ok(SETS[width](there, value, 64 // width))
        assert (seen.view(f"u{width}") == value).all()
        ok(SETS_OF_ROWS[width](there, 16, value + 1, 16 // width, 4))
        assert (seen.view(f"u{width}") == value + 1).all()
    if kind == REGISTERED:
        ok(driver.cuMemHostUnregister(address))


def test_host_memory_has_flags_and_pointers_take_attributes() -> None:
    host = ok(driver.cuMemAllocHost(64))
    view(int(host), np.uint8, 64)[:] = 1
    mapped = 2
    assert ok(driver.cuMemHostGetFlags(int(host))) & mapped
    address = ok(driver.cuMemAlloc(64))
    sync = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
    ok(driver.cuPointerSetAttribute(1, sync, address))
    mode = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    fails(BAD, driver.cuPointerSetAttribute, 1, mode, address)
    fails(BAD, driver.cuMemHostGetFlags, int(address))
    ok(driver.cuMemFreeHost(int(host)))

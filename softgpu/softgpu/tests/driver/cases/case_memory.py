"""Device, host and pool memory: what is counted, what is refused, and the attributes of pointers."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from softgpu.tests.driver.calls import NO_STREAM, Error, device_array, fails, ok, synchronize, view
from softgpu.tests.driver.fake import DEVICE_BYTES

pytestmark = pytest.mark.usefixtures("ctx")

POINTER = driver.CUpointer_attribute
POOL = driver.CUmemPool_attribute


def free_bytes() -> int:
    return int(ok(driver.cuMemGetInfo())[0])


@pytest.fixture
def pool() -> Any:
    props = driver.CUmemPoolProps()
    props.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    props.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    props.location.id = 0
    made = ok(driver.cuMemPoolCreate(props))
    yield made
    ok(driver.cuMemPoolDestroy(made))


def pool_counters(pool: Any) -> tuple[int, int, int, int]:
    """used, used high, reserved, reserved high."""
    names = ("USED_MEM_CURRENT", "USED_MEM_HIGH", "RESERVED_MEM_CURRENT", "RESERVED_MEM_HIGH")
    values = [int(ok(driver.cuMemPoolGetAttribute(pool, getattr(POOL, f"CU_MEMPOOL_ATTR_{name}")))) for name in names]
    return values[0], values[1], values[2], values[3]


def test_bytes_are_counted_in_units_of_512() -> None:
    before = free_bytes()
    one, many = ok(driver.cuMemAlloc(1)), ok(driver.cuMemAlloc(513))
    assert int(one) % 512 == int(many) % 512 == 0
    assert free_bytes() == before - 512 - 1024
    ok(driver.cuMemFree(one))
    ok(driver.cuMemFree(many))
    assert free_bytes() == before


@pytest.mark.alone
def test_memory_ends_exactly_where_the_device_does() -> None:
    total = DEVICE_BYTES[0]
    whole = ok(driver.cuMemAlloc(total))
    fails(Error.CUDA_ERROR_OUT_OF_MEMORY, driver.cuMemAlloc, 1)
    ok(driver.cuMemFree(whole))
    fails(Error.CUDA_ERROR_OUT_OF_MEMORY, driver.cuMemAlloc, total + 1)
    fails(Error.CUDA_ERROR_OUT_OF_MEMORY, driver.cuMemAlloc, 1 << 62)
    assert free_bytes() == total


def test_the_error_of_too_little_memory_has_the_size(library: ctypes.CDLL) -> None:
    fails(Error.CUDA_ERROR_OUT_OF_MEMORY, driver.cuMemAlloc, DEVICE_BYTES[0] + 512)
    said = library.softgpu_last_error().decode()
    assert str(DEVICE_BYTES[0] + 512) in said
    assert "device 0" in said


def test_frees_of_anything_else_are_refused() -> None:
    address = ok(driver.cuMemAlloc(1024))
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuMemFree, int(address) + 512)
    host = ok(driver.cuMemHostAlloc(64, 0))
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuMemFree, host)
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuMemFreeHost, int(address))
    ok(driver.cuMemFreeHost(host))
    ok(driver.cuMemFree(address))
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuMemFree, address)
    ok(driver.cuMemFree(0))
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuMemAlloc, 0)


def test_a_pool_counts_its_memory_and_keeps_its_threshold(pool: Any) -> None:
    stream = ok(driver.cuStreamCreate(0))
    before = free_bytes()
    ok(driver.cuMemPoolSetAttribute(pool, POOL.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, driver.cuuint64_t(1 << 20)))
    first = ok(driver.cuMemAllocFromPoolAsync(1 << 20, pool, stream))
    second = ok(driver.cuMemAllocFromPoolAsync(1 << 19, pool, stream))
    assert pool_counters(pool) == (3 << 19, 3 << 19, 3 << 19, 3 << 19)
    ok(driver.cuMemFreeAsync(second, stream))
    assert pool_counters(pool) == (1 << 20, 3 << 19, 1 << 20, 3 << 19)
    ok(driver.cuMemFreeAsync(first, stream))
    assert pool_counters(pool) == (0, 3 << 19, 1 << 20, 3 << 19)
    assert free_bytes() == before - (1 << 20)
    again = ok(driver.cuMemAllocFromPoolAsync(1 << 20, pool, stream))
    assert int(again) == int(first)
    ok(driver.cuMemFree(again))
    ok(driver.cuMemPoolTrimTo(pool, 0))
    assert free_bytes() == before
    ok(driver.cuMemPoolSetAttribute(pool, POOL.CU_MEMPOOL_ATTR_USED_MEM_HIGH, driver.cuuint64_t(0)))
    assert pool_counters(pool)[:3] == (0, 0, 0)


@pytest.mark.alone
def test_cached_blocks_make_room(pool: Any) -> None:
    ok(driver.cuMemPoolSetAttribute(pool, POOL.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, driver.cuuint64_t(1 << 40)))
    kept = ok(driver.cuMemAllocFromPoolAsync(DEVICE_BYTES[0] // 2, pool, NO_STREAM))
    ok(driver.cuMemFreeAsync(kept, NO_STREAM))
    whole = ok(driver.cuMemAlloc(DEVICE_BYTES[0]))
    ok(driver.cuMemFree(whole))


def test_a_pool_may_be_destroyed_before_its_memory() -> None:
    before = free_bytes()
    props = driver.CUmemPoolProps()
    props.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    props.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    made = ok(driver.cuMemPoolCreate(props))
    address = ok(driver.cuMemAllocFromPoolAsync(4096, made, NO_STREAM))
    ok(driver.cuMemPoolDestroy(made))
    fails(Error.CUDA_ERROR_INVALID_HANDLE, driver.cuMemPoolTrimTo, made, 0)
    ok(driver.cuMemFreeAsync(address, NO_STREAM))
    assert free_bytes() == before
    default = ok(driver.cuDeviceGetDefaultMemPool(0))
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuMemPoolDestroy, default)


def test_pointers_have_attributes() -> None:
    address = ok(driver.cuMemAlloc(1000))
    inside = int(address) + 999
    assert ok(driver.cuPointerGetAttribute(POINTER.CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside)) == 1000
    assert int(ok(driver.cuPointerGetAttribute(POINTER.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside))) == int(address)
    assert ok(driver.cuPointerGetAttribute(POINTER.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, inside)) == 0
    assert int(ok(driver.cuPointerGetAttribute(POINTER.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside))) == 2
    fails(
        Error.CUDA_ERROR_INVALID_VALUE,
        driver.cuPointerGetAttribute,
        POINTER.CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        int(address) + 1000,
    )
    base, size = ok(driver.cuMemGetAddressRange(inside))
    assert (int(base), size) == (int(address), 1000)
    ok(driver.cuMemFree(address))
    asked = [POINTER.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, POINTER.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL]
    unknown = ok(driver.cuPointerGetAttributes(2, asked, inside))
    assert [int(value) for value in unknown] == [0, -2]


def test_host_memory() -> None:
    before = free_bytes()
    host = ok(driver.cuMemHostAlloc(4096, driver.CU_MEMHOSTALLOC_PORTABLE))
    assert free_bytes() == before
    assert int(ok(driver.cuMemHostGetDevicePointer(host, 0))) == int(host)
    assert int(ok(driver.cuPointerGetAttribute(POINTER.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, int(host)))) == 1
    ok(driver.cuMemFreeHost(host))
    mine = np.zeros(4096, np.uint8)
    ok(driver.cuMemHostRegister(mine.ctypes.data, mine.nbytes, 0))
    fails(Error.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, driver.cuMemHostRegister, mine.ctypes.data + 8, 16, 0)
    ok(driver.cuMemHostUnregister(mine.ctypes.data))
    fails(Error.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, driver.cuMemHostUnregister, mine.ctypes.data)


def test_copies_in_every_direction() -> None:
    source = np.arange(1000, dtype=np.int32)
    back = np.zeros_like(source)
    a, b = ok(driver.cuMemAlloc(4000)), ok(driver.cuMemAlloc(4000))
    ok(driver.cuMemcpyHtoD(a, source.ctypes.data, 4000))
    ok(driver.cuMemcpyDtoD(b, a, 4000))
    ok(driver.cuMemcpyDtoH(back.ctypes.data, b, 4000))
    assert (back == source).all()
    ok(driver.cuMemcpy(int(b) + 400, a, 400))
    synchronize()
    assert (view(b, np.int32, 1000)[100:200] == source[:100]).all()
    stream = ok(driver.cuStreamCreate(0))
    ok(driver.cuMemcpyAsync(a, int(b) + 400, 40, stream))
    ok(driver.cuMemcpyHtoDAsync(int(a) + 40, back.ctypes.data, 40, stream))
    ok(driver.cuMemcpyDtoHAsync(back.ctypes.data, a, 80, stream))
    ok(driver.cuStreamSynchronize(stream))
    assert (back[:20] == [*range(10), *range(10)]).all()


def test_overlapping_copies_keep_their_bytes() -> None:
    address, seen = device_array(np.arange(100, dtype=np.uint8))
    ok(driver.cuMemcpyDtoD(int(address) + 1, address, 99))
    synchronize()
    assert (seen[1:] == np.arange(99)).all()


@pytest.mark.alone
def test_copies_between_devices(ctx: Any) -> None:
    near, seen = device_array(np.arange(16, dtype=np.int32))
    peer = ok(driver.cuDevicePrimaryCtxRetain(1))
    ok(driver.cuCtxPushCurrent(peer))
    far = ok(driver.cuMemAlloc(64))
    assert ok(driver.cuMemGetInfo()) == (DEVICE_BYTES[1] - 512, DEVICE_BYTES[1])
    ok(driver.cuMemcpyPeer(far, peer, near, ctx, 64))
    synchronize()
    assert (view(far, np.int32, 16) == seen).all()
    ok(driver.cuMemFree(far))
    ok(driver.cuCtxPopCurrent())
    ok(driver.cuDevicePrimaryCtxRelease(1))


def test_copies_beyond_an_allocation_are_refused(library: ctypes.CDLL) -> None:
    address = ok(driver.cuMemAlloc(100))
    host = np.zeros(200, np.uint8)
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuMemcpyHtoD, address, host.ctypes.data, 101)
    assert b"beyond" in library.softgpu_last_error()
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuMemcpyDtoH, host.ctypes.data, int(address) + 50, 51)
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuMemsetD8, int(address) + 1, 0, 100)
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuMemcpyHtoD, host.ctypes.data, host.ctypes.data, 8)
    ok(driver.cuMemFree(address))
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuMemcpyHtoD, address, host.ctypes.data, 8)
    ok(driver.cuMemcpyHtoD(address, host.ctypes.data, 0))


@pytest.mark.parametrize(("bits", "value"), [(8, 0xA5), (16, 0xBEEF), (32, 0xDEADBEEF), (32, 0)])
def test_sets(bits: int, value: int) -> None:
    dtype = np.dtype(f"u{bits // 8}")
    address, seen = device_array(np.full(100, 7, dtype))
    ok(getattr(driver, f"cuMemsetD{bits}")(address, value, 50))
    synchronize()
    assert (seen[:50] == value).all()
    assert (seen[50:] == 7).all()
    ok(getattr(driver, f"cuMemsetD{bits}Async")(int(address) + 50 * dtype.itemsize, value, 50, NO_STREAM))
    synchronize()
    assert (seen == value).all()


def test_pitched_copies() -> None:
    address, pitch = ok(driver.cuMemAllocPitch(40, 10, 4))
    assert pitch == 512
    rows = np.arange(100, dtype=np.int32).reshape(10, 10)
    copy = driver.CUDA_MEMCPY2D()
    copy.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
    copy.srcHost, copy.srcPitch = rows.ctypes.data, 40
    copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.dstDevice, copy.dstPitch = address, pitch
    copy.WidthInBytes, copy.Height = 40, 10
    ok(driver.cuMemcpy2D(copy))
    seen = view(address, np.int32, 10 * 128).reshape(10, 128)
    assert (seen[:, :10] == rows).all()
    copy.Height = 11
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuMemcpy2D, copy)

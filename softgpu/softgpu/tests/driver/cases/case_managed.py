"""Managed memory: one memory for host and devices, hints that are kept and returned, and pools of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from softgpu.tests.driver.calls import NO_STREAM, Error, fails, ok, synchronize, view

pytestmark = pytest.mark.usefixtures("ctx")

ADVICE, RANGE, PLACE = driver.CUmem_advise, driver.CUmem_range_attribute, driver.CUmemLocationType
BAD = Error.CUDA_ERROR_INVALID_VALUE
HOST, NOWHERE = -1, -2


def place(device: int) -> Any:
    location = driver.CUmemLocation()
    location.type = PLACE.CU_MEM_LOCATION_TYPE_HOST if device == HOST else PLACE.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = max(device, 0)
    return location


@pytest.fixture
def address() -> Any:
    return ok(driver.cuMemAllocManaged(4096, 1))


def range_attribute(address: Any, name: str, count: int = 1) -> Any:
    attribute = getattr(RANGE, f"CU_MEM_RANGE_ATTRIBUTE_{name}")
    return ok(driver.cuMemRangeGetAttribute(4 * count, attribute, address, 4096))


def test_host_and_device_see_the_same(address: Any) -> None:
    seen = view(address, np.uint32, 1024)
    ok(driver.cuMemsetD32(address, 7, 1024))
    synchronize()
    assert (seen == 7).all()
    ok(driver.cuStreamAttachMemAsync(NO_STREAM, address, 4096, 1))


def test_advice_is_kept_and_returned(address: Any) -> None:
    assert [range_attribute(address, "READ_MOSTLY"), range_attribute(address, "PREFERRED_LOCATION")] == [0, NOWHERE]
    ok(driver.cuMemAdvise(address, 4096, ADVICE.CU_MEM_ADVISE_SET_READ_MOSTLY, place(0)))
    ok(driver.cuMemAdvise(address, 4096, ADVICE.CU_MEM_ADVISE_SET_PREFERRED_LOCATION, place(1)))
    for device in (1, HOST):
        ok(driver.cuMemAdvise(address, 4096, ADVICE.CU_MEM_ADVISE_SET_ACCESSED_BY, place(device)))
    assert [range_attribute(address, "READ_MOSTLY"), range_attribute(address, "PREFERRED_LOCATION")] == [1, 1]
    assert list(range_attribute(address, "ACCESSED_BY", 3)) == [1, HOST, NOWHERE]
    assert range_attribute(address, "PREFERRED_LOCATION_ID") == 1
    ok(driver.cuMemAdvise(address, 4096, ADVICE.CU_MEM_ADVISE_UNSET_ACCESSED_BY, place(1)))
    ok(driver.cuMemAdvise(address, 4096, ADVICE.CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, place(0)))
    ok(driver.cuMemAdvise(address, 4096, ADVICE.CU_MEM_ADVISE_UNSET_READ_MOSTLY, place(0)))
    kinds = [RANGE.CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, RANGE.CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION]
    assert list(ok(driver.cuMemRangeGetAttributes([4, 4], kinds, 2, address, 4096))) == [0, NOWHERE]
    assert list(range_attribute(address, "ACCESSED_BY", 2)) == [HOST, NOWHERE]


def test_prefetches_are_remembered(address: Any) -> None:
    ok(driver.cuMemPrefetchAsync(address, 4096, place(1), 0, NO_STREAM))
    assert range_attribute(address, "LAST_PREFETCH_LOCATION") == 1
    ok(driver.cuMemPrefetchBatchAsync([address], [4096], 1, [place(HOST)], [0], 1, 0, NO_STREAM))
    assert range_attribute(address, "LAST_PREFETCH_LOCATION") == HOST
    ok(driver.cuMemDiscardAndPrefetchBatchAsync([address], [4096], 1, [place(0)], [0], 1, 0, NO_STREAM))
    assert range_attribute(address, "LAST_PREFETCH_LOCATION_ID") == 0
    assert range_attribute(address, "LAST_PREFETCH_LOCATION_TYPE") == int(PLACE.CU_MEM_LOCATION_TYPE_DEVICE)


def test_strict_mode_overwrites_discarded_memory(strict: Callable[[int], None], address: Any) -> None:
    seen = view(address, np.uint32, 1024)
    seen[:] = 7
    ok(driver.cuMemDiscardBatchAsync([address], [2048], 1, 0, NO_STREAM))
    synchronize()
    assert (seen == 7).all()
    strict(1)
    ok(driver.cuMemDiscardBatchAsync([address], [2048], 1, 0, NO_STREAM))
    synchronize()
    assert (seen[:512] == 0xFFFFFFFF).all()
    assert (seen[512:] == 7).all()


def test_other_memory_takes_no_hints(address: Any) -> None:
    plain = ok(driver.cuMemAlloc(4096))
    advice = ADVICE.CU_MEM_ADVISE_SET_READ_MOSTLY
    fails(BAD, driver.cuMemAdvise, plain, 4096, advice, place(0))
    fails(BAD, driver.cuMemAdvise, address, 4097, advice, place(0))
    fails(BAD, driver.cuMemPrefetchAsync, plain, 4096, place(0), 0, NO_STREAM)
    set_preferred = ADVICE.CU_MEM_ADVISE_SET_PREFERRED_LOCATION
    fails(Error.CUDA_ERROR_INVALID_DEVICE, driver.cuMemAdvise, address, 4096, set_preferred, place(9))
    fails(BAD, driver.cuMemRangeGetAttribute, 3, RANGE.CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, address, 4096)


def test_pools_of_managed_memory() -> None:
    kind = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_MANAGED
    anywhere = driver.CUmemLocation()
    pool = ok(driver.cuMemGetDefaultMemPool(anywhere, kind))
    assert int(ok(driver.cuMemGetMemPool(anywhere, kind))) == int(pool)
    props = driver.CUmemPoolProps()
    props.allocType = kind
    own = ok(driver.cuMemPoolCreate(props))
    for source in (pool, own):
        address = ok(driver.cuMemAllocFromPoolAsync(100, source, NO_STREAM))
        assert ok(driver.cuPointerGetAttribute(driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED, address))
        ok(driver.cuMemAdvise(address, 100, ADVICE.CU_MEM_ADVISE_SET_READ_MOSTLY, place(0)))
        ok(driver.cuMemFreeAsync(address, NO_STREAM))
    ok(driver.cuMemPoolDestroy(own))
    fails(BAD, driver.cuMemPoolDestroy, pool)


def test_devices_have_pools_with_access_of_other_devices() -> None:
    pinned = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    props = driver.CUmemPoolProps()
    props.allocType, props.location = pinned, place(0)
    own, first = ok(driver.cuMemPoolCreate(props)), ok(driver.cuDeviceGetMemPool(0))
    ok(driver.cuDeviceSetMemPool(0, own))
    assert int(ok(driver.cuDeviceGetMemPool(0))) == int(own) == int(ok(driver.cuMemGetMemPool(place(0), pinned)))
    fails(BAD, driver.cuDeviceSetMemPool, 1, own)
    far = driver.CUmemAccessDesc()
    far.location, far.flags = place(1), driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    assert ok(driver.cuMemPoolGetAccess(own, place(1))) == driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
    ok(driver.cuMemPoolSetAccess(own, [far], 1))
    assert ok(driver.cuMemPoolGetAccess(own, place(1))) == far.flags
    ok(driver.cuDeviceSetMemPool(0, first))
    ok(driver.cuMemPoolDestroy(own))

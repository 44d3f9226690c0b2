"""Strict mode and freed memory: uses after the freeing, blocks that pools hand on, and writes to freed blocks."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
from cuda.bindings import driver

from softgpu.tests.driver.calls import Error, ok, synchronize, view
from softgpu.tests.driver.mistakes import (
    BYTES,
    COUNT,
    add,
    device,
    failure_message,
    keep_blocks,
    pinned,
    run_unseen,
    stream,
)

pytestmark = pytest.mark.usefixtures("ctx")


def test_a_block_freed_in_another_stream(strict: Callable[[int], None]) -> None:
    """A pool hands on what it got back, and orders it."""
    strict(0)
    keep_blocks()
    first, second = stream(), stream()
    address = ok(driver.cuMemAllocAsync(BYTES, first))
    add(address, first)
    ok(driver.cuMemFreeAsync(address, first))
    run_unseen(first)
    again = ok(driver.cuMemAllocAsync(BYTES, second))
    assert int(again) == int(address)
    add(again, second)
    synchronize()


def test_work_before_a_queued_free_may_use_the_memory(strict: Callable[[int], None]) -> None:
    strict(0)
    main = stream()
    address = ok(driver.cuMemAllocAsync(BYTES, main))
    ok(driver.cuMemsetD32Async(address, 7, COUNT, main))
    ok(driver.cuMemcpyDtoHAsync(pinned(), address, BYTES, main))
    ok(driver.cuMemFreeAsync(address, main))
    assert driver.cuMemsetD32Async(address, 7, COUNT, main)[0] == Error.CUDA_ERROR_INVALID_VALUE
    synchronize()


def test_memory_of_a_pool_is_freed_without_waiting(library: ctypes.CDLL, strict: Callable[[int], None]) -> None:
    strict(0)
    main = stream()
    for waits in (True, False):
        address = ok(driver.cuMemAllocAsync(BYTES, main))
        ok(driver.cuMemsetD32Async(address, 7, COUNT, main))
        if waits:
            ok(driver.cuStreamSynchronize(main))
        driver.cuMemFree(address)
    sentence = failure_message(library)
    assert "the freeing by the host" in sentence
    assert "a set in stream" in sentence


@pytest.mark.parametrize("how", ["free", "free in order", "free of host memory"])
def test_a_write_to_freed_memory(library: ctypes.CDLL, strict: Callable[[int], None], how: str) -> None:
    """By whom no check sees: the host, or a wild pointer."""
    strict(0)
    if how == "free of host memory":
        address = pinned()
        ok(driver.cuMemFreeHost(address))
    elif how == "free":
        address = int(device())
        ok(driver.cuMemFree(address))
    else:
        keep_blocks()
        address = int(ok(driver.cuMemAllocAsync(BYTES, 0)))
        ok(driver.cuMemFreeAsync(address, 0))
    synchronize()
    view(address, np.uint8, BYTES)[100] = 0
    assert f"byte 100 of the {BYTES} freed at {address:#x}" in failure_message(library)


def test_a_write_is_found_when_the_block_is_used_again(library: ctypes.CDLL, strict: Callable[[int], None]) -> None:
    strict(0)
    keep_blocks()
    address = ok(driver.cuMemAllocAsync(BYTES, 0))
    ok(driver.cuMemFreeAsync(address, 0))
    synchronize()
    view(address, np.uint8, BYTES)[3] = 0
    assert driver.cuMemAllocAsync(BYTES, 0)[0] == Error.CUDA_ERROR_LAUNCH_FAILED
    assert "byte 3 of" in failure_message(library)

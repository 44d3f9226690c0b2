"""Strict mode finds work that touches the same bytes with nothing to order it, whatever the seed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from softgpu.tests.driver.calls import NO_STREAM, Error, Kernels, kernel_params, launch, ok, synchronize, view
from softgpu.tests.driver.mistakes import (
    BYTES,
    COUNT,
    SEEDS,
    Order,
    add,
    device,
    failure_message,
    forget,
    keep_blocks,
    pinned,
    recorded_too_early,
    run_unseen,
    stream,
    wait,
    waited_the_wrong_way,
)

pytestmark = pytest.mark.usefixtures("ctx")

Program = Callable[[Order], None]


# --- programs: right with `wait`


def copy_then_kernel(order: Order) -> None:
    first, second, address = stream(), stream(), device()
    ok(driver.cuMemcpyHtoDAsync(address, pinned(), BYTES, first))
    order(first, second)
    add(address, second)


def kernel_then_copy_out(order: Order) -> None:
    first, second, address = stream(), stream(), device()
    add(address, first)
    order(first, second)
    ok(driver.cuMemcpyDtoHAsync(pinned(), address, BYTES, second))


def read_then_overwritten(order: Order) -> None:
    """The input of a kernel is replaced while the kernel may still read it."""
    first, second, address = stream(), stream(), device()
    ok(driver.cuMemcpyDtoHAsync(pinned(), address, BYTES, first))
    order(first, second)
    ok(driver.cuMemsetD32Async(address, 7, COUNT, second))


def two_kernels(order: Order) -> None:
    first, second, address = stream(), stream(), device()
    add(address, first)
    order(first, second)
    add(address, second)


def through_a_third_stream(order: Order) -> None:
    first, second, third, address = stream(), stream(), stream(), device()
    add(address, first)
    wait(first, second)
    order(second, third)
    add(address, third)


def pinned_memory_passed_on(order: Order) -> None:
    first, second, host = stream(), stream(), pinned()
    ok(driver.cuMemcpyDtoHAsync(host, device(), BYTES, first))
    order(first, second)
    ok(driver.cuMemcpyHtoDAsync(device(), host, BYTES, second))


def the_first_is_long_done(order: Order) -> None:
    """The first work has run before the second is submitted, but no call has waited for it."""
    first, second, address = stream(), stream(), device()
    add(address, first)
    event = ok(driver.cuEventCreate(0))
    ok(driver.cuEventRecord(event, first))
    third = stream()
    ok(driver.cuStreamWaitEvent(third, event, 0))
    other = device()
    add(other, third)
    ok(driver.cuMemFreeHost(pinned())) if order is wait else None
    order(first, second)
    add(address, second)


def graph_then_kernel(order: Order) -> None:
    first, second, address, graph = stream(), stream(), device(), ok(driver.cuGraphCreate(0))
    params = kernel_params(Kernels()["add"], (address, COUNT, 1), (None, ctypes.c_int, ctypes.c_int), block=COUNT)
    ok(driver.cuGraphAddKernelNode(graph, None, 0, params))
    ok(driver.cuGraphLaunch(ok(driver.cuGraphInstantiate(graph, 0)), first))
    order(first, second)
    add(address, second)


def freed_after_use(order: Order) -> None:
    first, second = stream(), stream()
    address = ok(driver.cuMemAllocAsync(BYTES, first))
    wait(first, second)
    ok(driver.cuMemsetD32Async(address, 0, COUNT, second))
    add(address, second)
    order(second, first)
    ok(driver.cuMemFreeAsync(address, first))


def used_after_allocation(order: Order) -> None:
    first, second = stream(), stream()
    address = ok(driver.cuMemAllocAsync(BYTES, first))
    order(first, second)
    ok(driver.cuMemsetD32Async(address, 0, COUNT, second))


def block_used_again(order: Order) -> None:
    """A block that a pool hands on, while the stream that used it last may still be at it."""
    first, second = stream(), stream()
    address = ok(driver.cuMemAllocAsync(BYTES, first))
    keep_blocks()
    wait(first, second)
    ok(driver.cuMemsetD32Async(address, 0, COUNT, second))
    order(second, first)
    ok(driver.cuMemFreeAsync(address, first))
    ok(driver.cuStreamSynchronize(first))
    third = stream()
    again = ok(driver.cuMemAllocAsync(BYTES, third))
    assert int(again) == int(address)
    ok(driver.cuMemsetD32Async(again, 0, COUNT, third))


PROGRAMS: list[Program] = [
    copy_then_kernel,
    kernel_then_copy_out,
    read_then_overwritten,
    two_kernels,
    through_a_third_stream,
    pinned_memory_passed_on,
    the_first_is_long_done,
    graph_then_kernel,
    freed_after_use,
    used_after_allocation,
    block_used_again,
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_right_programs_pass(strict: Callable[[int], None], program: Program, seed: int) -> None:
    strict(seed)
    program(wait)
    synchronize()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mistake", [forget, recorded_too_early, waited_the_wrong_way])
@pytest.mark.parametrize("program", PROGRAMS)
def test_wrong_programs_fail(
    library: ctypes.CDLL, strict: Callable[[int], None], program: Program, mistake: Order, seed: int
) -> None:
    strict(seed)
    program(mistake)
    assert failure_message(library).startswith("a race: ")


# --- unordered work that is no race


def test_streams_that_touch_different_bytes_of_one_allocation(strict: Callable[[int], None]) -> None:
    strict(0)
    address = device()
    for half in range(2):
        ok(driver.cuMemsetD8Async(int(address) + half * BYTES // 2, half, BYTES // 2, stream()))
        ok(driver.cuMemsetD8Async(int(device()), half, BYTES, stream()))
    synchronize()


def test_updates_are_atomic(strict: Callable[[int], None]) -> None:
    strict(0)
    address, meet = device(), Kernels()["meet"]
    view(address, np.int32, 1)[0] = 2
    for _ in range(2):
        launch(meet, (address,), (None,), stream=stream())
    synchronize()


@pytest.mark.parametrize("waits", [driver.cuStreamSynchronize, driver.cuStreamQuery, None])
def test_the_host_orders_work_that_it_waits_for(strict: Callable[[int], None], waits: Any) -> None:
    strict(0)
    address, first = device(), stream()
    add(address, first)
    event = ok(driver.cuEventCreate(0))
    ok(driver.cuEventRecord(event, first))
    if waits is None:
        ok(driver.cuEventSynchronize(event))
    else:
        while waits(first)[0] == Error.CUDA_ERROR_NOT_READY:
            pass
    add(address, stream())
    synchronize()


@pytest.mark.parametrize("unseen", [False, True])
def test_the_default_stream_orders_blocking_streams(strict: Callable[[int], None], unseen: bool) -> None:
    strict(0)
    address = device()
    for on in (ok(driver.cuStreamCreate(0)), NO_STREAM, ok(driver.cuStreamCreate(0)), NO_STREAM):
        add(address, on)
        if unseen:
            run_unseen(on)
    synchronize()

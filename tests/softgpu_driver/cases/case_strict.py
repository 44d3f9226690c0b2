"""Strict mode: planted mistakes give wrong results, right programs right ones, whatever the seed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from kaas.softgpu import strict_mode
from tests.softgpu_driver.calls import (
    LIMIT_S,
    Gate,
    Kernels,
    device_array,
    kernel_params,
    launch,
    ok,
    synchronize,
    view,
)

pytestmark = pytest.mark.usefixtures("ctx")

SEEDS = range(8)
COUNT = 256
NON_BLOCKING = driver.CUstream_flags.CU_STREAM_NON_BLOCKING


@pytest.fixture
def strict(library: ctypes.CDLL) -> Iterator[Callable[[int], None]]:
    yield lambda seed: strict_mode(library, seed)
    strict_mode(library, None)


def stream() -> Any:
    return ok(driver.cuStreamCreate(NON_BLOCKING))


def pinned(value: int) -> tuple[Any, np.ndarray]:
    host = ok(driver.cuMemHostAlloc(4 * COUNT, 0))
    seen = view(host, np.int32, COUNT)
    seen[:] = value
    return int(host), seen


def relay(*, wait: bool) -> int:
    """One stream fills, another copies out; the second waits for the first, or its author forgot."""
    first, second = stream(), stream()
    address, _ = device_array(np.zeros(COUNT, np.int32))
    host, seen = pinned(-1)
    ok(driver.cuMemsetD32Async(address, 7, COUNT, first))
    if wait:
        event = ok(driver.cuEventCreate(0))
        ok(driver.cuEventRecord(event, first))
        ok(driver.cuStreamWaitEvent(second, event, 0))
    ok(driver.cuMemcpyDtoHAsync(host, address, 4 * COUNT, second))
    ok(driver.cuStreamSynchronize(second))
    return int(seen[0])


def test_a_missing_wait_between_streams(strict: Callable[[int], None]) -> None:
    found = 0
    for seed in SEEDS:
        strict(seed)
        found += relay(wait=False) == 0
        assert relay(wait=True) == 7
    assert found >= len(SEEDS) // 2


@pytest.mark.parametrize("seed", SEEDS)
def test_a_result_read_too_early(strict: Callable[[int], None], seed: int) -> None:
    strict(seed)
    address, _ = device_array(np.full(COUNT, 7, np.int32))
    host, seen = pinned(-1)
    main = stream()
    ok(driver.cuMemcpyDtoHAsync(host, address, 4 * COUNT, main))
    assert (seen == -1).all()
    ok(driver.cuStreamSynchronize(main))
    assert (seen == 7).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_source_changed_too_early(strict: Callable[[int], None], seed: int) -> None:
    strict(seed)
    address, on_device = device_array(np.zeros(COUNT, np.int32))
    host, source = pinned(7)
    main = stream()
    ok(driver.cuMemcpyHtoDAsync(address, host, 4 * COUNT, main))
    source[:] = 8
    ok(driver.cuStreamSynchronize(main))
    assert (on_device == 8).all()


def add_halves(address: Any) -> np.ndarray:
    """Twice the floats at address, as a kernel reads them."""
    out, seen = device_array(np.zeros(COUNT, np.float32))
    types = (None, None, None, ctypes.c_int)
    launch(Kernels()["vecadd"], (address, address, out, COUNT), types, block=(COUNT, 1, 1))
    synchronize()
    return seen


@pytest.mark.parametrize("seed", SEEDS)
def test_uninitialised_and_freed_memory_is_poison(strict: Callable[[int], None], seed: int) -> None:
    strict(seed)
    fresh, pooled = ok(driver.cuMemAlloc(4 * COUNT)), ok(driver.cuMemAllocAsync(4 * COUNT, 0))
    assert np.isnan(add_halves(fresh)).all()
    assert np.isnan(add_halves(pooled)).all()
    for address in (fresh, pooled):
        view(address, np.float32, COUNT)[:] = 1
        assert (add_halves(address) == 2).all()
    ok(driver.cuMemFree(fresh))
    ok(driver.cuMemFreeAsync(pooled, 0))
    assert np.isnan(add_halves(fresh)).all()


def order_of_two(*, edge: bool) -> list[int]:
    address, seen = device_array(np.zeros(4, np.int32))
    graph, append = ok(driver.cuGraphCreate(0)), Kernels()["append"]
    first, second = (kernel_params(append, (address, value), (None, ctypes.c_int)) for value in (1, 2))
    needs = [ok(driver.cuGraphAddKernelNode(graph, None, 0, first))][: int(edge)]
    ok(driver.cuGraphAddKernelNode(graph, needs, len(needs), second))
    ok(driver.cuGraphLaunch(ok(driver.cuGraphInstantiate(graph, 0)), 0))
    synchronize()
    order: list[int] = seen[1:3].tolist()
    return order


def test_a_missing_edge(strict: Callable[[int], None]) -> None:
    orders = []
    for seed in SEEDS:
        strict(seed)
        orders.append(order_of_two(edge=False))
        assert order_of_two(edge=True) == [1, 2]
    assert [2, 1] in orders


def test_a_seed_repeats_its_order(strict: Callable[[int], None]) -> None:
    runs = []
    for _ in range(2):
        strict(3)
        runs.append([order_of_two(edge=False) for _ in range(8)])
    assert runs[0] == runs[1]


def test_work_begins_in_the_end_although_nobody_waits(strict: Callable[[int], None]) -> None:
    strict(0)
    gate = Gate()
    gate.note(stream())
    assert gate.reached.wait(LIMIT_S)


def test_who_asks_again_and_again_gets_there(strict: Callable[[int], None]) -> None:
    strict(0)
    address, seen = device_array(np.zeros(4, np.int32))
    main, append = stream(), Kernels()["append"]
    for value in (1, 2):
        launch(append, (address, value), (None, ctypes.c_int), stream=main)
    asked = 0
    while driver.cuStreamQuery(main)[0] != driver.CUresult.CUDA_SUCCESS:
        asked += 1
    assert asked == 2
    assert seen[:3].tolist() == [2, 1, 2]

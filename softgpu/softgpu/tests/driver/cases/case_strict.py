"""Strict mode: what the host does too early, uninitialised memory, and the order of graphs (races: case_races.py)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from softgpu.model import Model, describe_time
from softgpu.tests.driver.calls import Gate, Kernels, device_array, launch, ok, synchronize, view
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.usefixtures("ctx")

SEEDS = range(8)
COUNT = 256
NON_BLOCKING = driver.CUstream_flags.CU_STREAM_NON_BLOCKING


def stream() -> Any:
    return ok(driver.cuStreamCreate(NON_BLOCKING))


def pinned(value: int) -> tuple[Any, np.ndarray]:
    host = ok(driver.cuMemHostAlloc(4 * COUNT, 0))
    seen = view(host, np.int32, COUNT)
    seen[:] = value
    return int(host), seen


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
    order: list[int] = []
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    notes = [signature(lambda _: order.append(1)), signature(lambda _: order.append(2))]
    first, second = driver.CUDA_HOST_NODE_PARAMS(), driver.CUDA_HOST_NODE_PARAMS()
    for params, note in zip((first, second), notes, strict=True):
        params.fn = driver.CUhostFn(ctypes.cast(note, ctypes.c_void_p).value)
    graph = ok(driver.cuGraphCreate(0))
    needs = [ok(driver.cuGraphAddHostNode(graph, None, 0, first))][: int(edge)]
    ok(driver.cuGraphAddHostNode(graph, needs, len(needs), second))
    ok(driver.cuGraphLaunch(ok(driver.cuGraphInstantiate(graph, 0)), 0))
    synchronize()
    return order


def sees_both_orders(strict: Callable[[int], None]) -> bool:
    orders = []
    for seed in range(32):
        strict(seed)
        orders.append(order_of_two(edge=False))
        assert order_of_two(edge=True) == [1, 2]
    return [1, 2] in orders and [2, 1] in orders


def test_nodes_run_in_any_order_that_the_edges_allow(strict: Callable[[int], None]) -> None:
    assert sees_both_orders(strict)


def test_so_they_do_on_a_device_with_a_model(library: ctypes.CDLL, strict: Callable[[int], None]) -> None:
    assert describe_time(library, 0, Model(copy_bytes_per_s=1e12)) == 0
    assert sees_both_orders(strict)


def test_a_seed_repeats_its_order(strict: Callable[[int], None]) -> None:
    runs = []
    for _ in range(2):
        strict(3)
        runs.append([order_of_two(edge=False) for _ in range(8)])
    assert runs[0] == runs[1]


def test_work_begins_in_the_end_without_a_wait(strict: Callable[[int], None]) -> None:
    strict(0)
    gate = Gate()
    gate.note(stream())
    assert gate.reached.wait(TIMEOUT_S)


def test_repeated_queries_of_a_stream_end_in_success(strict: Callable[[int], None]) -> None:
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

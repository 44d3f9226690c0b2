"""Blocks of a cooperative launch may wait for one another, by hand or with grid.sync(), on the software GPU too."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, ObjectCode, launch

import softgpu as software
from softgpu.tests.driver.calls import NO_STREAM, Error, Kernels, device_array, fails, kernel_params, ok, synchronize
from tests.timeouts import TIMEOUT_S

PTX = (Path(__file__).parent / "kernels" / "cooperative.ptx").read_bytes() + b"\0"
POINTER, NUMBER = ctypes.c_void_p, ctypes.c_uint32
COOPERATIVE = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
Launch = Callable[[Any, int, int, tuple[Any, ...]], Any]


@pytest.fixture
def device(softgpu: tuple[int, ...]) -> Iterator[int]:
    """The last device, with a new context, which makes it usable after a cancelled launch."""
    ordinal = len(softgpu) - 1
    Device(ordinal).set_current()
    context = ok(driver.cuCtxCreate(None, 0, ordinal))
    yield ordinal
    ok(driver.cuCtxDestroy(context))


@pytest.fixture
def kernels(device: int) -> Kernels:  # noqa: ARG001 - loaded in its context
    return Kernels(PTX)


def most_blocks(function: Any, block: int) -> int:
    """Return the value that programs query before such a launch."""
    attributes = driver.CUdevice_attribute
    device = ok(driver.cuCtxGetDevice())
    assert ok(driver.cuDeviceGetAttribute(attributes.CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, device)) == 1
    processors = ok(driver.cuDeviceGetAttribute(attributes.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device))
    return int(processors * ok(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, block, 0)))


def by_call(function: Any, grid: int, block: int, arguments: tuple[Any, ...]) -> Any:
    return driver.cuLaunchCooperativeKernel(function, grid, 1, 1, block, 1, 1, 0, NO_STREAM, arguments)[0]


def by_attribute(function: Any, grid: int, block: int, arguments: tuple[Any, ...]) -> Any:
    config, attribute = driver.CUlaunchConfig(), driver.CUlaunchAttribute()
    config.gridDimX, config.blockDimX, config.hStream = grid, block, NO_STREAM
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
    attribute.id, attribute.value.cooperative = COOPERATIVE, 1
    config.attrs, config.numAttrs = [attribute], 1
    return driver.cuLaunchKernelEx(config, function, arguments, 0)[0]


def by_node(function: Any, grid: int, block: int, arguments: tuple[Any, ...]) -> Any:
    graph = ok(driver.cuGraphCreate(0))
    node = ok(driver.cuGraphAddKernelNode(graph, None, 0, kernel_params(function, *arguments, grid=grid, block=block)))
    value = driver.CUkernelNodeAttrValue()
    value.cooperative = 1
    ok(driver.cuGraphKernelNodeSetAttribute(node, COOPERATIVE, value))
    status, instance = driver.cuGraphInstantiate(graph, 0)
    return status if status != Error.CUDA_SUCCESS else driver.cuGraphLaunch(instance, NO_STREAM)[0]


def captured(function: Any, grid: int, block: int, arguments: tuple[Any, ...]) -> Any:
    stream = ok(driver.cuStreamCreate(1))
    ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    status = driver.cuLaunchCooperativeKernel(function, grid, 1, 1, block, 1, 1, 0, stream, arguments)[0]
    graph = ok(driver.cuStreamEndCapture(stream))
    if status != Error.CUDA_SUCCESS:
        return status
    assert ok(driver.cuGraphKernelNodeGetAttribute(ok(driver.cuGraphGetNodes(graph, 1))[0][0], COOPERATIVE)).cooperative
    return driver.cuGraphLaunch(ok(driver.cuGraphInstantiate(graph, 0)), NO_STREAM)[0]


WAYS = [by_call, by_attribute, by_node, captured]


def pass_on(kernels: Kernels, launch: Launch, blocks: int, block: int, rounds: int) -> None:
    arrived, _ = device_array(np.zeros(1, np.uint32))
    values, seen = device_array(np.tile(np.arange(blocks, dtype=np.uint32), 2))
    arguments = (int(arrived), int(values), rounds, blocks), (POINTER, POINTER, NUMBER, NUMBER)
    assert launch(kernels["pass_on"], blocks, block, arguments) == Error.CUDA_SUCCESS
    synchronize()
    expected = (np.arange(blocks) + rounds) % blocks
    np.testing.assert_array_equal(seen[rounds % 2 * blocks :][:blocks], expected)


@pytest.mark.parametrize("launch", WAYS)
def test_four_blocks_wait_for_each_other_by_hand(kernels: Kernels, launch: Launch) -> None:
    pass_on(kernels, launch, 4, 32, 10)


@pytest.mark.parametrize("block", [1, 64])
def test_as_many_blocks_as_the_device_allows_wait_for_each_other(kernels: Kernels, block: int) -> None:
    most = most_blocks(kernels["pass_on"], block)
    pass_on(kernels, by_call, min(most, 64), block, 5)
    pass_on(kernels, by_call, most, block, 3)


def sums(kernels: Kernels, launch: Launch, blocks: int, block: int) -> None:
    x = np.arange(blocks * block, dtype=np.uint32)
    addresses = [device_array(x)[0]]
    addresses += [device_array(np.zeros(size, np.uint32))[0] for size in (blocks, 1)]
    out, seen = device_array(np.zeros_like(x))
    arguments = tuple(int(address) for address in (*addresses, out)), (POINTER,) * 4
    assert launch(kernels["sums"], blocks, block, arguments) == Error.CUDA_SUCCESS
    synchronize()
    expected = x.sum(dtype=np.uint32) - x.reshape(blocks, block).sum(1, dtype=np.uint32)
    np.testing.assert_array_equal(seen, np.repeat(expected, block))


@pytest.mark.parametrize("launch", WAYS)
def test_a_grid_meets_twice(kernels: Kernels, launch: Launch) -> None:
    sums(kernels, launch, min(24, most_blocks(kernels["sums"], 96)), 96)


@pytest.mark.parametrize(("blocks", "block"), [(1, 1), (1, 1024), (2, 1024), (7, 50)])
def test_grids_of_other_shapes_meet(kernels: Kernels, blocks: int, block: int) -> None:
    for _ in range(3):
        sums(kernels, by_call, min(blocks, most_blocks(kernels["sums"], block)), block)


def test_a_grid_meets_through_cuda_core(device: int) -> None:
    here = Device(device)
    kernel = ObjectCode.from_ptx(PTX[:-1]).get_kernel("sums")
    stream = here.create_stream()
    x = np.ones(4 * 32, np.uint32)
    arrays = [device_array(values) for values in (x, np.zeros(4, np.uint32), np.zeros(1, np.uint32), np.zeros_like(x))]
    config = LaunchConfig(grid=4, block=32, is_cooperative=True)
    launch(stream, config, kernel, *(np.uint64(int(address)) for address, _ in arrays))
    stream.sync()
    assert set(arrays[3][1]) == {3 * 32}


@pytest.mark.parametrize("launch", WAYS)
@pytest.mark.parametrize("block", [32, 1024])
def test_more_blocks_than_can_be_resident_are_refused(kernels: Kernels, launch: Launch, block: int) -> None:
    function = kernels["sums"]
    arguments = (0,) * 4, (POINTER,) * 4
    most = most_blocks(function, block)
    assert launch(function, most + 1, block, arguments) == Error.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
    assert f"kernel sums: a cooperative launch of {most + 1} blocks" in software.last_error()
    synchronize()  # the context is as it was
    sums(kernels, launch, most, block)


def test_an_instance_stays_cooperative(kernels: Kernels) -> None:
    """Its kernel node may get other parameters, but may become neither an ordinary launch nor too large."""
    function = kernels["one_fails"]
    params = kernel_params(function, (0,), (POINTER,), grid=2)
    graph, ordinary = (ok(driver.cuGraphCreate(0)) for _ in range(2))
    nodes = [ok(driver.cuGraphAddKernelNode(into, None, 0, params)) for into in (graph, ordinary)]
    value = driver.CUkernelNodeAttrValue()
    value.cooperative = 1
    ok(driver.cuGraphKernelNodeSetAttribute(nodes[0], COOPERATIVE, value))
    instance = ok(driver.cuGraphInstantiate(graph, 0))
    status, info = driver.cuGraphExecUpdate(instance, ordinary)
    assert status == Error.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
    if info is not None:
        assert info.result == driver.CUgraphExecUpdateResult.CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED
    ok(driver.cuGraphKernelNodeCopyAttributes(nodes[1], nodes[0]))
    ok(driver.cuGraphExecUpdate(instance, ordinary))
    params.gridDimX = most_blocks(function, 32) + 1
    fails(
        Error.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
        driver.cuGraphExecKernelNodeSetParams, instance, nodes[0], params,
    )  # fmt: skip
    ok(driver.cuGraphKernelNodeSetParams(nodes[1], params))
    fails(Error.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, driver.cuGraphExecUpdate, instance, ordinary)


def test_a_block_that_fails_ends_those_that_wait_for_it(kernels: Kernels) -> None:
    flag, _ = device_array(np.zeros(1, np.uint32))
    assert by_call(kernels["one_fails"], 8, 64, ((int(flag),), (POINTER,))) == Error.CUDA_SUCCESS
    fails(Error.CUDA_ERROR_LAUNCH_FAILED, driver.cuCtxSynchronize)
    assert "block (7, 0, 0)" in software.last_error()


def test_an_ordinary_launch_has_no_barrier_of_the_grid(kernels: Kernels) -> None:
    """As CUDA's grid.sync() checks it: a trap."""
    addresses = [device_array(np.zeros(64, np.uint32))[0] for _ in range(4)]
    arguments = tuple(int(address) for address in addresses), (POINTER,) * 4
    ok(driver.cuLaunchKernel(kernels["sums"], 2, 1, 1, 32, 1, 1, 0, NO_STREAM, arguments, 0))
    fails(Error.CUDA_ERROR_LAUNCH_FAILED, driver.cuCtxSynchronize)
    assert "trap" in software.last_error()


def test_blocks_that_wait_for_an_absent_block_are_cancelled(device: int, kernels: Kernels) -> None:
    arrived, seen = device_array(np.zeros(1, np.uint32))
    values, _ = device_array(np.zeros(16, np.uint32))
    arguments = (int(arrived), int(values), 1, 9), (POINTER, POINTER, NUMBER, NUMBER)
    context, said = ok(driver.cuCtxGetCurrent()), []

    def run() -> None:
        ok(driver.cuCtxSetCurrent(context))
        by_call(kernels["pass_on"], 8, 64, arguments)
        said.append((driver.cuCtxSynchronize()[0], software.last_error()))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    end = time.monotonic() + TIMEOUT_S
    while seen[0] < 8:  # all are under way
        assert time.monotonic() < end
    software.cancel(device)
    thread.join(TIMEOUT_S)
    ((status, sentence),) = said
    assert status == Error.CUDA_ERROR_LAUNCH_TIMEOUT
    assert "kernel pass_on: cancelled while block (" in sentence


def test_cooperative_launches_on_two_streams_are_correct(kernels: Kernels) -> None:
    streams = [ok(driver.cuStreamCreate(1)) for _ in range(2)]
    seen = []
    for stream in streams * 3:
        arrived, _ = device_array(np.zeros(1, np.uint32))
        values, here = device_array(np.tile(np.arange(16, dtype=np.uint32), 2))
        arguments = (int(arrived), int(values), 4, 16), (POINTER, POINTER, NUMBER, NUMBER)
        ok(driver.cuLaunchCooperativeKernel(kernels["pass_on"], 16, 1, 1, 64, 1, 1, 0, stream, arguments))
        seen.append(here)
    synchronize()
    for here in seen:
        np.testing.assert_array_equal(here[:16], (np.arange(16) + 4) % 16)


CHECKED = """
import softgpu
softgpu.load((64 << 20,), force=True)
from tests.outcomes import test_cooperative as these
from cuda.bindings import driver
from cuda.core import Device
Device(0).set_current()
kernels = these.Kernels(these.PTX)
for launch in these.WAYS:
    these.pass_on(kernels, launch, 4, 64, 3)
    these.sums(kernels, launch, 4, 64)
print("all well")
"""


@pytest.mark.processes
@pytest.mark.parametrize("mode", ["MEMCHECK", "STRICT"])
def test_checked_kernels_meet(mode: str) -> None:
    """The barrier of a grid is no memory of the program, nor a race of launches that follow each other."""
    done = subprocess.run(
        [sys.executable, "-c", CHECKED], capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        env={**os.environ, f"SOFTGPU_{mode}": "1"}, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.stdout.endswith("all well\n"), done.stdout + done.stderr

"""Memory that graphs allocate and free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from softgpu.tests.driver.calls import NO_STREAM, Error, fails, ok, synchronize, view

pytestmark = pytest.mark.usefixtures("ctx")

BAD, REFUSED = Error.CUDA_ERROR_INVALID_VALUE, Error.CUDA_ERROR_NOT_SUPPORTED
COUNT = 128


def counters() -> tuple[int, int]:
    """Bytes in use by graphs, and reserved for them."""
    names = driver.CUgraphMem_attribute
    kinds = (names.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, names.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)
    used, reserved = (int(ok(driver.cuDeviceGetGraphMemAttribute(0, kind))) for kind in kinds)
    return used, reserved


def request(nbytes: int = 4 * COUNT) -> Any:
    params = driver.CUDA_MEM_ALLOC_NODE_PARAMS()
    params.poolProps.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    params.poolProps.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    params.poolProps.location.id = 0
    params.bytesize = nbytes
    return params


def add(graph: Any) -> tuple[Any, int]:
    """A node that allocates, and its address."""
    params = request()
    node = ok(driver.cuGraphAddMemAllocNode(graph, None, 0, params))
    return node, int(params.dptr)


def fill(graph: Any, address: int, value: int, *needs: Any) -> Any:
    params = driver.CUDA_MEMSET_NODE_PARAMS()
    params.dst, params.value, params.elementSize, params.width, params.height = address, value, 4, COUNT, 1
    return ok(driver.cuGraphAddMemsetNode(graph, list(needs), len(needs), params, ok(driver.cuCtxGetCurrent())))


def launch(instance: Any) -> None:
    ok(driver.cuGraphLaunch(instance, NO_STREAM))
    synchronize()


@pytest.fixture
def graph() -> Any:
    return ok(driver.cuGraphCreate(0))


@pytest.mark.alone
def test_memory_is_allocated_used_and_freed_in_one_graph(graph: Any) -> None:
    node, address = add(graph)
    filled = fill(graph, address, 7, node)
    free = ok(driver.cuGraphAddMemFreeNode(graph, [filled], 1, address))
    assert int(ok(driver.cuGraphMemFreeNodeGetParams(free))) == address
    told = ok(driver.cuGraphMemAllocNodeGetParams(node))
    assert (int(told.dptr), told.bytesize) == (address, 4 * COUNT)
    instance = ok(driver.cuGraphInstantiate(graph, 0))
    launch(instance)
    launch(instance)
    assert counters() == (0, 512)
    assert (view(address, np.int32, COUNT) == 7).all()
    ok(driver.cuGraphDestroy(graph))
    assert counters() == (0, 512)
    ok(driver.cuGraphExecDestroy(instance))
    assert counters() == (0, 0)
    high = driver.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_USED_MEM_HIGH
    assert int(ok(driver.cuDeviceGetGraphMemAttribute(0, high))) >= 512
    ok(driver.cuDeviceSetGraphMemAttribute(0, high, driver.cuuint64_t(0)))
    assert int(ok(driver.cuDeviceGetGraphMemAttribute(0, high))) == 0
    ok(driver.cuDeviceGraphMemTrim(0))


@pytest.mark.alone
def test_memory_that_a_graph_leaves_belongs_to_the_program(graph: Any) -> None:
    node, address = add(graph)
    fill(graph, address, 3, node)
    instance = ok(driver.cuGraphInstantiate(graph, 0))
    fails(BAD, driver.cuMemFree, address)  # not yet
    launch(instance)
    assert counters() == (512, 512)
    fails(BAD, driver.cuGraphLaunch, instance, NO_STREAM)  # it has it already
    ok(driver.cuMemFreeAsync(address, NO_STREAM))
    launch(instance)
    ok(driver.cuGraphDestroy(graph))
    ok(driver.cuGraphExecDestroy(instance))
    assert (view(address, np.int32, COUNT) == 3).all()
    ok(driver.cuMemFree(address))
    fails(BAD, driver.cuMemFree, address)


@pytest.mark.alone
def test_another_graph_frees_the_memory_of_a_graph(graph: Any) -> None:
    _, address = add(graph)
    other = ok(driver.cuGraphCreate(0))
    ok(driver.cuGraphAddMemFreeNode(other, None, 0, address))
    first, second = ok(driver.cuGraphInstantiate(graph, 0)), ok(driver.cuGraphInstantiate(other, 0))
    fails(BAD, driver.cuGraphLaunch, second, NO_STREAM)
    for _ in range(2):
        launch(first)
        launch(second)
    assert counters()[0] == 0


def test_an_instance_that_frees_first(graph: Any) -> None:
    add(graph)
    instance = ok(driver.cuGraphInstantiate(graph, 1))
    launch(instance)
    launch(instance)


def test_captured() -> None:
    stream = ok(driver.cuStreamCreate(1))
    ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    address = ok(driver.cuMemAllocAsync(4 * COUNT, stream))
    ok(driver.cuMemsetD32Async(address, 5, COUNT, stream))
    ok(driver.cuMemFreeAsync(address, stream))
    captured = ok(driver.cuStreamEndCapture(stream))
    types = [ok(driver.cuGraphNodeGetType(node)) for node in ok(driver.cuGraphGetNodes(captured, 3))[0]]
    kinds = driver.CUgraphNodeType
    assert types == [
        kinds.CU_GRAPH_NODE_TYPE_MEM_ALLOC,
        kinds.CU_GRAPH_NODE_TYPE_MEMSET,
        kinds.CU_GRAPH_NODE_TYPE_MEM_FREE,
    ]
    launch(ok(driver.cuGraphInstantiate(captured, 0)))
    assert (view(int(address), np.int32, COUNT) == 5).all()


def test_invalid_memory_nodes_are_refused(graph: Any) -> None:
    node, address = add(graph)
    fails(BAD, driver.cuGraphAddMemAllocNode, graph, None, 0, request(0))
    free = ok(driver.cuGraphAddMemFreeNode(graph, [node], 1, address))
    fails(BAD, driver.cuGraphAddMemFreeNode, graph, [node], 1, address)
    fails(BAD, driver.cuGraphAddMemFreeNode, graph, None, 0, ok(driver.cuMemAlloc(64)))
    fails(REFUSED, driver.cuGraphDestroyNode, free)
    fails(REFUSED, driver.cuGraphClone, graph)
    fails(REFUSED, driver.cuGraphAddChildGraphNode, ok(driver.cuGraphCreate(0)), None, 0, graph)
    fails(Error.CUDA_ERROR_OUT_OF_MEMORY, driver.cuGraphAddMemAllocNode, graph, None, 0, request(1 << 40))


def test_a_stranger_to_the_order_is_a_race(strict: Callable[[int], None], graph: Any) -> None:
    strict(2)
    node, address = add(graph)
    fill(graph, address, 1, node)
    instance = ok(driver.cuGraphInstantiate(graph, 0))
    ok(driver.cuGraphAddMemFreeNode(graph, [node], 1, address))  # in parallel with the set
    racing = ok(driver.cuGraphInstantiate(graph, 0))
    launch(instance)
    ok(driver.cuMemFreeAsync(address, NO_STREAM))
    synchronize()
    ok(driver.cuGraphLaunch(racing, NO_STREAM))
    fails(Error.CUDA_ERROR_LAUNCH_FAILED, driver.cuCtxSynchronize)

"""Graphs made node by node: order, copies, instances and the changes that these take."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from softgpu.tests.driver.calls import NO_STREAM, Error, Kernels, device_array, fails, kernel_params, ok, synchronize

pytestmark = pytest.mark.usefixtures("ctx")

TYPE = driver.CUgraphNodeType
RESULT = driver.CUgraphExecUpdateResult


class Log:
    """A graph of kernels that append a number each to a list in device memory."""

    def __init__(self) -> None:
        self.address, self.seen = device_array(np.zeros(64, np.int32))
        self.kernels = Kernels()
        self.graph = ok(driver.cuGraphCreate(0))

    def params(self, value: int) -> driver.CUDA_KERNEL_NODE_PARAMS:
        return kernel_params(self.kernels["append"], (self.address, value), (None, ctypes.c_int))

    def node(self, value: int, *needs: Any) -> Any:
        return ok(driver.cuGraphAddKernelNode(self.graph, list(needs), len(needs), self.params(value)))

    def instance(self) -> Any:
        return ok(driver.cuGraphInstantiate(self.graph, 0))

    def run(self, instance: Any) -> list[int]:
        """The numbers that one launch appends."""
        self.seen[0] = 0
        ok(driver.cuGraphLaunch(instance, NO_STREAM))
        synchronize()
        values: list[int] = self.seen[1 : 1 + self.seen[0]].tolist()
        return values


@pytest.fixture
def log() -> Log:
    return Log()


def test_a_diamond_runs_in_the_order_of_its_edges(log: Log) -> None:
    """Added last to first; only the edges tell the order."""
    last, left, right, first = (log.node(value) for value in (3, 2, 1, 0))
    sources, targets = [first, first, left, right], [left, right, last, last]
    ok(driver.cuGraphAddDependencies(log.graph, sources, targets, None, 4))
    order = log.run(log.instance())
    assert order[0] == 0
    assert order[3] == 3
    assert sorted(order) == [0, 1, 2, 3]
    _, count = ok(driver.cuGraphGetRootNodes(log.graph))
    assert [int(node) for node in ok(driver.cuGraphGetRootNodes(log.graph, count))[0]] == [int(first)]


def test_nodes_run_in_order_of_creation_where_edges_allow(log: Log) -> None:
    first = log.node(0)
    for value in range(1, 9):
        log.node(value, first)
    assert log.run(log.instance()) == list(range(9))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=60, unique=True), st.permutations(range(20))
)
def test_any_graph_runs_along_its_edges(log: Log, pairs: list[tuple[int, int]], age: list[int]) -> None:
    """Edges lead from smaller to larger numbers; nodes are made in any order."""
    edges = [(a, b) for a, b in pairs if a < b]
    log.graph = ok(driver.cuGraphCreate(0))
    nodes = {value: log.node(value) for value in age}
    for a, b in edges:
        ok(driver.cuGraphAddDependencies(log.graph, [nodes[a]], [nodes[b]], None, 1))
    order = log.run(log.instance())
    assert sorted(order) == list(range(20))
    assert all(order.index(a) < order.index(b) for a, b in edges)
    ok(driver.cuGraphDestroy(log.graph))


def test_a_cycle(log: Log) -> None:
    a = log.node(0)
    b = log.node(1, a)
    ok(driver.cuGraphAddDependencies(log.graph, [b], [a], None, 1))
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuGraphInstantiate, log.graph, 0)
    ok(driver.cuGraphRemoveDependencies(log.graph, [b], [a], None, 1))
    assert log.run(log.instance()) == [0, 1]


def test_wrong_edges(log: Log) -> None:
    a, b = log.node(0), log.node(1)
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuGraphAddDependencies, log.graph, [a], [a], None, 1)
    ok(driver.cuGraphAddDependencies(log.graph, [a], [b], None, 1))
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuGraphAddDependencies, log.graph, [a], [b], None, 1)
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuGraphRemoveDependencies, log.graph, [b], [a], None, 1)
    other = ok(driver.cuGraphCreate(0))
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuGraphAddEmptyNode, other, [a], 1)


def test_new_parameters_for_a_kernel(log: Log) -> None:
    node = log.node(1)
    first, second = log.instance(), log.instance()
    ok(driver.cuGraphExecKernelNodeSetParams(first, node, log.params(7)))
    assert log.run(first) == [7]
    assert log.run(second) == [1]
    ok(driver.cuGraphKernelNodeSetParams(node, log.params(8)))
    assert log.run(second) == [1]
    assert log.run(log.instance()) == [8]


def test_another_kernel_in_a_node(log: Log) -> None:
    node, instance = log.node(1), log.instance()
    address, seen = device_array(np.zeros(64, np.int32))
    params = kernel_params(log.kernels["add"], (address, 64, 3), (None, ctypes.c_int, ctypes.c_int), grid=2)
    ok(driver.cuGraphExecKernelNodeSetParams(instance, node, params))
    assert log.run(instance) == []
    assert (seen == 3).all()


def test_refused_parameters_change_nothing(log: Log) -> None:
    node, instance = log.node(1), log.instance()
    bad = log.params(5)
    bad.blockDimX = 2048
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuGraphExecKernelNodeSetParams, instance, node, bad)
    bad.blockDimX, bad.kernelParams = 32, 0
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuGraphExecKernelNodeSetParams, instance, node, bad)
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuGraphAddKernelNode, log.graph, None, 0, bad)
    assert log.run(instance) == [1]


def test_a_kernel_node_has_its_shape_and_arguments(log: Log) -> None:
    params = ok(driver.cuGraphKernelNodeGetParams(log.node(77)))
    assert (params.gridDimX, params.blockDimX, params.sharedMemBytes) == (1, 32, 0)
    pointers = ctypes.cast(int(params.kernelParams), ctypes.POINTER(ctypes.c_void_p))
    assert ctypes.cast(pointers[0], ctypes.POINTER(ctypes.c_uint64))[0] == int(log.address)
    assert ctypes.cast(pointers[1], ctypes.POINTER(ctypes.c_int))[0] == 77


def test_disabled_nodes_are_skipped(log: Log) -> None:
    first = log.node(0)
    middle = log.node(1, first)
    log.node(2, middle)
    empty = ok(driver.cuGraphAddEmptyNode(log.graph, None, 0))
    instance = log.instance()
    ok(driver.cuGraphNodeSetEnabled(instance, middle, 0))
    assert ok(driver.cuGraphNodeGetEnabled(instance, middle)) == 0
    assert log.run(instance) == [0, 2]
    ok(driver.cuGraphNodeSetEnabled(instance, middle, 1))
    assert log.run(instance) == [0, 1, 2]
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuGraphNodeSetEnabled, instance, empty, 0)


def test_update_from_another_graph(log: Log) -> None:
    log.node(1, log.node(0))
    instance = log.instance()
    other = Log()
    other.address = log.address
    other.node(11, other.node(10))
    info = ok(driver.cuGraphExecUpdate(instance, other.graph))
    assert info.result == RESULT.CU_GRAPH_EXEC_UPDATE_SUCCESS
    ok(driver.cuGraphDestroy(other.graph))
    assert log.run(instance) == [10, 11]


def test_update_refuses_another_topology(log: Log) -> None:
    log.node(1, log.node(0))
    instance = log.instance()
    other = Log()
    other.node(10), other.node(11)
    status, info = driver.cuGraphExecUpdate(instance, other.graph)
    assert status == Error.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
    assert info is None or info.result == RESULT.CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED
    third = ok(driver.cuGraphCreate(0))
    ok(driver.cuGraphAddEmptyNode(third, [ok(driver.cuGraphAddEmptyNode(third, None, 0))], 1))
    assert driver.cuGraphExecUpdate(instance, third)[0] == Error.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
    assert log.run(instance) == [0, 1]


def test_a_child_graph(log: Log) -> None:
    log.node(5)
    parent = Log()
    before = parent.node(1)
    child = ok(driver.cuGraphAddChildGraphNode(parent.graph, [before], 1, log.graph))
    parent.node(2, child)
    parent.address, parent.seen = log.address, log.seen
    inner = ok(driver.cuGraphChildGraphNodeGetGraph(child))
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuGraphDestroy, inner)
    instance = parent.instance()
    assert log.run(instance) == [5]
    inner_node = ok(driver.cuGraphGetNodes(inner, 1))[0][0]
    ok(driver.cuGraphExecKernelNodeSetParams(instance, inner_node, log.params(6)))
    assert log.run(instance) == [6]


def test_a_clone(log: Log) -> None:
    first = log.node(0)
    gone = log.node(1, first)
    last = log.node(2, first)
    ok(driver.cuGraphDestroyNode(gone))
    clone = ok(driver.cuGraphClone(log.graph))
    twin = ok(driver.cuGraphNodeFindInClone(last, clone))
    ok(driver.cuGraphKernelNodeSetParams(twin, log.params(9)))
    assert log.run(ok(driver.cuGraphInstantiate(clone, 0))) == [0, 9]
    assert log.run(log.instance()) == [0, 2]
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuGraphNodeGetType, gone)


def test_copy_and_set_nodes(log: Log) -> None:
    address, seen = device_array(np.zeros(8, np.int32))
    host = np.arange(8, dtype=np.int32)
    fill = driver.CUDA_MEMSET_NODE_PARAMS()
    fill.dst, fill.value, fill.elementSize, fill.width, fill.height = address, 4, 4, 8, 1
    fill_node = ok(driver.cuGraphAddMemsetNode(log.graph, None, 0, fill, None))
    copy = driver.CUDA_MEMCPY3D()
    copy.srcMemoryType, copy.srcHost = driver.CUmemorytype.CU_MEMORYTYPE_HOST, host.ctypes.data
    copy.dstMemoryType, copy.dstDevice = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE, address
    copy.WidthInBytes, copy.Height, copy.Depth = 16, 1, 1
    copy_node = ok(driver.cuGraphAddMemcpyNode(log.graph, [fill_node], 1, copy, None))
    instance = log.instance()
    log.run(instance)
    assert seen.tolist() == [0, 1, 2, 3, 4, 4, 4, 4]
    other = np.arange(8, dtype=np.int32) + 100
    copy.srcHost = other.ctypes.data
    ok(driver.cuGraphExecMemcpyNodeSetParams(instance, copy_node, copy, None))
    fill.value = 6
    ok(driver.cuGraphExecMemsetNodeSetParams(instance, fill_node, fill, None))
    log.run(instance)
    assert seen.tolist() == [100, 101, 102, 103, 6, 6, 6, 6]
    copy.WidthInBytes = 33
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuGraphExecMemcpyNodeSetParams, instance, copy_node, copy, None)
    assert ok(driver.cuGraphMemcpyNodeGetParams(copy_node)).WidthInBytes == 16


def test_event_and_generic_nodes(log: Log) -> None:
    event = ok(driver.cuEventCreate(0))
    record = ok(driver.cuGraphAddEventRecordNode(log.graph, None, 0, event))
    ok(driver.cuGraphAddEventWaitNode(log.graph, [record], 1, event))
    params = driver.CUgraphNodeParams()
    params.type = TYPE.CU_GRAPH_NODE_TYPE_EMPTY
    empty = ok(driver.cuGraphAddNode(log.graph, [record], None, 1, params))
    assert ok(driver.cuGraphNodeGetType(empty)) == TYPE.CU_GRAPH_NODE_TYPE_EMPTY
    start = ok(driver.cuEventCreate(0))
    ok(driver.cuEventRecord(start, NO_STREAM))
    log.run(log.instance())
    assert ok(driver.cuEventElapsedTime(start, event)) > 0


def test_a_kernel_that_fails_ends_the_launch(log: Log) -> None:
    first = log.node(0)
    params = kernel_params(log.kernels["trap"], (), ())
    params.kernelParams = 0
    bad = ok(driver.cuGraphAddKernelNode(log.graph, [first], 1, params))
    log.node(2, bad)
    instance = log.instance()
    ok(driver.cuGraphLaunch(instance, NO_STREAM))
    fails(Error.CUDA_ERROR_LAUNCH_FAILED, driver.cuStreamSynchronize, NO_STREAM)
    assert log.seen[:2].tolist() == [1, 0]
    fails(Error.CUDA_ERROR_LAUNCH_FAILED, driver.cuGraphLaunch, instance, NO_STREAM)


def test_stale_graphs_and_nodes_of_others(log: Log) -> None:
    node, instance = log.node(0), log.instance()
    other = Log()
    stranger = other.node(1)
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuGraphExecKernelNodeSetParams, instance, stranger, log.params(1))
    ok(driver.cuGraphExecDestroy(instance))
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuGraphLaunch, instance, NO_STREAM)
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuGraphExecDestroy, instance)
    ok(driver.cuGraphDestroy(log.graph))
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuGraphNodeGetType, node)


def test_user_objects_exist_as_long_as_their_holders(log: Log) -> None:
    destroyed: list[int] = []

    def note(_: int | None) -> None:
        destroyed.append(1)

    destroy = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(note)
    callback = driver.CUhostFn(ctypes.cast(destroy, ctypes.c_void_p).value)
    thing = ok(driver.cuUserObjectCreate(1, callback, 1, 1))
    move = driver.CUuserObjectRetain_flags.CU_GRAPH_USER_OBJECT_MOVE
    ok(driver.cuGraphRetainUserObject(log.graph, thing, 1, move))
    instance, clone = log.instance(), ok(driver.cuGraphClone(log.graph))
    ok(driver.cuGraphDestroy(log.graph))
    ok(driver.cuGraphDestroy(clone))
    assert destroyed == []
    ok(driver.cuGraphExecDestroy(instance))
    assert destroyed == [1]


def test_drawing(log: Log, tmp_path: Path) -> None:
    log.node(1, log.node(0))
    ok(driver.cuGraphDebugDotPrint(log.graph, str(tmp_path / "graph.dot").encode(), 0))
    assert "n0 -> n1" in (tmp_path / "graph.dot").read_text()

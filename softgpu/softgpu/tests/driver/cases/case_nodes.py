"""The parameters of each type of node, and their queries and changes, in a graph and in an instance."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from softgpu.tests.driver.calls import NO_STREAM, Error, Kernels, device_array, fails, kernel_params, ok, synchronize

pytestmark = pytest.mark.usefixtures("ctx")

BAD = Error.CUDA_ERROR_INVALID_VALUE
TYPE = driver.CUgraphNodeType


class Notes:
    """Host functions that note a number each; a graph."""

    def __init__(self) -> None:
        self.heard: list[int] = []
        self.callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: self.heard.append(data or 0))
        self.graph = ok(driver.cuGraphCreate(0))

    def params(self, number: int) -> Any:
        params = driver.CUDA_HOST_NODE_PARAMS()
        params.fn = driver.CUhostFn(ctypes.cast(self.callback, ctypes.c_void_p).value)
        params.userData = number
        return params

    def node(self, number: int, *needs: Any) -> Any:
        return ok(driver.cuGraphAddHostNode(self.graph, list(needs), len(needs), self.params(number)))

    def run(self, instance: Any) -> list[int]:
        self.heard.clear()
        ok(driver.cuGraphLaunch(instance, NO_STREAM))
        synchronize()
        return self.heard


@pytest.fixture
def notes() -> Notes:
    return Notes()


def test_host_nodes(notes: Notes) -> None:
    node = notes.node(1)
    assert ok(driver.cuGraphHostNodeGetParams(node)).userData == 1
    instance = ok(driver.cuGraphInstantiate(notes.graph, 0))
    ok(driver.cuGraphHostNodeSetParams(node, notes.params(2)))
    assert ok(driver.cuGraphHostNodeGetParams(node)).userData == 2
    assert notes.run(instance) == [1]
    ok(driver.cuGraphExecHostNodeSetParams(instance, node, notes.params(3)))
    assert notes.run(instance) == [3]


def test_any_parameters(notes: Notes) -> None:
    node = notes.node(1)
    instance = ok(driver.cuGraphInstantiate(notes.graph, 0))
    params = driver.CUgraphNodeParams()
    params.type = TYPE.CU_GRAPH_NODE_TYPE_HOST
    params.host.fn, params.host.userData = notes.params(5).fn, 5
    ok(driver.cuGraphExecNodeSetParams(instance, node, params))
    ok(driver.cuGraphNodeSetParams(node, params))
    assert notes.run(instance) == notes.run(ok(driver.cuGraphInstantiate(notes.graph, 0))) == [5]
    params.type = TYPE.CU_GRAPH_NODE_TYPE_KERNEL
    fails(BAD, driver.cuGraphNodeSetParams, node, params)


def test_event_nodes(notes: Notes) -> None:
    first, second = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
    record = ok(driver.cuGraphAddEventRecordNode(notes.graph, None, 0, first))
    wait = ok(driver.cuGraphAddEventWaitNode(notes.graph, [record], 1, first))
    instance = ok(driver.cuGraphInstantiate(notes.graph, 0))
    ok(driver.cuGraphEventRecordNodeSetEvent(record, second))
    ok(driver.cuGraphEventWaitNodeSetEvent(wait, second))
    assert int(ok(driver.cuGraphEventRecordNodeGetEvent(record))) == int(second)
    assert int(ok(driver.cuGraphEventWaitNodeGetEvent(wait))) == int(second)
    start = ok(driver.cuEventCreate(0))
    ok(driver.cuEventRecordWithFlags(start, NO_STREAM, 0))
    ok(driver.cuGraphExecEventRecordNodeSetEvent(instance, record, second))
    ok(driver.cuGraphExecEventWaitNodeSetEvent(instance, wait, second))
    notes.run(instance)
    assert ok(driver.cuEventElapsedTime(start, second)) >= 0
    fails(Error.CUDA_ERROR_INVALID_HANDLE, driver.cuEventElapsedTime, start, first)


def test_copies_and_sets_in_a_graph(notes: Notes) -> None:
    address, seen = device_array(np.arange(8, dtype=np.int32))
    ctx = ok(driver.cuCtxGetCurrent())
    fill = driver.CUDA_MEMSET_NODE_PARAMS()
    fill.dst, fill.value, fill.elementSize, fill.width, fill.height = address, 9, 4, 1, 1
    copy = driver.CUDA_MEMCPY3D()
    copy.srcMemoryType = copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy.srcDevice, copy.dstDevice = address, int(address) + 16
    copy.WidthInBytes, copy.Height, copy.Depth = 4, 1, 1
    set_node = ok(driver.cuGraphAddMemsetNode(notes.graph, None, 0, fill, ctx))
    copy_node = ok(driver.cuGraphAddMemcpyNode(notes.graph, [set_node], 1, copy, ctx))
    fill.width, copy.WidthInBytes = 2, 8
    ok(driver.cuGraphMemsetNodeSetParams(set_node, fill))
    ok(driver.cuGraphMemcpyNodeSetParams(copy_node, copy))
    assert (ok(driver.cuGraphMemsetNodeGetParams(set_node)).width, fill.elementSize) == (2, 4)
    told = ok(driver.cuGraphMemcpyNodeGetParams(copy_node))
    assert (told.WidthInBytes, told.srcPitch, int(told.dstDevice)) == (8, 0, int(address) + 16)
    notes.run(ok(driver.cuGraphInstantiate(notes.graph, 0)))
    assert seen.tolist() == [9, 9, 2, 3, 9, 9, 6, 7]


def test_neighbours_of_a_node(notes: Notes) -> None:
    first = notes.node(1)
    second, third = notes.node(2, first), notes.node(3, first)
    needs = ok(driver.cuGraphNodeGetDependencies(second, 4))
    assert [int(node) for node in needs[0][:1]] == [int(first)]
    needed = ok(driver.cuGraphNodeGetDependentNodes(first, 4))
    assert {int(node) for node in needed[0][:2]} == {int(second), int(third)}


def test_kernel_attributes(notes: Notes) -> None:
    ids = driver.CUlaunchAttributeID
    params = kernel_params(Kernels()["empty"], (), ())
    params.kernelParams = 0
    first = ok(driver.cuGraphAddKernelNode(notes.graph, None, 0, params))
    second = ok(driver.cuGraphAddKernelNode(notes.graph, None, 0, params))
    value = driver.CUkernelNodeAttrValue()
    value.priority = -3
    ok(driver.cuGraphKernelNodeSetAttribute(first, ids.CU_LAUNCH_ATTRIBUTE_PRIORITY, value))
    ok(driver.cuGraphKernelNodeCopyAttributes(second, first))
    assert ok(driver.cuGraphKernelNodeGetAttribute(second, ids.CU_LAUNCH_ATTRIBUTE_PRIORITY)).priority == -3
    value.cooperative = 1
    cooperative = ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    ok(driver.cuGraphKernelNodeSetAttribute(first, cooperative, value))
    assert ok(driver.cuGraphKernelNodeGetAttribute(first, cooperative)).cooperative == 1
    assert ok(driver.cuGraphKernelNodeGetAttribute(second, cooperative)).cooperative == 0
    ok(driver.cuGraphKernelNodeSetParams(first, params))  # which say nothing of attributes
    ok(driver.cuGraphKernelNodeCopyAttributes(second, first))
    assert ok(driver.cuGraphKernelNodeGetAttribute(second, cooperative)).cooperative == 1
    fails(BAD, driver.cuGraphKernelNodeGetAttribute, notes.node(1), ids.CU_LAUNCH_ATTRIBUTE_PRIORITY)


def test_another_child_of_the_same_shape(notes: Notes) -> None:
    children = [Notes(), Notes(), Notes()]
    for number, child in enumerate(children):
        child.heard = notes.heard
        child.callback = notes.callback
        child.node(number)
    children[2].node(9)
    node = ok(driver.cuGraphAddChildGraphNode(notes.graph, None, 0, children[0].graph))
    instance = ok(driver.cuGraphInstantiate(notes.graph, 0))
    ok(driver.cuGraphExecChildGraphNodeSetParams(instance, node, children[1].graph))
    assert notes.run(instance) == [1]
    fails(BAD, driver.cuGraphExecChildGraphNodeSetParams, instance, node, children[2].graph)
    assert notes.run(instance) == [1]
    params = driver.CUgraphNodeParams()
    params.type, params.graph.graph = TYPE.CU_GRAPH_NODE_TYPE_GRAPH, children[2].graph
    ok(driver.cuGraphNodeSetParams(node, params))
    assert notes.run(ok(driver.cuGraphInstantiate(notes.graph, 0))) == [2, 9]


def test_ways_to_instantiate(notes: Notes) -> None:
    notes.node(1)
    stream = ok(driver.cuStreamCreate(1))
    with_flags = ok(driver.cuGraphInstantiate(notes.graph, 8))
    assert int(ok(driver.cuGraphExecGetFlags(with_flags))) == 8
    ok(driver.cuGraphUpload(with_flags, stream))
    params = driver.CUDA_GRAPH_INSTANTIATE_PARAMS()
    assert notes.run(ok(driver.cuGraphInstantiateWithParams(notes.graph, params))) == [1]
    device_launch = driver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH
    fails(Error.CUDA_ERROR_NOT_SUPPORTED, driver.cuGraphInstantiate, notes.graph, int(device_launch))


def test_the_first_form_of_instantiation(library: ctypes.CDLL, notes: Notes) -> None:
    notes.node(4)
    exec_, log = ctypes.c_void_p(), ctypes.create_string_buffer(b"before")
    graph = ctypes.c_void_p(int(notes.graph))
    assert library.cuGraphInstantiate_v2(ctypes.byref(exec_), graph, None, log, ctypes.c_size_t(7)) == 0
    assert log.value == b""
    assert notes.run(driver.CUgraphExec(exec_.value)) == [4]


def test_references_to_user_objects(notes: Notes) -> None:
    thing = ok(driver.cuUserObjectCreate(7, notes.params(0).fn, 1, 1))
    ok(driver.cuUserObjectRetain(thing, 2))
    ok(driver.cuGraphRetainUserObject(notes.graph, thing, 1, 0))
    ok(driver.cuUserObjectRelease(thing, 3))
    assert notes.heard == []
    ok(driver.cuGraphReleaseUserObject(notes.graph, thing, 1))
    assert notes.heard == [7]
    fails(BAD, driver.cuUserObjectRelease, thing, 1)

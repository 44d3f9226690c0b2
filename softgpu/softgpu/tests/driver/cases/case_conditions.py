"""Conditional nodes: bodies that run by values which kernels set."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from softgpu.model import Model, Takes, describe_time
from softgpu.tests.driver.calls import NO_STREAM, Error, Kernels, device_array, fails, kernel_params, ok, synchronize
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.usefixtures("ctx")

KIND = driver.CUgraphConditionalNodeType
IF, WHILE, SWITCH = KIND.CU_GRAPH_COND_TYPE_IF, KIND.CU_GRAPH_COND_TYPE_WHILE, KIND.CU_GRAPH_COND_TYPE_SWITCH
ASSIGN = 1


class Setting:
    """A graph, an integer x, a log of what ran, and kernels for both."""

    def __init__(self) -> None:
        self.kernels = Kernels()
        self.graph = ok(driver.cuGraphCreate(0))
        self.x_address, self.x = device_array(np.zeros(1, np.int32))
        self.log_address, self.log = device_array(np.zeros(64, np.int32))

    def handle(self, graph: Any = None, default: int = 0, flags: int = ASSIGN) -> Any:
        return ok(driver.cuGraphConditionalHandleCreate(graph or self.graph, None, default, flags))

    def deciding(self, handle: Any, change: int) -> Any:
        types = (ctypes.c_uint64, None, ctypes.c_int)
        return kernel_params(self.kernels["decide"], (int(handle), self.x_address, change), types)

    def decide(self, graph: Any, handle: Any, change: int, *needs: Any) -> Any:
        """A node that adds change to x and sets the condition to it."""
        return ok(driver.cuGraphAddKernelNode(graph, list(needs), len(needs), self.deciding(handle, change)))

    def note(self, graph: Any, number: int, *needs: Any) -> Any:
        params = kernel_params(self.kernels["append"], (self.log_address, number), (None, ctypes.c_int))
        return ok(driver.cuGraphAddKernelNode(graph, list(needs), len(needs), params))

    def run(self, instance: Any, x: int = 0) -> list[int]:
        self.log[:], self.x[0] = 0, x
        ok(driver.cuGraphLaunch(instance, NO_STREAM))
        synchronize()
        return [int(number) for number in self.log[1 : 1 + self.log[0]]]


@pytest.fixture
def setting() -> Setting:
    return Setting()


def parameters(handle: Any, kind: Any, size: int = 1) -> Any:
    params = driver.CUgraphNodeParams()
    params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    params.conditional.handle = handle
    params.conditional.type = kind
    params.conditional.size = size
    params.conditional.ctx = ok(driver.cuCtxGetCurrent())
    return params


def add(graph: Any, handle: Any, kind: Any, size: int = 1, *needs: Any) -> tuple[Any, list[Any]]:
    """A conditional node, and the graphs that are its bodies."""
    params = parameters(handle, kind, size)
    node = ok(driver.cuGraphAddNode(graph, list(needs), None, len(needs), params))
    return node, [params.conditional.phGraph_out[i] for i in range(size)]


def instance_of(graph: Any) -> Any:
    return ok(driver.cuGraphInstantiate(graph, 0))


@pytest.mark.parametrize(("size", "value", "expected"), [(1, 5, [1, 9]), (1, 0, [9]), (2, 1, [1, 9]), (2, 0, [2, 9])])
def test_if(setting: Setting, size: int, value: int, expected: list[int]) -> None:
    handle = setting.handle()
    node, bodies = add(setting.graph, handle, IF, size, setting.decide(setting.graph, handle, value))
    for number, body in enumerate(bodies):
        setting.note(body, number + 1)
    setting.note(setting.graph, 9, node)
    assert ok(driver.cuGraphNodeGetType(node)) == driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    assert setting.run(instance_of(setting.graph)) == expected


@pytest.mark.parametrize("value", [0, 1, 2, 3, -1])
def test_switch(setting: Setting, value: int) -> None:
    handle = setting.handle()
    _, bodies = add(setting.graph, handle, SWITCH, 3, setting.decide(setting.graph, handle, value))
    for number, body in enumerate(bodies):
        setting.note(body, number)
    assert setting.run(instance_of(setting.graph)) == ([value] if 0 <= value < 3 else [])


def test_while_with_a_default_that_every_launch_begins_with(setting: Setting) -> None:
    handle = setting.handle(default=1)
    _, (body,) = add(setting.graph, handle, WHILE)
    setting.decide(body, handle, -1, setting.note(body, 7))
    instance = instance_of(setting.graph)
    assert setting.run(instance, x=5) == [7] * 5
    assert setting.run(instance, x=3) == [7] * 3


def test_a_value_without_a_default_stays_from_launch_to_launch(setting: Setting) -> None:
    handle = setting.handle(flags=0, default=1)
    node, (body,) = add(setting.graph, handle, IF)
    setting.note(body, 1)
    setting.decide(setting.graph, handle, 1, node)
    instance = instance_of(setting.graph)
    assert [setting.run(instance), setting.run(instance)] == [[], [1]]


def test_nested_loops(setting: Setting) -> None:
    """For x = 3, 2, 1: note x's body, and within it an IF by another handle, declared in the body."""
    outer = setting.handle(default=1)
    _, (body,) = add(setting.graph, outer, WHILE)
    inner = setting.handle(body, default=1)
    note = setting.note(body, 1)
    node, (then,) = add(body, inner, IF, 1, note)
    setting.note(then, 2)
    setting.decide(body, outer, -1, node)
    assert setting.run(instance_of(setting.graph), x=3) == [1, 2] * 3


def test_two_instances_have_values_of_their_own(setting: Setting) -> None:
    handle = setting.handle(flags=0)
    node, (body,) = add(setting.graph, handle, IF)
    setting.note(body, 1)
    setting.decide(setting.graph, handle, 1, node)
    first, second = instance_of(setting.graph), instance_of(setting.graph)
    assert [setting.run(first), setting.run(second), setting.run(first)] == [[], [], [1]]


def test_a_clone_and_an_embedded_graph_outlive_their_source(setting: Setting) -> None:
    handle = setting.handle(default=1)
    _, (body,) = add(setting.graph, handle, WHILE)
    setting.decide(body, handle, -1, setting.note(body, 4))
    clone = ok(driver.cuGraphClone(setting.graph))
    ok(driver.cuGraphDestroy(setting.graph))
    outer = ok(driver.cuGraphCreate(0))
    ok(driver.cuGraphAddChildGraphNode(outer, None, 0, clone))
    instances = [instance_of(clone), instance_of(outer)]
    ok(driver.cuGraphDestroy(clone))
    assert [setting.run(instance, x=2) for instance in instances] == [[4, 4], [4, 4]]


def test_nodes_in_bodies_change_and_are_switched_off(setting: Setting) -> None:
    handle = setting.handle(default=1)
    _, (body,) = add(setting.graph, handle, WHILE)
    note = setting.note(body, 4)
    decide = setting.decide(body, handle, -1, note)
    instance = instance_of(setting.graph)
    ok(driver.cuGraphExecKernelNodeSetParams(instance, decide, setting.deciding(handle, -2)))
    assert setting.run(instance, x=4) == [4, 4]
    ok(driver.cuGraphNodeSetEnabled(instance, note, 0))
    assert setting.run(instance, x=4) == []


def test_update_takes_kernels_handles_and_defaults_of_another_graph(setting: Setting) -> None:
    graphs = [setting.graph, ok(driver.cuGraphCreate(0)), ok(driver.cuGraphCreate(0))]
    for number, graph in enumerate(graphs):
        handle = setting.handle(graph, default=1)
        _, (body,) = add(graph, handle, WHILE if number < 2 else IF)
        setting.decide(body, handle, -1, setting.note(body, number))
    instance = instance_of(graphs[0])
    ok(driver.cuGraphExecUpdate(instance, graphs[1]))
    assert setting.run(instance, x=2) == [1, 1]
    fails(Error.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, driver.cuGraphExecUpdate, instance, graphs[2])
    assert setting.run(instance, x=2) == [1, 1]


def test_capture_into_a_body(setting: Setting) -> None:
    handle = setting.handle(default=1)
    _, (body,) = add(setting.graph, handle, IF)
    stream = ok(driver.cuStreamCreate(1))
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    ok(driver.cuStreamBeginCaptureToGraph(stream, body, None, None, 0, mode))
    ok(driver.cuMemsetD32Async(setting.x_address, 8, 1, stream))
    assert int(ok(driver.cuStreamEndCapture(stream))) == int(body)
    setting.run(instance_of(setting.graph))
    assert setting.x[0] == 8


def test_invalid_conditional_nodes_are_refused(setting: Setting) -> None:
    handle, foreign = setting.handle(), setting.handle(ok(driver.cuGraphCreate(0)))
    bad = Error.CUDA_ERROR_INVALID_VALUE
    for kind, size in [(IF, 3), (WHILE, 2), (SWITCH, 0), (IF, 0)]:
        fails(bad, driver.cuGraphAddNode, setting.graph, None, None, 0, parameters(handle, kind, size))
    fails(bad, driver.cuGraphAddNode, setting.graph, None, None, 0, parameters(foreign, IF))
    fails(bad, driver.cuGraphInstantiate, setting.graph, 0)  # the handle belongs to no node
    node, (body,) = add(setting.graph, handle, IF)
    fails(bad, driver.cuGraphAddNode, setting.graph, None, None, 0, parameters(handle, IF))
    fails(Error.CUDA_ERROR_NOT_SUPPORTED, driver.cuGraphNodeSetParams, node, parameters(handle, WHILE))
    fails(bad, driver.cuGraphDestroy, body)
    ok(driver.cuGraphAddEventRecordNode(body, None, 0, ok(driver.cuEventCreate(0))))
    fails(bad, driver.cuGraphInstantiate, setting.graph, 0)  # bodies record no events
    ok(driver.cuGraphDestroyNode(node))
    _, (body,) = add(setting.graph, handle, IF)  # the handle is free again
    setting.run(instance_of(setting.graph))


@pytest.mark.parametrize(("model", "rounds"), [(Model(), 1000), (Model(kernels={"decide": Takes(1e6)}), 1)])
def test_an_endless_loop_is_cancelled(setting: Setting, library: ctypes.CDLL, model: Model, rounds: int) -> None:
    assert describe_time(library, 0, model) == 0
    handle = setting.handle(default=1)
    _, (body,) = add(setting.graph, handle, WHILE)
    setting.decide(body, handle, 1)

    def cancel() -> None:
        end = time.monotonic() + TIMEOUT_S
        while setting.x[0] < rounds and time.monotonic() < end:
            pass
        library.softgpu_cancel(0)

    watcher = threading.Thread(target=cancel)
    watcher.start()
    ok(driver.cuGraphLaunch(instance_of(setting.graph), NO_STREAM))
    fails(Error.CUDA_ERROR_LAUNCH_TIMEOUT, driver.cuStreamSynchronize, NO_STREAM)
    watcher.join()
    assert setting.x[0] >= rounds
    assert describe_time(library, 0, Model()) == 0


@pytest.mark.parametrize("ordered", [True, False])
def test_strict_mode_wants_the_condition_set_before(
    strict: Callable[[int], None], setting: Setting, *, ordered: bool
) -> None:
    strict(3)
    handle = setting.handle(default=1)
    decide = setting.decide(setting.graph, handle, 1)
    _, (body,) = add(setting.graph, handle, IF, 1, *([decide] if ordered else []))
    setting.note(body, 1)
    ok(driver.cuGraphLaunch(instance_of(setting.graph), NO_STREAM))
    expected = Error.CUDA_SUCCESS if ordered else Error.CUDA_ERROR_LAUNCH_FAILED
    assert driver.cuCtxSynchronize()[0] == expected


def test_strict_mode_poisons_a_value_that_nothing_sets(strict: Callable[[int], None], setting: Setting) -> None:
    strict(3)
    _, bodies = add(setting.graph, setting.handle(flags=0), IF, 2)
    for number, body in enumerate(bodies):
        setting.note(body, number)
    assert setting.run(instance_of(setting.graph)) == [0]  # all bits set is not 0


def test_every_round_takes_its_modelled_time(library: ctypes.CDLL, setting: Setting) -> None:
    model = Model(kernels={"append": Takes(seconds=2e-3)})
    describe_time(library, 0, model)
    try:
        handle = setting.handle(default=1)
        _, (body,) = add(setting.graph, handle, WHILE)
        setting.decide(body, handle, -1, setting.note(body, 1))
        instance = instance_of(setting.graph)
        setting.x[0], setting.log[0] = 3, 0
        start, end = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
        ok(driver.cuEventRecord(start, NO_STREAM))
        ok(driver.cuGraphLaunch(instance, NO_STREAM))
        ok(driver.cuEventRecord(end, NO_STREAM))
        synchronize()
        assert 6 <= ok(driver.cuEventElapsedTime(start, end)) < 60
    finally:
        describe_time(library, 0, Model())

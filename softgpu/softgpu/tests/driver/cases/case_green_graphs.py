"""Nodes that carry a green context, captures of green streams, and events of whole contexts."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from softgpu.tests.driver.calls import NO_STREAM, Error, Gate, Kernels, device_array, fails, ok, synchronize
from softgpu.tests.driver.mistakes import failure_message
from softgpu.tests.driver.partitions import COUNT, NON_BLOCKING, add, green_of, node_in, partitions, stream_of, view_of

pytestmark = pytest.mark.usefixtures("ctx", "with_sms")

INVALID_CONTEXT = Error.CUDA_ERROR_INVALID_CONTEXT
NO_CONTEXT = driver.CUcontext(0)


def test_nodes_carry_their_context() -> None:
    (one, two), _ = partitions(32, 2)
    green, other = green_of(one), green_of(two)
    address, seen = device_array(np.zeros(COUNT, np.int32))
    graph = ok(driver.cuGraphCreate(0))
    node = ok(driver.cuGraphAddKernelNode(graph, None, 0, node_in(view_of(green), address)))
    assert int(ok(driver.cuGraphKernelNodeGetParams(node)).ctx) == int(view_of(green))
    instance = ok(driver.cuGraphInstantiate(graph, 0))
    ok(driver.cuGraphLaunch(instance, NO_STREAM))
    ok(driver.cuGraphKernelNodeSetParams(node, node_in(view_of(other), address)))
    assert int(ok(driver.cuGraphKernelNodeGetParams(node)).ctx) == int(view_of(other))
    ok(driver.cuGraphExecUpdate(instance, graph))
    ok(driver.cuGraphLaunch(instance, stream_of(green)))
    synchronize()
    assert (seen == 2).all()
    ok(driver.cuGreenCtxDestroy(green))
    ok(driver.cuGraphLaunch(instance, NO_STREAM))  # it runs in the other one
    ok(driver.cuGreenCtxDestroy(other))
    fails(INVALID_CONTEXT, driver.cuGraphLaunch, instance, NO_STREAM)
    fails(INVALID_CONTEXT, driver.cuGraphInstantiate, graph, 0)
    ok(driver.cuGraphExecKernelNodeSetParams(instance, node, node_in(NO_CONTEXT, address)))
    ok(driver.cuGraphLaunch(instance, NO_STREAM))
    synchronize()
    assert (seen == 4).all()


def test_a_graph_inside_a_graph_carries_it_too() -> None:
    (partition,), _ = partitions(32, 1)
    green, (address, seen) = green_of(partition), device_array(np.zeros(COUNT, np.int32))
    inner, outer = ok(driver.cuGraphCreate(0)), ok(driver.cuGraphCreate(0))
    ok(driver.cuGraphAddKernelNode(inner, None, 0, node_in(view_of(green), address)))
    ok(driver.cuGraphAddChildGraphNode(outer, None, 0, inner))
    instance = ok(driver.cuGraphInstantiate(outer, 0))
    ok(driver.cuGraphLaunch(instance, NO_STREAM))
    ok(driver.cuGreenCtxDestroy(green))
    fails(INVALID_CONTEXT, driver.cuGraphLaunch, instance, NO_STREAM)
    synchronize()
    assert (seen == 1).all()


def test_a_context_that_is_gone_is_no_context_of_a_node() -> None:
    (partition,), _ = partitions(32, 1)
    green, (address, _) = green_of(partition), device_array(np.zeros(COUNT, np.int32))
    view, graph = view_of(green), ok(driver.cuGraphCreate(0))
    ok(driver.cuGreenCtxDestroy(green))
    fails(INVALID_CONTEXT, driver.cuGraphAddKernelNode, graph, None, 0, node_in(view, address))
    by_function = node_in(view, address)
    by_function.func, by_function.kern = Kernels()["add"], driver.CUkernel(0)
    ok(driver.cuGraphAddKernelNode(graph, None, 0, by_function))  # which ignores the context


def test_the_capture_of_a_green_stream() -> None:
    (partition,), _ = partitions(32, 1)
    green, (address, seen) = green_of(partition), device_array(np.zeros(COUNT, np.int32))
    stream = stream_of(green)
    ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    add(stream, address)
    graph = ok(driver.cuStreamEndCapture(stream))
    ((node,), _) = ok(driver.cuGraphGetNodes(graph, 1))
    assert int(ok(driver.cuGraphKernelNodeGetParams(node)).ctx) == int(view_of(green))
    ok(driver.cuGraphLaunch(ok(driver.cuGraphInstantiate(graph, 0)), NO_STREAM))
    synchronize()
    assert (seen == 1).all()


def test_a_green_context_that_ends_spoils_the_captures_of_its_streams() -> None:
    (partition,), _ = partitions(32, 1)
    green, address = green_of(partition), device_array(np.zeros(COUNT, np.int32))[0]
    origin, joined = ok(driver.cuStreamCreate(NON_BLOCKING)), stream_of(green)
    ok(driver.cuStreamBeginCapture(origin, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    event = ok(driver.cuEventCreate(0))
    ok(driver.cuEventRecord(event, origin))
    ok(driver.cuStreamWaitEvent(joined, event, 0))
    add(joined, address)
    ok(driver.cuGreenCtxDestroy(green))
    fails(Error.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, driver.cuStreamEndCapture, origin)
    ok(driver.cuStreamDestroy(joined))


# --- events of contexts


def done(event: Any) -> bool:
    return bool(driver.cuEventQuery(event)[0] == Error.CUDA_SUCCESS)


def test_an_event_of_a_green_context_is_for_all_its_streams() -> None:
    (one, two), _ = partitions(32, 2)
    green, other = green_of(one), green_of(two)
    mine, beside = Gate(), Gate()
    events = [ok(driver.cuEventCreate(0)) for _ in range(4)]
    mine.hold(stream_of(green))
    ok(driver.cuGreenCtxRecordEvent(green, events[0]))
    ok(driver.cuCtxRecordEvent(view_of(other), events[1]))
    beside.hold(stream_of(other))
    ok(driver.cuCtxRecordEvent(ok(driver.cuCtxGetCurrent()), events[2]))  # the primary one's are all of them
    ok(driver.cuEventSynchronize(events[1]))
    assert not done(events[0])
    mine.open.set()
    ok(driver.cuEventSynchronize(events[0]))
    assert not done(events[2])
    beside.open.set()
    ok(driver.cuEventSynchronize(events[2]))
    ok(driver.cuGreenCtxRecordEvent(green, events[3]))
    ok(driver.cuEventSynchronize(events[3]))
    fails(Error.CUDA_ERROR_INVALID_HANDLE, driver.cuGreenCtxRecordEvent, green, driver.CUevent(0))


@pytest.mark.parametrize("of_primary", [False, True])
def test_a_green_context_waits_for_an_event_in_streams_of_now_and_later(*, of_primary: bool) -> None:
    (partition,), _ = partitions(32, 1)
    green, gate = green_of(partition), Gate()
    first, elsewhere = stream_of(green), ok(driver.cuStreamCreate(NON_BLOCKING))
    event = ok(driver.cuEventCreate(0))
    gate.hold(elsewhere)
    ok(driver.cuEventRecord(event, elsewhere))
    if of_primary:
        ok(driver.cuCtxWaitEvent(ok(driver.cuCtxGetCurrent()), event))
    else:
        ok(driver.cuGreenCtxWaitEvent(green, event))
    address, seen = device_array(np.zeros(COUNT, np.int32))
    for stream in (first, stream_of(green), stream_of(green_of(partition)) if of_primary else stream_of(green)):
        add(stream, address)
        fails(Error.CUDA_ERROR_NOT_READY, driver.cuStreamQuery, stream)
    assert (seen == 0).all()
    gate.open.set()
    synchronize()
    assert (seen == 3).all()


def test_events_of_contexts_and_captures() -> None:
    (partition,), _ = partitions(32, 1)
    green, event, outside = green_of(partition), ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
    captured, unsupported = stream_of(green), Error.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    for call in (driver.cuGreenCtxRecordEvent, driver.cuGreenCtxWaitEvent):
        ok(driver.cuStreamBeginCapture(captured, mode))
        fails(unsupported, call, green, outside)
        fails(Error.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, driver.cuStreamEndCapture, captured)
    plain = ok(driver.cuStreamCreate(NON_BLOCKING))
    ok(driver.cuStreamBeginCapture(plain, mode))
    ok(driver.cuEventRecord(event, plain))
    fails(unsupported, driver.cuGreenCtxWaitEvent, green, event)
    fails(Error.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, driver.cuStreamEndCapture, plain)
    fails(Error.CUDA_ERROR_CAPTURED_EVENT, driver.cuGreenCtxWaitEvent, green, event)
    ok(driver.cuGreenCtxRecordEvent(green, event))
    ok(driver.cuEventSynchronize(event))


def test_a_green_context_synchronises_alone_and_the_primary_one_with_all() -> None:
    (one, two), _ = partitions(32, 2)
    green, other, gate = green_of(one), green_of(two), Gate()
    (mine, seen), (beside, its) = (device_array(np.zeros(COUNT, np.int32)) for _ in range(2))
    add(stream_of(green), mine)
    held = stream_of(other)
    gate.hold(held)
    add(held, beside)
    ok(driver.cuCtxSetCurrent(view_of(green)))
    synchronize()
    assert (seen == 1).all()
    assert (its == 0).all()
    ok(driver.cuCtxPopCurrent())
    gate.open.set()
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
    synchronize()
    assert (its == 1).all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("ordered", [True, False])
def test_strict_mode_knows_the_order_of_context_events(
    strict: Any, library: ctypes.CDLL, seed: int, *, later: bool, ordered: bool
) -> None:
    """Two partitions add to one memory: in order if the second waits for the first, also in a stream made later."""
    strict(seed)
    (one, two), _ = partitions(32, 2)
    green, other = green_of(one), green_of(two)
    first, second, event = stream_of(green), stream_of(other), ok(driver.cuEventCreate(0))
    address = device_array(np.zeros(COUNT, np.int32))[0]
    add(first, address)
    ok(driver.cuGreenCtxRecordEvent(green, event))
    if ordered:
        ok(driver.cuGreenCtxWaitEvent(other, event))
    else:
        ok(driver.cuCtxRecordEvent(view_of(other), ok(driver.cuEventCreate(0))))
    add(stream_of(other) if later else second, address)
    if ordered:
        synchronize()
    else:
        assert "a race: kernel add in stream" in failure_message(library)

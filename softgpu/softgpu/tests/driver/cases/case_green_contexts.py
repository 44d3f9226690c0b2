"""Green contexts: resources and their divisions, streams, graphs, events of contexts, and every order of ends."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from softgpu import Model
from softgpu.model import describe_time
from softgpu.tests.driver.calls import (
    NO_STREAM,
    Error,
    Gate,
    Kernels,
    device_array,
    fails,
    kernel_params,
    ok,
    synchronize,
)
from softgpu.tests.driver.calls import launch as launched
from softgpu.tests.driver.mistakes import failure_message
from softgpu.tests.driver.partitions import NON_BLOCKING, SM, described, green_of, parts, stream_of, view_of, whole

pytestmark = pytest.mark.usefixtures("ctx", "with_sms")

SMS = 132
TYPES = driver.CUdevResourceType
NO_CONTEXT = driver.CUcontext(0)
NO_GREEN = driver.CUgreenCtx(0)
DESTROYED = Error.CUDA_ERROR_CONTEXT_IS_DESTROYED
DETACHED = Error.CUDA_ERROR_STREAM_DETACHED
INVALID_CONTEXT, INVALID_VALUE = Error.CUDA_ERROR_INVALID_CONTEXT, Error.CUDA_ERROR_INVALID_VALUE
INVALID_CONFIGURATION = Error.CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION
INVALID_TYPE = Error.CUDA_ERROR_INVALID_RESOURCE_TYPE
ATTRIBUTES = driver.CUdevice_attribute
ADD_TYPES = (None, ctypes.c_int, ctypes.c_int)
COUNT = 64


@pytest.fixture
def with_sms(library: ctypes.CDLL, ctx: Any) -> Iterator[None]:  # noqa: ARG001 - the context ends last
    assert describe_time(library, 0, Model(sms=SMS)) == 0
    yield
    driver.cuDevicePrimaryCtxReset(0)
    assert describe_time(library, 0, Model()) == 0


def split(counts: list[int], of: Any, **fields: int) -> Any:
    """Divides by groups of their own sizes; returns the status first."""
    params = [driver.CU_DEV_SM_RESOURCE_GROUP_PARAMS() for _ in counts]
    for each, count in zip(params, counts, strict=True):
        each.smCount = count
        for name, value in fields.items():
            setattr(each, name, value)
    return driver.cuDevSmResourceSplit(len(counts), of, 0, params)


def add(stream: Any, address: Any) -> None:
    assert launched(Kernels()["add"], (address, COUNT, 1), ADD_TYPES, block=(COUNT, 1, 1), stream=stream) == 0


def node_in(context: Any, address: Any) -> driver.CUDA_KERNEL_NODE_PARAMS:
    """The parameters of a node with the kernel `add`, in a context."""
    params = kernel_params(Kernels()["add"], (address, COUNT, 1), ADD_TYPES, block=COUNT)
    params.func, params.kern, params.ctx = driver.CUfunction(0), driver.CUkernel(int(params.func)), context
    return params


# --- resources


def test_a_device_says_its_multiprocessors() -> None:
    attribute = ATTRIBUTES.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    sm = whole().sm
    assert ok(driver.cuDeviceGetAttribute(attribute, 0)) == sm.smCount == SMS
    assert (sm.minSmPartitionSize, sm.smCoscheduledAlignment, sm.flags) == (4, 2, 0)  # compute capability 8.0
    assert ok(driver.cuCtxGetDevResource(ok(driver.cuCtxGetCurrent()), SM)).sm.smCount == SMS
    assert ok(driver.cuStreamGetDevResource(NO_STREAM, SM)).sm.smCount == SMS
    queue = ok(driver.cuDeviceGetDevResource(0, TYPES.CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG)).wqConfig
    assert (int(queue.device), queue.wqConcurrencyLimit) == (0, 8)


@pytest.mark.parametrize(
    ("least", "wanted", "flags", "size", "made", "left"),
    [
        (0, 3, 0, 4, 3, 120),
        (1, 3, 0, 4, 3, 120),
        (1, 3, 1, 2, 3, 126),
        (7, 3, 0, 8, 3, 108),
        (32, 9, 0, 32, 4, 4),
        (66, 2, 0, 66, 2, 0),
        (132, 1, 0, 132, 1, 0),
    ],
)
def test_a_division_by_count(least: int, wanted: int, flags: int, size: int, made: int, left: int) -> None:
    """Each part is rounded up; there are as many as fit; the rest is a resource, or none."""
    groups, number, rest = ok(driver.cuDevSmResourceSplitByCount(wanted, whole(), flags, least))
    assert [group.sm.smCount for group in groups][:made] == [size] * made
    assert number == made
    assert rest.type == (SM if left else TYPES.CU_DEV_RESOURCE_TYPE_INVALID)
    assert not left or rest.sm.smCount == left


def test_a_division_can_be_asked_for_its_number() -> None:
    _, number, _ = ok(driver.cuDevSmResourceSplitByCount(0, whole(), 0, 30))
    assert number == 4


def test_a_division_into_groups() -> None:
    groups, rest = ok(split([8, 24, 60], whole()))
    assert [group.sm.smCount for group in groups] == [8, 24, 60]
    assert rest.sm.smCount == 40
    groups, rest = ok(split([0], whole()))
    assert (groups[0].sm.smCount, rest.type) == (SMS, TYPES.CU_DEV_RESOURCE_TYPE_INVALID)
    (_, other), _ = ok(split([100, 0], whole(), flags=1))
    assert other.sm.smCount == 32


def test_parts_are_divided_again_once_they_are_in_a_green_context() -> None:
    (part, _), rest = parts(32, 2)
    fails(INVALID_CONFIGURATION, driver.cuDevSmResourceSplitByCount, 1, part, 0, 8)
    assert split([8], part)[0] == INVALID_CONFIGURATION
    assert [group.sm.smCount for group in parts(8, 2, rest)[0]] == [8, 8]
    green = green_of(part)
    inner, left = parts(8, 2, ok(driver.cuGreenCtxGetDevResource(green, SM)))
    assert ([each.sm.smCount for each in inner], left.sm.smCount) == ([8, 8], 16)
    assert ok(driver.cuGreenCtxGetDevResource(green_of(inner[1]), SM)).sm.smCount == 8


def test_divisions_that_are_refused() -> None:
    device, none = whole(), driver.CUdevResource()
    fails(INVALID_VALUE, driver.cuDevSmResourceSplitByCount, 1, device, 0, SMS + 1)
    fails(INVALID_VALUE, driver.cuDevSmResourceSplitByCount, 1, device, 2, 8)  # of compute capability 9.0
    fails(INVALID_TYPE, driver.cuDevSmResourceSplitByCount, 1, none, 0, 8)
    (small, _), _ = ok(split([2, 4], device))
    inside = ok(driver.cuGreenCtxGetDevResource(green_of(small), SM))
    fails(INVALID_CONFIGURATION, driver.cuDevSmResourceSplitByCount, 1, inside, 0, 0)
    for counts, fields in (([7], {}), ([SMS + 2], {}), ([8], {"coscheduledSmCount": 8}), ([8], {"flags": 8}), ([], {})):
        assert split(counts, device, **fields)[0] == INVALID_VALUE
    assert split([100, 40], device)[0] == INVALID_CONFIGURATION
    assert split([SMS, 0], device)[0] == INVALID_CONFIGURATION
    fails(INVALID_TYPE, driver.cuDeviceGetDevResource, 0, TYPES.CU_DEV_RESOURCE_TYPE_INVALID)
    fails(Error.CUDA_ERROR_INVALID_DEVICE, driver.cuDeviceGetDevResource, 9, SM)
    fails(INVALID_TYPE, driver.cuStreamGetDevResource, NO_STREAM, TYPES.CU_DEV_RESOURCE_TYPE_WORKQUEUE)


def test_a_resource_that_a_program_made_up() -> None:
    made = driver.CUdevResource()
    made.type = SM
    made.sm.smCount = 8
    fails(INVALID_VALUE, driver.cuDevSmResourceSplitByCount, 1, made, 0, 4)
    fails(INVALID_VALUE, driver.cuDevResourceGenerateDesc, [made], 1)


def test_descriptors_join_parts_of_one_division() -> None:
    groups, rest = parts(16, 3)
    green = green_of(groups[0], rest)
    assert ok(driver.cuGreenCtxGetDevResource(green, SM)).sm.smCount == 16 + 84
    others, _ = parts(16, 1)
    fails(INVALID_CONFIGURATION, driver.cuDevResourceGenerateDesc, [groups[0], others[0]], 2)
    fails(INVALID_CONFIGURATION, driver.cuDevResourceGenerateDesc, [groups[0], groups[0]], 2)
    fails(INVALID_VALUE, driver.cuDevResourceGenerateDesc, [], 0)
    fails(INVALID_TYPE, driver.cuDevResourceGenerateDesc, [driver.CUdevResource()], 1)
    queue = ok(driver.cuDeviceGetDevResource(1, TYPES.CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG))
    fails(INVALID_CONFIGURATION, driver.cuDevResourceGenerateDesc, [groups[0], queue], 2)


def test_a_green_context_without_a_part_has_the_whole_device() -> None:
    kind = TYPES.CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG
    queue = ok(driver.cuDeviceGetDevResource(0, kind))
    queue.wqConfig.wqConcurrencyLimit = 3
    green = green_of(queue)
    assert ok(driver.cuGreenCtxGetDevResource(green, SM)).sm.smCount == SMS
    assert ok(driver.cuGreenCtxGetDevResource(green, kind)).wqConfig.wqConcurrencyLimit == 3


# --- contexts and streams


def test_streams_tell_their_green_context() -> None:
    primary = ok(driver.cuCtxGetCurrent())
    (one, two), _ = parts(32, 2)
    green, other = green_of(one), green_of(two)
    view, stream = view_of(green), stream_of(green)
    assert int(ok(driver.cuStreamGetGreenCtx(stream))) == int(green)
    assert int(ok(driver.cuStreamGetGreenCtx(ok(driver.cuStreamCreate(0))))) == 0
    assert int(ok(driver.cuStreamGetCtx(stream))) == int(view)
    context, its = ok(driver.cuStreamGetCtx_v2(stream))
    assert (int(context), int(its)) == (int(primary), int(green))
    assert ok(driver.cuStreamGetDevResource(stream, SM)).sm.smCount == 32
    assert ok(driver.cuStreamGetPriority(ok(driver.cuGreenCtxStreamCreate(green, NON_BLOCKING, -9)))) == -5
    ok(driver.cuCtxSetCurrent(view))
    assert int(ok(driver.cuCtxGetCurrent())) == int(view)
    inside = ok(driver.cuStreamCreate(0))
    assert int(ok(driver.cuStreamGetGreenCtx(inside))) == int(ok(driver.cuStreamGetGreenCtx(NO_STREAM))) == int(green)
    assert ok(driver.cuCtxGetDevResource(view, SM)).sm.smCount == 32
    fails(Error.CUDA_ERROR_INVALID_HANDLE, driver.cuStreamGetCtx_v2, driver.CUstream(2))  # one for each thread
    ids = {ok(driver.cuGreenCtxGetId(each)) for each in (green, other)} | {ok(driver.cuCtxGetId(primary))}
    assert len(ids) == 3
    assert ok(driver.cuGreenCtxGetId(NO_GREEN)) == ok(driver.cuGreenCtxGetId(green))
    assert int(ok(driver.cuCtxPopCurrent())) == int(view)
    fails(INVALID_CONTEXT, driver.cuGreenCtxGetId, NO_GREEN)


def test_memory_and_kernels_are_those_of_the_primary_context() -> None:
    (part,), _ = parts(32, 1)
    green = green_of(part)
    address, seen = device_array(np.zeros(COUNT, np.int32))
    streams = [stream_of(green), ok(driver.cuStreamCreate(NON_BLOCKING))]
    ok(driver.cuCtxPushCurrent(view_of(green)))
    inside, other = device_array(np.zeros(COUNT, np.int32))
    for stream in (*streams, NO_STREAM, ok(driver.cuStreamCreate(0))):
        add(stream, address)
        add(stream, inside)
        ok(driver.cuStreamSynchronize(stream))
    ok(driver.cuGreenCtxDestroy(green))
    assert (seen == 4).all()
    assert (other == 4).all()
    ok(driver.cuMemFree(inside))


def test_a_green_context_has_an_occupancy_of_its_own() -> None:
    kernel = Kernels()["add"]
    _, most = ok(driver.cuOccupancyMaxPotentialBlockSize(kernel, None, 0, 0))
    blocks, _ = ok(driver.cuOccupancyMaxPotentialBlockSize(kernel, None, 0, 0))
    (part,), _ = parts(12, 1)
    ok(driver.cuCtxSetCurrent(view_of(green_of(part))))
    assert ok(driver.cuOccupancyMaxPotentialBlockSize(kernel, None, 0, 0)) == (blocks * 12 // SMS, most)


def test_an_error_sticks_to_all_of_them() -> None:
    (one, two), _ = parts(32, 2)
    green, other = green_of(one), green_of(two)
    stream, beside = stream_of(green), stream_of(other)
    assert launched(Kernels()["trap"], (), (), stream=stream) == 0
    fails(Error.CUDA_ERROR_LAUNCH_FAILED, driver.cuStreamSynchronize, stream)
    fails(Error.CUDA_ERROR_LAUNCH_FAILED, driver.cuStreamSynchronize, beside)
    fails(Error.CUDA_ERROR_LAUNCH_FAILED, driver.cuCtxSynchronize)
    fails(Error.CUDA_ERROR_LAUNCH_FAILED, driver.cuGreenCtxStreamCreate, other, NON_BLOCKING, 0)
    fails(Error.CUDA_ERROR_LAUNCH_FAILED, driver.cuGreenCtxCreate, described(whole()), 0, 1)
    ok(driver.cuGreenCtxDestroy(green))


def test_calls_that_are_refused() -> None:
    (part,), _ = parts(32, 1)
    described_part = described(part)
    fails(INVALID_VALUE, driver.cuGreenCtxCreate, described_part, 0, 2)
    fails(INVALID_VALUE, driver.cuGreenCtxCreate, described_part, 1, 1)
    fails(INVALID_VALUE, driver.cuGreenCtxCreate, driver.CUdevResourceDesc(0), 0, 1)
    fails(INVALID_CONTEXT, driver.cuGreenCtxDestroy, NO_GREEN)
    fails(INVALID_CONTEXT, driver.cuCtxFromGreenCtx, NO_GREEN)
    green = green_of(part)
    fails(INVALID_VALUE, driver.cuGreenCtxStreamCreate, green, 0, 0)
    fails(INVALID_CONTEXT, driver.cuCtxSetCurrent, driver.CUcontext(int(green)))
    fails(INVALID_CONTEXT, driver.cuGreenCtxDestroy, driver.CUgreenCtx(int(view_of(green))))
    fails(INVALID_CONTEXT, driver.cuCtxDestroy, view_of(green))


def test_the_number_of_multiprocessors_stays_while_a_green_context_knows_it(library: ctypes.CDLL) -> None:
    part = whole()
    green = green_of(part)
    assert describe_time(library, 0, Model(sms=64)) == int(INVALID_VALUE)
    assert describe_time(library, 0, Model(sms=SMS, launch_latency_s=1e-6)) == 0
    ok(driver.cuGreenCtxDestroy(green))
    assert describe_time(library, 0, Model(sms=64)) == 0
    fails(INVALID_CONFIGURATION, driver.cuDevSmResourceSplitByCount, 1, part, 0, 8)


# --- ends


def test_a_stream_outlives_its_green_context_but_is_of_no_use() -> None:
    (part,), _ = parts(32, 1)
    green, address = green_of(part), device_array(np.zeros(COUNT, np.int32))[0]
    stream, view = stream_of(green), view_of(green)
    ok(driver.cuCtxPushCurrent(view))
    add(stream, address)
    ok(driver.cuGreenCtxDestroy(green))
    for call in (driver.cuStreamSynchronize, driver.cuStreamQuery, driver.cuStreamGetCtx, driver.cuStreamGetGreenCtx):
        fails(DETACHED, call, stream)
    assert launched(Kernels()["add"], (address, COUNT, 1), ADD_TYPES, stream=stream) == DETACHED
    ok(driver.cuStreamDestroy(stream))
    for call in (driver.cuGreenCtxDestroy, driver.cuCtxFromGreenCtx, driver.cuGreenCtxGetId):
        fails(INVALID_CONTEXT, call, green)
    fails(INVALID_CONTEXT, driver.cuCtxSetCurrent, view)
    fails(INVALID_CONTEXT, driver.cuCtxGetDevResource, view, SM)
    synchronize()  # the primary context is current again


def test_a_green_context_keeps_the_primary_one() -> None:
    (part,), _ = parts(32, 1)
    green = green_of(part)
    ok(driver.cuDevicePrimaryCtxRelease(0))
    assert ok(driver.cuDevicePrimaryCtxGetState(0))[1] == 1
    add(stream_of(green), device_array(np.zeros(COUNT, np.int32))[0])
    ok(driver.cuGreenCtxDestroy(green))
    assert ok(driver.cuDevicePrimaryCtxGetState(0))[1] == 0
    ok(driver.cuDevicePrimaryCtxRetain(0))


def test_a_reset_of_the_primary_context_ends_its_green_ones() -> None:
    (part,), _ = parts(32, 1)
    green = green_of(part)
    stream, view = stream_of(green), view_of(green)
    ok(driver.cuDevicePrimaryCtxReset(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
    fails(DESTROYED, driver.cuGreenCtxGetId, green)
    fails(DESTROYED, driver.cuGreenCtxStreamCreate, green, NON_BLOCKING, 0)
    fails(DESTROYED, driver.cuGreenCtxGetDevResource, green, SM)
    fails(INVALID_CONTEXT, driver.cuCtxSetCurrent, view)
    fails(Error.CUDA_ERROR_INVALID_HANDLE, driver.cuStreamSynchronize, stream)
    ok(driver.cuGreenCtxDestroy(green))
    assert ok(driver.cuDevicePrimaryCtxGetState(0))[1] == 1  # it has no reference to the new one
    ok(driver.cuGreenCtxDestroy(green_of(part)))


# --- graphs


def test_nodes_carry_their_context() -> None:
    (one, two), _ = parts(32, 2)
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
    (part,), _ = parts(32, 1)
    green, (address, seen) = green_of(part), device_array(np.zeros(COUNT, np.int32))
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
    (part,), _ = parts(32, 1)
    green, (address, _) = green_of(part), device_array(np.zeros(COUNT, np.int32))
    view, graph = view_of(green), ok(driver.cuGraphCreate(0))
    ok(driver.cuGreenCtxDestroy(green))
    fails(INVALID_CONTEXT, driver.cuGraphAddKernelNode, graph, None, 0, node_in(view, address))
    by_function = node_in(view, address)
    by_function.func, by_function.kern = Kernels()["add"], driver.CUkernel(0)
    ok(driver.cuGraphAddKernelNode(graph, None, 0, by_function))  # which ignores the context


def test_the_capture_of_a_green_stream() -> None:
    (part,), _ = parts(32, 1)
    green, (address, seen) = green_of(part), device_array(np.zeros(COUNT, np.int32))
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
    (part,), _ = parts(32, 1)
    green, address = green_of(part), device_array(np.zeros(COUNT, np.int32))[0]
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
    (one, two), _ = parts(32, 2)
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
    (part,), _ = parts(32, 1)
    green, gate = green_of(part), Gate()
    first, elsewhere = stream_of(green), ok(driver.cuStreamCreate(NON_BLOCKING))
    event = ok(driver.cuEventCreate(0))
    gate.hold(elsewhere)
    ok(driver.cuEventRecord(event, elsewhere))
    if of_primary:
        ok(driver.cuCtxWaitEvent(ok(driver.cuCtxGetCurrent()), event))
    else:
        ok(driver.cuGreenCtxWaitEvent(green, event))
    address, seen = device_array(np.zeros(COUNT, np.int32))
    for stream in (first, stream_of(green), stream_of(green_of(part)) if of_primary else stream_of(green)):
        add(stream, address)
        fails(Error.CUDA_ERROR_NOT_READY, driver.cuStreamQuery, stream)
    assert (seen == 0).all()
    gate.open.set()
    synchronize()
    assert (seen == 3).all()


def test_events_of_contexts_and_captures() -> None:
    (part,), _ = parts(32, 1)
    green, event, outside = green_of(part), ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
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
    (one, two), _ = parts(32, 2)
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


def test_a_context_that_was_current_is_never_mistaken_for_a_later_one() -> None:
    """Addresses of contexts are used again; the thread's stack knows the difference."""
    (part,), _ = parts(32, 1)
    primary, green = ok(driver.cuCtxGetCurrent()), green_of(part)
    first = int(view_of(green))
    ok(driver.cuCtxPushCurrent(view_of(green)))
    ok(driver.cuGreenCtxDestroy(green))
    for _ in range(200):
        later = green_of(part)
        if int(view_of(later)) == first:
            break
        ok(driver.cuGreenCtxDestroy(later))
    assert int(view_of(later)) == first
    assert int(ok(driver.cuCtxGetCurrent())) == int(primary)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("ordered", [True, False])
def test_strict_mode_knows_the_order_of_context_events(
    strict: Any, library: ctypes.CDLL, seed: int, *, later: bool, ordered: bool
) -> None:
    """Two parts add to the same memory: in order if the second waits for the first, also in a stream made later."""
    strict(seed)
    (one, two), _ = parts(32, 2)
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

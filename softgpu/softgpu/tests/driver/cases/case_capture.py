"""Stream capture: the edges that it makes, and the mistakes that it catches."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from softgpu.tests.driver.calls import NO_STREAM, Error, Kernels, device_array, fails, launch, ok, synchronize

pytestmark = pytest.mark.usefixtures("ctx")

MODE = driver.CUstreamCaptureMode
STATUS = driver.CUstreamCaptureStatus
NON_BLOCKING = driver.CUstream_flags.CU_STREAM_NON_BLOCKING


def stream() -> Any:
    return ok(driver.cuStreamCreate(NON_BLOCKING))


def begin(on: Any, mode: Any = MODE.CU_STREAM_CAPTURE_MODE_RELAXED) -> None:
    ok(driver.cuStreamBeginCapture(on, mode))


def fork(source: Any, target: Any) -> None:
    event = ok(driver.cuEventCreate(0))
    ok(driver.cuEventRecord(event, source))
    ok(driver.cuStreamWaitEvent(target, event, 0))


def edges(graph: Any) -> set[tuple[int, int]]:
    """The edges as pairs of places in the list of nodes."""
    _, count = ok(driver.cuGraphGetNodes(graph))
    nodes = [int(node) for node in ok(driver.cuGraphGetNodes(graph, count))[0]]
    number = ok(driver.cuGraphGetEdges(graph))[-1]
    sources, targets, *_ = ok(driver.cuGraphGetEdges(graph, number))
    return {(nodes.index(int(a)), nodes.index(int(b))) for a, b in zip(sources, targets, strict=True)}


class Log:
    """A list in device memory that kernels append to."""

    def __init__(self) -> None:
        self.address, self.seen = device_array(np.zeros(64, np.int32))
        self.append = Kernels()["append"]

    def add(self, value: int, on: Any) -> None:
        assert launch(self.append, (self.address, value), (None, ctypes.c_int), stream=on) == Error.CUDA_SUCCESS

    @property
    def values(self) -> list[int]:
        synchronize()
        values: list[int] = self.seen[1 : 1 + self.seen[0]].tolist()
        return values


def test_captured_work_runs_at_launch_only() -> None:
    log, main = Log(), stream()
    begin(main)
    assert ok(driver.cuStreamIsCapturing(main)) == STATUS.CU_STREAM_CAPTURE_STATUS_ACTIVE
    log.add(1, main)
    log.add(2, main)
    graph = ok(driver.cuStreamEndCapture(main))
    assert log.values == []
    assert edges(graph) == {(0, 1)}
    instance = ok(driver.cuGraphInstantiate(graph, 0))
    for _ in range(2):
        ok(driver.cuGraphLaunch(instance, main))
    assert log.values == [1, 2, 1, 2]
    assert ok(driver.cuStreamIsCapturing(main)) == STATUS.CU_STREAM_CAPTURE_STATUS_NONE


def test_fork_and_join_become_a_diamond() -> None:
    log, main, side = Log(), stream(), stream()
    begin(main)
    log.add(0, main)
    fork(main, side)
    log.add(1, main)
    log.add(2, side)
    fork(side, main)
    log.add(3, main)
    graph = ok(driver.cuStreamEndCapture(main))
    assert edges(graph) == {(0, 1), (0, 2), (1, 3), (2, 3)}
    assert ok(driver.cuStreamIsCapturing(side)) == STATUS.CU_STREAM_CAPTURE_STATUS_NONE


def test_copies_sets_and_host_functions_become_nodes() -> None:
    address, seen = device_array(np.zeros(16, np.uint8))
    source = np.arange(16, dtype=np.uint8)
    main = stream()
    begin(main)
    ok(driver.cuMemcpyHtoDAsync(address, source.ctypes.data, 16, main))
    ok(driver.cuMemsetD8Async(address, 9, 4, main))
    graph = ok(driver.cuStreamEndCapture(main))
    _, count = ok(driver.cuGraphGetNodes(graph))
    kinds = [ok(driver.cuGraphNodeGetType(node)) for node in ok(driver.cuGraphGetNodes(graph, count))[0]]
    assert kinds == [driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMCPY, driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET]
    ok(driver.cuGraphLaunch(ok(driver.cuGraphInstantiate(graph, 0)), NO_STREAM))
    synchronize()
    assert seen.tolist() == [9, 9, 9, 9, *range(4, 16)]


def test_unjoined_work() -> None:
    log, main, side = Log(), stream(), stream()
    begin(main)
    log.add(0, main)
    fork(main, side)
    log.add(1, side)
    fails(Error.CUDA_ERROR_STREAM_CAPTURE_UNJOINED, driver.cuStreamEndCapture, main)
    log.add(2, side)
    assert log.values == [2]


def test_waiting_for_an_event_outside_the_capture_invalidates_it() -> None:
    main, event = stream(), ok(driver.cuEventCreate(0))
    begin(main)
    ok(driver.cuStreamWaitEvent(main, event, 0))  # never recorded: nothing to wait for
    ok(driver.cuEventRecord(event, stream()))
    fails(Error.CUDA_ERROR_STREAM_CAPTURE_ISOLATION, driver.cuStreamWaitEvent, main, event, 0)
    fails(Error.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, driver.cuMemsetD8Async, device_array(np.zeros(4))[0], 0, 1, main)
    fails(Error.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, driver.cuStreamEndCapture, main)


def test_two_captures_do_not_merge() -> None:
    first, second, event = stream(), stream(), ok(driver.cuEventCreate(0))
    begin(first)
    begin(second)
    ok(driver.cuEventRecord(event, first))
    fails(Error.CUDA_ERROR_STREAM_CAPTURE_MERGE, driver.cuStreamWaitEvent, second, event, 0)
    for on in (first, second):
        fails(Error.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, driver.cuStreamEndCapture, on)


def test_the_end_in_the_wrong_place() -> None:
    main, side = stream(), stream()
    fails(Error.CUDA_ERROR_ILLEGAL_STATE, driver.cuStreamEndCapture, main)
    begin(main, MODE.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
    fails(Error.CUDA_ERROR_ILLEGAL_STATE, driver.cuStreamBeginCapture, main, MODE.CU_STREAM_CAPTURE_MODE_RELAXED)
    fork(main, side)
    fails(Error.CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, driver.cuStreamEndCapture, side)
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(driver.cuStreamEndCapture(main)[0]))
    thread.start()
    thread.join()
    assert seen == [Error.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD]
    ok(driver.cuStreamEndCapture(main))


def test_synchronising_spoils_a_capture() -> None:
    main, event = stream(), ok(driver.cuEventCreate(0))
    begin(main)
    ok(driver.cuEventRecord(event, main))
    fails(Error.CUDA_ERROR_CAPTURED_EVENT, driver.cuEventSynchronize, event)
    fails(Error.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, driver.cuStreamSynchronize, main)
    fails(Error.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, driver.cuStreamEndCapture, main)


def test_unsafe_calls_by_capture_mode() -> None:
    main = stream()
    begin(main, MODE.CU_STREAM_CAPTURE_MODE_GLOBAL)
    fails(Error.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, driver.cuMemAlloc, 64)
    fails(Error.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, driver.cuStreamEndCapture, main)
    begin(main, MODE.CU_STREAM_CAPTURE_MODE_GLOBAL)
    relaxed = MODE.CU_STREAM_CAPTURE_MODE_RELAXED
    assert ok(driver.cuThreadExchangeStreamCaptureMode(relaxed)) == MODE.CU_STREAM_CAPTURE_MODE_GLOBAL
    ok(driver.cuMemFree(ok(driver.cuMemAlloc(64))))
    ok(driver.cuThreadExchangeStreamCaptureMode(MODE.CU_STREAM_CAPTURE_MODE_GLOBAL))
    ok(driver.cuStreamEndCapture(main))
    begin(main)
    ok(driver.cuMemFree(ok(driver.cuMemAlloc(64))))
    ok(driver.cuStreamEndCapture(main))


def test_the_default_stream_would_wait_for_a_blocking_one() -> None:
    address, _ = device_array(np.zeros(4))
    blocking = ok(driver.cuStreamCreate(0))
    begin(blocking)
    fails(Error.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, driver.cuMemsetD8Async, address, 0, 1, NO_STREAM)
    fails(Error.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, driver.cuStreamEndCapture, blocking)
    fails(
        Error.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        driver.cuStreamBeginCapture,
        NO_STREAM,
        MODE.CU_STREAM_CAPTURE_MODE_RELAXED,
    )


def test_events_outlive_their_capture_as_errors() -> None:
    main, event = stream(), ok(driver.cuEventCreate(0))
    begin(main)
    ok(driver.cuEventRecord(event, main))
    ok(driver.cuStreamEndCapture(main))
    fails(Error.CUDA_ERROR_CAPTURED_EVENT, driver.cuStreamWaitEvent, main, event, 0)
    ok(driver.cuEventRecord(event, main))
    ok(driver.cuStreamWaitEvent(main, event, 0))


def test_destroying_a_capturing_stream() -> None:
    main, side = stream(), stream()
    begin(main)
    fork(main, side)
    ok(driver.cuStreamDestroy(main))
    assert ok(driver.cuStreamIsCapturing(side)) == STATUS.CU_STREAM_CAPTURE_STATUS_NONE
    ok(driver.cuMemFree(ok(driver.cuMemAlloc(64))))


def test_dependencies_can_be_read_and_replaced() -> None:
    log, main = Log(), stream()
    begin(main)
    log.add(0, main)
    log.add(1, main)
    status, _, graph, needs, _, count = ok(driver.cuStreamGetCaptureInfo(main))
    assert (status, count) == (STATUS.CU_STREAM_CAPTURE_STATUS_ACTIVE, 1)
    nodes = ok(driver.cuGraphGetNodes(graph, 2))[0]
    assert int(needs[0]) == int(nodes[1])
    replace = driver.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
    ok(driver.cuStreamUpdateCaptureDependencies(main, [nodes[0]], None, 1, replace))
    log.add(2, main)
    assert edges(graph) == {(0, 1), (0, 2)}
    ok(driver.cuStreamEndCapture(main))


def test_capture_into_a_graph() -> None:
    log, main = Log(), stream()
    graph = ok(driver.cuGraphCreate(0))
    first = ok(driver.cuGraphAddEmptyNode(graph, None, 0))
    ok(driver.cuStreamBeginCaptureToGraph(main, graph, [first], None, 1, MODE.CU_STREAM_CAPTURE_MODE_RELAXED))
    log.add(4, main)
    assert int(ok(driver.cuStreamEndCapture(main))) == int(graph)
    assert edges(graph) == {(0, 1)}

"""Green contexts are made, split, used and ended in any order: each call says what became of its object."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from softgpu import Model
from softgpu.model import describe_time
from softgpu.tests.driver.calls import NO_STREAM, Error, Kernels, device_array, kernel_params, launch, ok, synchronize
from softgpu.tests.driver.partitions import NON_BLOCKING, SM, described, view_of, whole

SMS = 64
OK, DETACHED = Error.CUDA_SUCCESS, Error.CUDA_ERROR_STREAM_DETACHED
INVALID_HANDLE, INVALID_CONTEXT = Error.CUDA_ERROR_INVALID_HANDLE, Error.CUDA_ERROR_INVALID_CONTEXT
DESTROYED = Error.CUDA_ERROR_CONTEXT_IS_DESTROYED
TYPES = (None, ctypes.c_int, ctypes.c_int)
PICK = st.integers(0, 1 << 30)


@pytest.fixture(autouse=True)
def with_sms(library: ctypes.CDLL) -> Iterator[None]:
    assert describe_time(library, 0, Model(sms=SMS)) == 0
    yield
    driver.cuDevicePrimaryCtxReset(0)
    assert describe_time(library, 0, Model()) == 0


@dataclass
class Green:
    handle: Any
    view: Any
    sms: int
    state: Any = OK  # what its calls return


@dataclass
class Stream:
    handle: Any
    green: Green
    state: Any = OK


@dataclass
class Graph:
    instance: Any
    green: Green


@dataclass
class Things:
    partitions: list[Any] = field(default_factory=list)
    greens: list[Green] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    graphs: list[Graph] = field(default_factory=list)


class Orders(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
        self.things, self.ids, self.expected = Things(), set[int](), 0
        self.begin()

    def begin(self) -> None:
        """Memory and code of a new primary context."""
        self.address, self.seen = device_array(np.zeros(1, np.int32))
        self.add = Kernels()["add"]
        self.expected = 0

    def teardown(self) -> None:
        self.work_is_done()
        ok(driver.cuDevicePrimaryCtxReset(0))
        while int(ok(driver.cuCtxGetCurrent())) != 0:
            ok(driver.cuCtxPopCurrent())
        for green in self.things.greens:
            driver.cuGreenCtxDestroy(green.handle)

    @rule(pick=PICK, count=st.integers(1, 4), least=st.integers(0, 20))
    def split(self, pick: int, count: int, least: int) -> None:
        live = [green for green in self.things.greens if green.state == OK]
        of, sms = whole(), SMS
        if live and pick % 2:
            green = live[pick % len(live)]
            of, sms = ok(driver.cuGreenCtxGetDevResource(green.handle, SM)), green.sms
        result, groups, number, _ = driver.cuDevSmResourceSplitByCount(count, of, 0, least)
        size = max(4, least + least % 2)
        fits = least <= sms and size <= sms
        assert (result == OK) == fits
        if fits:
            assert number == min(count, sms // size)
            self.things.partitions = [*groups[:number], *self.things.partitions][:8]

    @precondition(lambda self: self.things.partitions)
    @rule(pick=PICK)
    def create(self, pick: int) -> None:
        partition = self.things.partitions[pick % len(self.things.partitions)]
        handle = ok(driver.cuGreenCtxCreate(described(partition), 0, pick % 2))
        made = Green(handle, view_of(handle), partition.sm.smCount)
        identity = ok(driver.cuGreenCtxGetId(handle))
        assert identity not in self.ids
        self.ids.add(identity)
        assert ok(driver.cuCtxGetDevResource(made.view, SM)).sm.smCount == made.sms
        self.things.greens = [made, *self.things.greens]

    @precondition(lambda self: self.things.greens)
    @rule(pick=PICK)
    def make_stream(self, pick: int) -> None:
        green = self.things.greens[pick % len(self.things.greens)]
        result, handle = driver.cuGreenCtxStreamCreate(green.handle, NON_BLOCKING, 0)
        assert result == green.state
        if result == OK:
            self.things.streams.append(Stream(handle, green))

    @precondition(lambda self: self.things.streams)
    @rule(pick=PICK)
    def launch(self, pick: int) -> None:
        stream = self.things.streams[pick % len(self.things.streams)]
        assert launch(self.add, (self.address, 1, 1), TYPES, block=(1, 1, 1), stream=stream.handle) == stream.state
        self.expected += stream.state == OK

    @precondition(lambda self: self.things.greens)
    @rule(pick=PICK)
    def make_graph(self, pick: int) -> None:
        green = self.things.greens[pick % len(self.things.greens)]
        params = kernel_params(self.add, (self.address, 1, 1), TYPES, block=1)
        params.func, params.kern, params.ctx = driver.CUfunction(0), driver.CUkernel(int(params.func)), green.view
        graph = ok(driver.cuGraphCreate(0))
        result, _ = driver.cuGraphAddKernelNode(graph, None, 0, params)
        assert result == (OK if green.state == OK else INVALID_CONTEXT)
        if result == OK:
            self.things.graphs.append(Graph(ok(driver.cuGraphInstantiate(graph, 0)), green))

    @precondition(lambda self: self.things.graphs)
    @rule(pick=PICK)
    def launch_graph(self, pick: int) -> None:
        graph = self.things.graphs[pick % len(self.things.graphs)]
        live = graph.green.state == OK
        assert driver.cuGraphLaunch(graph.instance, NO_STREAM)[0] == (OK if live else INVALID_CONTEXT)
        self.expected += live

    @precondition(lambda self: self.things.greens)
    @rule(pick=PICK)
    def make_current(self, pick: int) -> None:
        green = self.things.greens[pick % len(self.things.greens)]
        assert driver.cuCtxPushCurrent(green.view)[0] == (OK if green.state == OK else INVALID_CONTEXT)
        if green.state == OK and pick % 3:
            ok(driver.cuCtxPopCurrent())

    @precondition(lambda self: self.things.greens)
    @rule(pick=PICK)
    def wait_for_all(self, pick: int) -> None:
        green, event = self.things.greens[pick % len(self.things.greens)], ok(driver.cuEventCreate(0))
        assert driver.cuGreenCtxRecordEvent(green.handle, event)[0] == green.state
        ok(driver.cuCtxWaitEvent(ok(driver.cuDevicePrimaryCtxRetain(0)), event))
        ok(driver.cuDevicePrimaryCtxRelease(0))
        ok(driver.cuEventDestroy(event))

    @precondition(lambda self: self.things.greens)
    @rule(pick=PICK)
    def destroy(self, pick: int) -> None:
        green = self.things.greens[pick % len(self.things.greens)]
        gone = green.state == INVALID_CONTEXT
        assert driver.cuGreenCtxDestroy(green.handle)[0] == (INVALID_CONTEXT if gone else OK)
        for stream in self.things.streams:
            if stream.green is green and stream.state == OK:
                stream.state = DETACHED
        green.state = INVALID_CONTEXT

    @precondition(lambda self: self.things.streams)
    @rule(pick=PICK)
    def destroy_stream(self, pick: int) -> None:
        stream = self.things.streams[pick % len(self.things.streams)]
        gone = stream.state == INVALID_HANDLE
        assert driver.cuStreamDestroy(stream.handle)[0] == (INVALID_HANDLE if gone else OK)
        stream.state = INVALID_HANDLE

    @rule()
    def reset(self) -> None:
        self.work_is_done()
        ok(driver.cuDevicePrimaryCtxReset(0))
        ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
        for green in self.things.greens:
            green.state = DESTROYED if green.state == OK else green.state
        for stream in self.things.streams:
            stream.state = INVALID_HANDLE
        self.things.graphs.clear()  # their kernels' memory is gone
        self.begin()

    @rule()
    def work_is_done(self) -> None:
        ok(driver.cuCtxPushCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
        synchronize()
        ok(driver.cuDevicePrimaryCtxRelease(0))
        ok(driver.cuCtxPopCurrent())
        assert self.seen[0] == self.expected


def test_any_order() -> None:
    run_state_machine_as_test(Orders)

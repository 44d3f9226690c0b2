"""Modelled time: the clock that events tell, engines, shares. Modelled seconds are exact, so nothing here is timed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cuda.bindings import driver

from softgpu import Model, Takes
from softgpu.model import describe_time
from softgpu.tests.driver.calls import Gate, Kernels, kernel_params, launch, ok, synchronize

pytestmark = pytest.mark.usefixtures("ctx", "modelled")

MIB = 1 << 20
RATE = 400 * MIB  # a MiB takes 2.5 ms
KERNELS = {"empty": Takes(5e-3, 0.5), "touch": Takes(5e-3), "meet": Takes(5e-3, 0.5)}
MODEL = Model(copy_bytes_per_s=RATE, kernels=KERNELS)
NON_BLOCKING = driver.CUstream_flags.CU_STREAM_NON_BLOCKING


@pytest.fixture
def modelled(library: ctypes.CDLL, ctx: Any) -> Iterator[None]:  # noqa: ARG001 - the context ends last
    assert describe_time(library, 0, MODEL) == 0
    yield
    synchronize()
    assert describe_time(library, 0, Model()) == 0


class Lane:
    """A stream with its memory, page-locked and on the device."""

    def __init__(self) -> None:
        self.stream = ok(driver.cuStreamCreate(NON_BLOCKING))
        self.host, self.device = ok(driver.cuMemHostAlloc(MIB, 0)), ok(driver.cuMemAlloc(MIB))
        self.kernels = Kernels()

    def copy_in(self) -> None:
        ok(driver.cuMemcpyHtoDAsync(self.device, int(self.host), MIB, self.stream))

    def copy_out(self) -> None:
        ok(driver.cuMemcpyDtoHAsync(int(self.host), self.device, MIB, self.stream))

    def run(self, name: str) -> None:
        arguments: Any = ((self.device,), (None,)) if name == "touch" else ((), ())
        launch(self.kernels[name], *arguments, stream=self.stream)

    def step(self) -> None:
        """5 ms of copies, then 5 ms of a kernel."""
        self.copy_in()
        self.copy_in()
        self.run("touch")

    def mark(self) -> Any:
        event = ok(driver.cuEventCreate(0))
        ok(driver.cuEventRecord(event, self.stream))
        return event

    def wait(self, event: Any) -> None:
        ok(driver.cuStreamWaitEvent(self.stream, event, 0))


class Run:
    """Lanes that go on together, at the same modelled time, once everything has been submitted."""

    def __init__(self, *lanes: Lane) -> None:
        self.gate, self.lanes = Gate(), lanes
        self.gate.hold(lanes[0].stream)
        self.first = lanes[0].mark()
        for lane in lanes[1:]:
            lane.wait(self.first)

    def spans_ms(self) -> list[float]:
        """Return the time of each lane's work."""
        ends = [lane.mark() for lane in self.lanes]
        self.gate.open.set()
        synchronize()
        return [float(ok(driver.cuEventElapsedTime(self.first, end))) for end in ends]


def near(milliseconds: float) -> Any:
    return pytest.approx(milliseconds, abs=0.01)


def test_a_copy_takes_its_bytes_over_the_rate() -> None:
    lane = Lane()
    run = Run(lane)
    for _ in range(4):
        lane.copy_in()
    assert run.spans_ms() == [near(10)]


def test_copies_in_share_an_engine_and_copies_out_have_another() -> None:
    one, two, out = Lane(), Lane(), Lane()
    run = Run(one, two, out)
    for _ in range(2):
        one.copy_in()
        two.copy_in()
        out.copy_out()
    first, second, third = run.spans_ms()
    assert max(first, second) == near(10)
    assert third == near(5)


def test_kernels_take_a_share_and_queue_above_the_whole() -> None:
    lanes = [Lane() for _ in range(4)]
    run = Run(*lanes)
    for lane in lanes:
        lane.run("empty")
    assert sorted(run.spans_ms()) == [near(5), near(5), near(10), near(10)]


def test_copies_and_kernels_overlap_in_two_streams_only() -> None:
    """Each step copies for 5 ms and computes for 5 ms."""
    alone = Lane()
    run = Run(alone)
    for _ in range(4):
        alone.step()
    (serial,) = run.spans_ms()
    one, two = Lane(), Lane()
    run = Run(one, two)
    for lane in (one, two, one, two):
        lane.step()
    assert serial == near(40)
    assert (
        24 < max(run.spans_ms()) < 0.8 * serial
    )  # 25, or 30 where one stream's second copy came before the other's first


def test_a_late_stream_gets_the_time_that_others_left_free() -> None:
    """`late` really copies behind all copies of `early`, with which it meets; in the model it is there before them."""
    early, late, met = Lane(), Lane(), ok(driver.cuMemAlloc(4))
    ok(driver.cuMemsetD32(met, 0, 1))
    synchronize()  # their streams do not wait for the default one
    run = Run(early, late)
    for step in (early.copy_in, lambda: early.run("empty"), early.copy_in):  # the engine is free from 2.5 to 7.5 ms
        step()
    for lane in (early, late):
        launch(lane.kernels["meet"], (met,), (None,), stream=lane.stream)
    late.copy_in()
    assert run.spans_ms() == [near(15), near(7.5)]


def test_branches_of_a_graph_overlap() -> None:
    lane, graph = Lane(), ok(driver.cuGraphCreate(0))
    params = kernel_params(lane.kernels["empty"], (), ())
    params.kernelParams = 0
    root = ok(driver.cuGraphAddKernelNode(graph, None, 0, params))
    sides = [ok(driver.cuGraphAddKernelNode(graph, [root], 1, params)) for _ in range(2)]
    ok(driver.cuGraphAddKernelNode(graph, sides, 2, params))
    run = Run(lane)
    ok(driver.cuGraphLaunch(ok(driver.cuGraphInstantiate(graph, 0)), lane.stream))
    assert run.spans_ms() == [near(15)]


def test_a_model_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text("copy_bytes_per_s = 2e9\nlaunch_latency_s = 1e-6\n[kernels]\nmul = [0.005, 0.5]\nadd = [0.001]\n")
    kernels = {"mul": Takes(0.005, 0.5), "add": Takes(0.001)}
    assert Model.from_file(path) == Model(2e9, launch_latency_s=1e-6, kernels=kernels)
    path.write_text("copy_rate = 1")
    with pytest.raises(ValueError, match="no model"):
        Model.from_file(path)
    with pytest.raises(ValueError, match="at most 1"):
        Takes(1.0, 1.5)

"""Green contexts through cuda.core, as a user would use them: kernels from PTX, memory, graphs, modelled time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver
from cuda.core import (
    Context,
    ContextOptions,
    Device,
    EventOptions,
    LaunchConfig,
    ObjectCode,
    SMResourceOptions,
    Stream,
    WorkqueueResourceOptions,
    launch,
)

import softgpu as software
from softgpu import Model, Takes
from softgpu.tests.driver.calls import Error, Gate, fails, view
from softgpu.tests.driver.test_memcheck import run

PTX = Path(__file__).with_name("kernels") / "steps.ptx"
ORDINAL = 1
SMS = 132
COUNT = 20_000
TAKES_S = 4e-3


@pytest.fixture
def device(softgpu: tuple[int, ...]) -> Iterator[Device]:  # noqa: ARG001 - they are loaded
    """A device with 132 multiprocessors."""
    software.set_model(ORDINAL, Model(sms=SMS))
    device = Device(ORDINAL)
    device.set_current()
    yield device
    device.set_current()
    device.sync()
    gc.collect()  # its green contexts
    software.set_model(ORDINAL, Model())


def split(device: Device, *counts: int) -> list[Context]:
    """Green contexts with so many multiprocessors."""
    groups, _ = device.resources.sm.split(SMResourceOptions(count=counts))
    return [device.create_context(ContextOptions(resources=[group])) for group in groups]


class Scaling:
    """An array that `scale` multiplies by 2, on the stream of a partition or of the device."""

    def __init__(self, device: Device, stream: Stream, code: ObjectCode, *, blocks: int = 0) -> None:
        self.stream, self.kernel = stream, code.get_kernel("scale")
        buffer = device.allocate(4 * COUNT, stream=stream)
        stream.sync()
        self.buffer, self.seen = buffer, view(buffer.handle, np.float32, COUNT)
        self.seen[:] = 1
        self.config = LaunchConfig(grid=blocks or -(-COUNT // 256), block=256)

    def launch(self, on: Any = None) -> None:
        launch(on or self.stream, self.config, self.kernel, self.buffer, np.float32(2), np.int32(COUNT))


def load() -> ObjectCode:
    return ObjectCode.from_ptx(PTX.read_bytes())


def test_a_device_tells_its_resources(device: Device) -> None:
    sm = device.resources.sm
    assert device.properties.multiprocessor_count == sm.sm_count == SMS
    assert (sm.min_partition_size, sm.coscheduled_alignment) == (4, 2)
    groups, rest = sm.split(SMResourceOptions(count=(8, 24)))
    assert ([group.sm_count for group in groups], rest.sm_count) == ([8, 24], SMS - 32)
    (only,), _ = sm.split(SMResourceOptions(count=None), dry_run=True)
    assert only.sm_count == SMS
    with pytest.raises(Exception, match="CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"):
        sm.split(SMResourceOptions(count=(100, 40)))
    assert "a group of 40 SMs, where 32 are left" in software.last_error()


def test_contexts_and_their_streams(device: Device) -> None:
    small, large = split(device, 8, 24)
    assert (small.is_green, small.resources.sm.sm_count) == (True, 8)
    stream = large.create_stream()
    assert stream.context == large
    assert stream.resources.sm.sm_count == 24
    with pytest.raises(Exception, match="green"):
        device.create_stream().context.create_stream()
    queue = device.resources.workqueue
    queue.configure(WorkqueueResourceOptions(concurrency_limit=4))
    groups, _ = device.resources.sm.split(SMResourceOptions(count=16))
    context = device.create_context(ContextOptions(resources=[groups[0], queue]))
    assert context.resources.workqueue.concurrency_limit == 4


def test_kernels_on_several_partitions_at_once(device: Device) -> None:
    """Each partition's results are right, on memory and code of the primary context, also from threads of their own."""
    code = load()
    runs = [Scaling(device, context.create_stream(), code) for context in split(device, 8, 24, 60)]
    runs.append(Scaling(device, device.create_stream(), code))

    def work(scaling: Scaling) -> None:
        device.set_current()
        for _ in range(6):
            scaling.launch()
        scaling.stream.sync()

    with ThreadPoolExecutor(len(runs)) as threads:
        list(threads.map(work, runs))
    for scaling in runs:
        np.testing.assert_array_equal(scaling.seen, np.full(COUNT, 64, np.float32))


def test_a_green_context_that_is_current(device: Device) -> None:
    (partition,) = split(device, 16)
    before = device.set_current(partition)
    assert before is not None
    assert not before.is_green
    scaling = Scaling(device, device.create_stream(), load())
    assert scaling.stream.context == partition
    scaling.launch()
    scaling.stream.sync()
    device.set_current(before)
    assert (scaling.seen == 2).all()


def test_streams_and_contexts_end_in_either_order(device: Device) -> None:
    code = load()
    first, second = split(device, 8, 24)
    scalings = [Scaling(device, context.create_stream(), code) for context in (first, second)]
    for scaling in scalings:
        scaling.launch()
    first.close()
    second.close()
    for scaling in scalings:  # each stream keeps its context
        scaling.launch()
        scaling.stream.sync()
        assert (scaling.seen == 4).all()
        scaling.stream.close()
    del first, second, scaling
    raw = split(device, 8)[0].create_stream()
    handle = raw.handle
    raw.close()
    gc.collect()
    fails(Error.CUDA_ERROR_INVALID_HANDLE, driver.cuStreamSynchronize, handle)


def test_a_graph_of_two_partitions(device: Device) -> None:
    """Captured in streams of two partitions, launched in a third: each kernel stays in the partition of its stream."""
    code = load()
    contexts = split(device, 8, 24)
    scaling, other = (Scaling(device, context.create_stream(), code) for context in contexts)
    builder = scaling.stream.create_graph_builder().begin_building("relaxed")
    scaling.launch(builder)
    graph = builder.end_building().complete()
    inner = other.stream.create_graph_builder().begin_building("relaxed")
    other.launch(inner)
    second = inner.end_building().complete()
    stream = device.create_stream()
    for _ in range(3):
        graph.launch(stream)
        second.launch(stream)
    stream.sync()
    assert (scaling.seen == 8).all()
    assert (other.seen == 8).all()


def took_s(scaling: Scaling, times: int) -> float:
    """The modelled time of some launches."""
    options, gate = EventOptions(timing_enabled=True), Gate()
    gate.hold(scaling.stream.handle)  # until all is submitted: the time between two submissions does not count
    begin = scaling.stream.record(options=options)
    for _ in range(times):
        scaling.launch()
    end = scaling.stream.record(options=options)
    gate.open.set()
    end.sync()
    return float(end - begin) / 1e3


def test_throughput_over_multiprocessors(device: Device) -> None:
    """A kernel of 60 blocks is three times as fast on 60 multiprocessors as on 24, and no faster on more."""
    blocks, code = 60, load()
    software.set_model(ORDINAL, Model(sms=SMS, kernels={"scale": Takes(TAKES_S)}))
    rates = {}
    for sms in (8, 16, 24, 32, 60, 80, SMS):
        (context,) = split(device, sms)
        scaling = Scaling(device, context.create_stream(), code, blocks=blocks)
        took = took_s(scaling, 3)
        assert took == pytest.approx(3 * TAKES_S * ceil(blocks / sms), abs=1e-5)
        rates[sms] = round(3 * TAKES_S / took, 2)
    assert rates == {8: 0.12, 16: 0.25, 24: 0.33, 32: 0.5, 60: 1, 80: 1, SMS: 1}


def test_the_number_of_multiprocessors_stays_while_partitions_are_in_use(device: Device) -> None:
    (context,) = split(device, 8)
    with pytest.raises(software.SoftgpuError, match="green contexts"):
        software.set_model(ORDINAL, Model(sms=64))
    del context
    gc.collect()
    software.set_model(ORDINAL, Model(sms=64))
    assert device.resources.sm.sm_count == 64


CHECKED = """
import ctypes, sys
import softgpu
softgpu.load([softgpu.Device(64 << 20, softgpu.Model(sms=16))])
from cuda.bindings import driver
from softgpu.tests.driver.calls import Kernels, ok
from softgpu.tests.driver.partitions import green_of, partitions, stream_of
from softgpu.tests.driver.test_end_to_end import PTX
ok(driver.cuInit(0))
ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
scale = Kernels(PTX.read_bytes() + b"\\0")["scale"]
count, beyond = 1000, int(sys.argv[2])
x = ok(driver.cuMemAlloc(8 * count))
greens = [green_of(partition) for partition in partitions(8, 2)[0]]
for green, half in zip(greens, sys.argv[1]):
    args = ((int(x) + int(half) * count * 4, 2.0, count + beyond), (ctypes.c_void_p, ctypes.c_float, ctypes.c_int))
    ok(driver.cuLaunchKernel(scale, 8, 1, 1, 256, 1, 1, 0, stream_of(green), args, 0))
print(driver.cuCtxSynchronize()[0].name, softgpu.last_error())
"""


@pytest.mark.processes
def test_checks_of_memory_and_order_hold_in_partitions() -> None:
    """Strict mode finds a race of two partitions, and memcheck an access behind a buffer."""
    assert run("-c", CHECKED, "01", "0", SOFTGPU_STRICT="1").startswith("CUDA_SUCCESS")
    assert "a race: kernel scale in stream " in run("-c", CHECKED, "00", "0", SOFTGPU_STRICT="1")
    assert run("-c", CHECKED, "01", "0", SOFTGPU_MEMCHECK="1").startswith("CUDA_SUCCESS")
    assert run("-c", CHECKED, "01", "24", SOFTGPU_MEMCHECK="1").startswith("CUDA_ERROR_ILLEGAL_ADDRESS kernel scale: ")

"""Modelled time on multiprocessors (SMs): waves, partitions, kernels beside each other, shared bandwidth."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from cuda.bindings import driver

from softgpu import Model, Takes
from softgpu.model import describe_time
from softgpu.tests.driver.calls import Error, Gate, Kernels, fails, kernel_params, launch, ok, synchronize
from softgpu.tests.driver.partitions import NON_BLOCKING, green_of, partitions, stream_of, view_of, whole

pytestmark = pytest.mark.usefixtures("ctx", "modelled")

SMS, MS = 100, 1e-3
TAKES_MS = 10
BLOCKS_PER_SM = 2
HALF, SOME, MOST = "touch", "add", "vecadd"
"""Kernels of kernels.c: a share of the device; 0.3 and 0.8 of its bandwidth; "empty" has waves."""
MODEL = Model(
    sms=SMS,
    blocks_per_sm=BLOCKS_PER_SM,
    kernels={
        "empty": Takes(TAKES_MS * MS),
        HALF: Takes(TAKES_MS * MS, share=0.5),
        SOME: Takes(TAKES_MS * MS, bandwidth=0.3),
        MOST: Takes(TAKES_MS * MS, bandwidth=0.8),
    },
)
Work = tuple[str, int]  # a kernel, and its blocks


@pytest.fixture
def modelled(library: ctypes.CDLL, ctx: Any) -> Iterator[None]:  # noqa: ARG001 - the context ends last
    assert describe_time(library, 0, MODEL) == 0
    yield
    driver.cuDevicePrimaryCtxReset(0)
    assert describe_time(library, 0, Model()) == 0


def near(milliseconds: float) -> Any:
    return pytest.approx(milliseconds, abs=0.01)


def stream() -> Any:
    return ok(driver.cuStreamCreate(NON_BLOCKING))


def arguments(name: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Values and types with which a kernel changes no memory."""
    address = ok(driver.cuMemAlloc(512))
    return {
        HALF: ((address,), (None,)),
        SOME: ((address, 0, 0), (None, ctypes.c_int, ctypes.c_int)),
        MOST: ((address, address, address, 0), (None, None, None, ctypes.c_int)),
    }.get(name, ((), ()))


def spans_ms(*lanes: tuple[Any, Sequence[Work]]) -> list[float]:
    """The end of each stream's work; the work of all began together."""
    gate, first, begin, ends = Gate(), ok(driver.cuEventCreate(0)), stream(), []
    gate.hold(begin)
    ok(driver.cuEventRecord(first, begin))
    for on, works in lanes:
        ok(driver.cuStreamWaitEvent(on, first, 0))
        for name, blocks in works:
            assert launch(Kernels()[name], *arguments(name), grid=(blocks, 1, 1), stream=on) == 0
        ends.append(ok(driver.cuEventCreate(0)))
        ok(driver.cuEventRecord(ends[-1], on))
    gate.open.set()
    synchronize()
    return [float(ok(driver.cuEventElapsedTime(first, end))) for end in ends]


@pytest.mark.parametrize("blocks", [1, 30, 100, 400])
def test_throughput_over_multiprocessors_rises_and_is_then_flat(blocks: int) -> None:
    """The paper's Figure 8: from the multiprocessors that a kernel's blocks fill on, more are of no use."""
    sizes, rates = (6, 12, 24, 50, 60, 80, 100), []
    for size in sizes:
        (partition,), _ = partitions(size, 1)
        (took,) = spans_ms((stream_of(green_of(partition)), [("empty", blocks)] * 2))
        waves = [ceil(blocks / (sms * BLOCKS_PER_SM)) for sms in (size, SMS)]
        assert took == near(2 * TAKES_MS * waves[0] / waves[1])
        rates.append(2 / took)
    filled = ceil(blocks / BLOCKS_PER_SM)
    assert rates == sorted(rates)
    flat = [rate for size, rate in zip(sizes, rates, strict=True) if size >= filled]
    assert flat == [pytest.approx(rates[-1])] * len(flat)
    assert filled <= sizes[0] or rates[0] < 0.6 * rates[-1]


def test_partitions_beside_each_other_do_not_delay_each_other() -> None:
    (one, two), _ = partitions(50, 2)
    lanes = [(stream_of(green_of(partition)), [("empty", 200)] * 3) for partition in (one, two)]
    assert spans_ms(lanes[0]) == [near(60)]
    assert spans_ms(*lanes) == [near(60), near(60)]


def test_kernels_of_one_partition_queue() -> None:
    (partition,), _ = partitions(50, 1)
    green = green_of(partition)
    assert sorted(spans_ms(*[(stream_of(green), [("empty", 100)]) for _ in range(3)])) == [near(10), near(20), near(30)]


def ends_ms(*works: tuple[Any, str, int]) -> list[float]:
    """The ends of kernels that begin together: nodes without edges, each in its context, booked in this order."""
    graph, gate, on, first = ok(driver.cuGraphCreate(0)), Gate(), stream(), ok(driver.cuEventCreate(0))
    ends = [ok(driver.cuEventCreate(0)) for _ in works]
    for (context, name, blocks), end in zip(works, ends, strict=True):
        values = arguments(name)  # alive until the driver has read them
        params = kernel_params(Kernels()[name], *values, grid=blocks)
        params.func, params.kern, params.ctx = driver.CUfunction(0), driver.CUkernel(int(params.func)), context
        node = ok(driver.cuGraphAddKernelNode(graph, None, 0, params))
        ok(driver.cuGraphAddEventRecordNode(graph, [node], 1, end))
    instance = ok(driver.cuGraphInstantiate(graph, 0))
    gate.hold(on)
    ok(driver.cuEventRecord(first, on))
    ok(driver.cuGraphLaunch(instance, on))
    gate.open.set()
    synchronize()
    return [float(ok(driver.cuEventElapsedTime(first, end))) for end in ends]


@pytest.fixture
def primary(ctx: Any) -> Any:
    return ctx


def views(*sizes: int) -> list[Any]:
    """The contexts of partitions of these sizes."""
    params = [driver.CU_DEV_SM_RESOURCE_GROUP_PARAMS() for _ in sizes]
    for each, size in zip(params, sizes, strict=True):
        each.smCount = size
    groups, _ = ok(driver.cuDevSmResourceSplit(len(sizes), whole(), 0, params))
    return [view_of(green_of(group)) for group in groups]


def test_a_kernel_on_the_whole_device_waits_for_the_partitions(primary: Any) -> None:
    small, other = views(12, 24)
    assert ends_ms((small, "empty", 48), (other, "empty", 48), (primary, "empty", 200)) == [
        near(20),
        near(10),
        near(30),
    ]


def test_partitions_wait_for_a_kernel_on_the_whole_device(primary: Any) -> None:
    small, other = views(12, 24)
    works = (primary, "empty", 200), (small, "empty", 24), (other, "empty", 48)
    assert ends_ms(*works) == [near(10), near(20), near(20)]


def test_a_kernel_with_few_blocks_holds_the_multiprocessors_that_it_fills(primary: Any) -> None:
    assert ends_ms(*[(primary, "empty", 80)] * 3) == [near(10), near(10), near(20)]
    assert ends_ms(*[(primary, "empty", 1)] * (SMS + 1)) == [near(10)] * SMS + [near(20)]


def test_a_kernel_beside_others_takes_what_they_leave(primary: Any) -> None:
    """One on 60 multiprocessors of the device finds room beside the first, one on all of its partition does not."""
    half, rest = views(50, 50)
    works = (half, "empty", 80), (primary, "empty", 120), (rest, "empty", 100), (half, "empty", 20)
    assert ends_ms(*works) == [near(10), near(10), near(20), near(20)]


def test_partitions_that_overlap_share_what_both_have() -> None:
    """Two splits of the same device."""
    (wide,), (narrow,) = views(60), views(20)
    assert ends_ms((wide, "empty", 120), (narrow, "empty", 40)) == [near(10), near(20)]
    assert ends_ms((narrow, "empty", 40), (wide, "empty", 80)) == [near(10), near(10)]


def test_a_partition_bounds_kernels_with_a_share(primary: Any) -> None:
    """A kernel that takes half of the device for 10 ms does the same in 20 ms on a quarter."""
    quarter, partition = views(24, 76)
    assert ends_ms((quarter, HALF, 1)) == [near(10 * 50 / 24)]
    assert ends_ms(*[(partition, HALF, 1)] * 2) == [near(10), near(20)]
    assert ends_ms(*[(primary, HALF, 1)] * 3) == [near(10), near(10), near(20)]


def test_a_share_without_multiprocessors_in_the_model(library: ctypes.CDLL, primary: Any) -> None:
    assert describe_time(library, 0, Model(kernels={"empty": Takes(10 * MS), HALF: Takes(10 * MS, 0.5)})) == 0
    assert ends_ms((primary, HALF, 1), (primary, HALF, 1), (primary, "empty", 1)) == [near(10), near(10), near(20)]


def test_kernels_share_the_bandwidth(primary: Any) -> None:
    """The second gets a quarter of what it uses until the first ends: 2.5 of its 10 ms are done then."""
    assert ends_ms((primary, MOST, 20), (primary, MOST, 20)) == [near(10), near(17.5)]
    assert ends_ms((primary, SOME, 20), (primary, SOME, 20), (primary, SOME, 20)) == [near(10)] * 3
    assert ends_ms((primary, "empty", 20), (primary, MOST, 20)) == [near(10)] * 2


def test_nothing_is_done_while_others_use_all_the_bandwidth(library: ctypes.CDLL, primary: Any) -> None:
    assert describe_time(library, 0, replace(MODEL, kernels={"empty": Takes(10 * MS, bandwidth=1.0)})) == 0
    assert ends_ms(*[(primary, "empty", 20)] * 3) == [near(10), near(20), near(30)]


def test_a_partition_slows_the_use_of_the_bandwidth() -> None:
    """On a tenth of the device a kernel takes ten times as long, and uses a tenth of the bandwidth meanwhile."""
    small, big = views(10, 90)
    assert ends_ms((small, MOST, 200), (big, MOST, 180)) == [near(100), near(10)]


def test_a_graph_whose_node_moves_to_another_partition() -> None:
    small, big = views(10, 50)
    graph, on = ok(driver.cuGraphCreate(0)), stream()
    params = kernel_params(Kernels()["empty"], (), (), grid=200)
    params.func, params.kern, params.ctx = driver.CUfunction(0), driver.CUkernel(int(params.func)), small
    params.kernelParams = 0
    node = ok(driver.cuGraphAddKernelNode(graph, None, 0, params))
    instance, took = ok(driver.cuGraphInstantiate(graph, 0)), []
    for context in (small, big):
        params.ctx = context
        ok(driver.cuGraphExecKernelNodeSetParams(instance, node, params))
        gate, first, last = Gate(), ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
        gate.hold(on)
        ok(driver.cuEventRecord(first, on))
        ok(driver.cuGraphLaunch(instance, on))
        ok(driver.cuEventRecord(last, on))
        gate.open.set()
        synchronize()
        took.append(ok(driver.cuEventElapsedTime(first, last)))
    assert took == [near(100), near(20)]


def test_a_cooperative_launch_fits_its_partition() -> None:
    """The blocks for which the partition has room at once, and no more."""
    (partition,), _ = partitions(12, 1)
    kernel, on = Kernels()["empty"], stream_of(green_of(partition))
    each = ok(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel, 256, 0))
    ok(driver.cuLaunchCooperativeKernel(kernel, 12 * each, 1, 1, 256, 1, 1, 0, on, 0))
    fails(
        Error.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
        driver.cuLaunchCooperativeKernel,
        *(kernel, 12 * each + 1, 1, 1, 256, 1, 1, 0, on, 0),
    )
    ok(driver.cuLaunchCooperativeKernel(kernel, SMS * each, 1, 1, 256, 1, 1, 0, stream(), 0))


def test_models_that_are_refused(tmp_path: Path) -> None:
    for sms, blocks_per_sm in ((0, 1), (513, 1), (8, 0)):
        with pytest.raises(ValueError, match="multiprocessors"):
            Model(sms=sms, blocks_per_sm=blocks_per_sm)
    with pytest.raises(ValueError, match="bandwidth"):
        Takes(1.0, bandwidth=1.5)
    path = tmp_path / "model.toml"
    path.write_text(
        "sms = 132\nblocks_per_sm = 4\n[kernels]\nmul = {seconds = 0.005, bandwidth = 0.5}\nadd = [0.001]\n"
    )
    kernels = {"mul": Takes(0.005, None, 0.5), "add": Takes(0.001)}
    assert Model.from_file(path) == Model(kernels=kernels, sms=132, blocks_per_sm=4)

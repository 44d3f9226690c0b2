"""Parts of a device's SMs: requests of different shares have different ones, and kernels run on no others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

import kaas
import softgpu as software
from kaas.executor.client_slots import Isolation
from kaas.executor.device.device import open_device
from kaas.executor.device.partitions import Partitions, SmPartition
from kaas.executor.executor import Executor, RunRequest
from softgpu import Model, Takes

SMS, STEP, TAKES_S = 128, 4, 0.002
CODE = """.version 8.0
.target sm_80
.address_size 64
.visible .entry full(.param .u64 y) { .reg .b64 %y; ld.param.u64 %y, [y]; st.global.u32 [%y], 7; ret; }"""


@pytest.fixture
def with_sms(softgpu: tuple[int, ...]) -> Iterator[None]:  # noqa: ARG001
    """Device 1 has SMs, and the kernel `full` a block for each."""
    software.set_model(1, Model(sms=SMS, kernels={"full": Takes(TAKES_S)}))
    yield
    software.set_model(1, Model())


@pytest.fixture
def partitions(with_sms: None) -> Iterator[Partitions]:  # noqa: ARG001
    opened = open_device("software", 1)
    with opened.context:
        yield opened.partitions
    opened.close()


def groups(partitions: Partitions, partition: SmPartition | None) -> set[int]:
    """Return the numbers of the least partitions that a partition has."""
    return {group for made, each in partitions._made.items() if each is partition for group in made}


def test_a_device_says_its_sms_and_the_least_partition(partitions: Partitions) -> None:
    assert partitions.sizes == (SMS, STEP)


def test_a_device_of_few_sms_cannot_be_divided(softgpu: tuple[int, ...]) -> None:  # noqa: ARG001
    software.set_model(1, Model(sms=2, kernels={"full": Takes(TAKES_S)}))
    opened = open_device("software", 1)
    with opened.context, opened.partitions.taken("a", 1) as partition:
        assert (opened.partitions.sizes, partition) == ((1, 1), None)
    opened.close()
    software.set_model(1, Model())


def test_requests_of_different_shares_have_different_sms(partitions: Partitions) -> None:
    with partitions.taken("a", 32) as a, partitions.taken("b", 64) as b, partitions.taken("", 32) as others:
        taken = [groups(partitions, each) for each in (a, b, others)]
        assert [len(each) * STEP for each in taken] == [32, 64, 32]
        assert len(set.union(*taken)) * STEP == SMS


def test_requests_of_one_share_have_the_same_sms(partitions: Partitions) -> None:
    with partitions.taken("", 96) as one, partitions.taken("a", 32) as a, partitions.taken("", 64) as two:
        assert groups(partitions, two) < groups(partitions, one)
        assert not groups(partitions, a) & groups(partitions, one)
        with partitions.taken("", 96) as three:
            assert three is one


def test_a_partition_is_made_once(partitions: Partitions) -> None:
    for _ in range(3):
        with partitions.taken("b", 64), partitions.taken("a", 32):
            pass
    with partitions.taken("a", 32), partitions.taken("b", 64):
        pass
    assert len(partitions._made) == 2, "a share gets the SMs that it had last"


def test_sms_that_are_free_in_pieces_are_given(partitions: Partitions) -> None:
    with ExitStack() as held:
        pieces = [held.enter_context(ExitStack()) for _ in range(4)]
        for number, piece in enumerate(pieces):
            piece.enter_context(partitions.taken(f"{number}", 32))
        pieces[0].close()
        pieces[2].close()
        partition = held.enter_context(partitions.taken("wide", 64))
        assert groups(partitions, partition) == {*range(8), *range(16, 24)}


def test_all_sms_are_the_whole_device(partitions: Partitions) -> None:
    for sms in (0, SMS, SMS + 4):
        with partitions.taken("a", sms) as partition:
            assert partition is None
    assert not partitions._made


@pytest.mark.usefixtures("with_sms")
@pytest.mark.parametrize("isolation", ["none", "fence"])
def test_kernels_run_on_the_sms_of_their_request(isolation: Isolation) -> None:
    """A quarter of the SMs takes four times as long, by the device's model."""
    y = kaas.Buffer("y", 1, "uint32")
    task = kaas.KTask([kaas.Kernel(kaas.Library.from_ptx(CODE), "full", SMS, 1, [kaas.Out(y)])], [y])

    def seconds(sms: int) -> float:
        """Return the modelled time of the kernel; a thread that the machine stops between two calls adds to it."""
        runs = [executor.run(RunRequest(task, {}, {}, "alice", share="a", sms=sms)) for _ in range(5)]
        assert {int(run.outputs["y"][0]) for run in runs} == {7}
        return min(run.stats.stages["kernels"] for run in runs)

    with closing(Executor(open_device("software", 1), slots=2, isolation=isolation)) as executor:
        taken = [seconds(sms) / TAKES_S for sms in (0, 64, 32, 0, 32)]
    assert taken == pytest.approx([1, 2, 4, 1, 4], rel=0.1)

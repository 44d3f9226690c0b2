"""Parts of a device's SMs: requests of different shares have different ones, and kernels run on no others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from random import Random

import pytest

import kaas
import softgpu as software
from kaas.executor.client_slots import Isolation
from kaas.executor.device.device import open_device
from kaas.executor.device.partitions import MOST_PARTITIONS, Partitions, SmPartition
from kaas.executor.executor import Executor, RunRequest
from kaas.executor.plan.graph_cache import MAX_PARTITION_KERNELS
from kaas.ktask.request import encode_scalars
from softgpu import Model, Takes
from tests.executor.conftest import graphs_of

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


def test_no_more_partitions_are_made_than_a_device_has_memory_for(partitions: Partitions) -> None:
    """Shares of many sizes that come and go leave free SMs in ever other pieces."""
    random, held, sizes = Random(1), list[ExitStack](), range(STEP, SMS // 2, STEP)
    with ExitStack() as end:
        for number in range(3000):
            if len(held) > 3:
                held.pop(random.randrange(len(held))).close()
            held.append(end.enter_context(ExitStack()))
            sms = random.choice(sizes)
            partition = held[-1].enter_context(partitions.taken(f"{number}", sms))
            assert partition is not None
            assert partition.sms == sms == len(groups(partitions, partition)) * STEP
    assert len(partitions._made) <= MOST_PARTITIONS + len(sizes)


@pytest.mark.usefixtures("with_sms")
@pytest.mark.parametrize("isolation", ["none", "fence"])
@pytest.mark.parametrize("profile", [False, True])
def test_kernels_run_on_the_sms_of_their_request(isolation: Isolation, *, profile: bool) -> None:
    """A quarter of the SMs takes four times as long, by the device's model."""
    y = kaas.Buffer("y", 1, "uint32")
    task = kaas.KTask([kaas.Kernel(kaas.Library.from_ptx(CODE), "full", SMS, 1, [kaas.Out(y)])], [y])

    def seconds(sms: int) -> float:
        """Return the modelled time of the kernel; a thread that the machine stops between two calls adds to it."""
        runs = [executor.run(RunRequest(task, {}, {}, "alice", profile, share="a", sms=sms)) for _ in range(5)]
        assert {int(run.outputs["y"][0]) for run in runs} == {7}
        return min(run.stats.kernels[0].seconds if profile else run.stats.stages["kernels"] for run in runs)

    with closing(Executor(open_device("software", 1), slots=2, isolation=isolation)) as executor:
        taken = [seconds(sms) / TAKES_S for sms in (0, 64, 32, 0, 32)]
    assert taken == pytest.approx([1, 2, 4, 1, 4], rel=0.1)


@pytest.mark.usefixtures("with_sms")
@pytest.mark.parametrize("kernels", [8, MAX_PARTITION_KERNELS + 1])
def test_requests_on_ever_other_sms_have_their_graphs_and_no_more_than_have_room(kernels: int) -> None:
    """Of 8 kernels, graphs of 128 fill the room. The last request needs the oldest of these, and a shorter one."""
    y = kaas.Buffer("y", 1, "uint32")
    kernel = kaas.Kernel(kaas.Library.from_ptx(CODE), "full", 1, 1, [kaas.Out(y)])
    task = kaas.KTask([kernel] * kernels, [y], iterations=kaas.Scalar("times", "u32"))
    long = 64 if kernels == 8 else 1

    with closing(Executor(open_device("software", 1), slots=1)) as executor:
        for number, times in [*((number, long) for number in range(8)), (0, long + 4)]:
            scalars = encode_scalars(task, {"times": times})
            run = executor.run(RunRequest(task, {}, scalars, share="a", sms=(number + 1) * STEP))
            assert int(run.outputs["y"][0]) == 7
        made = graphs_of(executor, task)._chains
        of_partitions = [length * kernels for length, partition in made if partition is not None]
    assert sum(of_partitions) <= MAX_PARTITION_KERNELS or len(of_partitions) == 1

"""Constants that executors of several clients share: which are held, for how long, and by which process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kaas.config import Device
from kaas.pool.on_processes import holders
from kaas.pool.on_processes.holders import HELD_AT_MOST, Holder
from kaas.pool.on_processes.objects import HeldObject, HeldObjects, key_of
from kaas.wire.connections.shared_memory import Inbox
from softgpu import Fault
from tests.loops import run

pytestmark = pytest.mark.processes

MIB = 1 << 20


class Place:
    """A holder with room for three of the constants that `constants` makes."""

    def __init__(self, limit_bytes: int = 64 * MIB, parts: int = 2, faults: tuple[Fault, ...] = ()) -> None:
        self.objects = HeldObjects(Inbox())
        self.holder = Holder(Device("software", 12 * MIB, faults=faults), parts, limit_bytes, 120.0)

    async def constants(self, number: int, nbytes: int = MIB) -> HeldObject:
        """Two values, together."""
        values = [bytes([number]) * nbytes, bytes([number, 1, 2])]
        return self.objects.together([await self.objects.hold(key_of(each), each) for each in values])

    async def held(self, *all_constants: HeldObject) -> list[bool]:
        """Hold each, and return which of them are held then."""
        for each in all_constants:
            await self.holder.hold(each)
        return [not self.holder.lacks(each) for each in all_constants]


def play(scenario: Callable[[Place], Awaitable[None]], **options: Any) -> None:
    async def whole() -> None:
        place = Place(**options)
        try:
            await scenario(place)
        finally:
            place.holder.close()
            place.objects.close()

    run(whole())


def test_the_values_are_in_the_memory_where_the_parts_say() -> None:
    async def scenario(place: Place) -> None:
        constants = await place.constants(7)
        assert place.holder.parts(1, constants) == ()
        assert await place.held(constants) == [True]
        first, second = place.holder.parts(1, constants)
        assert os.pread(first.file, first.nbytes, first.offset_bytes) == b"\7" * MIB
        assert os.pread(second.file, second.nbytes, second.offset_bytes) == b"\7\1\2"
        assert (first.whole_bytes, second.offset_bytes % 512) == (2 * MIB, 0)
        assert place.holder.held_bytes == 2 * MIB

    play(scenario)


def test_only_constants_that_are_worth_it_are_lacking() -> None:
    async def scenario(place: Place) -> None:
        small, large = await place.constants(1, 1000), await place.constants(2)
        single = await place.objects.hold(b"k" * 28, bytes(2 * MIB))
        assert [place.holder.lacks(each) for each in (small, large, single, None)] == [False, True, False, False]

    play(scenario)


def test_constants_leave_that_no_worker_has_those_used_longest_ago_first() -> None:
    async def scenario(place: Place) -> None:
        first, second, third, fourth, fifth = [await place.constants(number) for number in range(5)]
        assert all(await place.held(first, second, third))
        for worker, constants in ((1, second), (2, first), (1, first)):
            assert place.holder.parts(worker, constants)
        assert await place.held(fourth) == [True]
        assert [place.holder.lacks(each) for each in (first, second, third)] == [False, False, True]
        assert place.holder.parts(2, fourth)
        assert await place.held(fifth) == [False]  # there is no room, and all stay
        assert not place.holder.lacks(fourth)
        place.holder.left(1)
        assert await place.held(fifth) == [True]
        assert [place.holder.lacks(each) for each in (first, second)] == [False, True]
        assert place.holder.held_bytes == 6 * MIB

    play(scenario)


@pytest.mark.parametrize("limits", [{"limit_bytes": MIB}, {"parts": 12}])
def test_constants_beyond_the_limits_are_not_held(limits: dict[str, int]) -> None:
    async def scenario(place: Place) -> None:
        assert await place.held(await place.constants(1)) == [False]
        assert place.holder.held_bytes == 0

    play(scenario, **limits)


def test_constants_are_held_again_after_a_device_without_memory() -> None:
    async def scenario(place: Place) -> None:
        first, second = await place.constants(1), await place.constants(2)
        assert await place.held(first) == [False]
        assert place.holder.held_bytes == 0
        assert await place.held(second, first) == [True, True]

    play(scenario, faults=(Fault("out_of_memory", at=1),))


def test_no_more_are_held_than_the_pool_has_descriptors_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert HELD_AT_MOST <= 256
    monkeypatch.setattr(holders, "HELD_AT_MOST", 2)

    async def scenario(place: Place) -> None:
        each = [await place.constants(number) for number in range(3)]
        assert all(await place.held(*each[:2]))
        before = len(os.listdir("/proc/self/fd"))
        assert await place.held(each[2]) == [True]
        assert len(os.listdir("/proc/self/fd")) == before
        assert place.holder.lacks(each[0])

    play(scenario)


def test_two_that_need_the_same_constants_get_one_memory() -> None:
    async def scenario(place: Place) -> None:
        constants = await place.constants(1)
        await asyncio.gather(place.holder.hold(constants), place.holder.hold(constants))
        assert place.holder.held_bytes == 2 * MIB

    play(scenario)


def test_constants_outlive_the_process_and_the_next_ones_start_another() -> None:
    async def scenario(place: Place) -> None:
        first, second = await place.constants(1), await place.constants(2)
        assert await place.held(first) == [True]
        process = place.holder._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        assert await place.held(second, first) == [True, True]
        assert place.holder._process is not process
        (part, _) = place.holder.parts(1, first)
        assert os.pread(part.file, 8, 0) == b"\1" * 8

    play(scenario)


def test_a_process_that_stands_still_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(place: Place) -> None:
        first, second = await place.constants(1), await place.constants(2)
        assert await place.held(first) == [True]
        process = place.holder._process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        monkeypatch.setattr(holders, "MAKE_LIMIT_S", 0.0)
        assert await place.held(second) == [False]
        assert place.holder._process is None
        while not process.ended:
            await asyncio.sleep(0)
        assert not Path(f"/proc/{process.pid}").exists()
        monkeypatch.undo()
        assert await place.held(second) == [True]

    play(scenario)

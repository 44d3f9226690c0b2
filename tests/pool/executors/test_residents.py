"""The outputs that stay on devices, until their arrays come back or are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kaas.pool.executors import residents as module
from kaas.pool.executors.residents import Residents
from tests.timeouts import TIMEOUT_S


class Invocation:
    def lost(self, key: bytes) -> tuple[str, bytes]:
        return "lost", key


def play(scenario: Callable[[Residents], Awaitable[None]]) -> None:
    async def main() -> None:
        residents = Residents(asyncio.get_running_loop())
        residents.worker_came(0)
        residents.worker_came(1)
        await scenario(residents)
        assert len(residents) == 0

    asyncio.run(asyncio.wait_for(main(), timeout=TIMEOUT_S))


def keep(residents: Residents, key: bytes, worker: int = 0) -> asyncio.Task[object]:
    residents.expect(key, Invocation())
    residents.placed(key, worker)
    return asyncio.get_running_loop().create_task(residents.value(key))


def test_an_array_is_written_back_once() -> None:
    async def scenario(residents: Residents) -> None:
        one, other = keep(residents, b"1"), keep(residents, b"2", worker=1)
        assert (residents.ask(b"1"), residents.ask(b"2"), residents.ask(b"3")) == (0, 1, None)
        residents.written(b"1", "array")
        assert residents.ask(b"1") is None
        residents.written(b"1", "another")
        residents.lost(b"1")
        assert await one == "array"
        assert not other.done()
        residents.written(b"2", "array")
        residents.written(b"3", "nobody's")
        assert await other == "array"

    play(scenario)


def test_a_wait_for_arrays_ends_when_all_have_arrived_or_are_lost() -> None:
    async def scenario(residents: Residents) -> None:
        values = [keep(residents, b"1"), keep(residents, b"2", worker=1)]
        coming = asyncio.get_running_loop().create_task(residents.come([b"1", b"2", b"nobody's"]))
        await asyncio.sleep(0)
        residents.written(b"1", "array")
        await values[0]
        assert not coming.done()
        residents.worker_left(1)
        await coming
        assert await values[1] == ("lost", b"2")
        await residents.come([b"1"])

    play(scenario)


def test_an_array_may_arrive_before_its_invocation_has_ended() -> None:
    async def scenario(residents: Residents) -> None:
        residents.expect(b"1", Invocation())
        assert residents.ask(b"1") is None
        residents.written(b"1", "array")
        residents.placed(b"1", 0)
        residents.worker_left(0)
        assert await residents.value(b"1") == "array"

    play(scenario)


def test_the_arrays_of_a_worker_are_lost_with_it() -> None:
    async def scenario(residents: Residents) -> None:
        one, other = keep(residents, b"1"), keep(residents, b"2", worker=1)
        residents.worker_left(0)
        assert await one == ("lost", b"1")
        assert await keep(residents, b"3") == ("lost", b"3")  # its reply was still on the way
        residents.lost(b"2")
        assert await other == ("lost", b"2")

    play(scenario)


def test_outputs_of_a_failed_invocation_are_forgotten() -> None:
    async def scenario(residents: Residents) -> None:
        residents.expect(b"1", Invocation())
        residents.forget([b"1"])
        residents.placed(b"1", 0)
        residents.written(b"1", "array")
        residents.worker_left(0)

    play(scenario)


def test_arrays_that_no_client_can_name_are_forgotten() -> None:
    async def scenario(residents: Residents) -> None:
        values = [keep(residents, bytes([number]), number % 2) for number in range(6)]
        for number in range(5):
            residents.named(bytes([number]), str(number))
        residents.ask(b"\4")
        residents.named(b"nobody's", "nobody's")
        assert residents.nameless({"2", "nobody's"}) == {0: [b"\0"], 1: [b"\1", b"\3"]}
        assert residents.nameless({"2"}) == {}
        assert [await values[number] for number in (0, 1, 3)] == [None] * 3
        assert not any(values[number].done() for number in (2, 4, 5))
        residents.worker_left(0)
        residents.worker_left(1)
        await asyncio.gather(*values)

    play(scenario)


def test_surplus_arrays_are_requested_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LEFT", 3)

    async def scenario(residents: Residents) -> None:
        values = []
        asked = []
        for number in range(8):
            values.append(keep(residents, bytes([number])))
            if number == 2:
                residents.ask(bytes([1]))
            while (surplus := residents.surplus()) is not None:
                asked.append(surplus)
                assert residents.ask(surplus) == 0
        assert asked == [bytes([number]) for number in (0, 2, 3, 4)]
        residents.worker_left(0)
        assert len(await asyncio.gather(*values)) == 8
        assert residents.surplus() is None

    play(scenario)


def test_the_rescue_of_a_worker_ends_when_all_its_arrays_have_arrived_or_are_lost() -> None:
    async def scenario(residents: Residents) -> None:
        asked: list[tuple[int, list[bytes]]] = []

        async def write_back(worker: int, keys: list[bytes]) -> None:
            asked.append((worker, keys))

        values = [keep(residents, b"1"), keep(residents, b"2"), keep(residents, b"3", worker=1)]
        await residents.rescue(2, write_back)
        assert asked == []
        rescue = asyncio.ensure_future(residents.rescue(0, write_back))
        await asyncio.sleep(0)
        assert asked == [(0, [b"1", b"2"])]
        residents.written(b"1", "array")
        residents.written(b"3", "array")
        await asyncio.sleep(0)
        assert not rescue.done()
        residents.lost(b"2")
        await rescue
        await asyncio.gather(*values)

    play(scenario)

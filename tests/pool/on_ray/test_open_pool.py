"""Calls that overtake each other go on in their order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.pool.on_ray import open_pool
from kaas.pool.on_ray.open_pool import Sequencer
from tests.timeouts import TIMEOUT_S

FOR_EVER_S = 1e6


@pytest.fixture(autouse=True, scope="module")
def _hold_for_ever() -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(open_pool, "HOLD_S", FOR_EVER_S)


async def taken(order: Sequence[int], pauses: Sequence[bool], cancelled: int | None = None) -> list[int]:
    """Return the order in which calls go on that arrive in this order. pauses: other tasks run after the call."""
    calls, done = Sequencer(), list[int]()

    async def call(number: int) -> None:
        await calls.take("caller", number)
        done.append(number)

    tasks = []
    for number, pause in zip(order, pauses, strict=True):
        tasks.append(asyncio.ensure_future(call(number)))
        if pause:
            await asyncio.sleep(0)
        if number == cancelled:
            await asyncio.sleep(0)
            tasks.pop().cancel()
    await asyncio.gather(*tasks)
    return done


@given(st.permutations(range(8)), st.lists(st.booleans(), min_size=8, max_size=8))
def test_calls_continue_in_the_order_of_their_numbers(order: list[int], pauses: list[bool]) -> None:
    assert asyncio.run(taken(order, pauses)) == sorted(order)


def test_a_missing_call_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_pool, "HOLD_S", 0.0)
    assert asyncio.run(taken([3, 1, 2], [False] * 3)) == [1, 2, 3]


def test_several_missing_calls_are_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_pool, "HOLD_S", 0.0)
    assert asyncio.run(asyncio.wait_for(taken([7, 3, 5, 1], [False] * 4), TIMEOUT_S)) == [1, 3, 5, 7]


def test_a_call_that_is_cancelled_while_it_waits_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_pool, "HOLD_S", 0.0)
    assert asyncio.run(taken([2, 1, 3], [False] * 3, cancelled=1)) == [2, 3]


def test_callers_are_ordered_independently(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> int:
        order = Sequencer()
        monkeypatch.setattr(open_pool, "CALLERS", 2)
        for caller in "abcd":
            await order.take(caller, 0)
        return len(order._callers)

    assert asyncio.run(scenario()) == 2

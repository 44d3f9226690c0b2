"""When a pool's loop waits awake, on a loop whose time and turns are the test's."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from kaas.pool.busy_poll import SOON_S, BusyPoll


class Loop:
    """A loop in which something is due, or not."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.due: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now_s

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def turn(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()

    def awake(self) -> bool:
        """Whether the next turn will wait for nothing, also after some turns more."""
        for _ in range(3):
            self.turn()
        return len(self.due) == 1


class Runs:
    """Of a pool that does one after the other, unless it is told of more requests."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.requests: dict[int, None] = {}
        self._poll = BusyPoll(self.requests, self.loop)  # type: ignore[arg-type]

    def begin(self) -> None:
        self.requests[0] = None
        self.begun_s = self.loop.now_s
        self._poll.begun(self.begun_s)

    def end(self, after_s: float) -> None:
        self.loop.now_s = self.begun_s + after_s
        self._poll.ended(self.begun_s)
        del self.requests[0]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    return Runs()


def test_after_a_short_run_the_next_is_waited_for_awake(runs: Runs) -> None:
    runs.begin()
    assert not runs.loop.awake(), "nobody knows yet how short it is"
    runs.end(SOON_S / 2)
    assert not runs.loop.awake(), "nothing runs"
    runs.begin()
    assert runs.loop.awake()
    runs.end(SOON_S / 2)
    assert not runs.loop.awake()


def test_the_next_run_begins_before_a_turn_has_passed(runs: Runs) -> None:
    runs.begin()
    runs.end(SOON_S / 2)
    for _ in range(3):
        runs.begin()
        runs.end(SOON_S / 2)
    runs.begin()
    assert runs.loop.awake(), "and it is due once in each turn"


def test_a_run_that_is_not_short_after_all_is_waited_for_asleep(runs: Runs) -> None:
    runs.begin()
    runs.end(SOON_S / 2)
    runs.begin()
    runs.loop.now_s += SOON_S
    assert not runs.loop.awake()
    runs.end(3 * SOON_S)
    runs.begin()
    assert not runs.loop.awake(), "nor is the next one waited for awake"


def test_a_pool_that_has_more_to_do_waits_asleep(runs: Runs) -> None:
    runs.begin()
    runs.end(SOON_S / 2)
    runs.begin()
    assert runs.loop.awake()
    runs.requests[1] = None
    assert not runs.loop.awake()


def test_on_one_processor_nobody_waits_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    runs = Runs()
    runs.begin()
    runs.end(SOON_S / 2)
    runs.begin()
    assert not runs.loop.awake(), "the executor needs it"

"""Waits that begin by spinning, with an epoll and a clock of the test."""

from __future__ import annotations

import select
from collections.abc import Callable

import pytest

from kaas.wire.connections import adaptive_poll
from kaas.wire.connections.adaptive_poll import ASLEEP_S, AWAY_S, SOON_S, AdaptivePoll

READABLE = [(0, 1)]


class Epoll:
    """An epoll that wakes a sleeping wait after `asleep_s`, and has an event for a spinning wait after `looks` looks.

    Fields:
        now_s: by its clock. slept: the number of sleeping waits. looking: is called before a look. look_s: duration of
            a look.
    """

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept = 0
        self.asleep_s = SOON_S / 2
        self.looks: int | None = None
        self.looking: Callable[[], object] = lambda: None
        self.look_s = SOON_S / 10

    def register(self, file: int, events: int) -> None: ...

    def close(self) -> None: ...

    def poll(self, timeout: float | None, at_most: int) -> list[tuple[int, int]]:
        assert at_most == 1
        if timeout is None:
            self.slept += 1
            self.now_s += self.asleep_s
            return READABLE
        self.looking()
        self.now_s += self.look_s
        if self.looks is None:
            return []
        self.looks -= 1
        return READABLE if self.looks < 0 else []


@pytest.fixture
def epoll(monkeypatch: pytest.MonkeyPatch) -> Epoll:
    made = Epoll()
    monkeypatch.setattr(select, "epoll", lambda: made)
    monkeypatch.setattr(adaptive_poll, "monotonic", lambda: made.now_s)
    return made


@pytest.fixture
def waiting(epoll: Epoll) -> AdaptivePoll:
    """Return a poll whose last wait was a short one."""
    made = AdaptivePoll([])
    made.wait(idle=True)
    assert epoll.slept == 1, "the first wait sleeps"
    return made


def test_after_a_short_wait_the_next_spins(epoll: Epoll, waiting: AdaptivePoll) -> None:
    for looks in (3, 0, 5):
        epoll.looks = looks
        assert waiting.wait(idle=True) == 1
    assert epoll.slept == 1


def test_a_wait_that_finds_nothing_soon_sleeps(epoll: Epoll, waiting: AdaptivePoll) -> None:
    began_s = epoll.now_s
    waiting.wait(idle=True)
    assert epoll.slept == 2
    assert epoll.now_s - began_s < SOON_S * 1.2 + epoll.asleep_s
    epoll.looks = 0
    waiting.wait(idle=True)
    assert epoll.slept == 3, "that one had not been short"


def test_a_wait_sleeps_at_once_while_the_process_is_not_idle(epoll: Epoll, waiting: AdaptivePoll) -> None:
    epoll.looks = 0
    waiting.wait(idle=False)
    assert epoll.slept == 2
    waiting.wait(idle=True)
    assert epoll.slept == 2, "a short wait asleep counts too"


def test_one_wait_spins_and_others_sleep(epoll: Epoll, waiting: AdaptivePoll) -> None:
    epoll.looks = 0
    slept = []

    def look() -> None:
        epoll.looking = lambda: None
        waiting.wait(idle=True)
        slept.append(epoll.slept)

    epoll.looking = look
    waiting.wait(idle=True)
    assert slept == [2]
    assert epoll.slept == 2


@pytest.mark.parametrize("looks", [0, 9], ids=["poll came meanwhile", "none did"])
def test_a_wait_that_yielded_for_long_sleeps_for_a_while(epoll: Epoll, waiting: AdaptivePoll, looks: int) -> None:
    epoll.looks, epoll.look_s = looks, 1.1 * AWAY_S
    until_s = epoll.now_s + epoll.look_s + ASLEEP_S
    waiting.wait(idle=True)
    slept = epoll.slept
    epoll.look_s = SOON_S / 10
    while epoll.now_s < until_s:
        waiting.wait(idle=True)
        slept += 1
        assert epoll.slept == slept
    epoll.looks = 0
    waiting.wait(idle=True)
    assert epoll.slept == slept

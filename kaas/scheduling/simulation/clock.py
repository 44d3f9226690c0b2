"""Virtual time and its agenda. Times are whole picoseconds: 0.1 s and then 0.2 s more are 0.3 s."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from enum import IntEnum
from fractions import Fraction
from itertools import count

SECOND_PS = 10**12


class Turn(IntEnum):
    """The order of actions at one time."""

    COMPLETION = 0
    WORKER = 1
    ARRIVAL = 2
    DEADLINE = 3
    WAKE = 4


class Clock:
    """Goes from one action to the next."""

    def __init__(self) -> None:
        self.now_ps = 0
        self._agenda: list[tuple[int, Turn, int, int, int, Callable[[], None]]] = []
        self._entries = count()

    @property
    def now_s(self) -> float:
        """The present time in seconds."""
        return seconds(self.now_ps)

    @property
    def is_idle(self) -> bool:
        """True if the agenda is empty."""
        return not self._agenda

    def at(self, time_ps: int, turn: Turn, order: tuple[int, int], action: Callable[[], None]) -> None:
        """Put an action on the agenda; within a turn `order` decides, and then the order of these calls."""
        heapq.heappush(self._agenda, (time_ps, turn, *order, next(self._entries), action))

    def step(self) -> Turn | None:
        """Run the next action and return its turn; None if the agenda is empty."""
        if not self._agenda:
            return None
        self.now_ps, turn, _, _, _, action = heapq.heappop(self._agenda)
        action()
        return turn


def picoseconds(time_s: float) -> int:
    """Return seconds as whole picoseconds, rounded."""
    return round(time_s * SECOND_PS)


def no_earlier_ps(time_s: float) -> int:
    """Return the first picosecond whose seconds, as a float, are not before a time."""
    return int(-(-Fraction(time_s) * SECOND_PS // 1))


def seconds(time_ps: int) -> float:
    """Return picoseconds as seconds."""
    return time_ps / SECOND_PS

"""Virtual time, and what is to happen in it. Times are whole picoseconds: 0.1 s and then 0.2 s more are 0.3 s."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from enum import IntEnum
from fractions import Fraction
from itertools import count

SECOND_PS = 10**12


class Turn(IntEnum):
    """What comes first of what happens at one time."""

    COMPLETION = 0
    WORKER = 1
    ARRIVAL = 2
    DEADLINE = 3
    WAKE = 4


class Clock:
    """Goes from one thing that happens to the next."""

    def __init__(self) -> None:
        self.now_ps = 0
        self._agenda: list[tuple[int, Turn, int, int, int, Callable[[], None]]] = []
        self._entries = count()

    @property
    def now_s(self) -> float:
        """The present time in seconds."""
        return seconds(self.now_ps)

    def at(self, time_ps: int, turn: Turn, order: tuple[int, int], happen: Callable[[], None]) -> None:
        """Have something happen; order decides within a turn, and then who asked first."""
        heapq.heappush(self._agenda, (time_ps, turn, *order, next(self._entries), happen))

    def step(self) -> Turn | None:
        """Let the next thing happen; its turn, or None if there is nothing."""
        if not self._agenda:
            return None
        self.now_ps, turn, _, _, _, happen = heapq.heappop(self._agenda)
        happen()
        return turn


def picoseconds(time_s: float) -> int:
    """Return seconds as whole picoseconds, rounded."""
    return round(time_s * SECOND_PS)


def no_earlier_ps(time_s: float) -> int:
    """The first picosecond whose seconds, as a float, are not before a time."""
    return int(-(-Fraction(time_s) * SECOND_PS // 1))


def seconds(time_ps: int) -> float:
    """Return picoseconds as seconds."""
    return time_ps / SECOND_PS

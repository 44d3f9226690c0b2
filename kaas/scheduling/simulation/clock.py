"""Virtual time and its agenda. Times are whole picoseconds: 0.1 s and then 0.2 s more are 0.3 s."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from enum import IntEnum
from itertools import count
from typing import Any, TypeVar

SECOND_PS = 10**12

Subject = TypeVar("Subject")


class Turn(IntEnum):
    """The order of actions at one time."""

    COMPLETION = 0
    WORKER = 1
    ARRIVAL = 2
    DEADLINE = 3
    WAKE = 4


class Clock:
    """Goes from one action to the next.

    Fields:
        now_ps, now_s: the present time. wakes: actions of the last turn, WAKE, since the last other one.
    """

    def __init__(self) -> None:
        self.now_ps = 0
        self.now_s = 0.0
        self.wakes = 0
        self._agenda: list[tuple[int, Turn, int, int, int, Callable[[Any], None], Any]] = []
        self._entries = count()

    @property
    def is_idle(self) -> bool:
        """True if the agenda is empty."""
        return not self._agenda

    def at(
        self, time_ps: int, turn: Turn, order: tuple[int, int], action: Callable[[Subject], None], subject: Subject
    ) -> None:
        """Put `action(subject)` on the agenda; in a turn `order` decides, and then the order of these calls."""
        first, second = order
        heapq.heappush(self._agenda, (time_ps, turn, first, second, next(self._entries), action, subject))

    def advance(self, time_ps: int) -> None:
        """Run the actions that come before the arrivals of a time. Then it is that time."""
        self._run_before((time_ps, Turn.ARRIVAL))
        self.now_ps, self.now_s, self.wakes = time_ps, time_ps / SECOND_PS, 0

    def finish(self) -> None:
        """Run all actions."""
        self._run_before((math.inf,))

    def _run_before(self, end: tuple[float, ...]) -> None:
        agenda = self._agenda
        while agenda and agenda[0] < end:
            time_ps, turn, _, _, _, action, subject = heapq.heappop(agenda)
            self.now_ps, self.now_s = time_ps, time_ps / SECOND_PS
            self.wakes = self.wakes + 1 if turn is Turn.WAKE else 0
            action(subject)


def picoseconds(time_s: float) -> int:
    """Return seconds as whole picoseconds, rounded."""
    return round(time_s * SECOND_PS)


def no_earlier_ps(time_s: float) -> int:
    """Return the first picosecond whose seconds, as a float, are not before a time."""
    numerator, denominator = time_s.as_integer_ratio()
    return -(-numerator * SECOND_PS // denominator)


def seconds(time_ps: int) -> float:
    """Return picoseconds as seconds."""
    return time_ps / SECOND_PS

"""The load of a function in the next period, predicted from its arrivals: events in, a number out.

Arrivals are counted in a few slots of time, so a burst of any size takes no memory, and a clock that stands still, or
goes back, only fills the slot it stands in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import floor

from kaas.errors import InvalidConfig

SLOTS = 10
"""Slots of a period. Arrivals of a slot count as if they came evenly over it."""


@dataclass(frozen=True, slots=True)
class RecentLoad:
    """The figures that a predictor sees.

    Fields:
        time_s: now. period_s: the period, in seconds. now_per_s: requests per second in the period that ends now.
            before_per_s: in the period before that.
    """

    time_s: float
    period_s: float
    now_per_s: float
    before_per_s: float


Predictor = Callable[[RecentLoad], float]
"""Returns the requests per second that the next period is expected to have."""


def trend(recent: RecentLoad) -> float:
    """Return the larger of the recent rate, and of that rate with as much more as it has risen over one period."""
    return max(recent.now_per_s, 2 * recent.now_per_s - recent.before_per_s)


class LoadMeter:
    """The arrivals of one function.

    Args:
        period_s: seconds of a period.
        predictor: what is expected of the next one; any callable may take its place.

    Raises:
        InvalidConfig: a period that is not above 0.
    """

    def __init__(self, period_s: float = 10.0, predictor: Predictor = trend) -> None:
        if not period_s > 0:
            raise InvalidConfig(f"a period of {period_s} s")
        self.period_s = period_s
        self._predictor = predictor
        self._slot_s = period_s / SLOTS
        self._slots: dict[int, int] = {}  # arrivals, by slot: those of the last two periods
        self._slot = 0
        self._last_s = float("-inf")

    def arrived(self, time_s: float, count: int = 1) -> None:
        """Take in requests that arrived now. A time before the last one counts as the last one."""
        self._move(time_s)
        self._slots[self._slot] = self._slots.get(self._slot, 0) + count

    def predict(self, time_s: float) -> float:
        """Return the requests per second to expect in the period after now."""
        self._move(time_s)
        counts = [self._slots.get(self._slot - age, 0) for age in range(2 * SLOTS + 1)]
        passed = self._last_s / self._slot_s - self._slot  # the part of the present slot; of those at the ends, as well
        now = sum(counts[:SLOTS]) + (1 - passed) * counts[SLOTS]
        before = passed * counts[SLOTS] + sum(counts[SLOTS + 1 : -1]) + (1 - passed) * counts[-1]
        recent = RecentLoad(self._last_s, self.period_s, now / self.period_s, before / self.period_s)
        return max(0.0, self._predictor(recent))

    def _move(self, time_s: float) -> None:
        """Go on to the slot of a time, and forget those that no period reaches any more."""
        self._last_s = max(self._last_s, time_s)
        slot = floor(self._last_s / self._slot_s)
        if slot != self._slot:
            self._slot = slot
            self._slots = {each: count for each, count in self._slots.items() if each >= slot - 2 * SLOTS}

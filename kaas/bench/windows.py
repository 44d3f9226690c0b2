"""The end of a measurement: its windows agree, or its queue grows and no steady value exists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

STABLE_WINDOWS = 3
"""As perf_analyzer has it: so many windows in a row agree."""
STABLE_SHARE = 0.1
"""Their rates and mean latencies differ from their own mean by this share at most."""
GROWTH_SHARE = 0.1
"""A queue grows if the requests that it gained over STABLE_WINDOWS windows are more than this share of those that
arrived, and it gained some in each."""


class Stability(Enum):
    """The state of a measurement by its last windows.

    UNSTABLE: the queue grows, so that latencies show only its length.
    """

    UNSETTLED = "unsettled"
    STABLE = "stable"
    UNSTABLE = "unstable"


@dataclass(frozen=True, slots=True)
class MeasurementWindow:
    """A part of a measurement.

    Fields:
        seconds: its length. sent, answered: requests that were sent, and that ended with a result, in it.
        latency_s: mean of the answered ones. queued: requests that were outstanding at its end.
    """

    seconds: float
    sent: int
    answered: int
    latency_s: float
    queued: int

    @property
    def rate_per_s(self) -> float:
        """Return the answered requests a second."""
        return self.answered / self.seconds


def stability(windows: Sequence[MeasurementWindow], *, open_loop: bool) -> Stability:
    """Judge a measurement by its last windows. open_loop: its queue may grow."""
    last = windows[-STABLE_WINDOWS:]
    if len(last) < STABLE_WINDOWS:
        return Stability.UNSETTLED
    if open_loop and len(windows) > STABLE_WINDOWS and _grows(windows[-STABLE_WINDOWS - 1], last):
        return Stability.UNSTABLE
    rates, latencies = [each.rate_per_s for each in last], [each.latency_s for each in last]
    if all(each.answered for each in last) and _agree(rates) and _agree(latencies):
        return Stability.STABLE
    return Stability.UNSETTLED


def _grows(before: MeasurementWindow, last: Sequence[MeasurementWindow]) -> bool:
    lengths = [before.queued, *(each.queued for each in last)]
    gains = [later - earlier for earlier, later in pairwise(lengths)]
    return min(gains) > 0 and sum(gains) > GROWTH_SHARE * sum(each.sent for each in last)


def _agree(values: Sequence[float]) -> bool:
    mean = sum(values) / len(values)
    return all(abs(value - mean) <= STABLE_SHARE * mean for value in values)

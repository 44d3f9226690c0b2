"""The end of a measurement: its windows agree, or its queue grows and no steady value exists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

STABLE_WINDOWS = 3
"""As perf_analyzer has it: so many windows in a row agree."""
STABLE_SHARE = 0.1
"""Their rates and mean latencies differ from their own mean by this share at most, and as many requests may fail."""
GROWTH_SHARE = 0.1
"""A queue grows if it gained requests in each of STABLE_WINDOWS windows, more than this share of the arrivals."""
GROWTH_SIGMAS = 3.0
"""A queue also grows if over any number of windows it gained so many standard deviations of random arrivals, the window
that gained the most not counted: one stall is no growth."""
LEVEL_SIGMAS = 1.0
"""A queue that gained more than this is not steady yet."""


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
        seconds: its length. due: requests that should be sent in it. answered, failed: requests that ended in it, with
            a result or without. latency_s: mean of the answered ones. queued: requests that were due before its end,
            and had no end then: the generator may be unable to send them.
    """

    seconds: float
    due: int
    answered: int
    latency_s: float
    queued: int
    failed: int = 0

    @property
    def rate_per_s(self) -> float:
        """Return the answered requests a second."""
        return self.answered / self.seconds

    @property
    def gain(self) -> int:
        """Return the requests that the queue gained."""
        return self.due - self.answered - self.failed


def stability(windows: Sequence[MeasurementWindow], *, open_loop: bool, least: int = 1) -> Stability:
    """Judge a measurement by its last windows.

    Args:
        windows: all, in order.
        open_loop: its queue may grow.
        least: the results that the last windows have to have until they may agree.
    """
    # until the first answers a queue is only as long as the service is slow
    begun = next((number for number, each in enumerate(windows, 1) if each.answered), len(windows))
    later = windows[begun:] if open_loop else ()
    if _grows(later):
        return Stability.UNSTABLE
    last = windows[-STABLE_WINDOWS:]
    too_few = len(last) < STABLE_WINDOWS or sum(each.answered for each in last) < least
    if too_few or not all(each.answered for each in last) or _fails(last) or _rises(later):
        return Stability.UNSETTLED
    # random arrivals differ from window to window, so an open loop's rate is that of its arrivals
    level = _keeps_up(last) if open_loop else _agree([each.rate_per_s for each in last])
    return Stability.STABLE if level and _agree([each.latency_s for each in last]) else Stability.UNSETTLED


def _grows(windows: Sequence[MeasurementWindow]) -> bool:
    last = windows[-STABLE_WINDOWS:]
    if len(last) < STABLE_WINDOWS:
        return False
    if min(each.gain for each in last) > 0 and sum(each.gain for each in last) > GROWTH_SHARE * _due(last):
        return True
    return any(_gained(windows[first:], GROWTH_SIGMAS) for first in range(len(windows) - STABLE_WINDOWS + 1))


def _rises(windows: Sequence[MeasurementWindow]) -> bool:
    """Return True if a queue may be growing: in each of the last windows, or on the whole."""
    last = windows[-STABLE_WINDOWS:]
    steadily = len(last) == STABLE_WINDOWS and min(each.gain for each in last) > 0
    return steadily or sum(each.gain for each in windows) > LEVEL_SIGMAS * math.sqrt(_due(windows))


def _gained(windows: Sequence[MeasurementWindow], sigmas: float) -> bool:
    """Return True if the queue gained more than random arrivals explain."""
    gains = [each.gain for each in windows]
    return sum(gains) - max(gains) > sigmas * math.sqrt(_due(windows))


def _keeps_up(windows: Sequence[MeasurementWindow]) -> bool:
    return abs(sum(each.gain for each in windows)) <= max(1, STABLE_SHARE * _due(windows))


def _fails(windows: Sequence[MeasurementWindow]) -> bool:
    failed, answered = sum(each.failed for each in windows), sum(each.answered for each in windows)
    return failed > STABLE_SHARE * (failed + answered)


def _due(windows: Sequence[MeasurementWindow]) -> int:
    return sum(each.due for each in windows)


def _agree(values: Sequence[float]) -> bool:
    mean = sum(values) / len(values)
    return all(abs(value - mean) <= STABLE_SHARE * mean for value in values)

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
GROWTH_SIGMAS = 2.0
"""A queue grows if it gained so many standard deviations of random arrivals in the later half of the windows, the
window that gained the most not counted: one stall is no growth."""
STEADY_GROWTH = 0.7
"""It also gained in the earlier half, and not much more: a service that warms up, or whose latencies differ much, fills
its queue more and more slowly."""


MOST_UNSENT = 100_000
"""The most requests that are counted as due before they are sent; a service that is so far behind is overloaded."""
OVERLOADED_SHARE = 0.7
"""An overload is strong if so small a share of the requests is answered."""
MOST_WAITING = 10
"""Fewer requests may all wait: those of a few callers, or at the beginning."""


class Stability(Enum):
    """The state of a measurement by its last windows.

    UNSTABLE: the queue grows, so that latencies show only its length. SILENT: the service gave no more results, while
        requests waited for them, or failed.
    """

    UNSETTLED = "unsettled"
    STABLE = "stable"
    UNSTABLE = "unstable"
    SILENT = "silent"


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


def stability(
    windows: Sequence[MeasurementWindow],
    *,
    open_loop: bool,
    least: int = 1,
    fewest: int = STABLE_WINDOWS,
    callers: int = 0,
    final: bool = False,
) -> Stability:
    """Judge a measurement by its last windows.

    Args:
        windows: all, in order.
        open_loop: its queue may grow.
        least: the results that the last windows have to have until they may agree.
        fewest: the windows that there have to be until the last ones may agree.
        callers: of a closed loop; each always has a request under way. 0: unknown.
        final: there are no more windows. Until then only a strong overload is called UNSTABLE: a service of which some
            requests take long fills its queue for as long, too. Nor is one that answers nothing at the moment: it
            stalls, and may go on.
    """
    behind = bool(windows) and windows[-1].queued >= MOST_UNSENT
    overloaded = bool(windows) and windows[-1].answered > 0 and _overloaded(windows)
    if open_loop and (behind or (_grows(windows) and (final or overloaded))):
        return Stability.UNSTABLE
    last = windows[-STABLE_WINDOWS:]
    if len(last) == STABLE_WINDOWS and not _answered(last) and any(each.failed for each in last):
        return Stability.SILENT
    too_few = len(windows) < max(fewest, STABLE_WINDOWS) or _answered(last) < least
    lengthens = open_loop and all(each.gain > 0 for each in last)
    if too_few or lengthens or not all(each.answered for each in last) or _fails(last) or _slows(windows):
        return Stability.UNSETTLED
    # random arrivals differ from window to window, so an open loop's rate is that of its arrivals
    level = _keeps_up(last) if open_loop else _agree([each.rate_per_s for each in last]) and _busy(windows, callers)
    agree = level and _agree([each.latency_s for each in last])
    # some three windows of a service that varies agree by chance
    mostly = 2 * len(steady_part(windows)) >= sum(each.answered > 0 for each in windows)
    return Stability.STABLE if agree and mostly else Stability.UNSETTLED


def mostly_waits(windows: Sequence[MeasurementWindow]) -> bool:
    """Return True if more than half of the requests had no end at the end: the figures are those of the others."""
    due = sum(each.due for each in windows)
    return bool(windows) and 2 * windows[-1].queued > due and due > MOST_WAITING


def steady_part(windows: Sequence[MeasurementWindow]) -> Sequence[MeasurementWindow]:
    """Return the windows of a stable measurement without those at its beginning that differ from the last ones.

    Later windows that differ, as in a stall, are part of it: a rule without them finds calm moments only.
    """
    level_s = mean_s(windows[-STABLE_WINDOWS:])
    near = (abs(each.latency_s - level_s) <= STABLE_SHARE * level_s for each in windows)
    first = next((number for number, each in enumerate(near) if each), len(windows))
    return windows[min(first, len(windows) - STABLE_WINDOWS) :]


def _halves(
    windows: Sequence[MeasurementWindow],
) -> tuple[Sequence[MeasurementWindow], Sequence[MeasurementWindow]] | None:
    """Return two halves of the windows; None if they are too few."""
    half = len(windows) // 2
    return (windows[-2 * half : -half], windows[-half:]) if len(windows) > STABLE_WINDOWS else None


def _grows(windows: Sequence[MeasurementWindow]) -> bool:
    halves = _halves(windows)
    if halves is None:
        return False
    later = halves[1]
    gained, gained_later = (sum(each.gain for each in half) for half in halves)
    answered, answered_later = map(_answered, halves)
    warms_up = not answered or answered_later > answered + math.sqrt(answered + answered_later)
    much = gained_later - max(each.gain for each in later) > GROWTH_SIGMAS * math.sqrt(sum(each.due for each in later))
    return much and 0 < STEADY_GROWTH * gained <= gained_later and not warms_up


def _overloaded(windows: Sequence[MeasurementWindow]) -> bool:
    _, later = _halves(windows) or (windows, windows)
    return _answered(later) <= OVERLOADED_SHARE * sum(each.due for each in later)


def _busy(windows: Sequence[MeasurementWindow], callers: int) -> bool:
    """Return True if rate and latency fit the callers (Little's law).

    They do not where requests end together, in rounds that are not much shorter than a window.
    """
    counted = steady_part(windows)
    under_way = _answered(counted) / sum(each.seconds for each in counted) * mean_s(counted)
    return not callers or any(each.failed for each in counted) or _agree([under_way, float(callers)])


def _slows(windows: Sequence[MeasurementWindow]) -> bool:
    """Return True if the later half of the windows has longer latencies than the earlier one, as with a slow ramp."""
    earlier, later = _halves(windows) or (windows, windows)
    return mean_s(later) > (1 + STABLE_SHARE) * mean_s(earlier) > 0


def _keeps_up(windows: Sequence[MeasurementWindow]) -> bool:
    due = sum(each.due for each in windows)
    return abs(sum(each.gain for each in windows)) <= max(1, STABLE_SHARE * due)


def _fails(windows: Sequence[MeasurementWindow]) -> bool:
    failed = sum(each.failed for each in windows)
    return failed > STABLE_SHARE * (failed + _answered(windows))


def _answered(windows: Sequence[MeasurementWindow]) -> int:
    return sum(each.answered for each in windows)


def mean_s(windows: Sequence[MeasurementWindow]) -> float:
    """Return the mean latency; 0 without answers."""
    return sum(each.latency_s * each.answered for each in windows) / max(1, _answered(windows))


def _agree(values: Sequence[float]) -> bool:
    mean = sum(values) / len(values)
    return all(abs(value - mean) <= STABLE_SHARE * mean for value in values)

"""A test of open loops: if replies are slower than requests, the latencies only show the length of the loop."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

UNSTABLE = "unstable"
"""The word in a bar for a ratio of latencies without a steady value."""

MOST_GROWTH = 0.1
"""The largest growth of the latency, as a share of the time that passes."""


def is_stable(latencies_s: Sequence[float], seconds: float) -> bool:
    """Return True if the latencies of an open loop, in order of arrival over so many seconds, keep their level.

    A queue that gets more requests than it replies to grows by a part of every second, and so do latencies. Latencies
    of a queue that keeps up vary, but the level of their last third is at most twice the first third's, or above that
    by less than MOST_GROWTH of the time between the two.
    """
    third = max(1, len(latencies_s) // 3)
    first, last = median(latencies_s[:third]), median(latencies_s[-third:])
    return last <= 2 * first or last - first <= MOST_GROWTH * seconds * 2 / 3

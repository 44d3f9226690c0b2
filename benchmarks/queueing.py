"""Whether an open loop was answered as fast as it asked: where it was not, its latencies tell how long it lasted."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

UNSTABLE = "unstable"
"""Stands in a bar for a ratio of latencies that have no steady value."""

MOST_GROWTH = 0.1
"""Of the time that passes, so much may be added to the latency."""


def is_stable(latencies_s: Sequence[float], seconds: float) -> bool:
    """Whether the latencies of an open loop, in the order of their arrivals over so many seconds, keep their level.

    A queue that gets more than it answers grows by a part of every second, and latencies with it. Latencies of a queue
    that keeps up vary, but their last third has no level of its own: it is at most twice the first third's, or above
    that by less than MOST_GROWTH of the time between the two."""
    third = max(1, len(latencies_s) // 3)
    first, last = median(latencies_s[:third]), median(latencies_s[-third:])
    return last <= 2 * first or last - first <= MOST_GROWTH * seconds * 2 / 3

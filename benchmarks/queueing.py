"""The rule of `kaas.bench` for a growing queue, for benchmarks that have only the latencies of an open loop."""

from __future__ import annotations

from collections.abc import Sequence

from kaas.bench.windows import MeasurementWindow, Stability, stability

UNSTABLE = "unstable"
"""The word in a bar for a ratio of latencies without a steady value."""
WINDOWS = 10


def is_stable(latencies_s: Sequence[float], seconds: float) -> bool:
    """Return True if the queue of an open loop does not grow.

    latencies_s: in order of arrival; arrivals are taken to be even over so many seconds.
    """
    window_s, count = seconds / WINDOWS, len(latencies_s)
    due_s = [seconds * number / count for number in range(count)]
    ends_s = [at_s + latency_s for at_s, latency_s in zip(due_s, latencies_s, strict=True)]
    windows, queued = list[MeasurementWindow](), 0
    for number in range(WINDOWS):
        first_s, last_s = number * window_s, (number + 1) * window_s
        due = sum(first_s <= at_s < last_s for at_s in due_s)
        ended = [latency_s for at_s, latency_s in zip(ends_s, latencies_s, strict=True) if first_s <= at_s < last_s]
        queued += due - len(ended)
        windows.append(MeasurementWindow(window_s, due, len(ended), sum(ended) / max(1, len(ended)), queued))
    return all(
        stability(windows[:number], open_loop=True, final=True) is not Stability.UNSTABLE
        for number in range(1, WINDOWS + 1)
    )

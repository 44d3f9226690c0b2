"""One measurement: a loop of requests that runs until its windows agree, and the figures of its last windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

import numpy as np

from kaas.bench.load import Completion
from kaas.bench.windows import STABLE_WINDOWS, MeasurementWindow, Stability, stability

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}


def _ignore(_: MeasurementWindow) -> None:
    """Show no progress."""


class Counts(Protocol):
    """The counts of a `kaas.bench.load.Load`."""

    sent: int
    outstanding: int


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """Latencies of requests in seconds, from the time at which each was due.

    Fields:
        sd: the standard deviation. percentiles: by the names in QUANTILES; each is a latency that a request had.
        cdf: the latencies at 0, 1, ... 100 % of the requests, in order.
    """

    count: int
    mean: float
    sd: float
    percentiles: dict[str, float]
    cdf: tuple[float, ...] = ()

    @classmethod
    def of(cls, latencies_s: Sequence[float]) -> LatencyFigures:
        """Return the figures of some latencies; those of none are 0."""
        if not latencies_s:
            return cls(0, 0.0, 0.0, dict.fromkeys(QUANTILES, 0.0))
        values = np.asarray(latencies_s)
        found = np.quantile(values, list(QUANTILES.values()), method="inverted_cdf")
        percentiles = dict(zip(QUANTILES, map(float, found), strict=True))
        cdf = tuple(map(float, np.quantile(values, np.linspace(0, 1, 101), method="inverted_cdf")))
        return cls(len(values), float(values.mean()), float(values.std()), percentiles, cdf)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What the callers of a service got.

    The figures are those of the last STABLE_WINDOWS windows, or of all where fewer have ended.

    Fields:
        stability: UNSETTLED: the limit or Ctrl-C ended the measurement before its windows agreed.
        windows: all, in order. latencies: of requests that ended with a result.
        errors: number of failed requests by error class, in all windows.
        late_s: mean time by which the generator sent requests later than they were due. It is part of their latency.
        interrupted: Ctrl-C ended the measurement.
        last_result_s: seconds from the beginning to the last result; 0 without one. A service that died says no more.
    """

    stability: Stability
    windows: tuple[MeasurementWindow, ...]
    latencies: LatencyFigures
    errors: dict[str, int]
    late_s: float
    interrupted: bool
    last_result_s: float = 0.0

    @property
    def rate_per_s(self) -> float | None:
        """Return the answered requests a second; None where the queue grew, since the load then has no steady state."""
        last = self.windows[-STABLE_WINDOWS:]
        if not last or self.stability is Stability.UNSTABLE:
            return None
        return sum(window.answered for window in last) / sum(window.seconds for window in last)

    @property
    def mean_s(self) -> float:
        """Return the mean latency in all windows, as a server's figures are of all; 0 without a result."""
        answered = sum(window.answered for window in self.windows)
        return sum(window.latency_s * window.answered for window in self.windows) / answered if answered else 0.0


@dataclass(slots=True)
class _Open:
    """The window that is under way."""

    began_s: float
    sent_before: int
    latencies_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)

    def closed(self, counts: Counts, now_s: float) -> MeasurementWindow:
        mean_s = sum(self.latencies_s) / len(self.latencies_s) if self.latencies_s else 0.0
        sent = counts.sent - self.sent_before
        return MeasurementWindow(now_s - self.began_s, sent, len(self.latencies_s), mean_s, counts.outstanding)


def measure(
    counts: Counts,
    completions: Iterator[Completion | None],
    *,
    open_loop: bool,
    window_s: float,
    limit_s: float,
    progress: Callable[[MeasurementWindow], object] = _ignore,
    clock: Callable[[], float] = perf_counter,
) -> Measurement:
    """Iterate a loop of `Load` until its windows agree, its queue grows, the loop ends, or limit_s seconds are over.

    Args:
        counts: the Load.
        completions: of the Load's loop, which is left as it is: requests may be outstanding.
        open_loop: the loop's queue may grow.
        window_s: seconds of a window; the last may be shorter, and counts only where it is the only one.
        limit_s: the longest measurement.
        progress: is called with each window that has ended.
        clock: as the Load's.
    """
    windows: list[MeasurementWindow] = []
    recent: list[_Open] = []  # of the last windows
    errors: Counter[str] = Counter()
    began_s = clock()
    window = _Open(began_s, counts.sent)
    state, interrupted, last_result_s = Stability.UNSETTLED, False, 0.0

    def close(now_s: float) -> None:
        windows.append(window.closed(counts, now_s))
        recent.append(window)
        del recent[:-STABLE_WINDOWS]

    try:
        for completed in completions:
            if completed is not None and completed.error is None:
                window.latencies_s.append(completed.latency_s)
                window.late_s.append(completed.sent_s - completed.due_s)
                last_result_s = completed.ended_s - began_s
            elif completed is not None:
                errors[type(completed.error).__name__] += 1
            now_s = clock()
            if now_s - window.began_s >= window_s:
                close(now_s)
                progress(windows[-1])
                state = stability(windows, open_loop=open_loop)
                window = _Open(now_s, counts.sent)
            if state is not Stability.UNSETTLED or now_s - began_s >= limit_s:
                break
    except KeyboardInterrupt:
        interrupted = True
    if not windows and clock() > began_s:
        close(clock())
    late_s = [each for part in recent for each in part.late_s]
    return Measurement(
        state,
        tuple(windows),
        LatencyFigures.of([each for part in recent for each in part.latencies_s]),
        dict(errors),
        sum(late_s) / len(late_s) if late_s else 0.0,
        interrupted,
        last_result_s,
    )

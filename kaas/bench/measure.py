"""One measurement: a loop of requests that runs until its windows agree, and the figures of its last windows."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from kaas.bench.interrupt import never
from kaas.bench.load import Completion
from kaas.bench.windows import (
    STABLE_WINDOWS,
    MeasurementWindow,
    Stability,
    mostly_waits,
    stability,
    steady_part,
)

PERCENTILES = 101
"""The number of latencies of a distribution, from 0 to 100 %."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}

SILENT_S = 2.0
"""A service that gives no result for a shorter time may only be busy."""


def _ignore(_: MeasurementWindow) -> None:
    """Show no progress."""


class Counts(Protocol):
    """The counts of a `kaas.bench.load.Load`."""

    sent: int
    outstanding: int

    def due(self, now_s: float) -> int:
        """Return the number of requests that should be sent by now."""


class Drained(Protocol):
    """The rest of a `kaas.bench.load.Load`."""

    @property
    def under_way(self) -> Mapping[Any, float]:
        """When each request without an end was due."""

    def drain(self, timeout_s: float, stop: Callable[[], bool]) -> Iterator[Completion]:
        """Yield the ends of outstanding requests, for timeout_s seconds at most, or until `stop` returns True."""

    def unsent(self, now_s: float) -> Iterable[float]:
        """Return when each request was due that should be sent by now, and is not."""


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
        cdf = tuple(map(float, np.quantile(values, np.linspace(0, 1, PERCENTILES), method="inverted_cdf")))
        return cls(len(values), float(values.mean()), float(values.std()), percentiles, cdf)


@dataclass(frozen=True, slots=True)
class Measurement:
    """The results of a service for its callers.

    The figures are those of all windows; of a stable service, from the first on that agrees with the last ones. A load
    with an end of its own has those of all its requests.

    Fields:
        stability: UNSETTLED: the limit or Ctrl-C ended the measurement before its windows agreed.
        windows: all, in order. began_s: the time of the beginning. span_s: times of the beginning of the first window
            that counts, and of the last's end.
        latencies_s: of requests that were due in the span and have a result, also after its end (`complete`).
        errors: number of failed requests by error class.
        late_s: mean time by which the generator sent requests later than they were due. It is part of their latency.
        interrupted: Ctrl-C ended the measurement. open_loop: its queue may grow. whole: the load has an end of its own;
            ended: it came to that end.
        results: the number of requests with a result. total_s: the sum of their latencies.
        last_result_s: seconds from the beginning to the last result; 0 without one. A service that died says no more.
        slowest_s: the longest latency of all requests, those before the span included.
        unsent: requests of an open loop that were due at the end and could not be sent: the service took no more.
        lost: requests that were under way at the end, and later, too (`complete`). unanswered: these, and those that
            failed after the end, as far as they were due in the span. waiting: those that Ctrl-C left under way, of
            which nothing is known.
    """

    stability: Stability
    windows: tuple[MeasurementWindow, ...]
    began_s: float
    span_s: tuple[float, float]
    latencies_s: tuple[float, ...]
    errors: dict[str, int]
    late_s: float
    interrupted: bool
    open_loop: bool = False
    whole: bool = False
    results: int = 0
    last_result_s: float = 0.0
    slowest_s: float = 0.0
    lost: int = 0
    unanswered: int = 0
    waiting: int = 0
    ended: bool = False
    total_s: float = 0.0
    unsent: int = 0

    @property
    def latencies(self) -> LatencyFigures:
        """Return the figures of the latencies."""
        return LatencyFigures.of(self.latencies_s)

    @property
    def rate_per_s(self) -> float | None:
        """Return the answered requests a second; None without a steady state."""
        if not self.windows or not self.has_level:
            return None
        if self.whole:
            waited_s = 0.0 if self.ended else sum(each.seconds for each in self.windows)  # for what --limit cut off
            return self.results / max(self.last_result_s, waited_s) if self.results else 0.0
        counted = steady_part(self.windows) if self.stability is Stability.STABLE else self.windows
        # a service that keeps up answers all that came, some of it after these windows
        ended = sum(each.due - each.failed if self._keeps_up else each.answered for each in counted)
        return (ended - self.unanswered if self._keeps_up else ended) / sum(each.seconds for each in counted)

    @property
    def has_level(self) -> bool:
        """True if rate and latencies say something of the service, and not of the length of the measurement."""
        match self.stability:
            case Stability.SILENT:
                return False
            case Stability.UNSTABLE:
                return self.whole
            case _:
                return self.whole or not (self.open_loop and mostly_waits(self.windows))

    @property
    def _keeps_up(self) -> bool:
        return self.open_loop and self.stability is Stability.STABLE

    @property
    def counted(self) -> int:
        """Return the number of windows whose figures count: the last ones of a stable service."""
        steady = self.stability is Stability.STABLE and not self.whole
        return len(steady_part(self.windows) if steady else self.windows)

    @property
    def mean_s(self) -> float:
        """Return the mean latency of all requests with a result, as a server's figures are of all; 0 without one."""
        return self.total_s / max(1, self.results)


@dataclass(slots=True)
class _Open:
    """The window that is under way."""

    began_s: float
    due_before: int
    answered: int = 0
    latencies_s: float = 0.0
    failed: int = 0

    def closed(self, counts: Counts, now_s: float) -> MeasurementWindow:
        mean_s = self.latencies_s / max(1, self.answered)
        due = counts.due(now_s)
        queued = due - counts.sent + counts.outstanding
        return MeasurementWindow(
            now_s - self.began_s, due - self.due_before, self.answered, mean_s, queued, self.failed
        )


def measure(
    counts: Counts,
    completions: Iterator[Completion | None],
    *,
    open_loop: bool,
    window_s: float,
    limit_s: float,
    least: int = 1,
    fewest: int = STABLE_WINDOWS,
    callers: int = 0,
    whole: bool = False,
    ramp: int = 0,
    enough: int | None = None,
    stop: Callable[[], bool] = never,
    progress: Callable[[MeasurementWindow], object] = _ignore,
    clock: Callable[[], float] = perf_counter,
) -> Measurement:
    """Iterate a loop of `Load` until its windows agree, its queue grows, the loop ends, or limit_s seconds are over.

    Args:
        counts: the Load.
        completions: of the Load's loop, which is left as it is: `complete` takes in the requests that are outstanding.
        open_loop: the loop's queue may grow.
        window_s: seconds of a window. The last may be shorter, and counts where it is the only one, or the load is
            `whole`.
        limit_s: the longest measurement.
        least: as of `stability`.
        fewest: as of `stability`.
        callers: as of `stability`.
        whole: go on to the end of the loop, or to the limit, though the windows agree or the queue grows.
        ramp: the first window begins with the end of so many requests, which count for nothing: a pipeline that is
            empty at the beginning gives its first result later than others, and a process that is there gives it
            earlier. The time before counts as part of limit_s.
        enough: results after the ramp that end the measurement, though its windows do not agree. The last one counts,
            too, though it is shorter.
        stop: returns True to end now, as Ctrl-C does.
        progress: is called with each window that has ended.
        clock: as the Load's.
    """
    windows: list[MeasurementWindow] = []
    judged = partial(stability, open_loop=open_loop, least=least, fewest=fewest, callers=callers)
    answered = array("d")  # of each result when its request was due, its latency, and how late it was sent
    errors: Counter[str] = Counter()
    started_s, ramped = clock(), ramp > 0
    began_s = now_s = started_s
    window = _Open(began_s, counts.due(began_s))
    state, interrupted, ended, last_result_s = Stability.UNSETTLED, False, False, 0.0
    try:
        for completed in completions:
            if ramp:
                if completed is not None:
                    ramp -= 1
                    errors.update([] if completed.error is None else [type(completed.error).__name__])
                    began_s = completed.ended_s
                    window = _Open(began_s, counts.due(began_s))
            elif completed is not None and completed.error is None:
                window.answered += 1
                window.latencies_s += completed.latency_s
                answered.extend((completed.due_s, completed.latency_s, completed.sent_s - completed.due_s))
                last_result_s = completed.ended_s - began_s
            elif completed is not None:
                window.failed += 1
                errors[type(completed.error).__name__] += 1
            now_s = clock()
            if not ramp and now_s - window.began_s >= window_s:
                windows.append(window.closed(counts, now_s))
                progress(windows[-1])
                state = judged(windows)
                window = _Open(now_s, counts.due(now_s))
            interrupted = stop()
            settled = (state is not Stability.UNSETTLED and not whole) or len(answered) // 3 == enough
            if interrupted or settled or now_s - started_s >= limit_s:
                break
        else:
            ended = True
    except KeyboardInterrupt:
        interrupted = True
    if (whole or not windows or len(answered) // 3 == enough) and (now_s := clock()) > window.began_s:
        windows.append(window.closed(counts, now_s))
        window.began_s = now_s
    if state is Stability.UNSETTLED:
        state = judged(windows, final=True)
    counted_s = sum(each.seconds for each in (steady_part(windows) if state is Stability.STABLE else windows))
    first_s, last_s = (began_s, math.inf) if whole else (window.began_s - counted_s, window.began_s)
    if ramped and state is Stability.UNSETTLED:
        first_s = -math.inf  # the requests that were under way at the end of the ramp are part of all windows
    due_s, latency_s, late_s = np.frombuffer(answered or bytes(0)).reshape(-1, 3).T
    counted = (due_s >= first_s - 1e-9) & (due_s <= last_s)  # a sum of seconds is not exact
    return Measurement(
        state,
        tuple(windows),
        began_s,
        (first_s, last_s),
        tuple(latency_s[counted].tolist()),
        dict(errors),
        float(late_s[counted].mean()) if counted.any() else 0.0,
        interrupted,
        open_loop,
        whole,
        len(latency_s),
        last_result_s,
        float(latency_s.max(initial=0.0)),
        ended=ended,
        total_s=float(latency_s.sum()),
        unsent=max(0, counts.due(now_s) - counts.sent) if open_loop and not ended else 0,
    )


def complete(found: Measurement, load: Drained, timeout_s: float, stop: Callable[[], bool] = never) -> Measurement:
    """Wait for the requests that are under way at the end, for timeout_s seconds at most, and count them too.

    Otherwise the slowest requests would be missing among the latencies: they end last. One that has no end in this time
    is lost, and counts with its age, which its latency exceeds; but if the measurement is interrupted, nothing is known
    of it. One that fails counts among the errors, as one that fails before. A service is SILENT that gave no result
    after the last of the requests without one was due, though the oldest of these waits twice as long as any other has
    waited.

    Args:
        found: of a loop of the load. Of a load with an end of its own, what was due and not sent is lost, too.
        load: the rest.
        timeout_s: the longest wait.
        stop: returns True to wait no longer, unless the measurement has been interrupted before.
    """
    first_s, last_s = found.span_s
    ends, failed, interrupted = list[tuple[float, float]](), list[tuple[float, float]](), found.interrupted
    errors = Counter(found.errors)
    last_result_s = found.last_result_s
    stop = never if found.interrupted else stop
    try:
        for completed in load.drain(timeout_s, stop):
            (ends if completed.error is None else failed).append((completed.due_s, completed.latency_s))
            if completed.error is None:
                last_result_s = completed.ended_s - found.began_s
            else:
                errors[type(completed.error).__name__] += 1
    except KeyboardInterrupt:
        interrupted = True
    interrupted, now_s = interrupted or stop(), perf_counter()
    ended_s = found.began_s + sum(each.seconds for each in found.windows)
    unsent = [(due_s, now_s - due_s) for due_s in load.unsent(ended_s)] if found.whole and not interrupted else []
    waiting = [(due_s, now_s - due_s) for due_s in tuple(load.under_way.values())]  # a copy: other threads end requests
    slowest_s = max([found.slowest_s, *(latency_s for _, latency_s in ends)])
    oldest_s = max((age_s for _, age_s in (*failed, *waiting)), default=0.0)
    newest_due_s = max((due_s for due_s, _ in (*failed, *waiting)), default=0.0)
    answered = found.last_result_s > 0 or not interrupted  # none within the whole load is as silent
    # a service that answers what was sent later has only lost a request
    ceased = newest_due_s >= found.began_s + last_result_s
    silent = ceased and answered and oldest_s > max(SILENT_S, 2 * slowest_s)
    results, total_s = found.results + len(ends), found.total_s + sum(latency_s for _, latency_s in ends)
    lost = [] if interrupted else [*waiting, *unsent]
    unanswered = sum(first_s <= due_s <= last_s for due_s, _ in (*failed, *lost))
    ends += lost
    return replace(
        found,
        stability=Stability.SILENT if silent else found.stability,
        latencies_s=(*found.latencies_s, *(latency_s for due_s, latency_s in ends if first_s <= due_s <= last_s)),
        results=results,
        total_s=total_s,
        last_result_s=last_result_s,
        slowest_s=max([slowest_s, *(age_s for _, age_s in lost)]),
        errors=dict(errors),
        lost=len(lost),
        unanswered=unanswered,
        waiting=len(waiting) if interrupted else 0,
        interrupted=interrupted,
    )

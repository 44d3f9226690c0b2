"""MLPerf Inference's four scenarios, by its rules for a valid run.

Source: MLCommons, "MLPerf Inference Rules", section 3, Scenarios, with the early stopping criterion of its appendix.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from threading import Lock
from time import perf_counter
from typing import Any

from kaas.bench.arrivals import poisson
from kaas.bench.load import Completion, Load, Send
from kaas.bench.measure import LatencyFigures
from kaas.errors import InvalidRequest

DURATION_S = 600.0
"""The least duration of a valid run."""
OFFLINE_SAMPLES = 24_576
STREAM_SAMPLES = 8
MOST_SAMPLES = 1_000_000
CONFIDENCE = 0.99
DRAIN_S = 60.0
"""Longest wait for the last queries."""
SLOWER = 4.0
"""A service may be slower than expected by so much: an offline query is waited for so many times its duration more."""


OBSERVED = ("p50", "p90")
"""The percentiles that are told where there are too few queries for the estimate of the one that counts."""


class MlperfScenario(Enum):
    """A scenario, by its name."""

    SINGLE_STREAM = "single-stream"
    MULTI_STREAM = "multi-stream"
    SERVER = "server"
    OFFLINE = "offline"

    @property
    def percentile(self) -> float | None:
        """The percentile of the latencies that counts; None for the scenario whose rate counts alone."""
        if self is MlperfScenario.OFFLINE:
            return None
        return 0.9 if self is MlperfScenario.SINGLE_STREAM else 0.99

    @property
    def samples(self) -> int:
        """The samples of a query; of the offline scenario the least number."""
        return {MlperfScenario.MULTI_STREAM: STREAM_SAMPLES, MlperfScenario.OFFLINE: OFFLINE_SAMPLES}.get(self, 1)


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """The result of a run.

    Fields:
        seconds: to the last end; where queries have no end, to the time at which the run gave them up.
        latency_s: the early-stopping estimate of the scenario's percentile; None where the scenario has none, or with
            too few queries. rate_per_s: answered samples a second. missing: what the rules ask and the run has not.
        observed_s: by the names p50 and p90, these percentiles of the queries that there are, without an estimate.
        lost: queries without an end, which are among the errors. interrupted: Ctrl-C ended the run. driver: the
            generator that sent the queries.
    """

    scenario: MlperfScenario
    queries: int
    seconds: float
    rate_per_s: float
    latency_s: float | None
    errors: int
    missing: tuple[str, ...]
    lost: int = 0
    interrupted: bool = False
    driver: str = "KaaS"
    observed_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def valid(self) -> bool:
        """True if the run keeps all rules."""
        return not self.missing


def run(
    send: Send, scenario: MlperfScenario, *, rate_per_s: float, bound_s: float, duration_s: float = DURATION_S
) -> ScenarioResult:
    """Run a scenario.

    Args:
        send: sends a sample, and returns its future.
        scenario: one of the four.
        rate_per_s: of the server scenario's Poisson arrivals; offline, the rate that is expected: the query has samples
            for the whole duration.
        bound_s: the server scenario's bound of the 99th percentile.
        duration_s: a shorter run is not valid.

    Raises:
        InvalidRequest: an offline query that is too large.
    """
    samples = offline_samples(rate_per_s, duration_s) if scenario is MlperfScenario.OFFLINE else scenario.samples
    query = Load((lambda number: gathered(send, number * samples, samples)) if samples > 1 else send)
    offline = scenario is MlperfScenario.OFFLINE
    patience_s = DRAIN_S + SLOWER * duration_s if offline else DRAIN_S
    began_s, ends, interrupted = perf_counter(), list[Completion](), True
    with suppress(KeyboardInterrupt):  # the run then ends here, with the figures that there are
        for completed in _loop(query, scenario, rate_per_s):
            if completed is not None:
                ends.append(completed)
            if perf_counter() - began_s >= duration_s or (offline and ends):
                break
        for completed in query.drain(patience_s):
            ends.append(completed)
        interrupted = False
    seconds = perf_counter() - began_s
    if offline:
        seconds = max((completed.ended_s for completed in ends), default=perf_counter()) - began_s
    latencies = sorted(completed.latency_s for completed in ends if completed.error is None)
    estimate = early_stopping(latencies, scenario.percentile) if scenario.percentile else None
    lost = query.outstanding
    errors = len(ends) - len(latencies) + lost
    counted_s = min(duration_s, seconds)  # a slow last query makes no run longer than was asked for
    missing = [*rules_broken(scenario, samples, counted_s, errors), *_too_slow(scenario, estimate, bound_s)]
    if interrupted:
        missing.insert(0, "Ctrl-C ended it")
    rate = len(latencies) * samples / seconds
    return ScenarioResult(
        scenario,
        len(latencies),
        seconds,
        rate,
        estimate,
        errors,
        tuple(missing),
        lost,
        interrupted,
        observed_s={name: LatencyFigures.of(latencies).percentiles[name] for name in OBSERVED},
    )


def _loop(query: Load, scenario: MlperfScenario, rate_per_s: float) -> Iterator[Completion | None]:
    match scenario:
        case MlperfScenario.SERVER:
            return query.opened(poisson(rate_per_s))
        case MlperfScenario.OFFLINE:
            return query.opened(iter((0.0,)))
    return query.closed(1)


def offline_samples(rate_per_s: float, duration_s: float) -> int:
    """Return the samples of an offline query that takes duration_s seconds at a rate.

    Raises:
        InvalidRequest: they are too many.
    """
    if not rate_per_s * duration_s <= MOST_SAMPLES:
        raise InvalidRequest(f"an offline query has {MOST_SAMPLES} samples at most: rate times duration")
    return max(1, math.ceil(rate_per_s * duration_s))


def rules_broken(scenario: MlperfScenario, samples: int, seconds: float, errors: int) -> Iterator[str]:
    """Yield what the rules ask and a run has not. samples: of a query. errors: the queries that have no result."""
    if seconds < DURATION_S:
        yield f"a run takes {DURATION_S:g} s or more, not {seconds:.3g} s"
    if errors:
        yield "1 query has no result" if errors == 1 else f"{errors} queries have no result"
    if scenario is MlperfScenario.OFFLINE and samples < OFFLINE_SAMPLES:
        yield f"the query has {OFFLINE_SAMPLES} samples or more, not {samples}"


def _too_slow(scenario: MlperfScenario, estimate: float | None, bound_s: float) -> Iterator[str]:
    if scenario.percentile is not None and estimate is None:
        yield f"too few queries for the {scenario.percentile * 100:g}th percentile"
    if scenario is MlperfScenario.SERVER and estimate is not None and estimate > bound_s:
        yield f"the 99th percentile is {bound_s * 1e3:g} ms or less, not {estimate * 1e3:.3g} ms"


def early_stopping(latencies_s: Sequence[float], percentile: float) -> float | None:
    """Return the latency that the percentile does not exceed, with a confidence of 99 %; None with too few queries.

    It is the t-th highest latency, for the largest t with P(X <= t) <= 1 %, where X is the number of latencies above
    the true percentile: binomial, of n queries, each above it with a probability of 1 - percentile.

    Args:
        latencies_s: in rising order.
        percentile: between 0 and 1.
    """
    n, above = len(latencies_s), 1 - percentile
    t, below = -1, 0.0
    while t + 1 <= n:
        below += math.exp(_log_binomial(n, t + 1) + (t + 1) * math.log(above) + (n - t - 1) * math.log(percentile))
        if below > 1 - CONFIDENCE:
            break
        t += 1
    return latencies_s[n - t] if t >= 1 else None


def _log_binomial(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def gathered(send: Send, first: int, count: int) -> Future[Any]:
    """Send the samples of a query, and return a future that ends with the last of them, or with the first error."""
    whole: Future[Any] = Future()
    left, lock, failed = [count], Lock(), list[BaseException]()

    def ended(future: Future[Any]) -> None:
        error = CancelledError() if future.cancelled() else future.exception()
        with lock:
            left[0] -= 1
            if error is not None:
                failed.append(error)
            last = not left[0]
        if last and failed:
            whole.set_exception(failed[0])
        elif last:
            whole.set_result(None)

    for number in range(first, first + count):
        send(number).add_done_callback(ended)
    return whole

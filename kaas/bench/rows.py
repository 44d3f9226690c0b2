"""The rows of a report: what each loop of requests found, as plain values."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import wait
from functools import partial
from time import perf_counter, process_time
from typing import Any

import msgspec

from kaas.bench import shares
from kaas.bench.interrupt import never
from kaas.bench.load import TICK_S, Load
from kaas.bench.loops import Loop
from kaas.bench.measure import QUANTILES, Measurement, complete, measure
from kaas.bench.mlperf.scenarios import MlperfScenario, ScenarioResult
from kaas.bench.service import LoadedService
from kaas.bench.stages import StageTotals
from kaas.bench.windows import MeasurementWindow, Stability
from kaas.errors import DeadlineExceeded, KaasError
from kaas.ktask.draw import printable

FIRST_S = 300.0
"""Longest wait for the first result of a function."""
DRAIN_S = 30.0
"""Longest wait for the replies that are missing at the end of a measurement."""
INTERRUPTED_DRAIN_S = 1.0
"""As long after Ctrl-C."""
TOLD_S = 2.0
"""A wait of this length is announced."""
FEWEST_WINDOWS = 6
"""Fewer do not show that a service becomes slower, or what it is like after its beginning."""
LEAST_RESULTS = 30
"""The results that three windows have to have to agree: the mean of fewer says little."""
LATE_SHARE = 0.05
"""A larger share of a latency should not be the time by which the generator was late."""
OWN_CORES = 0.1
"""With a larger share of a core the generator may be part of the latencies that it measures."""


def rows(
    service: LoadedService,
    inputs: Mapping[str, Any],
    loops: Iterable[Loop],
    window_s: float,
    limit_s: float,
    interrupt: Callable[[], bool] = never,
) -> Iterator[dict[str, Any]]:
    """Measure each loop, and yield its row.

    Ctrl-C, or `interrupt` when it returns True, ends with the row of the windows that there are, and so does a service
    that gives no more results. A series of rising rates ends with the first rate at which the queue grows.
    """
    calls = [function.call for function in service.functions.values()]
    _first(calls, inputs, interrupt)
    slots, overloaded = service.slots() * len(service.devices), False
    for loop in loops:
        if loop.rising and overloaded:
            continue
        taken = _Taken(len(calls))
        load = taken.load = Load(lambda number: calls[number % len(calls)](**inputs), taken.count)
        before, own_s, began_s = _totals(service), process_time(), perf_counter()
        told = partial(_tell, loop.title, window_s)
        found = measure(
            load,
            loop.begin(load),
            open_loop=loop.opened,
            window_s=window_s,
            limit_s=limit_s,
            least=LEAST_RESULTS,
            fewest=FEWEST_WINDOWS,
            callers=loop.callers,
            whole=loop.whole,
            stop=interrupt,
            progress=told,
        )
        taken_s = perf_counter() - began_s
        own_cores = (process_time() - own_s) / taken_s
        if own_cores > OWN_CORES:
            print(f"{loop.title}: this program itself took {own_cores:.2f} of a core", file=sys.stderr)
        if loop.opened and found.late_s > LATE_SHARE * found.mean_s:
            late = f"requests were sent {found.late_s * 1e3:.2g} ms late on average"
            why = "the service took no more, or this program had no time"
            print(f"{loop.title}: {late}, which their latencies contain: {why}", file=sys.stderr)
        if not found.interrupted and (words := drain_words(load.outstanding, found.results / taken_s)):
            print(f"{loop.title}: {words}", file=sys.stderr)
        load.sending = False
        found = complete(found, load, INTERRUPTED_DRAIN_S if found.interrupted else DRAIN_S, interrupt)
        stages = None if load.outstanding else _since(before, service, began_s)
        row = {
            "load": loop.title,
            "rate_asked_per_s": loop.rate_per_s,
            **figures(found, stages),
            "own_cores": own_cores,
        }
        if service.devices:
            row |= {"devices": len(service.devices), "kinds": sorted(set(service.devices))}
        if stages and service.devices:
            row["utilisation"] = stages.seconds["kernels"] / (perf_counter() - began_s) / slots
        if len(calls) > 1:
            counts = dict(zip(service.functions, taken.results, strict=True))
            weights = {client: service.weight(client) for client in counts}
            shared = not loop.opened or found.stability is Stability.UNSTABLE  # else all get what they send
            index = shares.fairness(counts, weights) if shared else None
            row |= {"clients": counts, "weights": weights, "jain": index}
        yield row
        overloaded = not found.has_level
        if found.interrupted or found.stability is Stability.SILENT:
            return


def drain_words(outstanding: int, rate_per_s: float) -> str:
    """Return in words that a service of this rate needs a while for the outstanding requests; "" if it is short."""
    left_s = min(DRAIN_S, outstanding / rate_per_s) if rate_per_s else DRAIN_S * (outstanding > 0)
    if left_s < TOLD_S:
        return ""
    requests = "1 request that is" if outstanding == 1 else f"{outstanding:,} requests that are"
    return f"waiting about {left_s:.0f} s for {requests} under way; Ctrl-C ends the wait"


def scenario_row(
    service: LoadedService,
    inputs: Mapping[str, Any],
    scenario: MlperfScenario,
    *,
    rate_per_s: float,
    bound_s: float,
    duration_s: float,
    run: Callable[..., ScenarioResult],
) -> dict[str, Any]:
    """Run one of MLPerf's scenarios, and return its row. The arguments are those of `kaas.bench.mlperf.scenarios.run`.

    run: this function, or LoadGen's.
    """
    calls = [function.call for function in service.functions.values()]
    _first(calls, inputs)
    found = run(
        lambda number: calls[number % len(calls)](**inputs),
        scenario,
        rate_per_s=rate_per_s,
        bound_s=bound_s,
        duration_s=duration_s,
    )
    counts = f"p{(scenario.percentile or 0) * 100:g}"
    if found.latency_s is not None:
        times = {counts: found.latency_s}
    elif scenario.percentile is None:
        times = {}
    else:  # the one that counts is an estimate, and no other stands for it
        times = {name: s for name, s in found.observed_s.items() if name != counts and _known(name, found.queries)}
    return {
        "load": f"MLPerf {scenario.value}",
        "driver": found.driver,
        "state": "valid" if found.valid else "not valid",
        "missing": list(found.missing),
        "requests": found.queries,
        "rate_per_s": found.rate_per_s,
        **{f"{name}_ms": value * 1e3 for name, value in times.items()},
        **({"bound_ms": bound_s * 1e3} if scenario is MlperfScenario.SERVER else {}),
        "errors": found.errors,
        "lost": found.lost,
        "interrupted": found.interrupted,
        "seconds": found.seconds,
    }


def figures(found: Measurement, stages: StageTotals | None) -> dict[str, Any]:
    """Return a measurement as it is printed; times in ms. Without a steady state, rate and latencies are None.

    stages: of the pool or server; None if it no longer answers.
    """
    latencies, count = found.latencies, found.latencies.count
    steady = found.has_level and count > 0
    times = {"mean": latencies.mean, "sd": latencies.sd, **latencies.percentiles}
    return {
        "state": _state(found),
        "rate_per_s": found.rate_per_s,
        "requests": count if found.has_level else sum(window.answered for window in found.windows),
        **{f"{time}_ms": value * 1e3 if steady and _known(time, count) else None for time, value in times.items()},
        "stages_ms": {stage: s * 1e3 for stage, s in stages.means_s(found.mean_s).items()} if stages else {},
        "hits": stages.hits if stages else 0,
        "misses": stages.misses if stages else 0,
        "cold": stages.cold if stages else 0,
        "late_ms": found.late_s * 1e3,
        "errors": found.errors,
        "lost": found.lost,
        "waiting": found.waiting,
        "unsent": found.unsent if found.stability in (Stability.SILENT, Stability.UNSTABLE) else 0,
        "interrupted": found.interrupted,
        "slowest_ms": found.slowest_s * 1e3,
        "last_result_s": found.last_result_s,
        "seconds": sum(each.seconds for each in found.windows),
        "windows": len(found.windows),
        "counted_windows": found.counted,
        "cdf_ms": [value * 1e3 for value in latencies.cdf] if steady else [],
    }


def _state(found: Measurement) -> str:
    """Return the state in a word. Windows of a load with an end of its own need not agree."""
    state: str = found.stability.value
    if found.stability is Stability.SILENT:
        return state
    if found.interrupted:
        return "interrupted"
    if found.whole and found.stability is not Stability.UNSTABLE:
        return "whole" if found.ended else "cut off"
    return state


def _first(
    calls: Iterable[Callable[..., Any]], inputs: Mapping[str, Any], interrupt: Callable[[], bool] = never
) -> None:
    """Send the first request of each function, which compiles, and shows mistakes.

    Raises:
        DeadlineExceeded. KeyboardInterrupt: `interrupt` returned True.
    """
    for call in calls:
        future, until_s = call(**inputs), perf_counter() + FIRST_S
        while not wait([future], TICK_S).done:
            if interrupt():
                raise KeyboardInterrupt
            if perf_counter() > until_s:
                raise DeadlineExceeded(f"the first request has no result after {FIRST_S:g} s")
        future.result()


def _totals(service: LoadedService) -> StageTotals | None:
    """Return the service's figures; None if it no longer answers, so that what was measured before is still shown."""
    try:
        return StageTotals.of(service.stats())
    except (KaasError, msgspec.MsgspecError) as error:
        print(f"no stages, hits and misses: {printable(str(error))}", file=sys.stderr)
        return None


def _since(before: StageTotals | None, service: LoadedService, began_s: float) -> StageTotals | None:
    seconds, after = perf_counter() - began_s, _totals(service) if before is not None else None
    if before is None or after is None:
        return None
    found = after.since(before, seconds)
    if found is None:
        print("no stages, hits and misses: the service has begun to count anew meanwhile", file=sys.stderr)
    return found


def _known(figure: str, requests: int) -> bool:
    """Return True if a figure is no percentile, or one that more than the slowest request stands for."""
    return figure not in QUANTILES or requests * (1 - QUANTILES[figure]) >= 1 - 1e-9


def _tell(title: str, window_s: float, window: MeasurementWindow) -> None:
    """Show a window that has ended; only the results go to stdout."""
    rate = f"{window.rate_per_s:.4g} requests/s"
    latency = f"{window.latency_s * 1e3:.3g} ms" if window.answered else "no result"
    long = f", in {window.seconds:.3g} s: the service took no more" if window.seconds > 2 * window_s else ""
    print(f"{title}: {rate}, {latency}, {window.queued} under way{long}", file=sys.stderr)


class _Taken:
    """Counts the results of each client while its load sends requests.

    After that the service answers all that is left, and no client asks for more: these results say nothing of shares.
    """

    load: Load

    def __init__(self, clients: int) -> None:
        self.results = [0] * clients

    def count(self, number: int, _: Any) -> None:
        """Count a result, after the number that its request was sent with."""
        if self.load.sending:
            self.results[number % len(self.results)] += 1

"""A benchmark reports "unstable" for a growing queue, and no ratio of times that depend on its duration."""

from __future__ import annotations

import json
from concurrent.futures import Future

import numpy as np
import pytest

from benchmarks import chaos, report
from benchmarks.queueing import UNSTABLE, is_stable


def waits(load: float, count: int, service_s: float, seed: int = 0) -> tuple[list[float], float]:
    """Latencies of requests that arrive at random at one server, with this load, and the time of the last arrival."""
    gaps = np.random.default_rng(seed).exponential(service_s / load, count)
    at, free, out = 0.0, 0.0, []
    for gap in gaps:
        at += gap
        free = max(free, at) + service_s
        out.append(free - at)
    return out, at


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("count", [30, 1000])
def test_a_queue_that_keeps_up_is_stable(seed: int, count: int) -> None:
    assert is_stable(*waits(0.5, count, 5e-3, seed))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("load", [2.0, 3.0, 20.0])
def test_an_overloaded_queue_is_unstable(seed: int, load: float) -> None:
    assert not is_stable(*waits(load, 300, 5e-3, seed))


def test_an_unstable_bar_is_missed_and_reported_as_unstable(capsys: pytest.CaptureFixture[str]) -> None:
    bars: dict[str, report.Bar] = {"latency_16": (UNSTABLE, ">=", 16.0), "waits": (UNSTABLE, "<=", 1.0)}
    assert not any(map(report.met, bars.values()))
    report.report("multitenant", bars, {}, json=False)
    assert capsys.readouterr().out.count("unstable") == 2
    report.report("multitenant", bars, {}, json=True)
    assert json.loads(capsys.readouterr().out)["bars"]["latency_16"] == ["unstable", ">=", 16.0]


def sent(latencies_s: list[float], seconds: float) -> list[chaos.Sent]:
    out = []
    for number, latency_s in enumerate(latencies_s):
        answer = Future[object]()
        answer.set_result(np.full(1, number * 0.5 + 1, np.float32))
        at_s = number * seconds / len(latencies_s)
        out.append(chaos.Sent(number, at_s, answer, answered_s=at_s + latency_s))
    return out


def test_chaos_compares_with_no_peace_that_was_none() -> None:
    seconds = chaos.QUIET_SECONDS
    calm, growing = sent([0.01] * 90, seconds), sent(list(np.linspace(0.01, seconds, 90)), seconds)
    assert chaos.judge(calm, calm, None)[0]["p99_over_quiet"][0] == 1.0
    assert chaos.judge(growing, growing, None)[0]["p99_over_quiet"][0] == UNSTABLE

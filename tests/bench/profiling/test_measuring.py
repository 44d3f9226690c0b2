"""Throughput from the ends of requests, as a share's windows give them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from statistics import median

import pytest

from kaas.bench.load import Completion
from kaas.bench.profiling.measuring import (
    BLOCK_REQUESTS,
    BLOCK_S,
    BLOCK_WINDOWS,
    LATENCIES,
    _latencies,
    _rates,
    _until_they_agree,
)

WINDOW_S = 0.1


def ends(run_s: float, quota: float) -> Iterator[Completion]:
    """Yield the ends of requests, one after another, of a share with a part of each window.

    The time of a run beyond its part counts in the next windows.
    """
    now_s, number = 0.0, 0
    spent_s, window = 0.0, 0
    while True:
        if int(now_s / WINDOW_S + 1e-9) > window:
            passed = int(now_s / WINDOW_S + 1e-9) - window
            window += passed
            spent_s = max(0.0, spent_s - passed * quota * WINDOW_S)
        if quota < 1 and spent_s >= quota * WINDOW_S - 1e-9:
            now_s = (window + 1) * WINDOW_S
            continue
        began_s, now_s = now_s, now_s + run_s
        spent_s += run_s
        number += 1
        yield Completion(number, began_s, began_s, now_s)


@pytest.mark.parametrize("run_s", [0.003, 0.01, 0.03, 0.07, 0.2])
@pytest.mark.parametrize("quota", [0.2, 0.5, 1.0])
def test_throughput_is_that_of_whole_windows(run_s: float, quota: float) -> None:
    found = list(_until_they_agree(_rates(ends(run_s, quota), WINDOW_S, 2)))
    assert median(rate for rate, _ in found) == pytest.approx(quota / run_s, rel=0.07)
    for _, requests in found:
        seconds = requests * run_s / quota
        assert seconds >= 0.9 * BLOCK_WINDOWS * WINDOW_S
        assert requests >= BLOCK_REQUESTS or seconds >= 0.9 * BLOCK_S


def test_the_throughput_of_a_function_that_takes_seconds_needs_few_requests() -> None:
    found = list(_until_they_agree(_rates(ends(1.5, 0.2), WINDOW_S, 2)))
    assert median(rate for rate, _ in found) == pytest.approx(0.2 / 1.5, rel=0.05)
    assert sum(requests for _, requests in found) == 3


def test_throughput_that_varies_is_measured_longer() -> None:
    steady = [(10.0, 8)] * 20
    assert len(list(_until_they_agree(iter(steady)))) == 3
    first = [(20.0, 8), *steady]
    assert len(list(_until_they_agree(iter(first)))) == 4
    random = [(10.0 + number % 2, 8) for number in range(20)]
    assert len(list(_until_they_agree(iter(random)))) == 9


def test_latencies_are_those_of_a_hundred_requests_or_of_two_seconds() -> None:
    assert len(list(_latencies(ends(0.003, 1.0), 1))) == LATENCIES
    assert len(list(_latencies(ends(0.05, 1.0), 1))) == 40
    assert len(list(_latencies(ends(1.0, 1.0), 1))) == 5
    (latency_s,) = {round(each, 6) for each in islice(_latencies(ends(0.05, 1.0), 1), 5)}
    assert latency_s == 0.05

"""Arrivals of open loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from statistics import mean, pstdev

import pytest

from kaas.bench.arrivals import constant, poisson, recorded
from kaas.errors import InvalidRequest


def test_gaps_of_a_poisson_process_have_the_mean_and_the_spread_of_its_rate() -> None:
    times = [0.0, *islice(poisson(50.0), 20_000)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert min(gaps) >= 0
    assert mean(gaps) == pytest.approx(1 / 50, rel=0.03)
    assert pstdev(gaps) == pytest.approx(1 / 50, rel=0.03)  # of an exponential distribution: as its mean


def test_counts_of_a_poisson_process_vary_as_much_as_their_mean() -> None:
    times = list(islice(poisson(10.0, seed=3), 20_000))
    counts = [0] * int(times[-1])
    for time_s in times:
        if time_s < len(counts):
            counts[int(time_s)] += 1
    assert mean(counts) == pytest.approx(10, rel=0.05)
    assert pstdev(counts) ** 2 == pytest.approx(10, rel=0.1)


def test_a_seed_gives_the_same_arrivals_again_and_another_seed_others() -> None:
    first, again, other = (list(islice(poisson(1.0, seed), 10)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_constant_arrivals_keep_their_gap_for_long() -> None:
    times = list(islice(constant(1000.0), 1_000_000))
    assert times[0] == 0.001
    assert times[-1] == 1000.0


@pytest.mark.parametrize("make", [poisson, constant])
@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_that_is_not_a_positive_number_is_refused(make: Callable[[float], Iterator[float]], rate: float) -> None:
    with pytest.raises(InvalidRequest, match="a positive number of requests a second"):
        make(rate)


def test_a_trace_begins_at_its_first_request_and_keeps_its_gaps() -> None:
    assert list(recorded([100.0, 100.0, 103.5, 4000.0])) == [0.0, 0.0, 3.5, 3900.0]


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ([], "the trace has no requests"),
        ([2.0, 1.0], "1 s comes after 2 s"),
        ([2.0, float("nan")], "nan s comes after 2 s"),
    ],
)
def test_a_trace_without_requests_or_order_is_refused(times: list[float], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        list(recorded(times))

"""When a measurement ends."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product, takewhile
from random import Random

import pytest

from kaas.bench.arrivals import constant, poisson
from kaas.bench.rows import FEWEST_WINDOWS, LEAST_RESULTS
from kaas.bench.windows import MOST_UNSENT, MeasurementWindow, Stability, stability, steady_part
from tests.lanes import spread

Counts = list[tuple[int, int, float]]
RATES_PER_S = [20, 100, pytest.param(1000, marks=pytest.mark.slow)]


def windows(*rows: tuple[int, int, float]) -> list[MeasurementWindow]:
    """due, answered, latency."""
    found, queued = list[MeasurementWindow](), 0
    for due, answered, latency_s in rows:
        queued += due - answered
        found.append(MeasurementWindow(1.0, due, answered, latency_s, queued))
    return found


STEADY = (100, 100, 0.01)


def test_a_service_that_stalls_is_not_called_overloaded_while_it_may_go_on() -> None:
    stalls = [(20, answered, 0.006) for answered in (17, 14, 19, 18, 0, 0, 0, 0, 0)]
    assert {stability(windows(*stalls[:count]), open_loop=True) for count in range(4, 10)} == {Stability.UNSETTLED}
    gone_on = windows(*stalls, (20, 120, 3.0), *[(20, 20, 0.006)] * 6)
    assert stability(gone_on, open_loop=True) is not Stability.UNSTABLE
    overloaded = [(20, 20, 0.006)] * 4 + [(20, 2, 0.5)] * 5
    assert stability(windows(*overloaded), open_loop=True) is Stability.UNSTABLE


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], Stability.UNSETTLED),
        ([STEADY] * 2, Stability.UNSETTLED),
        ([STEADY] * 3, Stability.STABLE),
        ([(10, 1, 0.5), *[STEADY] * 3], Stability.STABLE),  # the first windows warm up
        ([STEADY, STEADY, (100, 100, 0.013)], Stability.UNSETTLED),  # the latency differs
        ([(100, 100, ms / 1e3) for ms in (16, 10, 33, 49, 20, 41, 8, 4, 4, 4)], Stability.UNSETTLED),  # a calm moment
        ([(0, 0, 0.0)] * 4, Stability.UNSETTLED),  # no reply comes: equal windows of nothing are no measurement
    ],
)
def test_three_windows_that_agree_are_stable(rows: list[tuple[int, int, float]], expected: Stability) -> None:
    assert stability(windows(*rows), open_loop=False) is expected
    assert stability(windows(*rows), open_loop=True) is expected


def test_callers_that_wait_agree_in_their_rate_and_random_arrivals_need_not() -> None:
    varying = windows(STEADY, STEADY, (130, 130, 0.01))
    assert stability(varying, open_loop=False) is Stability.UNSETTLED
    assert stability(varying, open_loop=True) is Stability.STABLE


def test_an_open_loop_whose_queue_grows_is_unstable_though_its_rate_is_steady() -> None:
    growing = windows(*[(150, 100, 0.01 * (k + 1)) for k in range(4)])
    assert stability(growing, open_loop=True) is Stability.UNSTABLE
    assert stability(growing, open_loop=False) is not Stability.UNSTABLE


def judged(rows: Iterable[tuple[int, int, float]]) -> Stability:
    """Return the state of the first windows that have one, or that of all, as `kaas bench` does."""
    seen = list[tuple[int, int, float]]()
    rule = partial(stability, open_loop=True, least=LEAST_RESULTS, fewest=FEWEST_WINDOWS)
    for row in rows:
        seen.append(row)
        state = rule(windows(*seen))
        if state is not Stability.UNSETTLED:
            return state
    return rule(windows(*seen), final=True)


def served(arrivals: Iterable[float], servers: int, service_s: Callable[[], float], seconds: int) -> Counts:
    """Return the windows of a second of a queue with so many servers."""
    free, ends = [0.0] * servers, list[tuple[float, float]]()
    for due_s in takewhile(lambda each: each < seconds, arrivals):
        end_s = max(heapq.heappop(free), due_s) + service_s()
        heapq.heappush(free, end_s)
        ends.append((due_s, end_s))
    due, ended = [0] * seconds, [list[float]() for _ in range(seconds)]
    for due_s, end_s in ends:
        due[int(due_s)] += 1
        if end_s < seconds:
            ended[int(end_s)].append(end_s - due_s)
    return [(count, len(each), sum(each) / max(1, len(each))) for count, each in zip(due, ended, strict=True)]


@pytest.mark.parametrize("rate_per_s", RATES_PER_S)
@pytest.mark.parametrize("over", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("random", [False, True])
def test_a_service_with_too_little_capacity_is_not_called_stable(rate_per_s: int, over: float, random: bool) -> None:
    """So many requests a second come to four servers, 10 to 100 % more than they can serve, for thirty seconds."""
    states = list[Stability]()
    for seed in range(20 if random else 1):
        arrivals = poisson(rate_per_s, seed) if random else constant(rate_per_s)
        service_s = 4 * (1 + over) / rate_per_s
        states.append(judged(served(arrivals, 4, lambda: service_s, 30)))  # noqa: B023 - called at once
    assert states.count(Stability.STABLE) <= len(states) // (4 if rate_per_s * over < 10 else 10)
    if rate_per_s * over >= 10:  # else thirty seconds do not tell it from chance
        assert states.count(Stability.UNSTABLE) >= 0.75 * len(states)


@pytest.mark.parametrize("rate_per_s", RATES_PER_S)
@pytest.mark.parametrize("share", [0.5, 0.8])
def test_a_queue_that_varies_does_not_grow(rate_per_s: int, share: float) -> None:
    states = list[Stability]()
    for seed in range(20):
        times, service_s = Random(seed), share / rate_per_s
        arrivals = poisson(rate_per_s, seed + 100)
        states.append(judged(served(arrivals, 1, lambda: times.expovariate(1 / service_s), 30)))  # noqa: B023
    assert states.count(Stability.UNSTABLE) <= 2


@pytest.mark.parametrize(("rate_per_s", "mean_s"), spread(product([20, 100, 1000], [0.5, 1.0, 2.0, 5.0]), 4))
def test_a_service_that_fills_up_does_not_grow_for_ever(rate_per_s: int, mean_s: float) -> None:
    """Enough servers for all, and latencies that differ much."""
    states = list[Stability]()
    for seed in range(10):
        times = Random(seed)
        filling = served(poisson(rate_per_s, seed), 20_000, lambda: times.expovariate(1 / mean_s), 30)  # noqa: B023
        states.append(judged(filling))
    assert states.count(Stability.UNSTABLE) <= 1


@pytest.mark.parametrize(("rate_per_s", "share"), [(100, 0.2), (300, 0.1), (1000, 0.05)])
def test_a_service_of_which_some_requests_take_long_is_not_unstable(rate_per_s: int, share: float) -> None:
    """They take ten seconds, for which the queue grows."""
    states = list[Stability]()
    for seed in range(10):
        times = Random(seed)
        mixed = served(poisson(rate_per_s, seed), 20_000, lambda: 10.0 if times.random() < share else 0.2, 30)  # noqa: B023
        states.append(judged(mixed))
    assert states.count(Stability.UNSTABLE) <= 1


def test_callers_whose_requests_end_together_have_no_rate_until_it_fits_their_latency() -> None:
    """Thirty callers, each request takes 0.8 s: a window of a second has one round, or two."""
    rounds = [0.8 * (number + 1) for number in range(60)]
    seen = list[MeasurementWindow]()
    for number in range(40):
        answered = 30 * sum(number < each <= number + 1 for each in rounds)
        seen.append(MeasurementWindow(1.0, answered, answered, 0.8, 30))
        if stability(seen, open_loop=False, callers=30) is Stability.STABLE:
            break
    counted = steady_part(seen)
    rate_per_s = sum(each.answered for each in counted) / sum(each.seconds for each in counted)
    assert rate_per_s == pytest.approx(30 / 0.8, rel=0.1)


def test_a_service_that_becomes_slower_and_slower_is_not_stable() -> None:
    """Its latency doubles in eight seconds."""
    ramp = [(100, 100, 0.1 * 2 ** (number / 8)) for number in range(30)]
    assert judged(ramp) is not Stability.STABLE


def test_a_stall_within_the_measurement_counts() -> None:
    slow, stall = (100, 100, 0.05), (100, 100, 0.5)
    assert (
        list(steady_part(windows(slow, STEADY, STEADY, stall, *[STEADY] * 3)))
        == windows(slow, STEADY, STEADY, stall, *[STEADY] * 3)[1:]
    )
    assert len(steady_part(windows(slow, slow, *[STEADY] * 3))) == 3


def test_a_stall_is_no_growth() -> None:
    stalled = [*[STEADY] * 3, (100, 10, 0.01), *[(100, 102, 0.5)] * 2, (100, 101, 0.5)]
    assert stability(windows(*stalled), open_loop=True) is not Stability.UNSTABLE
    seen = [(20, 20, 0.01), (31, 31, 0.01), (26, 25, 0.01), (25, 24, 0.01), (25, 10, 0.3)]
    assert stability(windows(*seen), open_loop=True) is not Stability.UNSTABLE


def test_a_slow_service_has_a_long_queue_that_does_not_grow() -> None:
    """Each request takes five windows."""
    slow = [*[(100, 0, 0.0)] * 5, *[(100, 100, 5.0)] * 4]
    for count in range(1, len(slow)):
        assert stability(windows(*slow[:count]), open_loop=True) is not Stability.UNSTABLE
    assert stability(windows(*slow), open_loop=True) is Stability.STABLE


def test_a_service_of_which_each_request_fails_is_silent() -> None:
    gone = MeasurementWindow(1.0, 4, 0, 0.0, 0, failed=4)
    assert stability([*windows(*[STEADY] * 2), gone, gone], open_loop=False) is Stability.UNSETTLED
    assert stability([*windows(*[STEADY] * 2), gone, gone, gone], open_loop=False) is Stability.SILENT


def test_failures_are_no_steady_state() -> None:
    failing = [MeasurementWindow(1.0, 100, 80, 0.01, 0, failed=20)] * 3
    assert stability(failing, open_loop=True) is Stability.UNSETTLED
    assert stability(failing, open_loop=False) is Stability.UNSETTLED


def test_a_service_that_is_behind_by_as_many_requests_as_are_counted_is_overloaded() -> None:
    """The count of the queue ends there, so that it does not grow any more."""
    full = [MeasurementWindow(1.0, due, 1000, 0.5, MOST_UNSENT + 10) for due in (50_000, 50_000, 1000, 1000, 1000)]
    assert stability(full, open_loop=True) is Stability.UNSTABLE
    assert stability(full, open_loop=False) is not Stability.UNSTABLE

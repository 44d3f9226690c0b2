"""When a measurement ends."""

from __future__ import annotations

from random import Random

import pytest

from kaas.bench.windows import MeasurementWindow, Stability, stability


def windows(*rows: tuple[int, int, float]) -> list[MeasurementWindow]:
    """due, answered, latency."""
    found, queued = list[MeasurementWindow](), 0
    for due, answered, latency_s in rows:
        queued += due - answered
        found.append(MeasurementWindow(1.0, due, answered, latency_s, queued))
    return found


STEADY = (100, 100, 0.01)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], Stability.UNSETTLED),
        ([STEADY] * 2, Stability.UNSETTLED),
        ([STEADY] * 3, Stability.STABLE),
        ([(10, 1, 0.5), *[STEADY] * 3], Stability.STABLE),  # the first windows warm up
        ([STEADY, STEADY, (100, 100, 0.013)], Stability.UNSETTLED),  # the latency differs
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


@pytest.mark.parametrize("over", [0.03, 0.05, 0.08, 0.3])
@pytest.mark.parametrize("random", [False, True])
def test_a_service_with_too_little_capacity_is_never_called_stable(over: float, random: bool) -> None:
    """1,000 requests a second come, 3 to 30 % more than the service can do; sixty windows of a second."""
    seeds = range(50) if random else range(1)
    states = list[Stability]()
    for seed in seeds:
        generator, queued, rows = Random(seed), 0, list[tuple[int, int, float]]()
        while len(rows) < 60:
            due = round(generator.gauss(1000, 1000**0.5)) if random else 1000
            answered = min(queued + due, round(1000 / (1 + over)))
            queued += due - answered
            rows.append((due, answered, 0.01 + queued / 1000))
            state = stability(windows(*rows), open_loop=True)
            if state is not Stability.UNSETTLED:
                break
        states.append(state)
    most = len(states) // (5 if over < 0.05 else 20)  # 3 % are hardly told from chance
    assert states.count(Stability.STABLE) <= most
    assert over < 0.05 or states.count(Stability.UNSTABLE) >= 0.95 * len(states)


@pytest.mark.parametrize("share", [0.5, 0.8, 0.9])
def test_a_queue_that_varies_does_not_grow(share: float) -> None:
    """A single server with random arrivals; its own latencies decide whether the windows agree."""
    states = list[Stability]()
    for seed in range(50):
        generator, now_s, free_s, ends = Random(seed), 0.0, 0.0, list[tuple[float, float]]()
        while now_s < 60:
            now_s += generator.expovariate(1000 * share)
            free_s = max(free_s, now_s) + 0.001
            ends.append((now_s, free_s))
        rows = list[tuple[int, int, float]]()
        for second in range(59):
            latencies = [end - due for due, end in ends if second <= end < second + 1]
            due = sum(second <= due < second + 1 for due, _ in ends)
            rows.append((due, len(latencies), sum(latencies) / len(latencies)))
            state = stability(windows(*rows), open_loop=True)
            if state is not Stability.UNSETTLED:
                break
        states.append(state)
    assert states.count(Stability.UNSTABLE) <= 1
    assert states.count(Stability.STABLE) >= 40 or share == 0.9  # there the windows seldom agree within 10 %


def test_a_stall_is_no_growth() -> None:
    stalled = [*[STEADY] * 3, (100, 10, 0.01), *[(100, 102, 0.5)] * 2, (100, 101, 0.5)]
    assert stability(windows(*stalled), open_loop=True) is not Stability.UNSTABLE


def test_a_slow_service_has_a_long_queue_that_does_not_grow() -> None:
    """Each request takes five windows."""
    slow = [*[(100, 0, 0.0)] * 5, *[(100, 100, 5.0)] * 4]
    for count in range(1, len(slow)):
        assert stability(windows(*slow[:count]), open_loop=True) is not Stability.UNSTABLE
    assert stability(windows(*slow), open_loop=True) is Stability.STABLE


def test_failures_are_no_steady_state() -> None:
    failing = [MeasurementWindow(1.0, 100, 80, 0.01, 0, failed=20)] * 3
    assert stability(failing, open_loop=True) is Stability.UNSETTLED
    assert stability(failing, open_loop=False) is Stability.UNSETTLED

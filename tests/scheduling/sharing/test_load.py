"""The load that is expected: the recent rate or its trend, whatever arrivals and clocks do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.errors import InvalidConfig
from kaas.scheduling.sharing.load import SLOTS, LoadMeter, RecentLoad, trend

PERIOD_S = 10.0
TIMES = st.lists(st.floats(-1e9, 1e9), max_size=60)


def steady(meter: LoadMeter, rate_per_s: float, begin_s: float, end_s: float) -> None:
    for number in range(round((end_s - begin_s) * rate_per_s)):
        meter.arrived(begin_s + number / rate_per_s)


def test_a_steady_load_is_its_rate() -> None:
    meter = LoadMeter(PERIOD_S)
    steady(meter, 20.0, 0.0, 40.0)
    for time_s in (40.0, 40.01):
        assert meter.predict(time_s) == pytest.approx(20.0, abs=0.2)


def test_within_a_slot_a_steady_load_stays_its_rate() -> None:
    meter = LoadMeter(PERIOD_S)
    found = []
    for number in range(1200):
        meter.arrived(number / 20)
        if number > 600:
            found.append(meter.predict(number / 20))
    assert min(found) == pytest.approx(20.0, abs=0.3)
    assert max(found) == pytest.approx(20.0, abs=0.3)


def test_a_load_that_rises_is_expected_to_rise_as_much_again() -> None:
    meter = LoadMeter(PERIOD_S)
    steady(meter, 10.0, 0.0, 10.0)
    steady(meter, 30.0, 10.0, 20.0)
    assert meter.predict(20.0) == pytest.approx(50.0)


def test_a_load_that_falls_is_expected_to_stay() -> None:
    meter = LoadMeter(PERIOD_S)
    steady(meter, 30.0, 0.0, 10.0)
    steady(meter, 10.0, 10.0, 20.0)
    assert meter.predict(20.0) == pytest.approx(10.0)


def test_silence_is_forgotten_after_a_period() -> None:
    meter = LoadMeter(PERIOD_S)
    assert meter.predict(0.0) == 0
    meter.arrived(0.0, 100)
    assert meter.predict(5.0) == 20.0
    assert meter.predict(12.0) == 0
    assert meter.predict(1e12) == 0
    meter.arrived(1e12)
    assert meter.predict(1e12) == pytest.approx(0.2)


def test_a_burst_at_one_time_counts_as_much_as_it_is() -> None:
    meter = LoadMeter(PERIOD_S)
    for _ in range(1000):
        meter.arrived(100.0)
    assert meter.predict(100.0) == 200.0
    assert meter.predict(100.0) == 200.0


def test_a_clock_that_stands_still_or_goes_back_changes_nothing() -> None:
    meter = LoadMeter(PERIOD_S)
    steady(meter, 20.0, 0.0, 40.0)
    before = meter.predict(40.0)
    assert meter.predict(-5.0) == before
    meter.arrived(3.0)
    assert meter.predict(40.0) == pytest.approx(before + 0.2)


def test_any_callable_takes_the_predictor_s_place() -> None:
    seen = []

    def constant(recent: RecentLoad) -> float:
        seen.append(recent)
        return 7.0

    meter = LoadMeter(PERIOD_S, constant)
    meter.arrived(1.0, 5)
    assert meter.predict(2.0) == 7.0
    assert seen == [RecentLoad(2.0, PERIOD_S, 0.5, 0.0)]


def test_what_is_expected_is_never_below_nothing() -> None:
    assert LoadMeter(PERIOD_S, lambda recent: recent.now_per_s - 1).predict(1.0) == 0


@given(TIMES, st.floats(1e-3, 1e3))
def test_whatever_the_times_the_load_is_that_of_a_period(times: list[float], period_s: float) -> None:
    meter = LoadMeter(period_s)
    for count, time_s in enumerate(times, 1):
        meter.arrived(time_s)
        assert 1 / period_s <= meter.predict(time_s) + 1e-9 <= 2 * count / period_s + 2e-9
        assert len(meter._slots) <= 2 * SLOTS + 1


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_the_trend_is_the_larger_one(now_per_s: float, before_per_s: float) -> None:
    expected = trend(RecentLoad(0.0, 1.0, now_per_s, before_per_s))
    assert expected == pytest.approx(max(now_per_s, now_per_s + (now_per_s - before_per_s)))
    assert expected >= now_per_s


@pytest.mark.parametrize("period_s", [0.0, -1.0, float("nan")])
def test_a_period_takes_time(period_s: float) -> None:
    with pytest.raises(InvalidConfig, match="a period of"):
        LoadMeter(period_s)

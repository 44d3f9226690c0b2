"""Quotas: admitted requests stay within them, and a retry after the reported delay is admitted."""

from __future__ import annotations

from math import floor
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaas.errors import InvalidConfig
from kaas.server.usage.quotas import ROUNDING_S, UNLIMITED, WINDOW_S, Allowance, Quotas, Window

gaps = st.lists(st.floats(0, 5), min_size=1, max_size=60)


@settings(deadline=None)
@given(gaps=gaps, rate=st.floats(0.05, 100), burst=st.none() | st.integers(1, 20))
def test_no_span_of_time_has_more_requests_than_its_part(gaps: list[float], rate: float, burst: int | None) -> None:
    quotas = Quotas(requests_per_s=rate, burst=burst)
    allowance = Allowance(quotas)
    admitted: list[float] = []
    now_s = 1000.0
    for gap_s in gaps:
        now_s += gap_s
        if allowance.admit(now_s) is None:
            admitted.append(now_s)
    for first, begun_s in enumerate(admitted):
        for last, ended_s in enumerate(admitted[first:], first):
            allowed = quotas.at_once + rate * (ended_s - begun_s + (last - first + 1) * ROUNDING_S)
            assert last - first + 1 <= allowed + 1e-6


@settings(deadline=None)
@given(gaps=gaps, rate=st.floats(0.05, 100), burst=st.none() | st.integers(1, 20))
def test_an_early_request_gets_the_shortest_sufficient_retry_delay(
    gaps: list[float], rate: float, burst: int | None
) -> None:
    allowance = Allowance(Quotas(requests_per_s=rate, burst=burst))
    now_s = 1000.0
    for gap_s in gaps:
        now_s += gap_s
        refusal = allowance.admit(now_s)
        if refusal is None:
            continue
        assert (refusal.quota, refusal.limit) == ("requests_per_s", rate)
        assert refusal.retry_s is not None
        if refusal.retry_s > 3 * ROUNDING_S:
            assert allowance.admit(now_s + refusal.retry_s - 2 * ROUNDING_S) is not None
        now_s += refusal.retry_s
        assert allowance.admit(now_s) is None


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5))
def test_no_more_are_open_than_may_be(comings: list[bool], limit: int) -> None:
    allowance = Allowance(Quotas(concurrent_requests=limit))
    for comes in comings:
        if comes:
            before = allowance.open
            refusal = allowance.admit(0.0)
            assert (refusal is None) == (before < limit)
            assert allowance.open == before + (refusal is None)
        elif allowance.open:
            allowance.leave()


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 40), st.integers(0, 10**12)), min_size=1, max_size=40), st.integers(1, 10**13))
def test_the_window_has_all_of_the_last_minute(additions: list[tuple[float, int]], limit: int) -> None:
    window = Window()
    came: list[tuple[float, int]] = []
    now_s = 50.0
    for gap_s, nanoseconds in additions:
        now_s += gap_s
        window.add(now_s, nanoseconds)
        came.append((now_s, nanoseconds))
        total = window.total(now_s)
        assert total >= sum(each for at_s, each in came if at_s >= now_s - WINDOW_S)
        assert total == sum(each for at_s, each in came if floor(at_s) >= floor(now_s) - WINDOW_S)
    assert Window(window.seconds()).total(now_s) == window.total(now_s)
    wait_s = window.below(now_s, limit)
    assert (wait_s == 0) == (window.total(now_s) < limit)
    if wait_s > 0.001:
        assert window.total(now_s + wait_s - 0.001) >= limit
    assert window.total(now_s + wait_s) < limit


def test_device_time_of_the_last_minute_is_counted_until_it_is_over() -> None:
    allowance = Allowance(Quotas(device_s_per_minute=2.0))
    assert allowance.admit(100.5) is None
    allowance.window.add(100.5, 1_500_000_000)
    assert allowance.admit(110.0) is None
    allowance.window.add(110.0, 1_000_000_000)
    refusal = allowance.admit(120.0)
    assert refusal is not None
    assert (refusal.quota, refusal.limit, refusal.used) == ("device_s_per_minute", 2.0, 2.5)
    assert refusal.retry_s == 100 + 61 - 120
    assert allowance.admit(161.0) is None
    assert allowance.open == 3


def test_a_client_without_device_time_gets_no_retry_delay() -> None:
    refusal = Allowance(Quotas(device_s_per_minute=0)).admit(0.0)
    assert refusal is not None
    assert refusal.retry_s is None


def test_other_quotas_count_at_once() -> None:
    allowance = Allowance(Quotas(requests_per_s=0.001))
    assert allowance.admit(0.0) is None
    assert allowance.admit(1.0) is not None
    allowance.change(Quotas(requests_per_s=1.0), 1.0)
    assert allowance.admit(1.0) is not None
    assert allowance.admit(2.0) is None
    allowance.change(UNLIMITED, 2.0)
    assert all(allowance.admit(2.0) is None for _ in range(1000))


@pytest.mark.parametrize(
    ("field", "value"),
    [("requests_per_s", 0), ("requests_per_s", float("nan")), ("requests_per_s", float("inf")),
     ("concurrent_requests", 0), ("concurrent_requests", True), ("stored_bytes", -1), ("device_s_per_minute", -0.5),
     ("burst", 3)],
)  # fmt: skip
def test_quotas_that_mean_nothing(field: str, value: Any) -> None:
    with pytest.raises(InvalidConfig) as raised:
        Quotas(**{field: value})
    assert raised.value.field == field


def test_quotas_are_read_from_a_file() -> None:
    quotas = msgspec.toml.decode(b"requests_per_s = 10\nlibrary_bytes = 0\n", type=Quotas)
    assert quotas == Quotas(requests_per_s=10.0, library_bytes=0)
    for text in (b"requests_per_second = 10", b"requests_per_s = -10", b"stored_bytes = 1.5"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.toml.decode(text, type=Quotas)

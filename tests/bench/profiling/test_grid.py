"""The shares that are measured, with throughputs and latencies that come from a model."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

import pytest

from kaas.bench.profiling.grid import Place, ProfileGrid, parts, whole_numbers
from kaas.errors import InvalidRequest
from kaas.share import ProfilePoint

SMS = (0.0625, 0.125, 0.25, 0.5, 1.0)
QUOTAS = (0.2, 0.4, 0.6, 0.8, 1.0)


def quarter(sms: float, quota: float) -> ProfilePoint:
    """Return the figures of 32 blocks of 10 ms on 128 SMs, with windows of 0.1 s."""
    run_s = 0.01 * ceil(32 / (sms * 128))
    return ProfilePoint(sms, quota, quota / run_s, run_s + (1 - quota) * 0.1, 1, run_s, 256, 60)


def explored(
    grid: ProfileGrid,
    model: Callable[[float, float], ProfilePoint],
    measured: dict[Place, ProfilePoint],
    most: int = 1000,
) -> list[Place]:
    """Measure until nothing is missing, or so many points. Return them in the order of their measurements."""
    order: list[Place] = []
    while len(order) < most and (place := grid.next(measured)) is not None:
        measured[place] = model(*place)
        order.append(place)
    return order


def test_a_row_over_sms_ends_where_it_is_flat_and_of_a_line_only_the_ends_are_measured() -> None:
    grid, measured = ProfileGrid(SMS, QUOTAS), dict[Place, ProfilePoint]()
    order = explored(grid, quarter, measured)
    row = [0.0625, 0.125, 0.25, 0.5]  # the function fills a quarter
    assert order == [*((sms, 1.0) for sms in row), *((sms, 0.2) for sms in row)]
    assert [measured[sms, 1.0].rate_per_s for sms in row] == [25, 50, 100, 100]
    between = {(each.sms, each.quota): each for each in grid.between(measured)}
    assert {*between} == {(sms, quota) for sms in row for quota in (0.4, 0.6, 0.8)}
    for place, found in between.items():
        modelled = quarter(*place)
        assert found.rate_per_s == pytest.approx(modelled.rate_per_s)
        assert found.p99_s == pytest.approx(modelled.p99_s)
        assert (found.device_bytes, found.requests) == (256, 0)


def test_steps_of_waves_end_no_row() -> None:
    """32 blocks take two waves on 16 SMs, and on 20 to 28 too."""
    sms = tuple(number / 128 for number in (16, 20, 24, 28, 32, 48, 64, 80))
    order = explored(ProfileGrid(sms, (1.0,)), quarter, {})
    assert [place[0] * 128 for place in order] == [16, 20, 24, 28, 32, 48, 64]


def test_time_that_is_no_line_is_measured() -> None:
    def bent(sms: float, quota: float) -> ProfilePoint:
        return ProfilePoint(sms, quota, 100 * quota**2, 0.1, requests=60)

    grid, measured = ProfileGrid((0.5, 1.0), QUOTAS), dict[Place, ProfilePoint]()
    order = explored(grid, bent, measured)
    assert sorted(order) == [(sms, quota) for sms in (0.5, 1.0) for quota in QUOTAS]
    assert grid.between(measured) == []


@pytest.mark.parametrize("most", range(9))
def test_a_second_run_measures_what_is_missing(most: int) -> None:
    grid, measured = ProfileGrid(SMS, QUOTAS), dict[Place, ProfilePoint]()
    first = explored(grid, quarter, measured, most)
    second = explored(grid, quarter, measured)
    whole = explored(grid, quarter, {})
    assert first + second == whole
    wider = ProfileGrid((0.03125, *SMS), QUOTAS)
    assert explored(wider, quarter, measured) == [(0.03125, 1.0), (0.03125, 0.2)]


def test_latencies_between_are_no_less_than_those_of_runs_that_are_longer_than_a_window() -> None:
    def long(sms: float, quota: float) -> ProfilePoint:
        return ProfilePoint(sms, quota, quota / 0.5, 0.5 / quota, 1, 0.5 / quota, requests=60)

    grid, measured = ProfileGrid((1.0,), QUOTAS), dict[Place, ProfilePoint]()
    explored(grid, long, measured)
    assert all(each.p99_s >= long(1.0, each.quota).p99_s for each in grid.between(measured))


@pytest.mark.parametrize(
    ("text", "doubling", "expected"),
    [
        ("0.06..1", True, (0.06, 0.12, 0.24, 0.48, 1.0)),
        ("0.0625..1", True, (0.0625, 0.125, 0.25, 0.5, 1.0)),
        ("0.5..0.6", True, (0.5, 0.6)),
        ("0.2..1", False, (0.2, 0.4, 0.6, 0.8, 1.0)),
        ("0.3..1", False, (0.3, 0.6, 0.9, 1.0)),
        ("0.5", False, (0.5,)),
        (" 1, 0.25 ", False, (0.25, 1.0)),
    ],
)
def test_parts(text: str, doubling: bool, expected: tuple[float, ...]) -> None:
    assert parts(text, "--sms", doubling=doubling) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "0",
        "0..1",
        "-1",
        "2",
        "nan",
        "inf",
        "1..0.5",
        "0.5..0.5",
        "0.5..",
        "..1",
        "0.1..0.2..1",
        "0.5,,1",
        "1e-4",
    ],
)
def test_parts_that_are_none(text: str) -> None:
    for doubling in (False, True):
        with pytest.raises(InvalidRequest, match="--quota"):
            parts(text, "--quota", doubling=doubling)


@pytest.mark.parametrize("text", ["", "0", "a", "1.5", "-1", "1,,2", "2,2", "1..4", "9" * 20, "²"])
def test_batches_that_are_none(text: str) -> None:
    with pytest.raises(InvalidRequest, match="--batch"):
        whole_numbers(text, "--batch")
    assert whole_numbers("4, 1,2", "--batch") == (1, 2, 4)

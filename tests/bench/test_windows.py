"""When a measurement ends."""

from __future__ import annotations

import pytest

from kaas.bench.windows import MeasurementWindow, Stability, stability


def windows(*rows: tuple[int, int, float, int]) -> list[MeasurementWindow]:
    """sent, answered, latency, queued."""
    return [MeasurementWindow(1.0, *row) for row in rows]


STEADY = (100, 100, 0.01, 1)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], Stability.UNSETTLED),
        ([STEADY] * 2, Stability.UNSETTLED),
        ([STEADY] * 3, Stability.STABLE),
        ([(10, 10, 0.5, 9), *[STEADY] * 3], Stability.STABLE),  # the first windows warm up
        ([STEADY, STEADY, (130, 130, 0.01, 1)], Stability.UNSETTLED),  # the rate differs
        ([STEADY, STEADY, (100, 100, 0.013, 1)], Stability.UNSETTLED),  # the latency differs
        (
            [(0, 0, 0.0, 1)] * 4,
            Stability.UNSETTLED,
        ),  # no reply comes: equal windows of nothing are no measurement
    ],
)
def test_three_windows_that_agree_are_stable(rows: list[tuple[int, int, float, int]], expected: Stability) -> None:
    assert stability(windows(*rows), open_loop=False) is expected
    assert stability(windows(*rows), open_loop=True) is expected


def test_an_open_loop_whose_queue_grows_is_unstable_though_its_rate_is_steady() -> None:
    growing = windows(*[(150, 100, 0.01 * (k + 1), 50 * (k + 1)) for k in range(4)])
    assert stability(growing, open_loop=True) is Stability.UNSTABLE
    assert stability(growing, open_loop=False) is not Stability.UNSTABLE


def test_a_queue_that_varies_does_not_grow() -> None:
    varying = windows(*[(100, 100, 0.01, queued) for queued in (1, 3, 4, 6)])
    assert stability(varying, open_loop=True) is Stability.STABLE
    emptied = windows(*[(100, 100, 0.01, queued) for queued in (1, 60, 5, 40)])
    assert stability(emptied, open_loop=True) is Stability.STABLE

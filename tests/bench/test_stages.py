"""The parts of a latency add up to it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from kaas.bench.stages import BETWEEN, OUTSIDE, StageTotals
from kaas.wire.status.stats import StageStats, Stats, TierStats


def stats(requests: int, tiers: tuple[TierStats, ...] = (), **seconds: float) -> Stats:
    """Return the figures of so many requests with these mean seconds in each stage."""
    stages = (
        StageStats("f", "ann", stage, requests, requests * mean_s, mean_s, mean_s, mean_s, mean_s)
        for stage, mean_s in seconds.items()
    )
    return Stats(1.0, tuple(stages), tiers, ())


def test_the_stages_and_the_rest_are_the_latency() -> None:
    totals = StageTotals.of([stats(10, before=0.25, queue=0.125, kernels=0.5, total=0.625, request=0.75, after=0.125)])
    means_s = totals.means_s(latency_s=1.25)
    assert means_s == {
        "before": 0.25,
        "queue": 0.125,
        "kernels": 0.5,
        "after": 0.125,
        BETWEEN: 0.125,
        OUTSIDE: 0.125,
    }
    assert sum(means_s.values()) == 1.25


def test_a_difference_that_is_wrong_is_not_hidden() -> None:
    """Other programs may use the pool, and the stages are of their requests, too."""
    means_s = StageTotals.of([stats(10, queue=1.0, request=1.25)]).means_s(latency_s=1.0)
    assert means_s == {"queue": 1.0, BETWEEN: 0.25, OUTSIDE: -0.25}


def test_only_requests_of_the_measurement_count() -> None:
    hit = TierStats("f", "ann", 0, "device", objects=7, nbytes=0, compulsory=2, capacity=1)
    before = StageTotals.of([stats(10, queue=1.0, request=1.0)])
    since = StageTotals.of([stats(30, (hit,), queue=1.0, request=1.0)]).since(before, 0.0)
    assert since is not None
    assert since.counts["request"] == 20
    assert since.means_s(1.0) == {"queue": 1.0, BETWEEN: 0.0, OUTSIDE: 0.0}
    assert (since.hits, since.misses) == (7, 3)


def test_figures_that_were_counted_anew_have_no_difference() -> None:
    """After a restart, or a reset: the later ones may be larger all the same."""
    before = StageTotals.of([stats(10, request=1.0)])
    assert StageTotals.of([replace(stats(30, request=1.0), since_s=5.0)]).since(before, 6.0) is None
    assert StageTotals.of([replace(stats(30, request=1.0), since_s=7.0)]).since(before, 6.0)


def test_no_request_has_no_parts() -> None:
    assert StageTotals.of([stats(0)]).means_s(1.0) == {}


@pytest.mark.parametrize("stage", ["start", "run"])
def test_an_etasks_stages_count_and_a_clients_figures_are_read(stage: str) -> None:
    told = msgspec.to_builtins(stats(2, (), request=0.5, **{stage: 0.25}))
    assert StageTotals.of([told]).means_s(0.5)[stage] == 0.25

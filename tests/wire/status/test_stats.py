"""Counting: quantiles near those of NumPy, and entries that add up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaas.executor.cache.tiers import TierUse
from kaas.executor.profile import KernelTime
from kaas.pool.observing.ledger import BATCH, OTHERS, Histogram, Ledger, LedgerEntry, add_to
from kaas.wire.status.stats import KernelStats


@settings(deadline=None)
@given(st.lists(st.floats(1e-7, 1e4), min_size=1, max_size=200))
def test_quantiles_are_within_a_bucket(values: list[float]) -> None:
    histogram = Histogram()
    add_to([histogram] * len(values), values)
    shares = (0.5, 0.9, 0.99)
    exact = np.quantile(values, shares, method="inverted_cdf")
    assert histogram.quantiles(*shares) == pytest.approx(exact, rel=0.06)
    assert histogram.count == len(values)
    assert histogram.total == pytest.approx(sum(values))


def test_nothing_yet_and_zero_seconds() -> None:
    histogram = Histogram()
    assert math.isnan(*histogram.quantiles(0.5))
    add_to([histogram], [0.0])
    assert histogram.quantiles(0.5)[0] < 2e-9


def tiers(hits: int) -> dict[str, TierUse]:
    device = TierUse(hits, hits * 10, compulsory=3 - hits, capacity=1, evictions=1, evicted_bytes=5, seconds=0.25)
    return {"device": device, "store": TierUse(4 - hits)}


def test_the_function_names_of_a_client_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kaas.pool.observing.ledger.FUNCTIONS_PER_CLIENT", 2)
    ledger = Ledger(0.0)
    for epoch in range(2):
        for name in ("f", "g", "h", f"i{epoch}", "f"):
            ledger.write(LedgerEntry(name, "a", 0, "succeeded", {"kernels": 1.0}, tiers(1)))
        ledger.write(LedgerEntry("h", "b", 0, "succeeded"))
        ledger.reset(1.0)
    figures = ledger.since_the_start()
    counts = {("f", "a"): 4, ("g", "a"): 2, (OTHERS, "a"): 4, ("h", "b"): 2}
    assert {key[:2]: count for key, count in figures.outcomes.items()} == counts
    assert {key: stages["kernels"].count for key, stages in figures.stages.items() if stages} == {
        flow: count for flow, count in counts.items() if flow[1] == "a"
    }


def test_the_kernels_of_a_function_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kaas.pool.observing.ledger.KERNELS_PER_FUNCTION", 2)
    ledger = Ledger(0.0)
    for number in range(5):
        kernels = [KernelTime(f"made up {number}", number, 1.0, 1), KernelTime("made up 0", 0, 1.0, 1)]
        ledger.write(LedgerEntry("f", "a", 0, "succeeded", kernels=kernels))
    ledger.reset(1.0)
    times = {key[2:]: seconds for key, (_, seconds) in ledger.since_the_start().kernels.items()}
    assert times == {(0, "made up 0"): 6.0, (1, "made up 1"): 1.0, (-1, OTHERS): 3.0}


def test_ledger() -> None:
    ledger = Ledger(10.0)
    for client, hits in (("a", 3), ("b", 1), ("a", 1)):
        ledger.write(LedgerEntry("f", client, 0, "succeeded", {"kernels": 0.5}, tiers(hits)))
    ledger.write(LedgerEntry("f", "b", None, "cancelled"))
    stats = ledger.read(12.5)
    assert stats.since_s == 2.5
    assert {(entry.client, entry.stage, entry.count, entry.total_s) for entry in stats.stages} == {
        ("a", "kernels", 2, 1.0),
        ("b", "kernels", 1, 0.5),
    }
    assert {(tier.client, tier.device, tier.tier, tier.objects, tier.nbytes) for tier in stats.tiers} == {
        ("a", 0, "device", 4, 40),
        ("a", 0, "store", 4, 0),
        ("b", 0, "device", 1, 10),
        ("b", 0, "store", 3, 0),
    }
    first = stats.tiers[0]
    assert (first.compulsory, first.capacity, first.evictions, first.evicted_bytes, first.seconds) == (2, 2, 2, 10, 0.5)
    assert {(entry.client, entry.device, entry.outcome, entry.count) for entry in stats.outcomes} == {
        ("a", 0, "succeeded", 2),
        ("b", 0, "succeeded", 1),
        ("b", None, "cancelled", 1),
    }
    assert (stats.hit_rate(), stats.hit_rate(client="b")) == (5 / 12, 1 / 4)
    assert math.isnan(stats.hit_rate(client="nobody"))
    ledger.reset(13.0)
    assert ledger.read(13.0).outcomes == ()


def test_kernel_times_add_up_by_client_function_and_place() -> None:
    ledger = Ledger(0.0)
    for client, seconds in (("a", 0.5), ("b", 1.0), ("a", 1.5)):
        kernels = [KernelTime("scale", 1, seconds, 2), KernelTime("scale", 0, 2 * seconds, 2)]
        ledger.write(LedgerEntry("f", client, 0, "succeeded", kernels=kernels))
    ledger.write(LedgerEntry("f", "a", 0, "succeeded"))
    assert ledger.read(1.0).kernels == (
        KernelStats("f", "a", 0, "scale", 4, 4.0, 1.0),
        KernelStats("f", "a", 1, "scale", 4, 2.0, 0.5),
        KernelStats("f", "b", 0, "scale", 2, 2.0, 1.0),
        KernelStats("f", "b", 1, "scale", 2, 1.0, 0.5),
    )
    ledger.reset(2.0)
    assert ledger.read(2.0).kernels == ()


def test_nothing_is_lost_between_batches() -> None:
    ledger = Ledger(0.0)
    for _ in range(2 * BATCH + 3):
        ledger.write(LedgerEntry("f", "a", 1, "succeeded", {"kernels": 1.0}))
    (outcome,), (stage,) = ledger.read(1.0).outcomes, ledger.read(1.0).stages
    assert outcome.count == stage.count == 2 * BATCH + 3

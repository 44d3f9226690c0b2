"""Drawn workloads: their rate, their popularity, their bursts, and the rhythm of a day."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise
from statistics import fmean, pstdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.errors import InvalidScenario
from kaas.scheduling.simulation.scenario import ScenarioFunction, ScenarioRequest
from kaas.scheduling.simulation.scenario_file import parse, read
from kaas.scheduling.simulation.simulator import simulate
from kaas.scheduling.workloads.workload import open_workload


def opened(seed: int = 0, **told: Any) -> tuple[dict[str, ScenarioFunction], list[ScenarioRequest]]:
    scenario, requests = open_workload(read({"seed": seed, "workload": {"synthetic": told}}))
    assert requests is not None
    return dict(scenario.functions), list(requests)


def test_calls_come_at_the_rate_and_the_first_functions_are_called_most() -> None:
    functions, requests = opened(functions=50, zipf=1.0, rate=20, minutes=10)
    assert len(functions) == 50
    assert len(requests) == pytest.approx(12_000, rel=0.05)
    calls = Counter(request.function for request in requests)
    assert calls["f0"] / calls["f9"] == pytest.approx(10, rel=0.2)


@pytest.mark.slow
def test_bursts_are_the_variation_of_the_gaps() -> None:
    for burst in (0.0, 1.0, 3.0):
        _, requests = opened(functions=1, rate=100, burst=burst, minutes=10)
        gaps_s = [later.at_s - each.at_s for each, later in pairwise(requests)]
        assert pstdev(gaps_s) / fmean(gaps_s) == pytest.approx(burst, rel=0.15, abs=1e-6)


@pytest.mark.slow
def test_the_rate_rises_and_falls_over_a_day() -> None:
    _, requests = opened(functions=1, rate=1, burst=0, diurnal=0.5, minutes=1440)
    assert len(requests) == pytest.approx(86_400, abs=2)
    quarters = Counter(int(request.at_s // 21_600) for request in requests)
    # the integral of 1 + sin(x) / 2 over a quarter of its period
    assert [quarters[quarter] for quarter in range(4)] == pytest.approx([28_475, 28_475, 14_725, 14_725], rel=0.01)


@given(st.integers(0, 2**32), st.floats(0, 4), st.floats(0, 1))
def test_calls_are_in_the_order_of_time_and_the_same_for_a_seed(seed: int, burst: float, diurnal: float) -> None:
    told = {"functions": 5, "rate": 0.05, "burst": burst, "diurnal": diurnal, "minutes": 60}
    functions, requests = opened(seed, **told)
    assert (functions, requests) == opened(seed, **told)
    times = [request.at_s for request in requests]
    assert times == sorted(times)
    assert all(0 <= at_s < 3600 for at_s in times)


def test_a_workload_of_any_length_begins_at_once() -> None:
    _, requests = open_workload(read({"workload": {"synthetic": {"rate": 1e6, "minutes": 1e9}}}))
    assert requests is not None
    assert len(list(islice(requests, 1000))) == 1000


def test_functions_that_the_scenario_lists_keep_its_times() -> None:
    told = {"functions": {"f1": {"run_s": 7}}, "workload": {"synthetic": {"functions": 3}}}
    scenario, _ = open_workload(read(told))
    assert [*scenario.functions] == ["f0", "f1", "f2"]
    assert scenario.functions["f1"] == ScenarioFunction(run_s=7)


@pytest.mark.parametrize(
    ("workload", "path"),
    [
        ({}, "workload"),
        ({"synthetic": {}, "record": "a"}, "workload"),
        ({"synthetic": {"rates": 1}}, "workload.synthetic.rates"),
        ({"synthetic": {"rate": 0}}, "workload.synthetic.rate"),
        ({"synthetic": {"diurnal": 1.5}}, "workload.synthetic.diurnal"),
        ({"azure2019": "folder", "minutes": [5, 5]}, "workload.minutes"),
        ({"azure2019": 1}, "workload.azure2019"),
        ({"record": ""}, "workload.record"),
    ],
)
def test_a_mistake_in_a_workload_is_named_by_its_path(workload: Any, path: str) -> None:
    with pytest.raises(InvalidScenario) as caught:
        read({"workload": workload})
    assert caught.value.path == path


def test_a_scenario_has_requests_or_a_workload() -> None:
    told = {"functions": {"A": {}}, "requests": [{"function": "A"}], "workload": {"synthetic": {}}}
    with pytest.raises(InvalidScenario, match="one of the two"):
        read(told)


@pytest.mark.parametrize(
    "workload",
    [{"synthetic": {"rate": 2.0}}, {"azure2019": "folder", "minutes": [5, 65]}, {"record": "run.jsonl"}],
)
def test_a_scenario_with_a_workload_is_written_as_it_is_read(workload: Any) -> None:
    scenario = read({"workload": workload})
    assert parse(scenario.as_json()) == scenario


def test_a_workload_is_not_taken_for_no_requests() -> None:
    with pytest.raises(InvalidScenario, match="open_workload"):
        simulate(read({"workload": {"synthetic": {}}}))

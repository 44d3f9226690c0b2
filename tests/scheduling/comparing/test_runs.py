"""Runs in parallel processes, and their spread over seeds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from kaas.errors import InvalidScenario
from kaas.scheduling.comparing.figures import measure
from kaas.scheduling.comparing.runs import SimulatedRun, measure_all, spread, spreads
from kaas.scheduling.simulation.scenario_file import read

SCENARIO = read(
    {
        "functions": {"A": {"run_s": 1, "run_cv": 0.5, "memory_mb": 1, "load_s": 1}},
        "requests": [{"function": "A", "at_s": number} for number in range(20)],
    }
)


@pytest.mark.processes
def test_runs_of_other_processes_are_those_of_this_one_in_their_order() -> None:
    scenarios = [replace(SCENARIO, seed=seed) for seed in range(4)]
    done: list[None] = []
    measured = measure_all([SimulatedRun(partial(replace, each)) for each in scenarios], lambda: done.append(None))
    assert measured == [measure(each) for each in scenarios]
    assert len({each.mean_latency_s for each in measured}) == len(done) == 4


@pytest.mark.processes
def test_an_error_of_a_run_ends_all_of_them() -> None:
    wrong = read({"policy": {"name": "lalbo3", "limit": -1}, "requests": []})
    with pytest.raises(InvalidScenario, match="limit"):
        measure_all([SimulatedRun(partial(replace, each)) for each in (SCENARIO, wrong)])


def test_a_run_of_a_policy_of_ones_own() -> None:
    run = SimulatedRun(partial(replace, SCENARIO), {"name": "kaas.scheduling.policies.sjf:ShortestJobFirst"})
    assert run.figures().mean_latency_s == measure(SCENARIO).mean_latency_s


def test_the_spread_is_mean_and_sample_deviation() -> None:
    assert spread([1, 3]) == pytest.approx((2, 2**0.5))
    assert spread([5]) == (5, 0)
    figures = measure(SCENARIO)
    assert spreads([figures, figures])["mean_latency_s"] == (figures.mean_latency_s, 0)

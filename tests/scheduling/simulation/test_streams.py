"""Requests as a stream: any number of them, read as they arrive and forgotten as they end."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.errors import InvalidScenario
from kaas.scheduling.policies import POLICIES
from kaas.scheduling.simulation import simulator
from kaas.scheduling.simulation.devices import SimulatedRequest
from kaas.scheduling.simulation.figures import ExactLatencies, LatencyBuckets
from kaas.scheduling.simulation.scenario import ScenarioRequest
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulator import simulate
from tests.scheduling.simulation.simulations import Told

FUNCTIONS = {
    "A": {"memory_mb": 4, "load_s": 0.5, "run_s": 1, "run_cv": 0.8, "client": "a"},
    "B": {"memory_mb": 6, "load_s": 1, "run_s": 0.5},
}
TOLD: Told = {"devices": [{"memory_mb": 8}, {"memory_mb": 8}], "functions": FUNCTIONS}


def stream(number: int, every_s: float = 1.0) -> Iterator[ScenarioRequest]:
    return (ScenarioRequest("AAB"[index % 3], index * every_s) for index in range(number))


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "static"])
def test_a_stream_gives_what_the_list_gives(policy: str) -> None:
    chosen = TOLD | {"policy": {"name": policy}}
    listed = [{"function": each.function, "at_s": each.at_s} for each in stream(50)]
    expected = simulate(read(chosen | {"requests": listed}))
    assert simulate(read(chosen), requests=stream(50)) == expected
    brief = simulate(read(chosen), requests=stream(50), dispatches=False)
    assert (brief.dispatches, brief.rejected) == ((), ())
    for name in ("mean_latency_s", "hits", "loads", "evictions", "device_busy_s", "jain"):
        assert getattr(brief.summary, name) == getattr(expected.summary, name)
    for client, figures in expected.summary.per_client.items():
        told = brief.summary.per_client[client]
        assert told.p99_latency_s == pytest.approx(figures.p99_latency_s, rel=0.0006)
        assert replace(told, p99_latency_s=figures.p99_latency_s) == figures
    assert brief.summary.p99_latency_s == pytest.approx(expected.summary.p99_latency_s, rel=0.0006)


def test_what_has_ended_is_forgotten() -> None:
    alive: list[int] = []

    def watched() -> Iterator[ScenarioRequest]:
        for number, request in enumerate(stream(2000)):
            if number % 500 == 499:
                alive.append(sum(isinstance(each, SimulatedRequest) for each in gc.get_objects()))
            yield request

    simulate(read(TOLD), requests=watched(), dispatches=False)
    assert len(alive) == 4
    assert max(alive) < 50


def test_a_request_is_read_when_the_one_before_has_arrived() -> None:
    reached: list[float] = []

    def endless() -> Iterator[ScenarioRequest]:
        for number in count():
            if reached:
                return
            yield ScenarioRequest("A", number)

    def progress(requests: int, now_s: float) -> None:
        reached.append(now_s)
        assert requests == simulator.PROGRESS_REQUESTS

    summary = simulate(read(TOLD), requests=endless(), dispatches=False, progress=progress).summary
    assert reached == [simulator.PROGRESS_REQUESTS]
    assert summary.per_client["a"].requests == simulator.PROGRESS_REQUESTS + 1


@pytest.mark.parametrize(
    ("requests", "path"),
    [
        ([ScenarioRequest("A", 2), ScenarioRequest("A", 1)], "requests[1].at_s"),
        ([ScenarioRequest("A"), ScenarioRequest("nothing")], "requests[1].function"),
    ],
)
def test_a_stream_that_cannot_be_names_its_request(requests: list[ScenarioRequest], path: str) -> None:
    with pytest.raises(InvalidScenario) as caught:
        simulate(read(TOLD), requests=requests)
    assert caught.value.path == path


@given(st.lists(st.integers(0, 10**18), min_size=1, max_size=300), st.integers(1, 100))
def test_quantiles_of_buckets_are_right_to_a_twentieth_of_a_percent(latencies_ps: list[int], percent: int) -> None:
    exact, buckets = ExactLatencies(), LatencyBuckets()
    for latency_ps in latencies_ps:
        exact.add(latency_ps)
        buckets.add(latency_ps)
    assert buckets.quantiles_s((percent,)) == pytest.approx(exact.quantiles_s((percent,)), rel=0.000501)

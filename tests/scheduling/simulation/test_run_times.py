"""Run times in the simulator: by kind of device, drawn, beside others; and what policies are told of them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Any

import pytest

from kaas.scheduling.decisions import Decision, Policy
from kaas.scheduling.events import Event, FunctionKnown, PhysicalDevice, RequestDone
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulator import simulate

Told = dict[str, Any]


class Witness:
    """First come, first served, and the events that it got."""

    def __init__(self, devices: Sequence[PhysicalDevice]) -> None:
        self.policy: Policy = FirstComeFirstServed(devices)
        self.events: list[Event] = []

    def handle(self, event: Event) -> list[Decision]:
        self.events.append(event)
        return self.policy.handle(event)


def events(**told: Any) -> list[Event]:
    made: list[Witness] = []

    def make(devices: Sequence[PhysicalDevice]) -> Policy:
        made.append(Witness(devices))
        return made[0]

    simulate(read(told), make)
    return made[0].events


def runs(**told: Any) -> list[float]:
    """Return the run times, by request."""
    done = [event for event in events(**told) if isinstance(event, RequestDone)]
    return [each.run_s for each in sorted(done, key=lambda each: each.request)]


def requests(count: int, every_s: float = 0.0) -> list[Told]:
    return [{"function": "A", "at_s": number * every_s} for number in range(count)]


def test_a_run_takes_as_long_as_its_kind_of_device_needs() -> None:
    devices = [{"kind": "gpu"}, {"kind": "software", "speed": 2}]
    functions = {"A": {"run_s": {"gpu": 1, "software": 8}}}
    assert sorted(runs(devices=devices, functions=functions, requests=requests(2))) == [1, 4]


def test_run_times_are_drawn_by_the_seed_around_the_mean() -> None:
    told: Told = {"functions": {"A": {"run_s": 2, "run_cv": 0.8}}, "requests": requests(4000)}
    drawn = runs(seed=3, **told)
    assert fmean(drawn) == pytest.approx(2, rel=0.05)
    assert pstdev(drawn) / fmean(drawn) == pytest.approx(0.8, rel=0.1)
    assert drawn == runs(seed=3, **told)
    assert drawn != runs(seed=4, **told)


def test_a_run_beside_others_takes_longer() -> None:
    """The first runs alone, the next beside one and two."""
    told = {"devices": [{"slots": 3, "interference": 0.5}], "functions": {"A": {"run_s": 1}}}
    assert runs(**told, requests=requests(3)) == [1, 1.5, 2]


def test_an_executor_takes_its_time_to_start() -> None:
    result = simulate(
        read({"worker_start_s": 2, "functions": {"A": {}}, "requests": requests(1)}), FirstComeFirstServed
    )
    assert result.dispatches[0].at_s == 2


@pytest.mark.parametrize(("profiles", "told"), [(True, [(3, 2)]), (10, [(30, 20)]), (False, [])])
def test_the_policy_is_told_the_times_or_not(profiles: bool | float, told: list[tuple[float, float]]) -> None:
    functions = {"A": {"run_s": 3, "load_s": 2, "memory_mb": 1, "family": "f", "batch": 4}}
    known = [event for event in events(profiles=profiles, functions=functions) if isinstance(event, FunctionKnown)]
    assert [(each.run_s, each.load_s) for each in known] == told
    assert all((each.family, each.batch) == ("f", 4) for each in known)

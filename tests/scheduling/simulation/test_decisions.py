"""Decisions that only users' policies make, and what the simulator tells policies."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import structs

from kaas.errors import PolicyError
from kaas.scheduling.decisions import Decision, Dispatch, Evict, EvictTo, Prefetch, Reject, WakeAt
from kaas.scheduling.events import (
    Event,
    FunctionKnown,
    Ordered,
    Outcome,
    PhysicalDevice,
    RequestArrived,
    RequestDone,
    Residency,
    Utilisation,
)
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulator import simulate
from tests.scheduling.simulation.simulations import evicted, heard, places, requests, run, script

FOUR_MB = {name: {"memory_mb": 4, "load_s": 2, "run_s": 1} for name in "ABC"}


def test_prefetch_loads_ahead_and_evict_drops() -> None:
    functions = {name: {"memory_mb": 4, "load_s": 2, "run_s": 1} for name in "AB"}
    scenario = read({"devices": [{"cached": ["B"]}], "functions": functions, "requests": requests((1, "A"), (1, "B"))})
    result = simulate(scenario, script(Prefetch(0, (b"A",)), Evict(0, (b"B",))))
    assert places(result) == [(0, 0, 1.0, "hit"), (1, 0, 3.0, "load")]
    assert result.summary.device_busy_s == (4.0,)  # a prefetch takes no slot


def test_a_prefetch_loads_all_or_none_and_evicts_none_of_its_objects() -> None:
    """Of 8 MB B and C have 4 each, B for longer: with A and B it is C that leaves; A, B and C do not fit.

    Where the prefetch is refused, each request drives out the function that the next one needs.
    """
    functions = {name: {"memory_mb": 4, "load_s": 2} for name in "ABC"}
    told = {"devices": [{"memory_mb": 8, "cached": ["B", "C"]}], "functions": functions}
    scenario = read({**told, "requests": requests((1, "A"), (9, "B"), (10, "C"))})
    assert [each.start for each in simulate(scenario, script(Prefetch(0, (b"A", b"B")))).dispatches] == [
        "hit",
        "hit",
        "load",
    ]
    result = simulate(scenario, script(Prefetch(0, (b"A", b"B", b"C"))))
    assert [each.start for each in result.dispatches] == ["load", "load", "load"]
    assert result.dispatches[0].evicted == (b"B".decode(),)


def test_what_moved_comes_just_before_the_end_of_its_mover() -> None:
    told = {"devices": [{"memory_mb": 4}], "functions": FOUR_MB, "requests": requests((0, "A"), (0, "B"), (0, "B"))}
    events = [event for event in heard(read(told)) if isinstance(event, Residency | RequestDone)]
    assert events == [
        Residency(3.0, 0, (b"A",), ()),
        RequestDone(3.0, 0, 0, 0, Outcome.SUCCEEDED, 3.0, 1.0, 2.0, 4 << 20),
        Residency(6.0, 0, (b"B",), (b"A",), (b"A",)),
        RequestDone(6.0, 1, 0, 0, Outcome.SUCCEEDED, 3.0, 1.0, 2.0, 4 << 20),
        RequestDone(7.0, 2, 0, 0, Outcome.SUCCEEDED, 1.0, 1.0, 0.0, 0),
    ]


def test_each_order_is_answered_whatever_came_of_it() -> None:
    told = {"devices": [{"memory_mb": 8, "cached": ["C"]}], "functions": FOUR_MB, "requests": requests((5, "A"))}
    orders = (
        Prefetch(0, (b"A", b"unknown"), 1),
        Prefetch(0, (b"A", b"B", b"C"), 2),
        Evict(0, (b"A", b"C"), 3, EvictTo.HOST),  # A is on its way
        Evict(0, (b"B",), 4),
    )
    events = [event for event in heard(read(told), *orders) if isinstance(event, Residency | Ordered)]
    assert events == [
        Residency(0.0, 0, (b"C",), ()),  # there from the start
        Residency(0.0, 0, (), (b"C",), (b"C",)),
        Ordered(0.0, 0, 3, (b"C",), (b"A",)),
        Ordered(0.0, 0, 4, (), (b"B",)),
        Ordered(0.0, 0, 2, (), (b"A", b"B", b"C")),
        Residency(2.0, 0, (b"A",), ()),
        Ordered(2.0, 0, 1, (b"A",), (b"unknown",), 2.0),
    ]


def test_victims_leave_first_in_their_order() -> None:
    class Newest(FirstComeFirstServed):
        """Names the newest function first, and one that runs."""

        def handle(self, event: Event) -> list[Decision]:
            decided = super().handle(event)
            named = (b"C", b"B", b"unknown", b"A")
            return [structs.replace(each, victims=named) if isinstance(each, Dispatch) else each for each in decided]

    told = {"devices": [{"memory_mb": 8, "cached": ["A", "B"]}], "functions": FOUR_MB, "requests": requests((0, "C"))}
    assert evicted(run(**told)) == [("A",)]
    assert evicted(simulate(read(told), Newest)) == [("B",)]


def test_a_policy_that_asks_for_it_hears_the_exact_utilisation() -> None:
    told = {
        "devices": [{"slots": 2}],
        "functions": {"A": {"run_s": 0.75}},
        "requests": requests((0.5, "A"), (1.0, "A"), (4.0, "A")),
    }
    events = [event for event in heard(read(told), utilisation_every_s=1.0) if isinstance(event, Utilisation)]
    assert [event.busy for event in events] == [0.5, 0.75, 0.0, 0.0, 0.75]
    assert [event.time_s for event in events] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert not [event for event in heard(read(told)) if isinstance(event, Utilisation)]


def test_every_function_is_known_from_the_start() -> None:
    told = {"devices": [{}, {"kind": "software"}], "functions": FOUR_MB, "requests": requests((0, "A"))}
    known = [event for event in heard(read(told)) if isinstance(event, FunctionKnown)]
    assert {(event.function, event.kind) for event in known} == {(f, k) for f in "ABC" for k in ("gpu", "software")}
    assert {(event.run_s, event.load_s, event.nbytes) for event in known} == {(1.0, 2.0, 4 << 20)}


def test_a_policy_that_loses_a_request_is_an_error() -> None:
    class Idle:
        def __init__(self, devices: Sequence[PhysicalDevice]) -> None:
            pass

        def handle(self, event: Event) -> list[Decision]:
            return [WakeAt(event.time_s + 1)] if self.wakes else []

        wakes = False

    scenario = read({"functions": {"A": {}}, "requests": requests((0, "A"))})
    with pytest.raises(PolicyError, match=r"left requests \[0\] waiting"):
        simulate(scenario, Idle)
    with pytest.raises(PolicyError, match="does nothing but ask to be woken"):
        simulate(scenario, type("Restless", (Idle,), {"wakes": True}))


def test_a_policy_rejects() -> None:
    class Refusing:
        def __init__(self, devices: Sequence[PhysicalDevice]) -> None:
            pass

        def handle(self, event: Event) -> list[Decision]:
            return [Reject(event.request, "no")] if isinstance(event, RequestArrived) else []

    result = simulate(read({"functions": {"A": {}}, "requests": requests((3, "A"))}), Refusing)
    assert [(each.request, each.at_s, each.reason) for each in result.rejected] == [(0, 3.0, "no")]
    assert (result.summary.jain, result.summary.mean_latency_s, result.summary.p99_latency_s) == (1.0, 0.0, 0.0)

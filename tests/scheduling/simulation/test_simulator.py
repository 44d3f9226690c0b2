"""The simulator: scenarios small enough to calculate by hand, and invariants of all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from typer.testing import CliRunner

from kaas.cli.main import app
from kaas.errors import PolicyError
from kaas.scheduling.decisions import (
    Decision,
    Dispatch,
    Evict,
    EvictTo,
    Policy,
    Prefetch,
    Reject,
    StartWorker,
    WakeAt,
)
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
    WorkerAdopted,
    WorkerGone,
    WorkerKind,
    WorkerReady,
)
from kaas.scheduling.policies import POLICIES
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from kaas.scheduling.simulation.scenario import Scenario
from kaas.scheduling.simulation.scenario_file import parse, read
from kaas.scheduling.simulation.simulated import Simulated, jain
from kaas.scheduling.simulation.simulator import simulate

ROOT = Path(__file__).parents[3]
Told = dict[str, Any]


def run(**told: Any) -> Simulated:
    return simulate(read(told))


def places(result: Simulated) -> list[tuple[int, int, float, str]]:
    return [(each.request, each.device, each.at_s, each.start) for each in result.dispatches]


def evicted(result: Simulated) -> list[tuple[str, ...]]:
    return [each.evicted for each in result.dispatches]


def requests(*told: tuple[float, str]) -> list[Told]:
    return [{"at_s": at_s, "function": function} for at_s, function in told]


def test_the_first_loads_and_the_second_hits() -> None:
    result = run(functions={"A": {"load_s": 2, "run_s": 1}}, requests=requests((0.5, "A"), (0.5, "A")))
    assert places(result) == [(0, 0, 0.5, "load"), (1, 0, 3.5, "hit")]
    assert result.summary.device_busy_s == (4.0,)
    assert result.summary.mean_latency_s == 3.5
    assert (result.summary.p50_latency_s, result.summary.p99_latency_s) == (3.0, 4.0)
    assert (result.summary.hits, result.summary.loads, result.summary.colds) == (1, 1, 0)


def test_decimal_times_do_not_drift() -> None:
    """0.1 + 0.2 is 0.3: the completion there comes before the arrival."""
    functions = {"A": {"run_s": 0.2}, "B": {"run_s": 0.1}, "C": {}}
    result = run(functions=functions, requests=requests((0.1, "A"), (0.3, "B"), (0.4, "C")))
    assert places(result) == [(0, 0, 0.1, "load"), (1, 0, 0.3, "load"), (2, 0, 0.4, "load")]
    assert result.summary.mean_latency_s == pytest.approx(0.1)


def test_arrivals_are_ordered_by_time_and_then_as_in_the_scenario() -> None:
    result = run(functions={"A": {"run_s": 1}}, requests=requests((2, "A"), (0, "A"), (0, "A")))
    assert [each.request for each in result.dispatches] == [1, 2, 0]


def test_completions_precede_arrivals_and_are_ordered_by_device() -> None:
    """Both devices end at 1, first the lower one; what arrives then finds both free, and takes the one freed last."""
    result = run(devices=[{}, {}], functions={"A": {"run_s": 1}}, requests=requests((0, "A"), (0, "A"), (1, "A")))
    assert sorted(each.device for each in result.dispatches[:2]) == [0, 1]
    assert result.dispatches[2].device == 1


def test_run_times_of_requests_and_speeds_of_devices() -> None:
    told: list[Told] = [{"function": "A", "run_s": 3}, {"function": "A"}, {"function": "A", "run_s": 0}]
    result = run(devices=[{"speed": 2}], functions={"A": {"load_s": 1, "run_s": 1}}, requests=told)
    assert places(result) == [(0, 0, 0.0, "load"), (1, 0, 2.5, "hit"), (2, 0, 3.0, "hit")]
    assert result.summary.per_client["default"].charged_s == 3.0


def test_a_busy_device_is_free_at_its_time_and_no_client_is_charged() -> None:
    devices = [{"busy_until_s": 5, "cached": ["A"], "slots": 2}]
    result = run(devices=devices, functions={"A": {"run_s": 1}}, requests=requests((0, "A"), (0, "A")))
    assert places(result) == [(0, 0, 5.0, "hit"), (1, 0, 5.0, "hit")]
    assert result.summary.device_busy_s == (2.0,)


# --- memory


FOUR = {name: {"memory_mb": 4, "load_s": 1} for name in "ABCD"}


def test_cached_entries_count_as_used_twice_and_those_used_once_are_evicted_first() -> None:
    told = requests((0, "C"), (2, "D"), (4, "B"), (6, "A"))
    result = run(devices=[{"memory_mb": 12, "cached": ["A", "B"]}], functions=FOUR, requests=told)
    assert places(result) == [(0, 0, 0.0, "load"), (1, 0, 2.0, "load"), (2, 0, 4.0, "hit"), (3, 0, 6.0, "hit")]
    assert evicted(result) == [(), ("C",), (), ()]
    assert result.summary.evictions == 1


def test_cached_is_least_recently_used_first() -> None:
    result = run(devices=[{"memory_mb": 8, "cached": ["B", "A"]}], functions=FOUR, requests=requests((0, "C")))
    assert evicted(result) == [("B",)]


def test_several_objects_are_evicted_in_order_for_a_large_one() -> None:
    functions = FOUR | {"E": {"memory_mb": 12}}
    told = requests((0, "D"), (2, "A"), (4, "E"))
    result = run(devices=[{"memory_mb": 16, "cached": ["A", "B", "C"]}], functions=functions, requests=told)
    assert evicted(result) == [(), (), ("D", "B", "C")]


def test_a_function_larger_than_every_device_is_rejected_on_arrival() -> None:
    functions = {"A": {"memory_mb": 9}, "B": {"memory_mb": 8}}
    result = run(devices=[{"memory_mb": 8}], functions=functions, requests=requests((1, "A"), (1, "B")))
    assert places(result) == [(1, 0, 1.0, "load")]
    assert [(each.request, each.at_s, each.reason) for each in result.rejected] == [(0, 1.0, "memory")]
    assert result.summary.per_client["default"].requests == 2


def test_a_function_larger_than_a_device_does_not_run_there() -> None:
    functions = {"A": {"memory_mb": 9, "run_s": 1}, "B": {"run_s": 1}}
    told = requests((0, "A"), (0, "A"), (0, "B"))
    result = run(devices=[{"memory_mb": 9}, {"memory_mb": 8}], functions=functions, requests=told)
    assert len(result.dispatches) + len(result.rejected) == 3
    assert {each.device for each in result.dispatches if each.request != 2} <= {0}
    assert {each.reason for each in result.rejected} <= {"memory"}


def test_slots_run_in_parallel_and_a_dispatch_waits_for_room() -> None:
    """A runs to 3, B needs its room; the second A, which came after B, does not pass it."""
    functions = {"A": {"memory_mb": 6, "load_s": 1, "run_s": 2}, "B": {"memory_mb": 6, "run_s": 1}}
    told = requests((0, "A"), (1, "B"), (1.5, "A"))
    result = run(devices=[{"memory_mb": 8, "slots": 3}], functions=functions, requests=told)
    assert places(result) == [(0, 0, 0.0, "load"), (1, 0, 3.0, "load"), (2, 0, 4.0, "load")]
    assert evicted(result) == [(), ("A",), ("B",)]


def test_an_object_being_loaded_counts_as_cached_and_is_waited_for() -> None:
    told = requests((0, "A"), (1, "A"), (2.5, "B"))
    functions = {"A": {"memory_mb": 4, "load_s": 2, "run_s": 1}, "B": {"memory_mb": 8}}
    result = run(devices=[{"memory_mb": 8, "slots": 2}], functions=functions, requests=told)
    assert places(result) == [(0, 0, 0.0, "load"), (1, 0, 1.0, "hit"), (2, 0, 3.0, "load")]
    assert result.summary.mean_latency_s == pytest.approx((3 + 2 + 0.5) / 3)
    assert result.summary.device_busy_s == (4.0,)


# --- deadlines


def test_a_deadline_in_the_queue() -> None:
    told: list[Told] = [{"function": "A"}, {"function": "A", "deadline_s": 1.5}, {"function": "A", "at_s": 1}]
    result = run(functions={"A": {"run_s": 2}}, requests=told)
    assert places(result) == [(0, 0, 0.0, "load"), (2, 0, 2.0, "hit")]
    assert [(each.request, each.at_s, each.reason) for each in result.rejected] == [(1, 1.5, "deadline")]


def test_a_request_past_its_deadline_keeps_its_slot_while_it_runs() -> None:
    told: list[Told] = [{"function": "A", "deadline_s": 1}, {"function": "A"}]
    result = run(functions={"A": {"run_s": 2}}, requests=told)
    assert places(result) == [(0, 0, 0.0, "load"), (1, 0, 2.0, "hit")]
    assert [(each.request, each.at_s, each.reason) for each in result.rejected] == [(0, 1.0, "deadline")]
    assert result.summary.mean_latency_s == 4.0
    assert result.summary.per_client["default"].charged_s == 4.0


def test_a_request_that_ends_at_its_deadline_succeeds() -> None:
    result = run(functions={"A": {"run_s": 2}}, requests=[{"function": "A", "deadline_s": 2}])
    assert not result.rejected


def test_a_request_waiting_for_room_is_rejected_at_its_deadline() -> None:
    functions = {"A": {"memory_mb": 8, "run_s": 3}, "B": {"memory_mb": 8, "run_s": 1}}
    told: list[Told] = [
        {"function": "A"},
        {"function": "B", "deadline_s": 1},
        {"function": "A", "at_s": 2},
    ]
    result = run(devices=[{"memory_mb": 8, "slots": 2}], functions=functions, requests=told)
    assert places(result) == [(0, 0, 0.0, "load"), (2, 0, 2.0, "hit")]
    assert [(each.request, each.at_s) for each in result.rejected] == [(1, 1.0)]


# --- decisions that only users' policies make


class Scripted(FirstComeFirstServed):
    """First come, first served, with more decisions at the first worker."""

    work_conserving: ClassVar[bool] = False
    more: ClassVar[Sequence[Decision]] = ()

    def handle(self, event: Event) -> list[Decision]:
        decided = super().handle(event)
        return [*decided, *self.more] if isinstance(event, WorkerReady) else decided


def script(*decisions: Decision) -> type[Scripted]:
    return type("Script", (Scripted,), {"more": decisions})


def test_prefetch_loads_ahead_and_evict_drops() -> None:
    functions = {name: {"memory_mb": 4, "load_s": 2, "run_s": 1} for name in "AB"}
    scenario = read({"devices": [{"cached": ["B"]}], "functions": functions, "requests": requests((1, "A"), (1, "B"))})
    result = simulate(scenario, script(Prefetch(0, (b"A",)), Evict(0, (b"B",))))
    assert places(result) == [(0, 0, 1.0, "hit"), (1, 0, 3.0, "load")]
    assert result.summary.device_busy_s == (6.0,)


def test_a_prefetch_loads_all_or_none_and_evicts_none_of_its_objects() -> None:
    """Of 8 MB B and C have 4 each, B for longer: with A and B it is C that leaves; A, B and C do not fit."""
    functions = {name: {"memory_mb": 4, "load_s": 2} for name in "ABC"}
    told = {"devices": [{"memory_mb": 8, "cached": ["B", "C"]}], "functions": functions}
    scenario = read({**told, "requests": requests((1, "A"), (9, "B"), (10, "C"))})
    assert [each.start for each in simulate(scenario, script(Prefetch(0, (b"A", b"B")))).dispatches] == [
        "hit",
        "hit",
        "load",
    ]
    result = simulate(scenario, script(Prefetch(0, (b"A", b"B", b"C"))))
    assert [each.start for each in result.dispatches] == ["load", "load", "hit"]
    assert result.dispatches[0].evicted == (b"B".decode(),)


class Listener(Scripted):
    """A script that keeps the events it hears."""

    heard: ClassVar[list[Event]]

    def handle(self, event: Event) -> list[Decision]:
        self.heard.append(event)
        return super().handle(event)


def heard(scenario: Scenario, *decisions: Decision, **attributes: Any) -> list[Event]:
    """Return the events of a scenario under a script."""
    events: list[Event] = []
    simulate(scenario, type("Heard", (Listener,), {"more": decisions, "heard": events, **attributes}))
    return events


FOUR_MB = {name: {"memory_mb": 4, "load_s": 2, "run_s": 1} for name in "ABC"}


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


# --- figures


def test_nothing_to_do() -> None:
    summary = run(clients={"c": {}}).summary
    assert (summary.mean_latency_s, summary.p50_latency_s, summary.jain, summary.device_busy_s) == (0.0, 0.0, 1.0, (0,))
    assert summary.per_client["c"].requests == 0


def test_jain_is_of_charges_by_weight_of_clients_with_requests() -> None:
    functions = {"A": {"client": "a", "run_s": 2}, "B": {"client": "b", "run_s": 1}}
    told: Told = {"functions": functions, "requests": requests((0, "A"), (0, "B"))}
    assert run(**told).summary.jain == pytest.approx(9 / 10)
    assert run(**told, clients={"a": {"weight": 2}, "c": {}}).summary.jain == pytest.approx(1.0)
    assert list(run(**told, clients={"c": {}}).summary.per_client) == ["c", "a", "b"]
    assert jain([1, 0, 0, 0]) == 0.25


def test_quantiles_are_by_nearest_rank() -> None:
    told = [{"function": "A", "at_s": 1000 * index, "run_s": index + 1} for index in range(100)]
    summary = run(functions={"A": {}}, requests=told).summary
    assert (summary.p50_latency_s, summary.p99_latency_s) == (50.0, 99.0)


def test_a_policy_that_takes_a_seed_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Seeded(FirstComeFirstServed):
        seen: ClassVar[list[int]] = []

        def __init__(self, devices: Sequence[PhysicalDevice], *, seed: int = 1) -> None:
            super().__init__(devices)
            self.seen.append(seed)

    monkeypatch.setitem(POLICIES, "seeded", Seeded)
    run(policy={"name": "seeded"}, seed=5)
    run(policy={"name": "seeded", "seed": 9}, seed=5)
    assert Seeded.seen == [5, 9]


# --- invariants of all scenarios


class Witness:
    """A policy that keeps its events and decisions."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.story: list[Event | Decision] = []

    def handle(self, event: Event) -> list[Decision]:
        decisions = self.policy.handle(event)
        self.story += [event, *decisions]
        return decisions


def witnessed(told: Told) -> tuple[Simulated, list[Event | Decision]]:
    scenario = read(told)
    made: list[Witness] = []

    def make(devices: Sequence[PhysicalDevice]) -> Witness:
        made.append(Witness(scenario.make_policy(devices)))
        return made[-1]

    return simulate(scenario, make), made[0].story


seconds = st.integers(0, 12).map(lambda quarter: quarter / 4)
NAMES = ("A", "B", "C", "D")


@st.composite
def scenarios(draw: st.DrawFn, policy: str) -> Told:
    sizes = st.integers(0, 9)
    functions = {
        name: {
            "memory_mb": draw(sizes),
            "load_s": draw(seconds),
            "run_s": draw(seconds),
            "cold_s": draw(seconds),
            "kind": draw(st.sampled_from(["ktask", "ktask", "etask"])),
            "client": draw(st.sampled_from("xyz")),
        }
        for name in NAMES
    }
    device = st.fixed_dictionaries(
        {"memory_mb": st.integers(6, 16), "slots": st.integers(1, 3), "speed": st.sampled_from([0.5, 1, 3])},
        optional={
            "busy_until_s": seconds,
            "owner": st.builds(lambda client, name: {"client": client, "function": name}, st.sampled_from("xyz"),
                               st.sampled_from(NAMES)),
        },
    )  # fmt: skip
    request = st.fixed_dictionaries(
        {"at_s": seconds, "function": st.sampled_from(NAMES)},
        optional={"client": st.sampled_from("xyz"), "run_s": seconds, "deadline_s": seconds},
    )
    return {
        "policy": {"name": policy},
        "devices": draw(st.lists(device, min_size=1, max_size=3)),
        "functions": functions,
        "clients": draw(st.dictionaries(st.sampled_from("xyz"), st.just({"weight": 2, "runtime_s": 1}))),
        "requests": draw(st.lists(request, max_size=14)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@given(data=st.data())
def test_every_request_is_dispatched_once_or_rejected_and_all_is_the_same_twice(
    policy: str, data: st.DataObject
) -> None:
    told = data.draw(scenarios(policy))
    result, story = witnessed(told)
    assert witnessed(told) == (result, story)
    begun, refused = ([each.request for each in group] for group in (result.dispatches, result.rejected))
    assert len(set(begun)) == len(begun)
    assert len(set(refused)) == len(refused)
    assert {*begun, *refused} == set(range(len(told["requests"])))
    late = {each.request for each in result.rejected if each.reason == "deadline"}
    assert set(begun) & set(refused) <= late
    assert [each.at_s for each in result.dispatches] == sorted(each.at_s for each in result.dispatches)
    check_memory(told, result, story)
    check_slots(told, story)


def check_memory(told: Told, result: Simulated, story: list[Event | Decision]) -> None:
    """The objects of a device, as the policy receives them, never exceed it; nothing that runs leaves.

    While several requests run, what one of them has moved comes with its end: the policy knows all when the last ends.
    """
    held: dict[int, dict[bytes, int]] = {}
    running: dict[int, tuple[int, bytes]] = {}
    device_of: dict[int, int] = {}
    keys: dict[int, bytes] = {}
    for entry in story:
        match entry:
            case RequestArrived(request=request, inputs=inputs) if inputs[0].key is not None:
                keys[request] = inputs[0].key
            case WorkerReady(worker=worker, device=device) | WorkerAdopted(worker=worker, device=device):
                device_of[worker], held[worker] = device, {}
            case Dispatch(request=request, worker=worker):
                running[request] = (worker, keys[request])
            case RequestDone(request=request):
                running.pop(request, None)
            case WorkerGone(worker=worker):
                assert worker not in {at for at, _ in running.values()}
                held.pop(worker, None)
            case Residency(worker=worker, loaded=loaded, evicted=gone) if worker in held:
                sizes = held[worker]
                for key in gone:
                    sizes.pop(key, None)
                sizes |= {key: told["functions"][key.decode()]["memory_mb"] for key in loaded}
                if sum(at == worker for at, _ in running.values()) <= 1:
                    assert sum(sizes.values()) <= told["devices"][device_of[worker]]["memory_mb"]
    assert not running
    assert result.summary.evictions == sum(len(each.evicted) for each in result.dispatches)


def check_slots(told: Told, story: list[Event | Decision]) -> None:
    """Of what one slot runs, one ends before the next begins; a done request took no longer than it should."""
    taken: dict[tuple[int, int], int] = {}
    kinds: dict[int, WorkerKind] = {}
    for entry in story:
        match entry:
            case StartWorker(worker=worker, kind=kind):
                kinds[worker] = kind
            case WorkerReady(worker=worker, slots=slots, device=device):
                assert slots == (told["devices"][device]["slots"] if kinds[worker] is WorkerKind.EXECUTOR else 1)
            case Dispatch(request=request, worker=worker, slot=slot):
                assert (worker, slot) not in taken
                taken[worker, slot] = request
            case RequestDone(request=request, worker=worker, slot=slot, outcome=outcome) if request >= 0:
                assert taken.pop((worker, slot)) == request
                assert outcome in (Outcome.SUCCEEDED, Outcome.ABANDONED, Outcome.FAILED)


# --- the command


def test_the_scenario_of_the_documentation_runs() -> None:
    text = (ROOT / "docs" / "simulator.md").read_text()
    scenario = parse(text.partition("```json\n")[2].partition("```")[0])
    assert places(simulate(scenario)) == [(0, 0, 1.0, "hit")]


def test_the_command_prints_json_of_the_documented_shape(tmp_path: Path) -> None:
    path = tmp_path / "scenario.json"
    told: Told = {
        "devices": [{"memory_mb": 8, "cached": ["A"], "busy_until_s": 1.0}],
        "functions": {"A": {"memory_mb": 4, "load_s": 2.0, "run_s": 1.0, "client": "c0"}, "B": {"memory_mb": 8}},
        "requests": [*requests((0, "A"), (0, "B")), {"function": "A", "deadline_s": 0.5}],
    }
    path.write_text(json.dumps(told))
    ended = CliRunner().invoke(app, ["simulate", str(path), "--json"])
    assert ended.exit_code == 0
    plain = {"false_miss": False, "promised": False}
    assert json.loads(ended.stdout) == {
        "dispatches": [
            {"request": 0, "device": 0, "at_s": 1.0, "start": "hit", "evicted": [], **plain},
            {"request": 1, "device": 0, "at_s": 2.0, "start": "load", "evicted": ["A"], **plain},
        ],
        "rejected": [{"request": 2, "at_s": 0.5, "reason": "deadline"}],
        "summary": {
            "mean_latency_s": 2.0,
            "p50_latency_s": 2.0,
            "p99_latency_s": 2.0,
            "hits": 1,
            "loads": 1,
            "colds": 0,
            "evictions": 1,
            "device_busy_s": [1.0],
            "jain": 0.5,
            "per_client": {
                "c0": {"requests": 2, "mean_latency_s": 2.0, "charged_s": 1.0},
                "default": {"requests": 1, "mean_latency_s": 2.0, "charged_s": 0.0},
            },
        },
    }
    assert msgspec.json.decode(msgspec.json.encode(run(**told))) == json.loads(ended.stdout)


def test_the_command_prints_tables(tmp_path: Path) -> None:
    path = tmp_path / "scenario.json"
    told: Told = {"functions": {"A": {}}, "requests": [*requests((0, "A"), (1, "A")), {"function": "A"}]}
    path.write_text(json.dumps(told))
    ended = CliRunner().invoke(app, ["simulate", str(path), "--rows", "2"])
    assert ended.exit_code == 0
    assert "dispatches, 2 of 3" in ended.stdout
    assert "p99_latency_s" in ended.stdout

"""Invariants of all scenarios, under every policy."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.scheduling.decisions import Decision, Dispatch, Policy, StartWorker
from kaas.scheduling.events import (
    Event,
    Ordered,
    Outcome,
    PhysicalDevice,
    RequestArrived,
    RequestDone,
    Residency,
    WorkerAdopted,
    WorkerGone,
    WorkerKind,
    WorkerReady,
)
from kaas.scheduling.policies import POLICIES
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulated import Simulated
from kaas.scheduling.simulation.simulator import FAILED, _Simulation, simulate
from tests.scheduling.simulation.simulations import Told


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


def failures(devices: int) -> st.SearchStrategy[Told]:
    return st.fixed_dictionaries({"at_s": seconds, "device": st.integers(0, devices - 1), "down_s": seconds})


@st.composite
def scenarios(draw: st.DrawFn, policy: str) -> Told:
    sizes = st.integers(0, 9)
    functions = {
        name: {
            "memory_mb": draw(sizes),
            "load_s": draw(seconds),
            "fetch_s": draw(seconds),
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
            "host_mb": st.integers(0, 16),
            "link": st.sampled_from("ab"),
            "owner": st.builds(lambda client, name: {"client": client, "function": name}, st.sampled_from("xyz"),
                               st.sampled_from(NAMES)),
        },
    )  # fmt: skip
    request = st.fixed_dictionaries(
        {"at_s": seconds, "function": st.sampled_from(NAMES)},
        optional={"client": st.sampled_from("xyz"), "run_s": seconds, "deadline_s": seconds},
    )
    devices = draw(st.lists(device, min_size=1, max_size=3))
    return {
        "policy": {"name": policy},
        "devices": devices,
        "functions": functions,
        "clients": draw(st.dictionaries(st.sampled_from("xyz"), st.just({"weight": 2, "runtime_s": 1}))),
        "requests": draw(st.lists(request, max_size=14)),
        "links": {"a": {"mb_s": 2}, "b": {"mb_s": 3}},
        "failures": draw(st.lists(failures(len(devices)), max_size=2)),
    }


def memories(told: Told) -> list[tuple[set[bytes], set[bytes]]]:
    """Return what each device holds at the end, and what its policy takes it to hold. Policies know no empty object."""
    simulation = _Simulation(read(told), None, None, keep=True)
    simulation.run(None, None)
    known = simulation._policy.policy._holdings.memories  # type: ignore[attr-defined]
    return [
        ({key for key in each.memory.held if each.memory._sizes[key]}, {*known[each.index].used})
        for each in simulation._devices
    ]


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "exclusive"])
def test_an_eviction_that_is_told_after_a_later_load_is_none(policy: str) -> None:
    """A takes the place of X, X comes again beside it, and A ends last."""
    functions = {name: {"memory_mb": 4, "load_s": 1, "run_s": run_s} for name, run_s in (("A", 10), ("B", 1), ("X", 1))}
    device = {"memory_mb": 10, "slots": 2, "cached": ["X", "B"]}
    told = {
        "policy": {"name": policy},
        "devices": [device],
        "functions": functions,
        "requests": [{"function": "A", "at_s": 0}, {"function": "X", "at_s": 1}],
    }
    assert memories(told) == [({b"A", b"X"}, {b"A", b"X"})]


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@given(data=st.data())
def test_a_policy_knows_all_that_devices_hold(policy: str, data: st.DataObject) -> None:
    """Else requests for it would load nothing, and tell nothing, for ever. What is gone is known at the next load."""
    for held, known in memories(data.draw(scenarios(policy))):
        assert not held - known


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
    assert len(set(begun)) == len(begun) or told["failures"]
    assert len(set(refused)) == len(refused)
    assert {*begun, *refused} == set(range(len(told["requests"])))
    late = {each.request for each in result.rejected if each.reason == "deadline"}
    if not told["failures"]:  # else a request may be refused when it arrives again
        assert set(begun) & set(refused) <= late
    assert [each.at_s for each in result.dispatches] == sorted(each.at_s for each in result.dispatches)
    check_memory(told, result, story)
    check_slots(told, story)


def check_memory(told: Told, result: Simulated, story: list[Event | Decision]) -> None:
    """The objects of a device, as the policy receives them, never exceed it; nothing that runs leaves.

    While several requests run, or an order is carried out beside one, what one of them has moved comes with its end:
    the policy knows all when the last ends.
    """
    held: dict[int, dict[bytes, int]] = {}
    running: dict[int, tuple[int, bytes]] = {}
    device_of: dict[int, int] = {}
    keys: dict[int, bytes] = {}
    for number, entry in enumerate(story):
        match entry:
            case RequestArrived(request=request, inputs=inputs) if inputs[0].key is not None:
                keys[request] = inputs[0].key
            case WorkerReady(worker=worker, device=device) | WorkerAdopted(worker=worker, device=device):
                device_of[worker], held[worker] = device, {}
            case Dispatch(request=request, worker=worker):
                running[request] = (worker, keys[request])
            case RequestDone(request=request):
                running.pop(request, None)
            case WorkerGone(worker=worker, reason=reason):
                ended = [request for request, (at, _) in running.items() if at == worker]
                assert not ended or reason == FAILED
                for request in ended:
                    del running[request]
                held.pop(worker, None)
            case Residency(worker=worker, loaded=loaded, evicted=gone, host=host) if worker in held:
                check_host(told, told["devices"][device_of[worker]].get("host_mb"), gone, host)
                sizes = held[worker]
                for key in gone:
                    sizes.pop(key, None)
                sizes |= {key: told["functions"][key.decode()]["memory_mb"] for key in loaded}
                answers = (each for each in story[number:] if isinstance(each, RequestDone | Ordered | WorkerGone))
                if sum(at == worker for at, _ in running.values()) + isinstance(next(answers, None), Ordered) <= 1:
                    assert sum(sizes.values()) <= told["devices"][device_of[worker]]["memory_mb"]
    assert not running
    assert result.summary.evictions == sum(len(each.evicted) for each in result.dispatches)


def check_host(told: Told, host_mb: int | None, gone: tuple[bytes, ...], host: tuple[bytes, ...]) -> None:
    """Host memory has what left the device, as far as it has room."""
    assert {*host} <= {*gone}
    if host_mb is None:
        assert host == gone
    else:
        assert sum(told["functions"][key.decode()]["memory_mb"] for key in host) <= host_mb


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
            case WorkerGone(worker=worker):
                for place in [place for place in taken if place[0] == worker]:
                    del taken[place]
            case RequestDone(request=request, worker=worker, slot=slot, outcome=outcome) if request >= 0:
                assert taken.pop((worker, slot)) == request
                assert outcome in (Outcome.SUCCEEDED, Outcome.ABANDONED, Outcome.FAILED)

"""Guarantees of every policy, whatever comes and whatever it was told: as properties over random scenarios."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import permutations
from statistics import fmean
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.scheduling.decisions import Decision, Dispatch, Policy, Prefetch
from kaas.scheduling.events import (
    Event,
    Ordered,
    Outcome,
    PhysicalDevice,
    RequestArrived,
    RequestDone,
    Residency,
    WorkerAdopted,
    WorkerReady,
)
from kaas.scheduling.policies import POLICIES
from kaas.scheduling.policies.adaptive import Adaptive
from kaas.scheduling.policies.boost import cost_class
from kaas.scheduling.policies.estimates import MEASURED
from kaas.scheduling.policies.scheduler import Scheduler
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulator import simulate
from tests.scheduling.policies.world import World

Told = dict[str, Any]
SHARING = [name for name in POLICIES if name not in ("exclusive", "static")]
"""Policies under which all kTasks share the executors."""
FAIR = ["cfs_affinity", "mqfq_sticky", "adaptive"]


class Onlooker:
    """A policy that is looked at after each event.

    Fields:
        waiting, running: requests, by their arrivals; a running one with its device. devices: those of workers.
            orders: the prefetches under way.
    """

    def __init__(self, policy: Scheduler) -> None:
        self.policy = policy
        self.utilisation_every_s = getattr(policy, "utilisation_every_s", None)
        self.waiting: dict[int, RequestArrived] = {}
        self.running: dict[int, tuple[RequestArrived, int]] = {}
        self.devices: dict[int, int] = {}
        self.orders: dict[tuple[int, int], tuple[bytes, ...]] = {}

    def after(self, event: Event) -> None:
        """Look at the policy after an event."""

    def dispatched(self, arrival: RequestArrived) -> None:
        """Look at the policy after a dispatch."""

    def handle(self, event: Event) -> list[Decision]:
        match event:
            case RequestArrived():
                self.waiting[event.request] = event
            case RequestDone(request=request):
                self.running.pop(request, None)
            case WorkerReady(worker=worker, device=device) | WorkerAdopted(worker=worker, device=device):
                self.devices[worker] = device
            case Ordered(worker=worker, order=order):
                self.orders.pop((worker, order), None)
        decisions = self.policy.handle(event)
        for decision in decisions:
            match decision:
                case Dispatch(request=request, worker=worker):
                    arrival = self.waiting.pop(request)
                    self.running[request] = arrival, self.devices[worker]
                    self.dispatched(arrival)
                case Prefetch(worker=worker, order=order, keys=keys):
                    self.orders[worker, order] = keys
        self.after(event)
        return decisions


Seen = TypeVar("Seen", bound=Onlooker)


def look(told: Told, kind: Callable[[Scheduler], Seen]) -> Seen:
    """Return what an onlooker has seen of a scenario, in which no request may be lost."""
    scenario = read(told)
    made: list[Seen] = []

    def make(devices: Sequence[PhysicalDevice]) -> Policy:
        policy = scenario.make_policy(devices)
        assert isinstance(policy, Scheduler)
        made.append(kind(policy))
        return made[0]

    result = simulate(scenario, make)
    assert len(result.dispatches) + len(result.rejected) == len(told["requests"])
    return made[0]


seconds = st.integers(0, 12).map(lambda quarter: quarter / 4)
profiles = st.sampled_from([True, False, 0.1, 10.0])
"""Policies are told the truth, nothing, or times that are wrong by ten times."""


@st.composite
def scenarios(draw: st.DrawFn, policy: str) -> Told:
    """Functions of several clients, some without memory or of no duration; a device holds two or three of them."""
    functions = {
        name: {
            "memory_mb": draw(st.integers(0, 5)),
            "load_s": draw(seconds),
            "run_s": draw(seconds),
            "run_cv": draw(st.sampled_from([0, 0.8])),
            "client": draw(st.sampled_from("xyz")),
        }
        for name in "ABCDEF"
    }
    device = {"memory_mb": st.integers(5, 14), "slots": st.integers(2, 3), "speed": st.sampled_from([1, 1, 3])}
    request = st.fixed_dictionaries({"at_s": seconds, "function": st.sampled_from("ABCDEF")})
    return {
        "policy": {"name": policy},
        "profiles": draw(profiles),
        "devices": draw(st.lists(st.fixed_dictionaries(device), min_size=1, max_size=3)),
        "functions": functions,
        "clients": {"x": {"weight": 4}},
        "requests": draw(st.lists(request, min_size=5, max_size=30)),
    }


# --- promises and throttled flows never stall


class Restless(Onlooker):
    """Asserts that something goes on whenever requests wait and all devices are idle."""

    def after(self, event: Event) -> None:
        if self.waiting and self.devices and not self.orders:
            assert self.running, f"after {event}, {len(self.waiting)} requests wait and all devices are idle"


@pytest.mark.parametrize("name", SHARING)
@given(data=st.data())
def test_no_request_waits_while_all_devices_are_idle(name: str, data: st.DataObject) -> None:
    look(data.draw(scenarios(name)), Restless)


# --- weights


class First1000(Onlooker):
    """Counts the first 1,000 requests that are dispatched, by client."""

    def __init__(self, policy: Scheduler) -> None:
        super().__init__(policy)
        self.counted: Counter[str] = Counter()

    def dispatched(self, arrival: RequestArrived) -> None:
        if self.counted.total() < 1000:
            self.counted[arrival.client] += 1


@pytest.mark.parametrize("name", FAIR)
@pytest.mark.parametrize("devices", [1, 3])
def test_of_two_clients_with_weights_2_and_1_the_first_gets_twice_as_much(name: str, devices: int) -> None:
    functions = {"A": {"client": "a", "run_s": 4, "weight": 2}, "B": {"client": "b", "run_s": 4}}
    options = {"D": 1} if name == "mqfq_sticky" else {}
    told: Told = {"policy": {"name": name, **options}, "functions": functions}
    told["devices"] = [{"busy_until_s": 1}] * devices
    told["requests"] = [{"function": function} for _ in range(1000) for function in "BA"]
    counted = look(told, First1000).counted
    assert counted["a"] / counted["b"] == pytest.approx(2, rel=0.05)


# --- fair between clients


class Shares(Onlooker):
    """Asserts the bound of start-time fairness between clients, for as long as all of them have requests waiting.

    Args:
        t, devices: T, and the number of devices. runs: of functions, whose names begin with that of their client, in
            seconds. weights: of clients.
    """

    def __init__(
        self, policy: Scheduler, t: float, devices: int, runs: dict[str, float], weights: dict[str, float]
    ) -> None:
        super().__init__(policy)
        self.t, self.count, self.runs, self.weights = t, devices, runs, weights
        self.served = dict.fromkeys(weights, 0.0)
        self.backlogged = True
        longest = {client: max(run_s for name, run_s in runs.items() if name[0] == client) for client in weights}
        self.tau = {client: run_s / weights[client] for client, run_s in longest.items()}

    def dispatched(self, arrival: RequestArrived) -> None:
        if not self.backlogged:
            return
        self.served[arrival.client] += self.runs[arrival.function] / self.weights[arrival.client]
        for one, other in permutations(self.weights, 2):
            bound_s = self.count * (2 * self.t + self.tau[one] + self.tau[other])
            assert self.served[one] - self.served[other] <= bound_s + 1e-9

    def after(self, event: Event) -> None:
        if isinstance(event, RequestDone):
            self.backlogged &= {each.client for each in self.waiting.values()} == self.weights.keys()


@given(data=st.data(), t=st.sampled_from([0, 1, 5]))
def test_adaptive_gives_backlogged_clients_time_within_the_bound(data: st.DataObject, t: float) -> None:
    """|S_i / w_i - S_j / w_j| <= D (2 T + tau_i / w_i + tau_j / w_j) on D devices, service counted at the dispatch.

    No request comes meanwhile, so that nothing is forgiven. The charges of running requests, D at most, are estimates.
    """
    clients = "xyz"[: data.draw(st.integers(2, 3))]
    weights = {client: data.draw(st.sampled_from([1.0, 2.0, 4.0])) for client in clients}
    runs = {client + str(n): data.draw(st.sampled_from([0.25, 1.0, 3.0])) for client in clients for n in range(2)}
    told: Told = {
        "policy": {"name": "adaptive", "T": t},
        "devices": [{"busy_until_s": 1}] * data.draw(st.integers(1, 2)),
        "functions": {name: {"client": name[0], "run_s": run_s} for name, run_s in runs.items()},
        "clients": {client: {"weight": weight} for client, weight in weights.items()},
        "requests": [{"function": name} for name in runs for _ in range(30)],
    }
    look(told, partial(Shares, t=t, devices=len(told["devices"]), runs=runs, weights=weights))


@given(data=st.data(), t=st.sampled_from([0.0, 0.02, 1.0]))
def test_adaptive_bounds_what_clients_get_over_any_time_in_which_both_wait(data: st.DataObject, t: float) -> None:
    """The difference of S / w changes by D (4 T + tau_i / w_i + tau_j / w_j + tau) at most, tau the longest of all."""
    clients = "xyz"[: data.draw(st.integers(2, 3))]
    weights = {client: data.draw(st.sampled_from([1.0, 4.0])) for client in clients}
    runs = {client: data.draw(st.sampled_from([0.05, 1.0, 4.0])) for client in clients}
    devices = data.draw(st.integers(1, 2))
    arrivals = [
        (at_s, client)
        for client in clients
        for at_s in data.draw(st.lists(st.sampled_from([0.0, 1.0, 2.5, 7.25, 13.0]), min_size=1, max_size=3))
        for _ in range(data.draw(st.sampled_from([1, 2, 30])))
    ]
    scenario = read(
        {
            "policy": {"name": "adaptive", "T": t},
            "devices": [{}] * devices,
            "functions": {client: {"client": client, "run_s": run_s} for client, run_s in runs.items()},
            "clients": {client: {"weight": weight} for client, weight in weights.items()},
            "requests": [{"at_s": at_s, "function": client} for at_s, client in sorted(arrivals)],
        }
    )
    tau = {client: runs[client] / weights[client] for client in clients}
    called = dict.fromkeys(clients, 0)
    got = dict.fromkeys(clients, 0.0)
    both: dict[tuple[str, str], list[float]] = {}  # the differences since both wait

    def observe(event: Event, decisions: Sequence[Decision]) -> None:
        if isinstance(event, RequestArrived):
            called[event.client] += 1
        for decision in decisions:
            if isinstance(decision, Dispatch):
                client = sorted(arrivals)[decision.request][1]
                called[client] -= 1
                got[client] += tau[client]
        for one, other in permutations(clients, 2):
            if not (called[one] and called[other]):
                both.pop((one, other), None)
                continue
            seen = both.setdefault((one, other), [])
            seen.append(got[one] - got[other])
            bound_s = devices * (4 * t + tau[one] + tau[other] + max(tau.values()))
            assert max(seen) - min(seen) <= bound_s + 1e-9

    simulate(scenario, observe=observe)


@pytest.mark.parametrize("policy", ["cfs_affinity", "adaptive"])  # mqfq_sticky counts run seconds: its bound is below
@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_a_client_that_always_has_few_requests_open_gets_its_share_beside_a_flood(
    policy: str, slots: int, weight: float
) -> None:
    """A program that waits for replies asks for no more than it gets; at any time some of its requests wait."""
    world, got = World(POLICIES[policy], slots=slots), Counter[str]()
    world.tick()
    world.up(0)
    world.known("few", weight=weight)
    for client, number in (("flood", 60), ("few", 6 * slots)):
        for _ in range(number * slots):
            world.arrive(client, client)
    for _ in range(4000):
        world.time_s += 0.5 / slots
        request = next(iter(world.running))
        client = world.arrivals[request].client
        got[client] += 1
        world.finish(request, 0.5)
        world.arrive(client, client)
    assert got["few"] / got["flood"] == pytest.approx(weight, rel=0.15)


# --- no request waits for ever


RUNS = {"S": 0.25, "M": 1.0, "L": 5.0}


class Boosted(Onlooker):
    """Asserts that the request of the least boosted arrival goes next."""

    def __init__(self, policy: Scheduler) -> None:
        super().__init__(policy)
        self.boost_s = dict.fromkeys(RUNS, 0.0)

    def after(self, event: Event) -> None:  # noqa: ARG002
        """Note the boosts by which the policy decides at the next event."""
        assert isinstance(self.policy, Adaptive)
        self.boost_s = {name: self.policy.boost[cost_class(run_s)] for name, run_s in RUNS.items()}

    def dispatched(self, arrival: RequestArrived) -> None:
        waiting = [each.time_s - self.boost_s[each.function] for each in self.waiting.values()]
        assert arrival.time_s - self.boost_s[arrival.function] <= min(waiting, default=math.inf) + 1e-9


@given(data=st.data())
def test_under_adaptive_a_request_is_overtaken_only_by_those_of_an_earlier_boosted_arrival(data: st.DataObject) -> None:
    """So it waits only for those that come less than b(c) - b(its own c) after it."""
    at_s = st.integers(0, 80).map(lambda quarter: quarter / 4)
    request = st.fixed_dictionaries({"at_s": at_s, "function": st.sampled_from([*RUNS])})
    told = {
        "policy": {"name": "adaptive"},
        "functions": {name: {"run_s": run_s} for name, run_s in RUNS.items()},
        "requests": data.draw(st.lists(request, min_size=5, max_size=60)),
    }
    look(told, Boosted)


# --- the state is what the events said


class Books(Onlooker):
    """Compares a policy's holdings with those that follow from the events alone."""

    def __init__(self, policy: Scheduler) -> None:
        super().__init__(policy)
        self.sizes: dict[bytes, int] = {}
        self.there: dict[int, set[bytes]] = defaultdict(set)
        self.left: dict[int, set[bytes]] = defaultdict(set)  # or were loaded again, for a request that ended before

    def after(self, event: Event) -> None:
        match event:
            case RequestArrived(inputs=inputs):
                self.sizes |= {use.key: use.nbytes for use in inputs if use.key is not None and use.nbytes}
            case Residency(worker=worker, loaded=loaded, evicted=evicted):
                there = self.there[self.devices[worker]]
                there.difference_update(evicted)
                there.update(loaded)
                self.left[self.devices[worker]].update(evicted)
                self.left[self.devices[worker]].difference_update(loaded)
        holdings = self.policy._holdings
        for device, memory in holdings.memories.items():
            runs = [arrival.inputs for arrival, place in self.running.values() if place == device]
            brought = {use.key for inputs in runs for use in inputs if use.nbytes}
            ordered = {
                key for (worker, _), keys in self.orders.items() if self.devices[worker] == device for key in keys
            }
            most = self.there[device] | self.left[device] | brought | ordered
            assert self.there[device] <= memory.used.keys() | memory.given_up.keys() <= most
            assert not memory.used.keys() & memory.given_up.keys()
            assert runs or ordered or not memory.given_up
            assert memory.used_bytes == sum(self.sizes.get(key, 0) for key in memory.used)
            assert memory.coming.keys() <= brought | ordered
        for reads in holdings._sets.values():
            for device, memory in holdings.memories.items():
                held_bytes = sum(size for key, size in reads.sizes.items() if key in memory.used)
                assert reads.held.get(device, 0) == held_bytes
                assert (device in reads.whole) == (reads in memory.whole) == (held_bytes == reads.nbytes)
                assert (device in reads.near) == (reads in memory.near) == (2 * held_bytes >= reads.nbytes)


@pytest.mark.parametrize("name", SHARING)
@given(data=st.data())
def test_what_a_policy_knows_of_memory_is_what_the_events_said(name: str, data: st.DataObject) -> None:
    """An object on its way counts too, unless another load drives it out: then it counts again once it is loaded.

    One that leaves for a request counts no more from the dispatch on; after the request it does, if it has not left.
    """
    look(data.draw(scenarios(name)), Books)


class Runs(Onlooker):
    """Collects the run seconds of each function, as a device of speed 1 has them."""

    def __init__(self, policy: Scheduler, speeds: list[float]) -> None:
        super().__init__(policy)
        self.speeds = speeds
        self.names: dict[int, str] = {}
        self.runs: dict[str, list[float]] = defaultdict(list)

    def after(self, event: Event) -> None:
        if isinstance(event, RequestArrived):
            self.names[event.request] = event.function
        elif isinstance(event, RequestDone) and event.outcome is Outcome.SUCCEEDED:
            speed = self.speeds[self.devices[event.worker]]
            self.runs[self.names[event.request]].append(event.run_s * speed)


@given(counts=st.lists(st.integers(1, 45), min_size=2, max_size=2), speed=st.sampled_from([1.0, 3.0]))
def test_estimates_are_means_of_the_first_20_and_then_move_by_a_twentieth(counts: list[int], speed: float) -> None:
    told = {
        "profiles": False,
        "devices": [{}, {"speed": speed}],
        "functions": {"A": {"run_s": 1, "run_cv": 0.8}, "B": {"run_s": 2, "run_cv": 0.5}},
        "requests": [{"function": name} for name, count in zip("AB", counts, strict=True) for _ in range(count)],
    }
    seen = look(told, partial(Runs, speeds=[1.0, speed]))
    for name, values in seen.runs.items():
        mean = fmean(values[:MEASURED])
        for value in values[MEASURED:]:
            mean += (value - mean) / MEASURED
        assert seen.policy._estimates.of(name).runs["gpu"].value == pytest.approx(mean)

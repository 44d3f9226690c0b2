"""Each rule of adaptive alone, and without it; and what a user gets: less waiting than under any other policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from random import Random
from statistics import fmean
from typing import Any

import pytest

from benchmarks.adaptive import OTHERS, WEIGHTS, dues
from benchmarks.workloads import Workload, azure, kaas_clients, lalb, mqfq
from kaas.errors import InvalidScenario
from kaas.scheduling.decisions import Decision, Prefetch
from kaas.scheduling.events import ClientKnown, Event, PhysicalDevice, RequestDone
from kaas.scheduling.policies.adaptive import Adaptive
from kaas.scheduling.policies.boost import Boost, Costs, cost_class
from kaas.scheduling.policies.flows_by_client import HeldBack
from kaas.scheduling.policies.orders import PriorityQueue
from kaas.scheduling.policies.sjf import ShortestJobFirst
from kaas.scheduling.policies.state import Queue, QueuedRequest
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulated import Simulated
from kaas.scheduling.simulation.simulator import simulate
from tests.lanes import spread
from tests.scheduling.policies.world import World

Told = dict[str, Any]


def run(options: Told, **told: Any) -> Simulated:
    return simulate(read({"policy": {"name": "adaptive", **options}, **told}))


def requests(*told: tuple[float, str]) -> list[Told]:
    return [{"at_s": at_s, "function": function} for at_s, function in told]


def order(result: Simulated) -> list[int]:
    return [each.request for each in result.dispatches]


# --- 1. boosted arrivals


def test_without_waits_there_is_no_boost_and_with_waits_short_requests_have_a_larger_one() -> None:
    boost = Boost(1.0)
    assert boost[cost_class(1.0)] == 0
    for _ in range(500):
        boost.waited(10.0)
    short, long = (boost[cost_class(cost_s)] for cost_s in (1.0, 20.0))
    assert short == pytest.approx(-10 * math.log(1 - math.exp(-0.1)), rel=0.06)
    assert 0 < long < short
    assert Boost(0.0)[cost_class(1.0)] == 0


def test_in_a_backlog_short_requests_go_first_and_a_boost_of_0_keeps_the_order_of_arrival() -> None:
    functions = {"L": {"run_s": 5}, "S": {"run_s": 0.5}}
    told = requests(*[(0.1 * n, "L") for n in range(20)], *[(2 + 0.1 * n, "S") for n in range(10)])
    boosted = order(run({}, functions=functions, requests=told))
    assert order(run({"boost": 0}, functions=functions, requests=told)) == list(range(30))
    assert fmean(boosted.index(number) for number in range(20, 30)) < 12


def test_a_long_request_is_overtaken_only_by_those_that_come_soon_after() -> None:
    """Short requests come without end, faster than one device runs them: the long one still goes."""
    functions = {"L": {"run_s": 5}, "S": {"run_s": 0.5}}
    told = requests((0.2, "L"), *[(0.4 * n, "S") for n in range(400)])
    result = run({}, functions=functions, requests=told)
    (long,) = [each for each in result.dispatches if each.request == 0]
    assert long.at_s < 60


# --- 2. place


def test_a_request_goes_where_its_memory_is_or_waits_there_or_is_loaded_elsewhere() -> None:
    functions = {"A": {"memory_mb": 4, "load_s": 3, "run_s": 1}}
    for busy_until_s, place in ((0, (1, 0, "hit")), (2, (1, 2, "hit")), (9, (0, 0, "load"))):
        devices = [{"memory_mb": 8}, {"memory_mb": 8, "cached": ["A"], "busy_until_s": busy_until_s}]
        (only,) = run({}, devices=devices, functions=functions, requests=requests((0, "A"))).dispatches
        assert (only.device, only.at_s, only.start) == place


def test_a_promise_ends_when_the_busy_device_takes_longer_than_a_load_elsewhere() -> None:
    """Device 0 should be free at 2, and a load takes 3: the request waits. At 3.5 the run is 1.5 s late, and expected
    to take as much more; at 6.5 it is 4.5 s late, and device 1 loads."""
    functions = {"A": {"memory_mb": 4, "load_s": 3, "run_s": 2}}
    devices = [{"memory_mb": 8, "cached": ["A"]}, {"memory_mb": 8}]
    told = [{"function": "A", "run_s": 50}, {"function": "A", "at_s": 0.5}]
    result = run({}, devices=devices, functions=functions, requests=told)
    assert [(each.request, each.device, each.at_s) for each in result.dispatches] == [(0, 0, 0), (1, 1, 6.5)]


@pytest.mark.parametrize(("others", "place"), [(0, (0, 4, "load")), (3, (1, 9, "hit"))])
def test_a_load_counts_for_all_that_wait_for_the_device(others: int, place: tuple[int, float, str]) -> None:
    """Device 0 is free at 4, where A would end at 8; device 1 has A's memory, and A would end there at 10. The load
    keeps others waiting for three seconds of one of two devices."""
    functions = {"A": {"memory_mb": 4, "load_s": 3, "run_s": 1}, "B": {"run_s": 1}}
    devices = [{"memory_mb": 8, "busy_until_s": 4}, {"memory_mb": 8, "cached": ["A"], "busy_until_s": 9}]
    told = requests((0, "A"), *[(0, "B")] * others)
    result = run({}, devices=devices, functions=functions, requests=told)
    (first,) = [each for each in result.dispatches if each.request == 0]
    assert (first.device, first.at_s, first.start) == place


def test_no_request_waits_for_a_faster_device_that_lacks_its_memory_too_because_others_wait() -> None:
    """A loads for three seconds anywhere: it ends at 4 + 3 + 2 on the slow device, and at 6 + 3 + 1 on the fast one."""
    functions = {"A": {"memory_mb": 4, "load_s": 3, "run_s": {"gpu": 1, "software": 2}}, "B": {"run_s": 1}}
    devices = [{"kind": "software", "busy_until_s": 4}, {"kind": "gpu", "busy_until_s": 6}]
    told = requests((0, "A"), *[(0, "B")] * 3)
    result = run({}, devices=devices, functions=functions, requests=told)
    (first,) = [each for each in result.dispatches if each.request == 0]
    assert (first.device, first.at_s) == (0, 4)


def test_of_devices_of_different_speed_the_one_goes_where_the_request_ends_first() -> None:
    """On the slow device A would end at 8; the fast one is free at 3, and there it ends at 4."""
    functions = {"A": {"run_s": {"gpu": 1, "software": 8}}}
    devices = [{"kind": "software"}, {"kind": "gpu", "busy_until_s": 3}]
    (only,) = run({}, devices=devices, functions=functions, requests=requests((0, "A"))).dispatches
    assert (only.device, only.at_s) == (1, 3)


# --- 3. keep


def test_what_is_worth_least_leaves_and_not_what_was_used_longest_ago() -> None:
    """A takes 9 s to load and is called every 10 s, B 1 s and often. For C, B leaves, though A was used before it."""
    functions = {
        "A": {"memory_mb": 4, "load_s": 9, "run_s": 0.1},
        "B": {"memory_mb": 4, "load_s": 0.1, "run_s": 0.1},
        "C": {"memory_mb": 4, "load_s": 1, "run_s": 0.1},
    }
    told = requests((0, "A"), (10, "B"), (11, "B"), (20, "A"), (21, "B"), (22, "B"), (23, "C"))
    for policy, evicted in (("adaptive", "B"), ("lalb", "A")):
        result = simulate(
            read({"policy": {"name": policy}, "devices": [{"memory_mb": 8}], "functions": functions, "requests": told})
        )
        assert result.dispatches[-1].evicted == (evicted,)


def test_a_copy_leaves_before_an_only_one() -> None:
    """Both devices have A, device 0 also B, called as often: for C, A's copy leaves."""
    functions = {name: {"memory_mb": 4, "load_s": 2, "run_s": 0.1} for name in "ABC"}
    devices = [{"memory_mb": 8, "cached": ["A", "B"]}, {"memory_mb": 4, "cached": ["A"], "busy_until_s": 40}]
    told = requests((0, "A"), (1, "B"), (10, "A"), (11, "B"), (12, "C"))
    result = run({}, devices=devices, functions=functions, requests=told)
    assert result.dispatches[-1].evicted == ("A",)


# --- 4. prefetch


def test_the_next_functions_memory_comes_while_the_device_computes() -> None:
    functions = {name: {"memory_mb": 4, "load_s": 2, "run_s": 5} for name in "AB"}
    told = requests((0, "A"), (0.5, "B"))
    result = run({}, devices=[{"memory_mb": 8}], functions=functions, requests=told)
    assert [(each.at_s, each.start) for each in result.dispatches] == [(0, "load"), (7, "hit")]


def test_only_while_a_request_waits_for_memory_that_no_device_has_prefetches_are_looked_for() -> None:
    """The order knows those sets at each moment: of waiting requests, whatever came to devices and left them."""
    draw = Random(5)
    functions = {f"f{n}": {"memory_mb": 1 + n % 5, "load_s": 1, "run_s": 1 + n % 3} for n in range(8)}
    told = requests(*((n * 0.7, f"f{draw.randrange(8)}") for n in range(200)))
    scenario = read({"devices": [{"memory_mb": 6}] * 2, "functions": functions, "requests": told})
    made: list[Adaptive] = []

    def make(devices: Sequence[PhysicalDevice]) -> Adaptive:
        made.append(Adaptive(devices))
        return made[-1]

    def observe(_: Event, decisions: Sequence[Decision]) -> None:
        looked.append([len(order._readers.homeless) for order in made[0]._orders])
        prefetches.extend(each for each in decisions if isinstance(each, Prefetch))
        for readers in (order._readers for order in made[0]._orders):
            assert {*readers.homeless} == {reads for reads in readers.sets if not reads.whole}

    looked: list[list[int]] = []
    prefetches: list[Prefetch] = []
    simulate(scenario, make, observe=observe)
    assert prefetches
    assert {True, False} == {any(counts) for counts in looked}


# --- 5. fair turns


def test_a_client_is_held_back_that_is_further_ahead_than_t_and_only_if_turns_are_fair() -> None:
    functions: Told = {"A": {"client": "a", "run_s": 1}, "B": {"client": "b", "run_s": 3}}
    told = requests(*[(0, "A")] * 40, *[(0.5, "B")] * 10)

    def first_b(fair: bool) -> float:
        result = run({"T": 4, "fair": fair}, functions=functions, requests=told)
        return next(each.at_s for each in result.dispatches if each.request >= 40)

    assert first_b(True) <= 6 < first_b(False)


def means_by_client(workload: Workload, load: float, fair: bool) -> dict[str, float]:
    """Return the mean latencies of four clients of weights 1, 1, 2 and 4, of which c0 calls three times as often."""
    policy = {"name": "adaptive", "fair": fair}
    scenario = workload.scenario(load, 1, policy, weights=WEIGHTS, run_cv=0.8, profiles=False)
    clients = simulate(scenario).summary.per_client
    return {name: client.mean_latency_s for name, client in clients.items()}


def test_clients_that_ask_for_less_than_their_share_are_soon_served_although_another_one_floods() -> None:
    workload = replace(azure(120, 8), requests=1000)
    fair, unfair = means_by_client(workload, 0.6, True), means_by_client(workload, 0.6, False)
    for client in ("c1", "c2", "c3"):
        assert fair[client] < 0.5 * unfair[client]


def test_fairness_costs_nothing_where_the_devices_suffice_for_all() -> None:
    """Clients of weight 4 have less time by weight than others, and always some request waiting: that is no claim."""
    fair, unfair = (fmean(means_by_client(kaas_clients(), 0.4, each).values()) for each in (True, False))
    assert fair < 1.1 * unfair


def test_a_decision_moves_no_more_flows_where_a_client_has_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the lead of `kaas serve` two clients overtake each other at nearly each event."""
    moves = [0]
    put = PriorityQueue.put

    def counted(queue: PriorityQueue[Any], item: Any, key: tuple[float, ...]) -> None:
        moves[0] += 1
        put(queue, item, key)

    def moved(functions: int) -> int:
        told = {
            f"{client}{number}": {"client": client, "run_s": 1 + number % 3, "memory_mb": 1}
            for number in range(functions)
            for client in "ab"
        }
        scenario = read({"functions": told, "requests": requests(*[(0, name) for name in told])})
        most = [0]

        def observe(event: Event, _: Sequence[Decision]) -> None:
            if isinstance(event, RequestDone):
                most[0] = max(most[0], moves[0])
            moves[0] = 0

        simulate(scenario, lambda devices: Adaptive(devices, T=0.005), observe=observe)
        return most[0]

    monkeypatch.setattr(PriorityQueue, "put", counted)
    assert moved(200) <= 2 * moved(10)


class WalkedFlows:
    """The order of `FlowsByClient` by a walk through all flows."""

    def __init__(self, held_back: HeldBack) -> None:
        self._held_back = held_back
        self._keys: dict[Queue, tuple[float, ...]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def put(self, queue: Queue, key: tuple[float, ...]) -> None:
        self._keys[queue] = key

    def discard(self, queue: Queue) -> None:
        del self._keys[queue]

    def least(self) -> tuple[Any, ...]:
        able = [(*key, queue) for queue, key in self._keys.items() if queue.share not in self._held_back]
        return min(able, key=itemgetter(0, 1, 2), default=())


@pytest.mark.parametrize("lead_s", [0.005, 0.5, 10.0])
@pytest.mark.parametrize("clients", [2, 5, 40])
def test_clients_that_are_held_back_are_passed_over_as_in_a_walk_through_all_flows(
    clients: int, lead_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = Random(clients)
    functions = {
        f"f{n}": {
            "client": f"c{n % clients}",
            "memory_mb": draw.choice([0, 1, 2, 3]),
            "load_s": draw.choice([0.2, 1.0]),
            "run_s": draw.lognormvariate(-1, 1),
            "run_cv": 0.5,
        }
        for n in range(80)
    }
    told = [{"at_s": 0.15 * n, "function": f"f{draw.randrange(80)}"} for n in range(300)]
    for each in told[::4]:
        each["deadline_s"] = draw.choice([2, 10])
    weights = {f"c{n}": {"weight": draw.choice([1, 3])} for n in range(clients)}
    scenario = read({"devices": [{"memory_mb": 8}] * 2, "functions": functions, "clients": weights, "requests": told})
    made = simulate(scenario, lambda devices: Adaptive(devices, T=lead_s))
    monkeypatch.setattr("kaas.scheduling.policies.adaptive.FlowsByClient", WalkedFlows)
    monkeypatch.setattr(HeldBack, "release", lambda held_back, share: held_back.pop(share, None))
    assert simulate(scenario, lambda devices: Adaptive(devices, T=lead_s)) == made


# --- 6. deadlines


def test_a_request_with_less_slack_than_it_costs_goes_first_if_it_can_be_met() -> None:
    functions = {"A": {"run_s": 1}}
    told: list[Told] = [{"function": "A"} for _ in range(5)]
    told += [{"function": "A", "deadline_s": 3.5}, {"function": "A", "deadline_s": 100}]
    result = run({"boost": 0}, devices=[{"busy_until_s": 1}], functions=functions, requests=told)
    assert order(result) == [0, 5, 1, 2, 3, 4, 6]
    assert not result.rejected


def test_a_deadline_is_no_reason_to_load_before_requests_whose_memory_is_there() -> None:
    functions = {name: {"memory_mb": 4, "load_s": 1, "run_s": 1} for name in "AB"}
    devices = [{"memory_mb": 4, "cached": ["A"], "busy_until_s": 1}]
    told: list[Told] = [{"function": "A"}, {"function": "A"}, {"function": "B", "deadline_s": 4.5}]
    assert order(run({"boost": 0}, devices=devices, functions=functions, requests=told))[0] == 0


def test_a_deadline_is_no_way_past_a_client_of_higher_priority() -> None:
    """Function g never ran, so a request for it costs the client's mean, 1 s: with a deadline at 2 s it is urgent."""
    for priority, first in ((0, 1), (1, 2)):
        world = World(Adaptive)
        world.tick()
        world.up(0)
        world.feed(ClientKnown(0.0, "low", mean_s=1.0))
        world.feed(ClientKnown(0.0, "high", priority=priority, mean_s=1.0))
        world.arrive("low")
        urgent, high = world.arrive("low", "g", deadline_s=2.0), world.arrive("high")
        world.finish(0, 1.0)
        assert (urgent, high) == (1, 2)
        assert world.dispatched[1].request == first


def test_flows_that_are_done_leave_nothing_behind() -> None:
    """An order that keeps finished flows grows with every client and function that ever called."""
    for policy in (Adaptive, ShortestJobFirst):
        world = World(policy)
        world.tick()
        world.up(0)
        for number in range(20):
            world.finish(world.arrive(f"client {number}", f"function {number}"), 1.0)
        (group,) = world.raw._placement.groups.values()  # type: ignore[attr-defined]
        order: Any = group.order
        assert not order._of_function


# --- what a user gets


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "load"), spread([(kaas_clients, 0.6), (lambda: mqfq(1), 0.8), (lambda: lalb(35), 0.6)], 1)
)
def test_requests_wait_no_longer_than_under_the_best_of_the_other_policies(workload: Any, load: float) -> None:
    def mean_s(policy: str) -> float:
        scenario = workload().scenario(load, 1, {"name": policy}, run_cv=0.8, profiles=False)
        return simulate(scenario).summary.mean_latency_s

    assert mean_s("adaptive") <= 1.1 * min(map(mean_s, OTHERS))


def test_dues_are_shares_by_weight_of_what_modest_clients_leave() -> None:
    due = dues({"a": 10.0, "b": 1.0, "c": 10.0}, {"a": 1.0, "b": 1.0, "c": 2.0}, 10.0)
    assert due == {"b": 1.0, "a": pytest.approx(3.0), "c": pytest.approx(6.0)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"T": "long"}, "policy: T is a number from 0 on, not 'long'"),
        ({"boost": -0.5}, "policy: boost is a number from 0 on, not -0.5"),
        ({"fair": 1}, "policy: fair is True or False, not 1"),
    ],
)
def test_wrong_options_are_named(options: Told, message: str) -> None:
    with pytest.raises(InvalidScenario, match=message):
        run(options, functions={"A": {}}, requests=requests((0, "A")))


def test_urgent_requests_of_a_client_that_limits_hold_back_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(Adaptive)
    world.known("held", max_running=0, mean_s=0.2)
    world.known("runs", mean_s=1.0)
    world.tick()
    world.up(0)
    for _ in range(50):
        world.arrive("held", "f", deadline_s=1.0)
    world.time_s = 0.7
    first = world.arrive("runs", "g")
    looked: list[str] = []
    seconds = Costs.seconds

    def counted(costs: Costs, request: QueuedRequest) -> tuple[float, float]:
        looked.append(request.share.client)
        return seconds(costs, request)

    monkeypatch.setattr(Costs, "seconds", counted)
    world.finish(first, 1.0)
    world.arrive("runs", "g", deadline_s=2.0)
    assert "held" not in looked

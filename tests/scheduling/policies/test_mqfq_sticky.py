"""MQFQ-Sticky, as scenarios calculated by hand, its bound on unfairness, and a version that looks at every flow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.errors import InvalidScenario
from kaas.scheduling.decisions import Decision, Dispatch, Evict, EvictTo, Policy, PolicyFactory, Prefetch, WakeAt
from kaas.scheduling.events import (
    Event,
    FunctionKnown,
    Outcome,
    PhysicalDevice,
    RequestArrived,
    RequestDone,
    Utilisation,
    WorkerKind,
)
from kaas.scheduling.policies import mqfq_sticky
from kaas.scheduling.policies.estimates import Mean
from kaas.scheduling.policies.fair_share import SHORTEST_WAIT_S
from kaas.scheduling.policies.mqfq_sticky import ORDERS, MqfqSticky
from kaas.scheduling.policies.orders import FlowOrder
from kaas.scheduling.policies.state import Queue, QueuedRequest, RequestOrder, Serves, WorkerState
from kaas.scheduling.policies.warm_flows import TimedFlow
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulated import Simulated
from kaas.scheduling.simulation.simulator import simulate
from tests.scheduling.policies.world import World

Told = dict[str, Any]


class Witness:
    """A policy that keeps its events and decisions."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.utilisation_every_s = getattr(policy, "utilisation_every_s", None)
        self.events: list[Event] = []
        self.decisions: list[tuple[float, Decision]] = []

    def handle(self, event: Event) -> list[Decision]:
        self.events.append(event)
        made = self.policy.handle(event)
        self.decisions += [(event.time_s, decision) for decision in made]
        return made


def run(options: Told, **told: Any) -> Simulated:
    return simulate(read({"policy": {"name": "mqfq_sticky", **options}, **told}))


def watched(options: Told, **told: Any) -> tuple[Simulated, Witness]:
    made: list[Witness] = []

    def make(devices: Sequence[PhysicalDevice]) -> Policy:
        made.append(Witness(MqfqSticky(devices, **options)))
        return made[0]

    factory: PolicyFactory = make
    return simulate(read(told), factory), made[0]


def requests(*told: tuple[float, str]) -> list[Told]:
    return [{"at_s": at_s, "function": function} for at_s, function in told]


def order(result: Simulated) -> str:
    """Return the dispatched requests, in order, as one text."""
    return "".join(str(each.request) for each in result.dispatches)


TWO = {"A": {"client": "a", "run_s": 1}, "B": {"client": "b", "run_s": 1}}
BUSY = [{"busy_until_s": 1}]


def test_a_flow_more_than_t_ahead_is_throttled() -> None:
    """With T = 2, A goes while its time is at most 2 ahead of B's, which is 0: at 0, 1, 2. Then each once in turn."""
    told = requests(*[(0, "A")] * 6, *[(0, "B")] * 3)
    result = run({"T": 2, "D": 1}, devices=BUSY, functions=TWO, requests=told)
    assert order(result) == "012637485"


def test_with_one_at_a_time_the_longest_queue_goes_first() -> None:
    told = requests((0, "A"), (0, "B"), (0, "B"))
    assert order(run({"D": 1}, devices=BUSY, functions=TWO, requests=told)) == "102"


def test_with_two_at_a_time_the_flow_with_fewest_in_flight_goes_first_and_ties_go_to_the_longest_queue() -> None:
    """The second sort of the paper's Algorithm 1. B has three waiting, then A has none in flight and B one."""
    told = requests((0, "A"), (0, "A"), (0, "B"), (0, "B"), (0, "B"))
    devices = [{"busy_until_s": 1, "slots": 2}]
    assert order(run({"D": 2}, devices=devices, functions=TWO, requests=told)) == "20314"


def test_weights_divide_time() -> None:
    """A of weight 2 counts half a second for each request: with T = 0 it goes twice for each B."""
    functions = {"A": {"client": "a", "run_s": 1, "weight": 2}, "B": {"client": "b", "run_s": 1}}
    told = requests(*[(0, "A")] * 400, *[(0, "B")] * 400)
    result = run({"T": 0, "D": 1, "order": "least_vt"}, devices=BUSY, functions=functions, requests=told)
    first = [each.request < 400 for each in result.dispatches[:300]]
    assert sum(first) == pytest.approx(200, rel=0.05)


def test_a_short_function_goes_as_often_as_its_run_time_allows() -> None:
    functions = {"L": {"client": "a", "run_s": 4}, "S": {"client": "a", "run_s": 1}}
    told = requests(*[(0, "L")] * 20, *[(0, "S")] * 80)
    result = run({"T": 0, "D": 1, "order": "least_vt"}, devices=BUSY, functions=functions, requests=told)
    assert sum(each.request < 20 for each in result.dispatches[:50]) == 10


@pytest.mark.parametrize("tau", ["run", "all"])
@pytest.mark.parametrize("profiles", [True, False])
def test_clients_of_one_function_are_charged_for_their_own_requests(tau: str, profiles: bool) -> None:
    """A's requests run 1 s, B's 1 ms: B's 400 do not wait for A's 60, whether or not A calls the function of B."""

    def begun_before_the_last_of_b(function: str) -> int:
        mine = [{"function": "f", "client": "b", "run_s": 0.001}] * 400
        others = [{"function": function, "client": "a", "run_s": 1.0}] * 60
        functions: Told = {"f": {"run_s": 0.001, "client": "b"}, "g": {"run_s": 1.0, "client": "a"}}
        told: Told = {"functions": functions, "requests": mine + others, "profiles": profiles}
        at_s = {each.request: each.at_s for each in run({"T": 0.1, "tau": tau}, **told).dispatches}
        return sum(at_s[request] < max(at_s[own] for own in range(400)) for request in range(400, 460))

    assert begun_before_the_last_of_b("f") <= begun_before_the_last_of_b("g") + 1 <= 4


def test_a_flow_that_comes_back_begins_at_the_least_time() -> None:
    """B was away while A had 5 seconds. It may go T = 2 ahead, not 5: A and B take turns soon."""
    told = requests(*[(0, "A")] * 10, *[(5.5, "B")] * 10)
    result = run({"T": 2, "D": 1, "order": "least_vt"}, functions=TWO, requests=told)
    names = "".join("A" if each.request < 10 else "B" for each in result.dispatches)
    assert names.startswith("AAAAAA")
    assert sum(name == "B" for name in names[6:14]) == 4


# --- where


def test_a_flow_stays_on_the_device_that_has_its_memory_and_a_new_one_goes_where_most_room_is() -> None:
    functions = {name: {"memory_mb": 4, "load_s": 1, "run_s": 1} for name in "ABC"}
    devices = [{"memory_mb": 8}, {"memory_mb": 12}]
    told = requests((0, "A"), (10, "B"), (20, "A"), (30, "B"), (40, "C"))
    result = run({}, devices=devices, functions=functions, requests=told)
    assert [(each.device, each.start) for each in result.dispatches] == [
        (1, "load"),
        (0, "load"),
        (1, "hit"),
        (0, "hit"),
        (1, "load"),
    ]


@pytest.mark.parametrize(("sticky", "device"), [("soft", 1), ("hard", 0)])
def test_a_soft_flow_goes_elsewhere_and_a_hard_one_waits(sticky: str, device: int) -> None:
    functions = {"A": {"memory_mb": 4, "load_s": 1, "run_s": 1}}
    devices = [{"memory_mb": 8, "cached": ["A"]}, {"memory_mb": 8}]
    told = requests((0, "A"), (0.5, "A"))
    result = run({"sticky": sticky, "D": 1}, devices=devices, functions=functions, requests=told)
    assert [each.device for each in result.dispatches] == [0, device]


@pytest.mark.parametrize(("alpha", "evicted"), [(1.5, "A"), (10, "B")])
def test_the_memory_of_a_flow_without_a_request_for_longer_than_expected_leaves_first(
    alpha: float, evicted: str
) -> None:
    """A came at 5 and 6: it is active until 1.5 s after its end at 6.5, B for 6 s after 4.5. C comes at 9.

    With a larger alpha both are active, and the one used longest ago leaves.
    """
    functions = {name: {"memory_mb": 4, "run_s": 0.5} for name in "ABC"}
    told = requests((0, "B"), (4, "B"), (5, "A"), (6, "A"), (9, "C"))
    result, witness = watched({"alpha": alpha}, devices=[{"memory_mb": 8}], functions=functions, requests=told)
    moved = [name.decode() for _, each in witness.decisions if isinstance(each, Evict) for name in each.keys]
    assert [*moved, *result.dispatches[-1].evicted] == [evicted]
    wakes = [decision.time_s for _, decision in witness.decisions if isinstance(decision, WakeAt)]
    assert wakes, "one Tick comes when the next flow's time is over"


def test_a_flow_that_becomes_active_brings_its_memory_while_the_device_runs_another() -> None:
    functions = {name: {"memory_mb": 4, "load_s": 1, "run_s": 3} for name in "AB"}
    told = requests((0, "A"), (0.5, "B"))
    result, witness = watched({"D": 1}, devices=[{"memory_mb": 8}], functions=functions, requests=told)
    assert [(time_s, d.keys) for time_s, d in witness.decisions if isinstance(d, Prefetch)] == [(0.5, (b"B",))]
    assert [(each.at_s, each.start) for each in result.dispatches] == [(0, "load"), (4, "hit")]


def test_a_throttled_flow_moves_its_memory_to_the_host_where_others_lack_room() -> None:
    """Both functions take the whole device. A runs T ahead of B, and gives its memory up for B."""
    functions = {name: {"memory_mb": 8, "load_s": 1, "run_s": 1} for name in "AB"}
    told = requests(*[(0, "A")] * 6, (0.5, "B"), (0.5, "B"))
    _, witness = watched({"D": 1, "T": 1.5}, devices=[{"memory_mb": 8}], functions=functions, requests=told)
    moved = [d for _, d in witness.decisions if isinstance(d, Evict)]
    assert moved
    assert all(each.to is EvictTo.HOST for each in moved)


# --- tokens


def test_a_device_runs_d_requests_at_a_time() -> None:
    devices = [{"slots": 4}]
    told = requests(*[(0, "A")] * 4)
    for d, times in ((1, [0, 1, 2, 3]), (2, [0, 0, 1, 1]), (3, [0, 0, 0, 1])):
        result = run({"D": d}, devices=devices, functions=TWO, requests=told)
        assert [each.at_s for each in result.dispatches] == times


def test_by_utilisation_a_device_takes_more_until_it_is_busy() -> None:
    told = requests(*[(0, "A")] * 2, *[(0.5, "A")] * 2)
    options = {"D": "utilisation", "limit": 0.4}
    result, witness = watched(options, devices=[{"slots": 4}], functions=TWO, requests=told)
    assert [each.at_s for each in result.dispatches][:2] == [0, 0]
    assert result.dispatches[2].at_s >= 1, "the device is busy all the time: beyond the limit only an idle one goes on"
    assert any(isinstance(event, Utilisation) for event in witness.events)


def test_a_device_that_becomes_less_busy_takes_the_next_request_at_once() -> None:
    functions = {name: {"memory_mb": 1, "load_s": 20, "run_s": 1} for name in "ABC"}
    told = requests((0, "A"), (0, "B"), (0, "C"))
    result, _ = watched({"D": "utilisation", "limit": 0.4}, devices=[{"slots": 4}], functions=functions, requests=told)
    assert 0 < result.dispatches[2].at_s < 1, "two requests count as half of the device, until both are seen to load"


# --- fairness


@given(data=st.data(), t=st.sampled_from([0, 1, 5]), d=st.integers(1, 2))
def test_backlogged_flows_get_time_within_the_bound(data: st.DataObject, t: float, d: int) -> None:
    """|S_i / w_i - S_j / w_j| <= 2 T + tau_i / w_i + tau_j / w_j, with the service counted at the dispatch."""
    flows: dict[str, Told] = {
        name: {
            "client": name,
            "run_s": data.draw(st.sampled_from([0.25, 1, 3])),
            "weight": data.draw(st.sampled_from([1, 2, 4])),
        }
        for name in "ABC"[: data.draw(st.integers(2, 3))]
    }
    told = [{"at_s": 0, "function": name} for name in flows for _ in range(60)]
    devices = [{"slots": d, "busy_until_s": 1}] * data.draw(st.integers(1, 2))
    options = {"T": t, "D": d, "order": data.draw(st.sampled_from(["paper", "longest", "least_vt", "sticky"]))}
    _, witness = watched(options, devices=devices, functions=flows, requests=told)
    names = {event.request: event.function for event in witness.events if isinstance(event, RequestArrived)}
    done = {event.request for event in witness.events if isinstance(event, RequestDone)}
    assert done == set(names)
    left = dict.fromkeys(flows, 60)
    service: dict[str, float] = defaultdict(float)
    for _, decision in witness.decisions:
        if not isinstance(decision, Dispatch):
            continue
        name = names[decision.request]
        service[name] += flows[name]["run_s"] / flows[name]["weight"]
        left[name] -= 1
        if not min(left.values()):
            break
        for one in flows:
            for other in flows:
                taus = sum(flows[each]["run_s"] / flows[each]["weight"] for each in (one, other))
                assert service[one] - service[other] <= 2 * t + taus + 1e-9


# --- against the paper's text, flow by flow


class EveryFlow(FlowOrder):
    """The paper's Algorithm 1 over a plain list: each question looks at every flow."""

    def __init__(self, policy: MqfqSticky) -> None:
        super().__init__()
        self.policy = policy
        self.flows: dict[Hashable, TimedFlow] = {}
        self.vt, self.running = 0.0, 0
        self.gap_s = Mean()
        self.ends: dict[TimedFlow, float] = {}
        self.last: dict[int, TimedFlow] = {}
        self.whole_s: dict[str, Mean] = defaultdict(Mean)

    def flow(self, request: QueuedRequest) -> Hashable:
        return request.share, request.function

    def ended(self, request: QueuedRequest, event: RequestDone) -> None:
        if event.outcome is Outcome.SUCCEEDED:
            self.whole_s[request.function].add(event.device_s)

    def add(self, request: QueuedRequest) -> None:
        flow, now_s = self.flows.setdefault(self.flow(request), TimedFlow()), self.policy.now_s
        self.policy.warm.reads(flow, request.reads)
        if self.has_part(flow):
            for gap_s in (flow.gap_s, self.gap_s) if flow.arrived_s is not None else ():
                gap_s.add(now_s - (flow.arrived_s or 0.0))
            flow.arrived_s = now_s
        super().add(request)

    def offer(self, queue: Queue) -> None:
        super().offer(queue)
        flow = self.flows[queue.flow]
        if flow.queue is None:
            flow.vt, flow.queue = max(flow.vt, self.vt), queue
            self.ends.pop(flow, None)
        self.look(flow)

    def withdraw(self, queue: Queue) -> None:
        super().withdraw(queue)
        flow = self.flows[queue.flow]
        flow.queue = None
        self.rest(flow)
        self.look()

    def dispatched(self, request: QueuedRequest, worker: WorkerState) -> None:
        flow = self.flows[self.flow(request)]
        self.running += 1
        flow.in_flight += 1
        flow.vt += self.tau_s(request, worker.device.spec) / request.share.weight
        self.policy.tokens.taken(worker)
        self.ends.pop(flow, None)
        self.policy.warm.move(flow, worker.device.index)
        self.last[worker.device.index] = flow
        if self.has_part(flow):
            self.policy.warm.activate(flow)
        self.look(flow)

    def tau_s(self, request: QueuedRequest, device: PhysicalDevice) -> float:
        """Return the mean of the function's requests, which are those of one client."""
        whole = self.whole_s[request.function]
        return whole.value if self.policy.tau_all and whole.count else self.policy._estimates.run_s(request, device)

    def freed(self, request: QueuedRequest, worker: WorkerState) -> None:  # noqa: ARG002
        flow = self.flows[self.flow(request)]
        self.running -= 1
        flow.in_flight -= 1
        self.rest(flow)
        self.policy.warm.freed(flow)

    def rest(self, flow: TimedFlow) -> None:
        """Let an empty flow be active for its TTL."""
        if flow.queue is None and flow.active and not flow.in_flight:
            known = flow.gap_s if flow.gap_s.count else self.gap_s
            self.ends[flow] = self.policy.now_s + (self.policy.alpha * known.value if known.count else self.policy.T)

    def end_rests(self) -> None:
        for flow, ends_s in sorted(self.ends.items(), key=lambda each: each[1]):
            if ends_s > self.policy.now_s + SHORTEST_WAIT_S:
                return self.policy.wake_at(ends_s)
            del self.ends[flow]
            self.policy.warm.deactivate(flow)
            self.look()
        return None

    def has_part(self, flow: TimedFlow) -> bool:
        """Return True if it matters whether a flow is active."""
        return flow.has_memory or self.policy.global_vt == "active"

    def throttled(self, flow: TimedFlow) -> bool:
        return flow.vt - self.vt > self.policy.T

    def look(self, changed: TimedFlow | None = None) -> None:
        """Let the least virtual time grow, and flows be active or not by it; the one that has changed comes last."""
        waiting = [flow for flow in self.flows.values() if flow.queue is not None]
        counted = [flow for flow in self.flows.values() if flow.active] if self.policy.global_vt == "active" else []
        if waiting:
            self.vt = max(self.vt, min(flow.vt for flow in waiting + counted))
        for flow in sorted(waiting, key=lambda flow: (flow is changed, flow.vt, head(flow).id)):
            if self.throttled(flow):
                self.policy.warm.deactivate(flow)
            elif not flow.active and self.has_part(flow):
                self.policy.warm.move(flow, self.policy.warm.device_for(flow))
                self.policy.warm.activate(flow)

    def next(self) -> tuple[QueuedRequest, WorkerState] | None:
        self.end_rests()
        waiting = [flow for flow in self.flows.values() if flow.queue is not None]
        if not waiting:
            return None
        able = sorted((flow for flow in waiting if not self.throttled(flow)), key=self.place_of)
        opened = head(waiting[0]).group.open.values()
        free = [each for each in opened if not each.gated and self.policy.tokens.left(each)]
        for worker in free if self.policy.order_by == "sticky" else ():
            last = self.last.get(worker.device.index)
            if last in able and last.device == worker.device.index:
                return head(last), worker
        for flow in able:
            if own := [worker for worker in free if self.at_home(flow, worker)]:
                anywhere = flow.device < 0 or not flow.reads.constants.nbytes
                stays = lambda each, flow=flow: (each.device.index != flow.device, *self.policy.rank(each))  # noqa: E731
                return head(flow), own[0] if anywhere else min(own, key=stays)
        if able and not self.policy.hard and free:
            return head(able[0]), self.roomiest(free)
        if not able or self.policy.hard:
            first = min(waiting, key=lambda flow: (flow.vt, head(flow).id))
            return None if self.running or not free else (head(first), self.roomiest(free))
        return None

    def at_home(self, flow: TimedFlow, worker: WorkerState) -> bool:
        constants, device = flow.reads.constants, worker.device.index
        return flow.device in (-1, device) or not constants.nbytes or device in constants.whole

    def roomiest(self, free: list[WorkerState]) -> WorkerState:
        memories = self.policy._holdings.memories
        return min(free, key=lambda each: (-memories[each.device.index].free_bytes, each.device.index))

    def place_of(self, flow: TimedFlow) -> tuple[float, ...]:
        """Return the key of Algorithm 1: for D = 1 the longest queue, else fewest in flight and then the longest."""
        key = (flow.in_flight, -len(queue_of(flow).requests), flow.vt, head(flow).id)
        by = self.policy.order_by
        return key[2:] if by == "least_vt" else key[1:] if by == "longest" or self.policy.one_at_a_time else key

    def settled(self) -> None:
        self.end_rests()
        self.policy.warm.bring_all()


def queue_of(flow: TimedFlow) -> Queue:
    assert flow.queue is not None
    return flow.queue


def head(flow: TimedFlow) -> QueuedRequest:
    return queue_of(flow).head


class Naive(MqfqSticky):
    def order(self, serves: Serves) -> RequestOrder:
        return super().order(serves) if serves.kind is WorkerKind.ETASK else EveryFlow(self)


@given(data=st.data(), slots=st.integers(1, 2))
def test_the_indexed_flows_decide_as_a_walk_over_all_flows(data: st.DataObject, slots: int) -> None:
    names = "ABCDEFG"[: data.draw(st.integers(2, 7))]
    made = {
        name: {
            "memory_mb": data.draw(st.sampled_from([0, 1, 2, 4])),
            "load_s": data.draw(st.sampled_from([0.5, 3])),
            "run_s": data.draw(st.sampled_from([0.25, 1])),
            "client": data.draw(st.sampled_from("ab")),
        }
        for name in names
    }
    devices = [{"memory_mb": 6, "slots": slots}] * data.draw(st.integers(1, 4))
    told, at_s = [], 0.0
    for gap_s in data.draw(st.lists(st.sampled_from([0, 0, 0.125, 0.5, 4]), min_size=5, max_size=60)):
        at_s += gap_s
        told.append({"at_s": at_s, "function": data.draw(st.sampled_from(names))})
    scenario = read({"devices": devices, "functions": made, "requests": told})
    options: Told = {
        "T": data.draw(st.sampled_from([0, 1, 10])),
        "order": data.draw(st.sampled_from(ORDERS)),
        "global_vt": data.draw(st.sampled_from(["waiting", "active"])),
        "sticky": data.draw(st.sampled_from(["soft", "hard"])),
        "tau": data.draw(st.sampled_from(["run", "all"])),
    }

    def indexed(physical: Sequence[PhysicalDevice]) -> MqfqSticky:
        return MqfqSticky(physical, **options)

    def naive(physical: Sequence[PhysicalDevice]) -> MqfqSticky:
        return Naive(physical, **options)

    assert simulate(scenario, indexed) == simulate(scenario, naive)


# --- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"T": -1}, "policy: T is a number from 0 on, not -1"),
        ({"limit": 7}, "policy: limit is a number from 0 to 1, not 7"),
        ({"D": 2}, "policy: D is 2, but a device has 1 slots"),
        ({"D": 0}, "policy: D is a whole number from 1 on, not 0"),
        ({"order": "random"}, "policy: order is one of paper, longest, least_vt, sticky, not 'random'"),
        ({"sticky": True}, "policy: sticky is one of soft, hard, not True"),
    ],
)
def test_wrong_options_are_named(options: Told, message: str) -> None:
    with pytest.raises(InvalidScenario, match=message):
        run(options, devices=[{}], functions=TWO, requests=requests((0, "A")))


def test_a_flow_whose_client_has_another_priority_leaves_the_old_level() -> None:
    world = World(MqfqSticky, 1)
    world.tick()
    world.up(0)
    running, first = world.arrive("b"), world.arrive("b", "g")
    world.known("a", priority=1)
    lowered = world.arrive("a")
    world.known("a", priority=0)
    second = world.arrive("b", "g")
    world.finish(running)
    assert [each.request for each in world.dispatched] == [running, first]
    assert {lowered, second} == world.queued


def test_a_flow_whose_request_is_held_keeps_no_others_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqfq_sticky, "MOST_FLOWS", 10)
    world = World(MqfqSticky)
    world.known("held", max_running=0)
    world.tick()
    world.up(0)
    held = world.arrive("held", "f")
    for i in range(100):
        world.finish(world.arrive("a", f"f{i}"))
    (flows,) = [group.order for group in world.raw._placement.groups.values()]  # type: ignore[attr-defined]
    assert len(flows._known) <= 11
    assert world.queued == {held}
    world.known("held")
    assert held in world.running


def test_a_request_that_has_not_had_the_device_takes_nothing_of_its_flows_time() -> None:
    world = World(partial(MqfqSticky, order="least_vt"))
    world.tick()
    world.up(0)
    world.feed(FunctionKnown(0.0, "f", "software", 1.0, 0.0, 0, 1))
    others = world.arrive("cat")
    first, second, _ = world.arrive("ada"), world.arrive("ada"), world.arrive("bob")
    world.finish(others, 1.0)
    assert list(world.running) == [first]
    world.finish(first, 0.0, Outcome.FAILED)
    assert list(world.running) == [second]

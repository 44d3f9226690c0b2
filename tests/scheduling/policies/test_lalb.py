"""LB, LALB and LALBO3, as scenarios calculated by hand, and against a version that looks at every request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.errors import InvalidScenario
from kaas.scheduling.events import PhysicalDevice, RequestDone, WorkerKind
from kaas.scheduling.policies.lalb import Lalbo3
from kaas.scheduling.policies.state import QueuedRequest, RequestOrder, Serves, WorkerState
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulated import Simulated
from kaas.scheduling.simulation.simulator import simulate

Told = dict[str, Any]


def run(policy: Told | str, **told: Any) -> Simulated:
    return simulate(read({"policy": {"name": policy} if isinstance(policy, str) else policy, **told}))


def places(result: Simulated) -> list[tuple[int, int, float, str]]:
    """Return request, device, time and kind of start of each dispatch."""
    return [(each.request, each.device, each.at_s, each.start) for each in result.dispatches]


def requests(*told: tuple[float, str]) -> list[Told]:
    return [{"at_s": at_s, "function": function} for at_s, function in told]


def functions(*names: str, load_s: float = 3.0, run_s: float = 1.0, memory_mb: float = 4) -> Told:
    return {name: {"memory_mb": memory_mb, "load_s": load_s, "run_s": run_s} for name in names}


def lalbo3(limit: int) -> Told:
    return {"name": "lalbo3", "limit": limit}


# --- the four cases of place


def test_a_function_that_no_device_has_is_loaded_where_fewest_requests_went() -> None:
    result = run("lalb", devices=[{}, {}], functions=functions("A", "B"), requests=requests((0, "A"), (9, "B")))
    assert places(result) == [(0, 0, 0, "load"), (1, 1, 9, "load")]


def test_a_function_that_a_free_device_has_goes_there() -> None:
    """Device 0 is asked first. It does not have A, but device 1 does."""
    result = run("lalb", devices=[{}, {"cached": ["A"]}], functions=functions("A"), requests=requests((0, "A")))
    assert places(result) == [(0, 1, 0, "hit")]


def test_a_request_waits_for_a_busy_device_that_has_its_memory_if_that_ends_before_a_load_would() -> None:
    devices = [{"cached": ["A"], "busy_until_s": 2.9}, {}]
    result = run("lalb", devices=devices, functions=functions("A"), requests=requests((0, "A")))
    assert places(result) == [(0, 0, 2.9, "hit")]
    assert (result.dispatches[0].promised, result.dispatches[0].false_miss) == (True, False)


def test_a_request_is_loaded_again_if_the_busy_device_is_free_no_sooner() -> None:
    devices = [{"cached": ["A"], "busy_until_s": 3}, {}]
    result = run("lalb", devices=devices, functions=functions("A"), requests=requests((0, "A")))
    assert places(result) == [(0, 1, 0, "load")]
    assert (result.dispatches[0].promised, result.dispatches[0].false_miss) == (False, True)


def test_the_local_queue_counts_in_the_time_at_which_a_device_is_free() -> None:
    """Device 0 is free at 1.5; the first two wait there until 2.5 and 3.5, so the third is loaded at once."""
    devices = [{"cached": ["A"], "busy_until_s": 1.5}, {}]
    result = run("lalb", devices=devices, functions=functions("A"), requests=requests((0, "A"), (0, "A"), (0, "A")))
    assert places(result) == [(2, 1, 0, "load"), (0, 0, 1.5, "hit"), (1, 0, 2.5, "hit")]


def test_of_several_busy_devices_the_least_or_the_first_that_beats_a_load() -> None:
    devices = [{"cached": ["A"], "busy_until_s": 2}, {"cached": ["A"], "busy_until_s": 1}, {}]
    for holder, place in (("least", (0, 1, 1, "hit")), ("first", (0, 0, 2, "hit"))):
        policy = {"name": "lalb", "holder": holder}
        result = run(policy, devices=devices, functions=functions("A"), requests=requests((0, "A")))
        assert places(result) == [place]


def test_of_devices_of_different_speed_whole_times_are_compared() -> None:
    """On device 0 A would end at 2 + 4; on device 1, ten times as fast, at 3 + 0.4."""
    devices = [{"cached": ["A"], "busy_until_s": 2}, {"speed": 10}]
    result = run("lalb", devices=devices, functions=functions("A", run_s=4), requests=requests((0, "A")))
    assert places(result) == [(0, 1, 0, "load")]


# --- visits


def a_hot_and_a_cold_function(cold_behind: int) -> Told:
    """One device with A. B came first; each request for A overtakes B."""
    told = requests((0, "B"), *[(0, "A")] * cold_behind)
    devices = [{"cached": ["A"], "busy_until_s": 1, "memory_mb": 4}]
    return {"devices": devices, "functions": functions("A", "B"), "requests": told}


@pytest.mark.parametrize(("limit", "before"), [(0, 0), (1, 1), (25, 25)])
def test_a_request_is_overtaken_at_most_limit_times(limit: int, before: int) -> None:
    result = run(lalbo3(limit), **a_hot_and_a_cold_function(40))
    assert [each.request for each in result.dispatches].index(0) == before


def test_lalb_is_lalbo3_with_limit_0() -> None:
    told = a_hot_and_a_cold_function(40)
    assert run("lalb", **told) == run(lalbo3(0), **told)
    assert run("lalbo3", **told) == run(lalbo3(25), **told)


def test_requests_behind_the_one_that_was_taken_are_not_visited() -> None:
    """Each pass for A goes over B only, not over C behind A; then B is placed, and C, visited no more, waits for A."""
    told = requests((0, "B"), (0, "A"), (0, "A"), (0, "C"), (0, "A"), (0, "A"))
    devices = [{"cached": ["A"], "busy_until_s": 1, "memory_mb": 8}]
    result = run(lalbo3(2), devices=devices, functions=functions("A", "B", "C"), requests=told)
    assert [each.request for each in result.dispatches] == [1, 2, 0, 4, 5, 3]


# --- memory


def test_what_was_used_longest_ago_leaves_first() -> None:
    told = requests((0, "A"), (10, "B"), (20, "A"), (30, "C"), (40, "D"))
    made = functions("A", "B", "C") | functions("D", memory_mb=8)
    for policy in ("lb", "lalb"):
        result = run(policy, devices=[{"memory_mb": 12}], functions=made, requests=told)
        assert [each.evicted for each in result.dispatches] == [(), (), (), (), ("B", "A")]


def test_the_memory_of_promised_requests_stays() -> None:
    """A was used longest ago, but a request for it waits for device 0 while C is dispatched there: B leaves."""
    devices = [{"memory_mb": 8, "slots": 2, "cached": ["A", "B"]}]
    told = requests((0, "A"), (1, "B"), (1.5, "A"), (1.6, "C"))
    made = functions("A", "B", "C", run_s=2)
    result = run("lalb", devices=devices, functions=made, requests=told)
    assert [(each.request, each.evicted) for each in result.dispatches] == [(0, ()), (1, ()), (2, ()), (3, ("B",))]


def test_lb_takes_the_device_that_is_free_for_longest() -> None:
    told = requests((0, "A"), (0, "A"), (0, "A"), (5, "A"), (5, "A"))
    made = {"A": {"memory_mb": 4, "run_s": 1, "load_s": 0}}
    result = run("lb", devices=[{"speed": 0.5}, {}, {}], functions=made, requests=told)
    assert [(each.request, each.device) for each in result.dispatches] == [(0, 0), (1, 1), (2, 2), (3, 1), (4, 2)]


# --- against the paper's text, request by request


class EveryRequest(RequestOrder):
    """The paper's schedule() over a plain list, with a count of visits in each request."""

    def __init__(self, policy: Lalbo3, limit: int) -> None:
        self.policy, self.limit = policy, limit
        self.queue: list[QueuedRequest] = []
        self.visits: dict[int, int] = {}
        self.local: dict[WorkerState, list[QueuedRequest]] = {}
        self.passed: WorkerState | None = None
        self.seconds: dict[int, float] = {}

    def add(self, request: QueuedRequest) -> None:
        self.passed = None
        self.visits.setdefault(request.id, 0)
        self.queue.append(request)
        self.queue.sort(key=lambda each: each.id)

    def drop(self, request: QueuedRequest) -> None:
        for queue in (self.queue, *self.local.values()):
            if request in queue:
                queue.remove(request)

    def dispatched(self, request: QueuedRequest, worker: WorkerState) -> None:  # noqa: ARG002
        self.passed = None if worker is self.passed else self.passed

    def lost(self, worker: WorkerState) -> None:
        self.queue = sorted(self.queue + self.local.pop(worker, []), key=lambda each: each.id)

    def first(self, skipped: int = 0) -> QueuedRequest | None:  # noqa: ARG002
        return min([*self.queue, *(each for own in self.local.values() for each in own)], key=lambda each: each.id)

    def freed(self, request: QueuedRequest, worker: WorkerState) -> None:
        pass

    def ended(self, request: QueuedRequest, event: RequestDone) -> None:
        pass

    def settled(self) -> None:
        pass

    def park(self, share: object) -> None:
        raise NotImplementedError

    def unpark(self, share: object) -> None:
        pass

    def next(self) -> tuple[QueuedRequest, WorkerState] | None:
        for worker, own in self.local.items():
            if own and worker.usable:
                return own[0], worker
        while self.queue and (idle := self.policy.idle_worker(self.queue[0])) is not None:
            request = self.one_pass(idle) if self.passed is not idle else None
            if request is None:
                self.passed, request = idle, self.queue[0]
            elif self.cached(request, idle) and not self.policy.mixed:
                return request, idle
            if (placed := self.place(request, idle)) is not None:
                return request, placed
        self.passed = None
        return None

    def one_pass(self, idle: WorkerState) -> QueuedRequest | None:
        """Return the first request in the queue that is cached there or at its limit; those in front are visited."""
        for request in self.queue:
            if self.cached(request, idle) or self.visits[request.id] >= self.limit:
                return request
            self.visits[request.id] += 1
        return None

    def cached(self, request: QueuedRequest, worker: WorkerState) -> bool:
        return worker.device.index in request.reads.constants.whole

    def place(self, request: QueuedRequest, idle: WorkerState) -> WorkerState | None:
        now_s, cost_s, mixed = self.policy.now_s, self.policy.cost_s, self.policy.mixed
        workers = [worker for worker in request.group.workers.values() if not worker.starting]
        able = [worker for worker in workers if mixed or self.cached(request, worker)]
        free = [worker for worker in able if worker.usable]
        if free and not mixed:
            return min(free, key=self.policy.rank)
        there = min(free, default=idle, key=lambda worker: (cost_s(request, worker), self.policy.rank(worker)))

        def ends_s(worker: WorkerState) -> float:
            slot_s = max(now_s, min(running.ends_s for running in worker.running.values()))
            promised = sum(self.seconds[each.id] for each in self.local.get(worker, []))
            return slot_s + promised / worker.group.slots + cost_s(request, worker)

        busy = min(set(able) - set(free), default=None, key=lambda worker: (ends_s(worker), worker.device.index))
        if busy is None or ends_s(busy) >= now_s + cost_s(request, there):
            return there
        self.queue.remove(request)
        self.local.setdefault(busy, []).append(request)
        self.seconds[request.id] = cost_s(request, busy)  # as it is now: another request may load the memory meanwhile
        request.promised = True
        return None


class Naive(Lalbo3):
    def __init__(self, devices: Sequence[PhysicalDevice], *, limit: int) -> None:
        self.walks: list[EveryRequest] = []
        super().__init__(devices, limit=limit)

    def order(self, serves: Serves) -> RequestOrder:
        if serves.kind is WorkerKind.ETASK:
            return super().order(serves)
        self.walks.append(EveryRequest(self, self._limit))
        return self.walks[-1]

    def victims(self, request: QueuedRequest, worker: WorkerState) -> tuple[bytes, ...]:
        promised = [each.reads for walk in self.walks for each in walk.local.get(worker, [])]
        return self._holdings.least_recently_used(request.reads, worker.device.index, promised)


@given(data=st.data(), limit=st.sampled_from([0, 1, 2, 5, 25]), slots=st.integers(1, 2))
def test_the_indexed_queue_decides_as_a_walk_over_all_requests(data: st.DataObject, limit: int, slots: int) -> None:
    names = "ABCDEFG"[: data.draw(st.integers(2, 7))]
    made = {
        name: {
            "memory_mb": data.draw(st.integers(1, 4)),
            "load_s": data.draw(st.sampled_from([0.5, 1, 3])),
            "run_s": data.draw(st.sampled_from([0.25, 1])),
            "client": name.lower(),
        }
        for name in names
    }
    devices = [
        {"memory_mb": 6, "slots": slots, "speed": data.draw(st.sampled_from([1, 1, 2]))}
        for _ in range(data.draw(st.integers(1, 4)))
    ]
    gaps = data.draw(st.lists(st.sampled_from([0, 0, 0.125, 0.5, 1]), min_size=5, max_size=60))
    told, at_s = [], 0.0
    for gap_s in gaps:
        at_s += gap_s
        told.append({"at_s": at_s, "function": data.draw(st.sampled_from(names))})
    scenario = read({"devices": devices, "functions": made, "requests": told})

    def indexed(physical: Sequence[PhysicalDevice]) -> Lalbo3:
        return Lalbo3(physical, limit=limit)

    def naive(physical: Sequence[PhysicalDevice]) -> Lalbo3:
        return Naive(physical, limit=limit)

    assert simulate(scenario, indexed) == simulate(scenario, naive)


# --- bad input


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"name": "lalbo3", "limit": -1}, "policy: limit is a whole number from 0 on, not -1"),
        ({"name": "lalbo3", "limit": 2.5}, "policy: limit is a whole number from 0 on, not 2.5"),
        ({"name": "lalb", "holder": "last"}, "policy: holder is one of least, first, not 'last'"),
    ],
)
def test_wrong_options_are_named(policy: Told, message: str) -> None:
    with pytest.raises(InvalidScenario, match=message):
        run(policy, devices=[{}], functions=functions("A"), requests=requests((0, "A")))

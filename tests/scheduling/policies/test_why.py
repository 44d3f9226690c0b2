"""Answers of policies about a request that waits or goes: the candidates, by the figures that decide."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.errors import PolicyError
from kaas.scheduling.candidates import Why
from kaas.scheduling.decisions import Decision, PolicyFactory
from kaas.scheduling.events import Event, FunctionKnown, ObjectUse, RequestDone, Residency
from kaas.scheduling.policies import POLICIES
from kaas.scheduling.policies.adaptive import Adaptive
from kaas.scheduling.policies.cfs_affinity import CfsAffinity
from kaas.scheduling.policies.lalb import Lalbo3
from kaas.scheduling.policies.mqfq_sticky import MqfqSticky
from kaas.scheduling.policies.state import WorkerState
from kaas.scheduling.policies.static import Static
from tests.lanes import spread
from tests.scheduling.policies.test_every_policy import CLIENTS, Chaos
from tests.scheduling.policies.world import ETASK, EXECUTOR, World

FACTORIES: dict[str, PolicyFactory] = {
    **POLICIES,
    "cfs_affinity, last": partial(CfsAffinity, affinity="last"),
    "static, shares": partial(Static, shares={"a": 1}),
    "lalbo3, 1": partial(Lalbo3, limit=1),
    "lalbo3, first": partial(Lalbo3, limit=2, holder="first"),
    "mqfq_sticky, D": partial(MqfqSticky, D=1, T=0.5),
    "mqfq_sticky, hard": partial(MqfqSticky, sticky="hard", T=0.5),
    "mqfq_sticky, longest": partial(MqfqSticky, order="longest", T=0.0),
    "mqfq_sticky, least_vt": partial(MqfqSticky, order="least_vt"),
    "mqfq_sticky, sticky": partial(MqfqSticky, order="sticky"),
    "mqfq_sticky, active": partial(MqfqSticky, global_vt="active", T=0.5),
    "adaptive, T": partial(Adaptive, T=0.5),
}


class Watched(World):
    """A world whose policy is watched and asked, beside a policy that is not."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.unwatched = self.factory(self.places)
        self.whys: list[tuple[Why, int, int]] = []
        self.raw.watch(self.observe)  # type: ignore[attr-defined]

    def observe(self, why: Why, worker: WorkerState) -> None:
        self.whys.append((why, worker.id, len(worker.free)))

    def feed(self, event: Event) -> list[Decision]:
        if isinstance(event, RequestDone):
            event = msgspec.structs.replace(event, run_s=event.device_s)
            objects = tuple(use.key for use in self.arrivals[event.request].inputs if use.key is not None)
            if objects and self.workers[event.worker].kind is EXECUTOR:
                self.feed(Residency(self.time_s, event.worker, objects, ()))
        decisions = super().feed(event)
        assert self.unwatched.handle(event) == decisions
        for request in sorted(self.queued | self.waiting | set(self.running))[-3:]:
            why = self.policy.why(request)
            assert why is not None
            assert why.waits_for
            deadline_s = self.arrivals[request].deadline_s
            if request in self.queued and (deadline_s is None or deadline_s > self.time_s):
                assert request in [each.request for each in why.candidates]
        return decisions


class Callers(Chaos):
    """Callers whose functions have constants, and some of whose requests have deadlines."""

    def arrive(self) -> None:
        world, function = self.world, self.draw(4)
        constants = (ObjectUse(bytes([function]), 1 + function, True),) if function < 3 else ()
        world.arrive(
            CLIENTS[self.draw(3)],
            "fghi"[function],
            ETASK if self.draw(6) == 0 else EXECUTOR,
            ready=self.draw(4) > 0,
            alone=self.draw(9) == 8,
            inputs=constants,
            deadline_s=world.time_s + self.draw(20) if self.draw(3) == 0 else None,
        )


@pytest.mark.parametrize("name", spread(FACTORIES, 18))
@given(data=st.data(), devices=st.integers(1, 4), slots=st.integers(1, 3))
def test_the_request_that_goes_has_the_least_scores(name: str, data: st.DataObject, devices: int, slots: int) -> None:
    """And no decision depends on the question, nor on the observer."""

    def draw(n: int) -> int:
        return data.draw(st.integers(0, n - 1))

    world = Watched(FACTORIES[name], devices, slots, memory_bytes=4)
    world.tick()
    chaos = Callers(world, draw)
    usual = [chaos.arrive, chaos.arrive, chaos.time_passes, chaos.time_passes]
    rare = [chaos.cancel, chaos.die, chaos.settings, chaos.residency]
    for action in data.draw(st.lists(st.sampled_from(usual + rare), min_size=10, max_size=40)):
        action()
    check(world)


@pytest.mark.parametrize("seed", [7, 124, 132, 174, 232])
def test_a_request_that_goes_when_promises_have_been_taken_back(seed: int) -> None:
    """Its scores were once those from before, although others that were promised had come back to compete with it."""
    random = Random(seed)
    world = Watched(FACTORIES["adaptive, T"], random.randint(1, 4), random.randint(1, 3), memory_bytes=4)
    world.tick()
    chaos = Callers(world, random.randrange)
    usual = [chaos.arrive, chaos.arrive, chaos.time_passes, chaos.time_passes]
    rare = [chaos.cancel, chaos.die, chaos.settings, chaos.residency]
    for _ in range(60):
        random.choice(usual + rare if random.random() < 0.4 else usual)()
    check(world)


def check(world: Watched) -> None:
    """Check that each request that went had the least scores, and a free worker."""
    for why, worker, free in world.whys:
        chosen = why.candidates[0]
        assert chosen.request == why.request
        assert chosen.held == ""
        assert chosen.scores
        for before, after in pairwise(each for each in why.candidates if not each.held and each.scores):
            assert tuple(before.scores) == tuple(after.scores)
            assert tuple(before.scores.values()) <= tuple(after.scores.values())
        (went,) = [each for each in why.destinations if each.worker == worker]
        assert went.held == ""
        assert went.figures["free_in_s"] == 0.0
        assert free


# --- the reasons of each policy, where they are known


def watched(policy: str | PolicyFactory, *runs: tuple[str, float], devices: int = 1, memory_bytes: int = 8) -> Watched:
    """Return a world with executors that are up; runs: functions with their seconds, as they are known."""
    world = Watched(POLICIES[policy] if isinstance(policy, str) else policy, devices, memory_bytes=memory_bytes)
    for function, run_s in runs:
        world.feed(FunctionKnown(0.0, function, "software", run_s, 10 * run_s, 1, 20))
    world.tick()
    for worker in sorted(world.starting):
        world.up(worker)
    return world


def constant(name: str) -> tuple[ObjectUse, ...]:
    return (ObjectUse(name.encode(), 1, True),)


def last_why(world: Watched) -> Why:
    return world.whys[-1][0]


def scores(why: Why, name: str) -> list[tuple[int, float]]:
    return [(each.request, each.scores[name]) for each in why.candidates]


def test_fcfs_by_age() -> None:
    world = watched("fcfs")
    running, first, second = (world.arrive(client) for client in "abc")
    world.finish(running)
    assert [each.request for each in last_why(world).candidates] == [first, second]
    assert scores(last_why(world), "request") == [(first, first), (second, second)]
    assert last_why(world).candidates[0].client == "b"


def test_sjf_by_run_time() -> None:
    world = watched("sjf", ("long", 5.0), ("short", 1.0))
    running, long, short = (world.arrive("a", function) for function in ("long", "long", "short"))
    world.finish(running, 5.0)
    assert scores(last_why(world), "run_s") == [(short, 1.0), (long, 5.0)]


def test_edf_by_deadline() -> None:
    world = watched("edf")
    running, late, soon = (world.arrive(client, deadline_s=end) for client, end in (("a", 9.0), ("b", 8.0), ("c", 7.0)))
    world.finish(running)
    assert scores(last_why(world), "deadline_s") == [(soon, 7.0), (late, 8.0)]


def test_cfs_affinity_by_effective_time() -> None:
    world = watched("cfs_affinity")
    world.known("a", charged_s=3.0, weight=2.0)
    world.known("b", charged_s=1.0)
    running, first, second = (world.arrive(client) for client in "cab")
    world.finish(running)
    assert scores(last_why(world), "effective_s") == [(second, 1.0), (first, 1.5)]
    assert last_why(world).candidates[1].figures["weight"] == 2.0


def test_batch_by_the_batch_of_the_worker() -> None:
    world = watched("batch")
    running, first, other, same = (world.arrive("a", function) for function in "ffgf")
    world.finish(running)
    world.finish(first)
    assert scores(last_why(world), "turn") == [(same, 0), (other, 1)]
    assert last_why(world).candidates[0].figures["batch_of_worker"] == 0


def test_mqfq_sticky_throttles_a_flow_that_is_ahead() -> None:
    world = watched(partial(MqfqSticky, T=1.0, D=1), ("f", 5.0), ("g", 5.0))
    running, other, again = (world.arrive("a", function) for function in "fgf")
    assert world.policy.why(again).waits_for == "throttled"  # type: ignore[union-attr]
    world.finish(running, 5.0)
    goes, held = last_why(world).candidates
    assert (goes.request, goes.held) == (other, "")
    assert (held.request, held.held, held.figures["ahead_s"]) == (again, "throttled", 5.0)


def test_lalbo3_says_to_which_worker_a_request_is_promised() -> None:
    world = watched("lalbo3", ("f", 1.0), ("g", 1.0), devices=2, memory_bytes=1)
    world.finish(world.arrive("a", "f", inputs=constant("f")), 1.0)
    first = world.arrive("a", "f", inputs=constant("f"))
    (holder, _) = world.running[first]
    promised = world.arrive("a", "f", inputs=constant("f"))
    assert world.policy.why(promised).waits_for == f"promised to worker {holder}"  # type: ignore[union-attr]
    other = world.arrive("b", "g", inputs=constant("g"))
    goes, waits = last_why(world).candidates
    assert (goes.request, waits.request, waits.held) == (other, promised, f"promised to worker {holder}")
    assert waits.figures["holders"] == 1
    world.finish(first, 1.0)
    assert last_why(world).request == promised
    assert last_why(world).candidates[0].scores["local_queue"] == 0


def test_lalbo3_prefers_a_request_whose_memory_is_there() -> None:
    world = watched("lalbo3", ("f", 1.0), ("g", 1.0), memory_bytes=1)
    running, other, same = (world.arrive(name, name[0], inputs=constant(name[0])) for name in ("f", "g", "f2"))
    world.finish(running, 1.0)
    assert scores(last_why(world), "-cached") == [(same, -1), (other, 0)]


def test_adaptive_lets_a_short_request_overtake_by_its_boost() -> None:
    world = watched("adaptive", ("long", 8.0), ("short", 0.001))
    running, second = (world.arrive("a", "long") for _ in range(2))
    world.time_s = 8.0
    world.finish(running, 8.0)  # the mean wait is 8 s / 50 now
    third = world.arrive("a", "long")
    world.time_s = 8.5
    short = world.arrive("a", "short")
    world.time_s = 16.0
    world.finish(second, 8.0)
    goes, long = last_why(world).candidates
    assert (goes.request, long.request) == (short, third)
    assert goes.scores["boosted_arrival_s"] < long.scores["boosted_arrival_s"] == pytest.approx(8.0)
    assert goes.figures["boost_s"] > 0.5
    assert goes.scores["boosted_arrival_s"] == 8.5 - goes.figures["boost_s"]
    assert (goes.figures["arrived_s"], goes.figures["cost_s"]) == (8.5, 0.001)


def test_adaptive_says_that_a_client_is_ahead() -> None:
    world = watched(partial(Adaptive, T=1.0), ("f", 5.0))
    world.known("a", charged_s=20.0)
    running, behind, ahead = (world.arrive(client, "f") for client in "bba")
    assert "turn" in world.policy.why(ahead).waits_for  # type: ignore[union-attr]
    world.finish(running, 5.0)
    assert [(each.request, bool(each.held)) for each in last_why(world).candidates] == [(behind, False), (ahead, True)]


def test_adaptive_puts_an_urgent_request_first() -> None:
    world = watched("adaptive", ("f", 2.0))
    running, oldest = world.arrive("a", "f"), world.arrive("a", "f")
    urgent = world.arrive("a", "f", deadline_s=5.0)
    world.time_s = 2.0
    world.finish(running, 2.0)
    goes, waits = last_why(world).candidates
    assert (goes.request, goes.scores["deadline_s"], waits.request) == (urgent, 5.0, oldest)


@pytest.mark.parametrize("policy", POLICIES)
def test_limits_hold_a_request_back(policy: str) -> None:
    world = watched(policy, ("f", 1.0), devices=2)
    world.known("a", max_running=1)
    world.arrive("a", "f")
    for worker in sorted(world.starting):
        world.up(worker)
    held = world.arrive("a", "f")
    for worker in sorted(world.starting):
        world.up(worker)
    why = world.policy.why(held)
    assert why is not None
    assert why.waits_for == "limits of its client"
    if policy != "exclusive":  # there the next request waits for a slot of its group, and limits are not asked yet
        assert [(each.request, each.held) for each in why.candidates] == [(held, "limits of its client")]


def test_what_a_request_waits_for() -> None:
    world = World(POLICIES["fcfs"], 1)
    later = world.arrive("a", ready=False)

    def waits_for(request: int) -> str:
        return world.policy.why(request).waits_for  # type: ignore[union-attr]

    assert waits_for(later) == "its inputs"
    first = world.arrive("a")
    assert waits_for(first) == "a device"
    world.tick()
    assert waits_for(first) == "a worker to start"
    world.up(0)
    assert waits_for(first) == "its end on worker 0"
    second, third = world.arrive("a", deadline_s=3.0), world.arrive("a")
    alone = world.arrive("a", alone=True)
    assert [waits_for(each) for each in (second, third)] == ["a free slot", "a free slot"]
    assert waits_for(alone) == "a worker without other requests"
    why = world.policy.why(third)
    assert why is not None
    assert [(each.request, each.held) for each in why.candidates] == [
        (second, ""),
        (third, "behind others of its flow"),
    ]
    (worker,) = why.destinations
    assert (worker.worker, worker.device, worker.held) == (0, 0, f"for request {alone} alone")
    world.tick(4.0)
    assert waits_for(second) == "nothing: its deadline has passed"
    with pytest.raises(PolicyError, match="no such request"):
        world.policy.why(77)


def test_a_question_changes_no_count_of_visits() -> None:
    """A question about an older first request, which a lost worker gave back, once let lalbo3 forget passes."""
    draws = map(int, "000000000000000000000001101000001000301101000001000010000")
    world = Watched(FACTORIES["lalbo3, 1"], 1, 1, memory_bytes=4)
    world.tick()
    chaos = Callers(world, lambda _: next(draws))
    arrive, later = chaos.arrive, chaos.time_passes
    for action in (*[arrive] * 5, later, arrive, arrive, chaos.residency, chaos.die, later):
        action()

"""Under any policy, each executor serves one client, and a client's faults cost no other client an executor."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaas.scheduling.checks import CheckedPolicy
from kaas.scheduling.decisions import (
    Decision,
    Dispatch,
    Evict,
    EvictTo,
    Policy,
    PolicyFactory,
    Prefetch,
    StartWorker,
    StopWorker,
)
from kaas.scheduling.events import (
    ClientGone,
    Event,
    InputsReady,
    ObjectUse,
    Ordered,
    Outcome,
    PhysicalDevice,
    RequestArrived,
    RequestDone,
    Residency,
    ShareKnown,
    Tick,
    WorkerAdopted,
    WorkerGone,
    WorkerKind,
    WorkerReady,
)
from kaas.scheduling.policies import POLICIES, factory
from kaas.scheduling.policies.reclaiming import TURN
from kaas.scheduling.process_isolation import ProcessIsolation
from tests.lanes import spread
from tests.scheduling.policies.test_every_policy import FACTORIES, chaos
from tests.scheduling.policies.world import EXECUTOR, World


def isolated(inside: PolicyFactory) -> PolicyFactory:
    """Return a factory of a policy behind walls; what the policy inside hears and decides is checked too."""

    def make(devices: Sequence[PhysicalDevice]) -> Policy:
        shared = [replace(device, client_executors=None) for device in devices]
        return ProcessIsolation(CheckedPolicy(inside(shared), shared), devices)

    return make


@pytest.mark.parametrize("name", spread(FACTORIES, 4))
@settings(max_examples=12)
@given(
    data=st.data(),
    devices=st.integers(1, 3),
    slots=st.integers(1, 2),
    etask_workers=st.integers(1, 2),
    more=st.integers(0, 2),
    scaled=st.booleans(),
)
def test_every_request_is_answered_once_by_an_executor_of_its_client(
    name: str, data: st.DataObject, devices: int, slots: int, etask_workers: int, more: int, scaled: bool
) -> None:
    most = slots + more
    world = World(isolated(FACTORIES[name]), devices, slots, etask_workers, client_executors=most)
    chaos(world, data, scaled=scaled)
    for flows in world.served.values():
        assert len({client for client, _ in flows}) == 1
    serving = Counter(
        started.device
        for worker, started in world.workers.items()
        if started.kind is EXECUTOR and worker in world.served
    )
    assert all(count <= most for count in serving.values())


def walled(most: int, policy: str = "fcfs", devices: int = 1, slots: int = 1) -> World:
    """Return a world whose devices have spare executors."""
    world = World(isolated(factory(policy)), devices, slots, client_executors=most)
    world.tick()
    up_all(world)
    return world


def up_all(world: World) -> None:
    for worker in sorted(set(world.starting) - world.stopping):
        world.up(worker)


def run(world: World, client: str) -> int:
    """Run a request of a client to its end; return its worker."""
    request = world.arrive(client)
    for worker in world.stopped():
        world.gone(worker, "stopped")
    up_all(world)
    worker, _ = world.running[request]
    world.finish(request, 1.0)
    return worker


def test_a_new_client_finds_an_executor_that_started_ahead() -> None:
    world = walled(3)
    (spare,) = world.workers
    request = world.arrive("ada")
    assert world.running[request] == (spare, 0)
    assert len(world.starting) == 1  # for the next client
    world.finish(request)
    up_all(world)
    assert run(world, "ada") == spare
    assert run(world, "bob") != spare


def test_the_executor_that_was_used_longest_ago_ends_for_a_new_client() -> None:
    world = walled(2)
    ada, bob = run(world, "ada"), run(world, "bob")
    world.tick(1.0)
    assert run(world, "ada") == ada
    world.arrive("eve")
    assert world.stopping == {bob}
    assert not world.running  # until bob's memory is free
    world.gone(bob, "stopped")
    up_all(world)
    ((worker, _),) = world.running.values()
    assert worker not in (ada, bob)
    assert run(walled(2), "bob") == 0


START_S, RUN_S, STOP_S = 1.0, 0.1, 0.05


def calls(
    clients: int,
    executors: int,
    policy: str,
    until_s: float,
    *,
    think_s: float = 0.0,
    deep: int = 1,
    slots: int = 1,
    max_running: int | None = None,
    leasts: Sequence[float] = (),
) -> tuple[Counter[str], int]:
    """Let clients send requests, each some time after an answer; return the answers, and how many workers began.

    deep: how many requests each client has at a time, where it does not think. leasts: of the time, for the first ones.
    """
    world = World(isolated(factory(policy)), 1, slots, client_executors=executors)
    world.tick()
    if max_running is not None:
        for number in range(clients):
            world.known(f"client {number}", max_running=max_running)
    shares = {f"client {number}": f"share {number}" for number in range(len(leasts))}
    for share, least in zip(shares.values(), leasts, strict=True):
        world.feed(ShareKnown(world.time_s, share, sms=1.0, least=least, most=1.0))
    answers: Counter[str] = Counter()
    due: list[tuple[float, int, Callable[[], object]]] = []
    numbers = count()
    going: set[tuple[str, int]] = set()

    def after(seconds: float, what: str, number: int, action: Callable[[], object]) -> None:
        def then() -> None:
            going.discard((what, number))
            action()

        if (what, number) not in going:
            going.add((what, number))
            heappush(due, (world.time_s + seconds, next(numbers), then))

    def answered(request: int) -> None:
        client = world.arrivals[request].client
        answers[client] += 1
        world.finish(request, RUN_S)
        arrive = partial(world.arrive, client, share=shares.get(client, ""))
        if think_s:
            after(think_s, "think", request, arrive)
        else:
            arrive()

    for client in [f"client {number}" for number in range(clients)]:
        for _ in range(deep):
            world.arrive(client, share=shares.get(client, ""))
    while world.time_s < until_s:
        for request in world.running:
            after(RUN_S, "run", request, partial(answered, request))
        for worker in world.starting:
            after(START_S, "start", worker, partial(world.up, worker))
        for worker in world.stopped():
            after(STOP_S, "stop", worker, partial(world.gone, worker, "stopped"))
        while world.wakes:
            heappush(due, (world.wakes.pop(), next(numbers), world.tick))
        world.time_s, _, action = heappop(due)
        action()
    return answers, sum(isinstance(each, StartWorker) for each in world.decided)


@pytest.mark.parametrize("policy", ["fcfs", "adaptive", "mqfq_sticky"])
@pytest.mark.parametrize(("clients", "executors"), [(5, 4), (12, 4), (2, 1)])
def test_more_clients_than_executors_cost_a_device_little_of_its_time(
    policy: str, clients: int, executors: int
) -> None:
    until_s = 200.0
    answers, started = calls(clients, executors, policy, until_s)
    assert answers.total() > 0.9 * until_s / RUN_S
    assert len(answers) == clients
    assert min(answers.values()) > answers.total() / clients / 3
    assert started <= until_s / (TURN * START_S) + executors + 2


@pytest.mark.parametrize("policy", ["fcfs", "adaptive", "mqfq_sticky"])
@pytest.mark.parametrize(("clients", "executors", "slots"), [(5, 4, 4), (3, 2, 2), (2, 1, 1)])
def test_clients_that_always_have_requests_waiting_keep_no_other_one_from_the_device(
    policy: str, clients: int, executors: int, slots: int
) -> None:
    until_s = 200.0
    answers, _ = calls(clients, executors, policy, until_s, deep=3, slots=slots, max_running=1)
    assert len(answers) == clients
    assert min(answers.values()) > answers.total() / clients / 2


@pytest.mark.parametrize("policy", ["fcfs", "adaptive", "mqfq_sticky"])
@pytest.mark.parametrize(("clients", "executors"), [(6, 3), (12, 4), (3, 2)])
def test_a_client_that_was_promised_half_of_the_time_has_it_among_more_clients_than_executors(
    policy: str, clients: int, executors: int
) -> None:
    until_s = 200.0
    answers, started = calls(clients, executors, policy, until_s, deep=2, leasts=(0.5,))
    assert answers["client 0"] > 0.48 * until_s / RUN_S
    assert answers.total() > 0.9 * until_s / RUN_S
    others = [answers[f"client {number}"] for number in range(1, clients)]
    assert min(others) > sum(others) / len(others) / 3
    assert started <= until_s / (TURN * START_S) + executors + 2


def test_clients_with_shares_cost_a_device_no_more_starts_than_others_do() -> None:
    until_s = 200.0
    answers, started = calls(4, 2, "fcfs", until_s, deep=2, leasts=(0.3, 0.3))
    assert started <= until_s / (TURN * START_S) + 4
    assert min(answers.values()) > 0.05 * answers.total()


def test_no_client_keeps_its_place_for_ever_where_all_were_promised_a_part() -> None:
    answers, _ = calls(3, 2, "fcfs", 200.0, deep=2, leasts=(0.3, 0.3, 0.3))
    assert min(answers.values()) > answers.total() / 3 / 2


def go_on(world: World, honest: dict[str, int], drawn: random.Random | None) -> None:
    """Let a tenth of a second pass, in which workers start and end, and honest clients' requests end and come.

    drawn: what happens is drawn; None: all that can happen does.
    """

    def happens(probability: float) -> bool:
        return drawn is None or drawn.random() < probability

    world.time_s += 0.1
    for worker in world.stopped():
        if happens(0.7):
            world.gone(worker, "stopped")
    for worker in sorted(set(world.starting) - world.stopping):
        if happens(0.2):
            world.up(worker)
    while world.wakes and min(world.wakes) <= world.time_s:
        world.wake()
    for client, request in honest.items():
        if request in world.running and happens(0.8):
            world.finish(request, 0.1)
        if world.answered[request] and happens(0.5):
            honest[client] = world.arrive(client)


@pytest.mark.parametrize("policy", ["fcfs", "adaptive"])
def test_an_endless_request_on_one_device_keeps_no_client_from_the_other_device(policy: str) -> None:
    """Its client has more requests, which a limit holds; some clients wait for executors where it runs."""
    for seed in range(12):
        drawn = random.Random(seed)
        world = walled(1, policy, devices=2)
        world.known("mallory", max_running=1)
        honest = {client: world.arrive(client) for client in ("ada", "bob", "eve")}
        for step in range(150):
            if step == 50:
                for _ in range(4):
                    world.arrive("mallory")
            go_on(world, honest, drawn)
        before = world.answered.total()
        for _ in range(100):
            go_on(world, honest, None)
        assert world.answered.total() > before + 10, seed


def test_a_client_that_comes_seldom_finds_a_place_at_once_where_another_has_not_come_for_a_while() -> None:
    until_s, think_s = 1000.0, 20.0
    answers, _ = calls(6, 4, "adaptive", until_s, think_s=think_s)
    assert min(answers.values()) >= until_s / (think_s + 4 * RUN_S) - 1


def test_a_fault_of_one_client_costs_the_others_nothing() -> None:
    world = walled(2, "mqfq_sticky")
    ada = run(world, "ada")
    request = world.arrive("bob")
    bob, _ = world.running[request]
    world.gone(bob, "a kernel broke the device", device_s=1.0)
    assert ada in world.workers
    assert run(world, "ada") == ada
    assert run(world, "bob") not in (ada, bob)


def test_a_cancelled_request_does_not_wait_for_its_executor() -> None:
    world = walled(1)
    run(world, "ada")
    cancelled = world.arrive("bob")
    assert not world.running
    world.cancel(cancelled)
    request = world.arrive("ada")
    for worker in world.stopped():
        world.gone(worker, "stopped")
    up_all(world)
    assert list(world.running) == [request]


def test_a_request_whose_executor_starts_takes_no_slot() -> None:
    world = walled(3)
    ada = run(world, "ada")
    request = world.arrive("bob")
    bob, _ = world.running[request]
    world.finish(request)
    (spare,) = world.starting
    waits = world.arrive("eve")
    why = world.policy.why(waits)
    assert why is not None
    assert why.waits_for == "an executor of its client"
    for client, worker in (("ada", ada), ("bob", bob), ("ada", ada)):
        request = world.arrive(client)
        assert world.running == {request: (worker, 0)}
        world.finish(request, 1.0)
    world.up(spare)
    assert world.running == {waits: (spare, 0)}


def test_an_executor_that_has_started_for_a_request_stays_until_it_has_run_one() -> None:
    world = walled(2)
    for client in ("ada", "tom"):
        world.known(client, priority=1)
    ada, bob = run(world, "ada"), run(world, "bob")
    world.tick(1.0)
    assert run(world, "ada") == ada
    eve = world.arrive("eve")
    first = world.arrive("ada")
    assert world.stopping == {bob}
    world.gone(bob, "stopped")  # now eve has an executor, and no slot
    tom, second = world.arrive("tom"), world.arrive("ada")
    world.finish(first, 1.0)
    assert world.running == {second: (ada, 0)}
    assert not world.stopping
    world.finish(second, 1.0)
    assert list(world.running) == [eve]
    up_all(world)
    assert world.stopping == {ada}
    world.finish(eve, 1.0)
    world.gone(ada, "stopped")
    up_all(world)
    assert list(world.running) == [tom]


def test_a_policy_that_stops_its_executor_hears_again_of_requests_that_waited_for_one() -> None:
    devices = [PhysicalDevice(0, "software", None, client_executors=1)]
    inside = Asks([StopWorker(5)])
    policy = CheckedPolicy(ProcessIsolation(inside, devices), devices)
    policy.handle(Tick(0.0))
    policy.handle(WorkerReady(0.0, 0, WorkerKind.EXECUTOR, 0, 1, 1))
    policy.handle(RequestArrived(0.0, 0, "ada", "f"))
    policy.handle(RequestDone(0.0, 0, 0, 0, Outcome.SUCCEEDED, 1.0))
    policy.handle(RequestArrived(0.0, 1, "bob", "f"))
    assert inside.heard[-1] == RequestArrived(0.0, 1, "bob", "f", ready=False, attempt=2)
    policy.handle(Tick(1.0))
    policy.handle(WorkerGone(1.0, 0, "stopped"))
    inside.heard.clear()
    policy.handle(WorkerGone(1.0, 1, "stopped"))
    assert inside.heard == [WorkerGone(1.0, 5, "stopped"), InputsReady(1.0, 1)]


def test_executors_of_a_client_that_has_gone_end() -> None:
    world = walled(2, devices=2)
    ada = run(world, "ada")
    world.feed(ClientGone(0.0, "ada"))
    assert world.stopping == {ada}


def test_an_executor_that_does_not_start_rejects_what_waits_for_it_and_the_next_request_tries_again() -> None:
    world = walled(2)
    request = world.arrive("ada")
    ada, _ = world.running[request]
    world.finish(request)
    (spare,) = world.starting
    world.gone(spare, "no memory")
    assert not world.starting
    assert run(world, "ada") == ada
    refused = world.arrive("bob")
    (worker,) = world.starting
    world.gone(worker, "no memory")
    assert world.rejected == [refused]
    assert run(world, "bob") not in (ada, worker)


def test_the_end_of_one_executor_rejects_nothing_that_waits_for_another_one() -> None:
    world = walled(3)
    request = world.arrive("ada")
    ada, _ = world.running[request]
    world.finish(request)
    (spare,) = world.starting
    world.gone(spare, "no memory")
    waits = world.arrive("bob")
    world.gone(ada, "killed")
    assert not world.rejected
    up_all(world)
    assert waits in world.running


def test_an_executor_of_an_earlier_pool_serves_no_client_any_more() -> None:
    world = World(isolated(factory("fcfs")), client_executors=2)
    world.feed(WorkerAdopted(0.0, 7, EXECUTOR, 0, 1, 1))
    assert world.stopping == {7}
    world.tick()
    up_all(world)
    assert run(world, "ada") != 7


class Asks:
    """A policy that gives the orders of a test on each Tick."""

    def __init__(self, orders: Sequence[Decision]) -> None:
        self.orders = list(orders)
        self.heard: list[Event] = []

    def handle(self, event: Event) -> list[Decision]:
        self.heard.append(event)
        match event:
            case Tick() if event.time_s == 0.0:
                return [StartWorker(5, EXECUTOR, 0)]
            case Tick():
                return self.orders
            case RequestArrived(ready=True):
                return [Dispatch(event.request, 5, 0)]
        return []


ADAS, BOBS, BOTH = b"ada", b"bob", b"both"


def asked(orders: Sequence[Decision]) -> tuple[Asks, CheckedPolicy, list[Decision]]:
    """Return a policy, its pool's view, and the decisions on its orders: ada's executor is 0, bob's is 1."""
    devices = [PhysicalDevice(0, "software", None, client_executors=2)]
    inside = Asks(orders)
    policy = CheckedPolicy(ProcessIsolation(inside, devices), devices)
    policy.handle(Tick(0.0))
    for worker, client, key in ((0, "ada", ADAS), (1, "bob", BOBS)):
        policy.handle(WorkerReady(0.0, worker, WorkerKind.EXECUTOR, 0, 1, 1))
        policy.handle(RequestArrived(0.0, worker, client, "f", (ObjectUse(key, 1), ObjectUse(BOTH, 1))))
        policy.handle(Residency(0.0, worker, (key, BOTH), ()))
        policy.handle(RequestDone(0.0, worker, worker, 0, Outcome.SUCCEEDED, 1.0))
    inside.heard.clear()
    return inside, policy, policy.handle(Tick(1.0))


def test_an_order_is_divided_among_the_executors_that_it_concerns() -> None:
    inside, policy, decided = asked([Evict(5, (ADAS, BOBS, BOTH, b"?"), 9, EvictTo.HOST)])
    assert [(each.worker, each.keys) for each in decided if isinstance(each, Evict)] == [
        (0, (ADAS, BOTH)),
        (1, (BOBS, BOTH)),
    ]
    first, second = (each.order for each in decided if isinstance(each, Evict))
    policy.handle(Residency(1.0, 0, (), (ADAS, BOTH), (ADAS, BOTH)))
    policy.handle(Ordered(1.0, 0, first, (ADAS, BOTH), ()))
    policy.handle(Residency(1.0, 1, (), (BOBS,), (BOBS,)))
    policy.handle(Ordered(1.0, 1, second, (BOBS,), (BOTH,)))
    assert inside.heard[1:] == [
        Residency(1.0, 5, (), (ADAS,), (ADAS,)),  # bob's executor has what both read
        Residency(1.0, 5, (), (BOBS,), (BOBS,)),
        Ordered(1.0, 5, 9, (ADAS, BOBS, BOTH), (b"?",)),
    ]


def test_an_order_that_no_executor_can_follow_is_answered_with_the_next_event() -> None:
    inside, policy, decided = asked([Prefetch(5, (ADAS,), 3)])  # no request that waits reads it
    assert decided == []
    assert inside.heard == [Tick(1.0)]
    policy.handle(WorkerReady(1.0, 2, WorkerKind.EXECUTOR, 0, 1, 1))
    assert inside.heard == [Tick(1.0), Ordered(1.0, 5, 3, (), (ADAS,))]


def test_the_end_of_an_executor_answers_its_part_of_an_order() -> None:
    inside, policy, decided = asked([Evict(5, (ADAS, BOBS), 9)])
    first, second = (each.order for each in decided if isinstance(each, Evict))
    policy.handle(Ordered(1.0, 1, second, (), (BOBS,)))
    policy.handle(WorkerGone(1.0, 0, "killed"))
    assert first != second
    assert inside.heard[1:] == [Ordered(1.0, 5, 9, (), (ADAS, BOBS)), Residency(1.0, 5, (), (ADAS,))]


@pytest.mark.parametrize("name", POLICIES)
def test_policies_hear_of_one_executor_on_each_device(name: str) -> None:
    world = walled(2, name, devices=2)
    for client in "abcab":
        run(world, client)
    assert len(world.answered) == 5

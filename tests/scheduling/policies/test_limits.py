"""Rules of all policies: clients' limits, requests that run alone, deadlines, executors and eTask workers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.errors import PolicyError
from kaas.scheduling.decisions import (
    Dispatch,
    PolicyFactory,
    Reject,
    StartWorker,
    StopWorker,
    WakeAt,
)
from kaas.scheduling.events import PhysicalDevice, Running, Tick, WorkerAdopted
from kaas.scheduling.policies import POLICIES
from kaas.scheduling.policies.cfs_affinity import CfsAffinity
from kaas.scheduling.policies.fair_share import WINDOW_S
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from kaas.scheduling.policies.static import Static
from tests.scheduling.policies.world import ETASK, EXECUTOR, World

SHARING: dict[str, PolicyFactory] = {name: POLICIES[name] for name in ("fcfs", "cfs_affinity", "static")}


def idle(factory: PolicyFactory, devices: int = 1, slots: int = 1, etask_workers: int = 1) -> World:
    world = World(factory, devices, slots, etask_workers)
    world.tick()
    for worker in sorted(world.starting):
        world.up(worker)
    return world


# --- limits


@pytest.mark.parametrize("name", POLICIES)
def test_max_running(name: str) -> None:
    world = World(POLICIES[name], 2, slots=2)
    world.known("a", max_running=1)
    world.tick()
    requests = [world.arrive("a", "f") for _ in range(3)]
    for worker in sorted(world.starting):
        world.up(worker)
    assert list(world.running) == requests[:1]
    other = world.arrive("b", "f")
    if name != "exclusive":
        assert other in world.running
    world.finish(requests[0], 1.0)
    assert requests[1] in world.running
    assert requests[2] in world.queued
    world.known("a")
    assert requests[2] in world.running


def test_max_share_holds_a_request_back_until_its_time() -> None:
    """A quarter of two devices: half a second of device time a second, after what was saved up."""
    world = idle(FirstComeFirstServed, 2)
    world.known("a", max_share=0.25, mean_s=1.0)
    first, second = world.arrive("a"), world.arrive("a")
    assert list(world.running) == [first]
    assert world.decided[-1:] == [WakeAt(2.0)]
    world.finish(first, 1.0)
    world.time_s = 1.9
    assert world.arrive("b") in world.running
    assert second in world.queued
    world.time_s = 2.0
    world.tick()
    assert second in world.running


@given(
    st.sampled_from(sorted(SHARING)),
    st.integers(1, 5),
    st.integers(1, 3),
    st.sampled_from([0.1, 0.25, 0.5]),
    st.lists(st.floats(0.01, 2.0), min_size=1, max_size=5),
    st.integers(0, 10**6),
)
def test_max_share_is_never_exceeded(
    name: str, devices: int, slots: int, share: float, costs: list[float], seed: int
) -> None:
    """The bound: share x devices x (time + WINDOW_S), what one request takes at most beyond its savings, and what those
    that run at a time, one for each slot, take beyond their estimates."""
    world = idle(SHARING[name], devices, slots)
    world.known("a", max_share=share)
    used, largest = 0.0, max(costs)
    for i in range(80):
        world.arrive("a")
        world.arrive("b")
        if world.running and (seed >> (i % 20)) & 1:
            request = min(world.running)
            cost = costs[request % len(costs)]
            world.time_s += cost / (devices * slots)
            if world.arrivals[request].client == "a":
                used += cost
            world.finish(request, cost)
        assert used <= share * devices * (world.time_s + WINDOW_S) + largest * (1 + devices * slots)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARING)
def test_a_limited_client_gets_its_share_in_the_long_run(name: str) -> None:
    world = idle(SHARING[name], 2)
    world.known("a", max_share=0.25, mean_s=0.1)
    for _ in range(600):
        world.arrive("a")
    finished = 0
    while world.time_s < 100.0:
        if world.running:
            world.time_s += 0.1
            world.finish(min(world.running), 0.1)
            finished += 1
        else:
            world.wake()
    assert finished * 0.1 == pytest.approx(0.25 * 2 * 100.0, rel=0.03)


@pytest.mark.parametrize("limit", [{"max_running": 1}, {"max_share": 0.01, "mean_s": 1.0}])
@pytest.mark.parametrize("name", [name for name in POLICIES if name != "exclusive"])
def test_a_request_that_limits_hold_back_keeps_no_device_from_others(name: str, limit: dict[str, Any]) -> None:
    """Client a runs on one device, and its next request is held: the other device is idle, and runs b's eTask."""
    world = idle(POLICIES[name], 2)
    world.known("a", **limit)
    runs, held = world.arrive("a"), world.arrive("a")
    assert list(world.running) == [runs]
    task = world.arrive("b", "train", ETASK)
    (stop,) = world.stopped()
    world.gone(stop, "stopped")
    world.up(max(world.starting))
    assert set(world.running) == {runs, task}
    assert world.queued == {held}


# --- requests that run alone


@pytest.mark.parametrize("name", SHARING)
def test_a_suspect_runs_alone_and_is_not_starved(name: str) -> None:
    world = idle(SHARING[name], devices=1, slots=3)
    before = [world.arrive() for _ in range(3)]
    retried_alone = world.arrive(alone=True)
    after = [world.arrive() for _ in range(3)]
    for request in before:
        assert retried_alone not in world.running
        world.finish(request, 1.0)
    assert list(world.running) == [retried_alone]
    world.finish(retried_alone, 1.0)
    assert sorted(world.running) == after


@pytest.mark.parametrize("name", SHARING)
def test_only_the_least_busy_worker_is_kept_for_a_suspect(name: str) -> None:
    world = idle(SHARING[name], devices=2, slots=2)
    requests = [world.arrive() for _ in range(4)]
    where = dict(world.running)
    freed = min(requests)
    device = where[freed][0]
    retried_alone = world.arrive(alone=True)
    world.finish(freed, 1.0)
    waits = world.arrive()
    assert waits in world.queued  # the slot next to another request stays free for the request that runs alone
    (other,) = [request for request in requests if request != freed and where[request][0] == device]
    world.finish(other, 1.0)
    assert world.running[retried_alone][0] == device
    assert waits in world.queued
    elsewhere = min(request for request in world.running if request != retried_alone)
    world.finish(elsewhere, 1.0)
    assert waits in world.running


def test_a_suspect_that_is_cancelled_keeps_nothing_free() -> None:
    world = idle(FirstComeFirstServed, slots=2)
    world.arrive()
    retried_alone, next_one = world.arrive(alone=True), world.arrive()
    assert next_one in world.queued
    world.cancel(retried_alone)
    assert next_one in world.running


# --- deadlines


@pytest.mark.parametrize("name", POLICIES)
def test_a_request_whose_deadline_has_passed_is_not_begun(name: str) -> None:
    world = World(POLICIES[name])
    world.tick()
    late, good = world.arrive("a", deadline_s=1.0), world.arrive("a")
    world.time_s = 1.0
    for worker in sorted(world.starting):
        world.up(worker)
    assert list(world.running) == [good]
    world.cancel(late)


# --- executors and eTask workers


@pytest.mark.parametrize("name", ["fcfs", "cfs_affinity"])
def test_an_etask_takes_a_device_of_the_executors_and_returns_it(name: str) -> None:
    world = idle(SHARING[name], 2)
    busy = world.arrive("a")
    task = world.arrive("b", "train", ETASK)
    (stop,) = [decision for decision in world.decided if isinstance(decision, StopWorker)]
    assert stop.worker != world.running[busy][0]  # the idle one
    device = world.workers[stop.worker].device
    world.gone(stop.worker, "stopped")
    assert world.decided[-1:] == [StartWorker(2, ETASK, device, "b", "train")]
    world.up(2)
    world.finish(task, 1.0)
    waits = world.arrive("a")
    assert world.decided[-1:] == [StopWorker(2)]  # nothing of its own waits there any more
    world.gone(2, "stopped")
    assert world.decided[-1:] == [StartWorker(3, EXECUTOR, device)]
    world.up(3)
    assert waits in world.running


@pytest.mark.parametrize("name", ["fcfs", "cfs_affinity"])
def test_backlogged_etasks_and_ktasks_share_by_weight(name: str) -> None:
    """Clients a and b with kTasks, c with eTasks: of six devices c gets two, and with twice the weight three."""
    for weight, devices in ((1.0, 2), (2.0, 3)):
        world = idle(SHARING[name], 6)
        world.known("c", weight=weight)
        for _ in range(60):
            world.arrive("a")
            world.arrive("b")
            world.arrive("c", "train", ETASK)
        for i in range(90):
            world.step(lambda n, i=i: (7 * i) % n)  # type: ignore[misc]
        kinds = [worker.kind for number, worker in world.workers.items() if number not in world.stopping]
        kinds += [worker.kind for worker in world.starting.values()]
        assert kinds.count(ETASK) == devices


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "exclusive"])
def test_of_equally_large_groups_one_with_an_idle_worker_gives_its_device(name: str) -> None:
    world = idle(POLICIES[name], 2)
    long = world.arrive("a", "train", ETASK)
    world.gone(world.stopped()[0], "stopped")
    world.up(max(world.starting))
    task = world.arrive("b", "train", ETASK)
    world.gone(world.stopped()[0], "stopped")  # the executor
    world.up(max(world.starting))
    assert set(world.running) == {long, task}


def test_the_last_executor_stays_although_etasks_wait() -> None:
    world = idle(FirstComeFirstServed, 3)
    for _ in range(6):
        world.arrive("b", "train", ETASK)
    assert len(world.stopping) == 2


# --- static


def test_each_client_has_its_own_devices() -> None:
    world = World(partial(Static, shares={"a": [2], "b": 1}), 4)
    world.tick()
    assert set(world.decided) == {
        StartWorker(0, EXECUTOR, 1),
        StartWorker(1, EXECUTOR, 3),
        StartWorker(2, EXECUTOR, 2, "a"),
        StartWorker(3, EXECUTOR, 0, "b"),
    }
    for worker in range(4):
        world.up(worker)
    requests = [world.arrive("a") for _ in range(3)]
    assert [dispatch.worker for dispatch in world.dispatched] == [2]
    assert [world.arrive(client) in world.running for client in ("b", "c", "d", "e")] == [True, True, True, False]
    assert requests[1] in world.queued
    task = world.arrive("a", "train", ETASK)
    assert world.decided[-1:] == [StopWorker(2)]
    assert task in world.queued


def test_a_request_of_a_client_without_a_device_is_rejected() -> None:
    world = World(partial(Static, shares={"a": 2, "none": 0}), 2)
    world.tick()
    stranger, none = world.arrive("stranger"), world.arrive("none")
    assert world.decided[-2:] == [
        Reject(stranger, "every device of the pool belongs to another client"),
        Reject(none, "client 'none' has no device of the pool"),
    ]


@pytest.mark.parametrize(
    "shares",
    [
        None,
        [1, 2],
        {"a": True},
        {"a": "0"},
        {"a": [0.0]},
        {"a": 3},
        {"a": [0], "b": [0]},
        {"a": [5]},
        {"a": 1, "b": 2},
        {"a": -1},
    ],
)
def test_wrong_shares(shares: Any) -> None:
    with pytest.raises(PolicyError):
        Static([PhysicalDevice(i, "software", None) for i in range(2)], shares=shares)


# --- adopted workers


@pytest.mark.parametrize("name", ["fcfs", "cfs_affinity"])
def test_adopted_executors_are_used_and_not_started_again(name: str) -> None:
    world = World(POLICIES[name], 2)
    running = (Running(-1, 1, "a", "f"),)
    world.workers[4] = StartWorker(4, EXECUTOR, 1)
    world.feed(WorkerAdopted(0.0, 4, EXECUTOR, 1, 2, 1, running=running))
    assert world.decided == []
    world.feed(Tick(0.0))
    assert world.decided == [StartWorker(5, EXECUTOR, 0)]
    first, second = world.arrive("b"), world.arrive("b")
    assert world.decided[1:] == [Dispatch(first, 4, 0)]
    world.running[-1] = (4, 1)
    world.left.add(-1)
    world.finish(-1, 1.0)
    assert world.running[second] == (4, 1)


@pytest.mark.parametrize("name", ["fcfs", "cfs_affinity"])
def test_a_worker_that_is_adopted_late_ends_the_start_on_its_device(name: str) -> None:
    world = World(POLICIES[name], 1)
    world.tick()
    world.workers[7] = StartWorker(7, EXECUTOR, 0)
    world.feed(WorkerAdopted(0.0, 7, EXECUTOR, 0, 1, 1))
    assert world.decided[-1:] == [StopWorker(0)]
    world.gone(0, "stopped")
    assert world.arrive() in world.running
    assert len(world.decided) == 3


def test_a_client_is_charged_for_a_run_that_an_earlier_pool_began() -> None:
    world = World(CfsAffinity, 1)
    world.known("a", mean_s=1.0, devices=(0,))
    world.known("b", mean_s=1.0, devices=(0,))
    world.workers[0] = StartWorker(0, EXECUTOR, 0)
    world.feed(WorkerAdopted(0.0, 0, EXECUTOR, 0, 1, 1, running=(Running(-1, 0, "a", "f"),)))
    world.tick()
    mine, other = world.arrive("a"), world.arrive("b")
    world.running[-1] = (0, 0)
    world.left.add(-1)
    world.finish(-1, 5.0)
    assert other in world.running
    assert mine in world.queued


@pytest.mark.parametrize("name", POLICIES)
def test_a_worker_that_another_policy_started_ends(name: str) -> None:
    """Only exclusive uses a worker for one function, and only exclusive does not use one for all clients."""
    serves = ("", "") if name == "exclusive" else ("a", "f")
    world = World(POLICIES[name], 1)
    world.workers[3] = StartWorker(3, EXECUTOR, 0, *serves)
    world.feed(WorkerAdopted(0.0, 3, EXECUTOR, 0, 1, 1, *serves))
    assert world.decided == [StopWorker(3)]
    world.tick()
    request = world.arrive("a", "f")
    assert request in world.queued
    world.settle(lambda _: 0)


def test_a_request_that_runs_alone_moves_to_a_worker_that_is_free_sooner() -> None:
    world = idle(FirstComeFirstServed, devices=2, slots=2)
    requests = [world.arrive() for _ in range(4)]
    where = {request: world.running[request][0] for request in requests}
    retried_alone = world.arrive(alone=True)
    kept = next(worker.id for worker in world.raw._placement.workers.values() if worker.alone)  # type: ignore[attr-defined]
    for request in [request for request in requests if where[request] != kept]:
        world.finish(request, 1.0)
    assert world.running[retried_alone][0] != kept
    world.finish(min(request for request in world.running if where.get(request) == kept), 1.0)
    assert world.arrive() in world.running

"""Exclusive: these events, these decisions; no worker serves two functions, and larger groups give devices up."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.scheduling.decisions import Dispatch, Reject, StartWorker, StopWorker
from kaas.scheduling.events import (
    ClientGone,
    RequestArrived,
    Running,
    Tick,
    WorkerAdopted,
    WorkerKind,
)
from kaas.scheduling.policies import scheduler
from kaas.scheduling.policies.exclusive import Exclusive
from kaas.scheduling.policies.reclaiming import FAILED_STARTS
from tests.scheduling.policies.world import ETASK, EXECUTOR, World


def adopted(
    world: World, worker: int, device: int, client: str, *, ends_s: float | None = None, busy: bool = True
) -> None:
    """Return a worker of a client that runs request -1 - worker."""
    running = (Running(-1 - worker, 0, client, "f", ends_s),) if busy else ()
    world.workers[worker] = StartWorker(worker, ETASK, device, client, "f")
    world.running |= {each.request: (worker, 0) for each in running}
    world.left |= {each.request for each in running}
    world.feed(WorkerAdopted(world.time_s, worker, ETASK, device, 1, 1, client, "f", running))


def test_figure_6b_the_idle_device_of_the_largest_pool_is_taken() -> None:
    """Client 0 has devices 0 and 1, client 2 devices 2 and 3, of which 3 is idle; client 1 has none."""
    world = World(Exclusive, 4)
    for device, client in enumerate("00"):
        adopted(world, device, device, client)
    adopted(world, 2, 2, "2")
    adopted(world, 3, 3, "2", busy=False)
    world.feed(Tick(0.0))
    world.raw._placement.groups[(ETASK, "0", "f")].shrank_at = 1  # type: ignore[attr-defined]
    world.arrive("1", "f", ETASK)
    assert world.decided == [StopWorker(3)]
    world.gone(3, "stopped")
    assert world.decided[1:] == [StartWorker(4, ETASK, 3, "1", "f")]
    world.up(4)
    assert world.decided[2:] == [Dispatch(0, 4, 0)]


def test_no_worker_starts_before_the_first_request() -> None:
    world = World(Exclusive, 2)
    world.tick()
    assert world.decided == []
    world.arrive("a", "f", ETASK)
    world.arrive("a", "g", EXECUTOR)
    assert world.decided == [StartWorker(0, ETASK, 0, "a", "f"), StartWorker(1, EXECUTOR, 1, "a", "g")]


def test_repeated_calls_keep_their_worker() -> None:
    world = World(Exclusive, 2)
    world.tick()
    first = world.arrive("a", "f", ETASK)
    world.up(0)
    world.finish(first, 1.0)
    assert world.arrive("a", "f", ETASK) in world.running
    assert [type(decision) for decision in world.decided] == [StartWorker, Dispatch, Dispatch]


def test_a_request_has_one_worker_starting_for_it() -> None:
    world = World(Exclusive, 3)
    world.tick()
    world.arrive("a", "f", ETASK)
    world.tick()
    assert len(world.starting) == 1
    world.arrive("a", "f", ETASK)
    assert len(world.starting) == 2


def test_first_of_the_largest_pools_and_then_the_least_recently_evicted() -> None:
    world = World(Exclusive, 4)
    for worker, client in enumerate("0022"):
        adopted(world, worker, worker, client, ends_s=[4.0, 3.0, 2.0, 1.0][worker])
    world.tick()
    world.arrive("x", "f", ETASK)
    assert world.decided == [
        StopWorker(1)
    ]  # both have two, none was evicted: the first group, its worker that is free soonest
    world.arrive("y", "f", ETASK)
    assert world.decided[1:] == [StopWorker(3)]  # client 2 has more now
    world.arrive("z", "f", ETASK)
    assert world.decided[2:] == [StopWorker(0)]  # all have one: the one whose eviction is longest ago


def test_a_pool_among_the_largest_waits() -> None:
    world = World(Exclusive, 2)
    adopted(world, 0, 0, "a")
    adopted(world, 1, 1, "b")
    world.tick()
    waits = world.arrive("a", "f", ETASK)
    assert world.decided == []
    world.finish(-1, 1.0)
    assert world.running[waits] == (0, 0)


def test_idle_workers_are_stopped_before_busy_ones() -> None:
    world = World(Exclusive, 3)
    adopted(world, 0, 0, "a", ends_s=0.5)
    adopted(world, 1, 1, "a", busy=False)
    adopted(world, 2, 2, "a", busy=False)
    world.tick()
    world.arrive("b", "f", ETASK)
    assert world.decided == [StopWorker(1)]


def test_a_busy_worker_finishes_its_run() -> None:
    world = World(Exclusive, 1)
    world.tick()
    first = world.arrive("a", "f", ETASK)
    world.up(0)
    second = world.arrive("b", "f", ETASK)
    assert world.stopping == {0}
    assert world.stopped() == []
    later = world.arrive("a", "f", ETASK)
    world.finish(first, 1.0)
    assert {second, later} <= world.queued
    world.gone(0, "stopped")
    assert world.decided[-1] == StartWorker(1, ETASK, 0, "b", "f")


def test_a_device_that_was_taken_is_not_taken_back_before_it_was_used() -> None:
    """Two requests and one device: without a reservation their groups take it from each other for ever."""
    world = World(Exclusive, 1)
    world.tick()
    world.arrive("a", "f", ETASK)
    world.arrive("b", "f", ETASK)
    steps = world.settle(lambda _: 0)
    assert steps <= 6


def test_a_reservation_ends_with_its_request() -> None:
    world = World(Exclusive, 1)
    world.tick()
    first = world.arrive("a", "f", ETASK)
    world.up(0)
    reservation = world.arrive("b", "f", ETASK)
    third = world.arrive("c", "f", ETASK)
    world.cancel(reservation)
    world.finish(first, 1.0)
    world.gone(0, "stopped")
    assert world.decided[-1] == StartWorker(1, ETASK, 0, "c", "f")
    world.up(1)
    assert third in world.running


def test_a_lighter_client_holds_fewer_devices() -> None:
    world = World(Exclusive, 4)
    world.known("light", weight=1.0)
    world.known("heavy", weight=3.0)
    world.tick()
    for client in ["light"] * 8 + ["heavy"] * 8:
        world.arrive(client, "f", ETASK)
    for _ in range(80):
        world.arrive("light", "f", ETASK)
        world.arrive("heavy", "f", ETASK)
        world.step(random.Random(world.next_request).randrange)
    held = Counter(w.client for number, w in world.workers.items() if number not in world.stopping)
    held.update(w.client for w in world.starting.values())
    assert held["heavy"] == 3


def test_the_faster_free_device_first() -> None:
    world = World(Exclusive, 2, speeds=(1.0, 2.0))
    world.tick()
    world.arrive("a", "f", ETASK)
    assert world.decided == [StartWorker(0, ETASK, 1, "a", "f")]


def test_workers_that_share_a_device_take_turns_and_stay_warm() -> None:
    world = World(Exclusive, 1, etask_workers=2)
    world.tick()
    requests = [world.arrive("a", function, ETASK) for function in "fg"]
    world.up(0)
    world.up(1)
    assert list(world.running) == requests[:1]
    world.finish(requests[0], 1.0)
    assert list(world.running) == requests[1:]
    again = world.arrive("a", "f", ETASK)
    world.finish(requests[1], 1.0)
    assert world.running == {again: (0, 0)}
    assert not world.stopping


def test_the_worker_that_was_idle_for_longest_makes_room() -> None:
    world = World(Exclusive, 1, etask_workers=2)
    world.tick()
    for function in "fg":
        world.arrive("a", function, ETASK)
    world.settle(lambda _: 0)
    world.finish(world.arrive("a", "f", ETASK), 1.0)
    world.arrive("a", "h", ETASK)
    assert world.decided[-1] == StopWorker(1)


def test_requests_of_a_function_whose_worker_never_starts_are_rejected() -> None:
    """Its requests are rejected; the devices are good for others."""
    world = World(Exclusive, 1)
    world.tick()
    bad = world.arrive("a", "bad", ETASK)
    for worker in range(FAILED_STARTS):
        world.gone(worker, "boom")
    assert world.decided[-1] == Reject(bad, "its worker does not start: boom")
    good = world.arrive("a", "good", ETASK)
    world.up(FAILED_STARTS)
    assert good in world.running


def test_devices_where_nothing_starts() -> None:
    world = World(Exclusive, 1)
    world.tick()
    for worker, function in enumerate("fgh"):
        world.arrive("a", function, EXECUTOR)
        world.gone(worker, "no driver")
    assert sorted(world.rejected) == [0, 1, 2]
    assert world.decided[-1] == Reject(2, "no device of the pool starts: no driver")


def test_workers_of_a_client_that_is_gone_end() -> None:
    world = World(Exclusive, 2)
    adopted(world, 0, 0, "a")
    adopted(world, 1, 1, "b", busy=False)
    world.tick()
    world.feed(ClientGone(0.0, "a"))
    assert world.decided == [StopWorker(0)]


# --- guarantees


Flow = tuple[WorkerKind, str, str]


def judged(world: World) -> None:
    """Check each reservation of a device: the largest group that can give a device gives it, and a smaller group gets
    it."""
    placement: Any = world.raw._placement  # type: ignore[attr-defined]
    find = placement._find

    def judging(group: Any) -> bool:
        sizes = {other: other.size for other in placement.groups.values()}
        reservations = {index: device.reservation for index, device in placement.devices.items()}
        takeable = [
            worker for worker in placement.workers.values() if not worker.stopping and worker.device.reservation is None
        ]
        giving = {worker.group for worker in takeable} - {group}
        found = bool(find(group))
        for device in placement.devices.values():
            if device.reservation is not reservations[device.index]:
                victims = {worker.group for worker in device.workers.values()}
                assert device.reservation is group
                assert reservations[device.index] is None
                assert all(sizes[group] < sizes[victim] == max(sizes[other] for other in giving) for victim in victims)
        return found

    placement._find = judging


def _flow(request: RequestArrived) -> Flow:
    return request.kind, request.client, request.function


FUNCTIONS = [("a", "f"), ("a", "g"), ("b", "f"), ("c", "f"), ("d", "f")]


@given(st.data(), st.integers(1, 5), st.integers(1, 3))
def test_exclusive_in_any_order(data: st.DataObject, devices: int, slots: int) -> None:
    """The policy never livelocks, no two functions share a worker, and devices come from the largest groups that can
    give one, which were larger than the waiting group."""

    def draw(n: int) -> int:
        return data.draw(st.integers(0, n - 1))

    world = World(Exclusive, devices, slots)
    world.tick()
    judged(world)
    for _ in range(draw(40)):
        if draw(2):
            client, function = FUNCTIONS[draw(len(FUNCTIONS))]
            world.arrive(client, function, ETASK if function == "f" else EXECUTOR)
        else:
            world.step(draw)
    requests = len(world.queued) + len(world.running)
    steps = world.settle(draw)
    # each request may need a start, a stop of another worker and its end before its own end
    assert steps <= 4 * (requests + devices)
    assert all(len(flows) == 1 for flows in world.served.values())


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_every_function_is_served_within_a_round(devices: int) -> None:
    """Requests of n functions keep coming: each function runs again before any other has run twice as often, plus one,
    for each device."""
    world = World(Exclusive, devices)
    world.tick()
    functions = [f"f{i}" for i in range(6)]
    for function in functions * 3:
        world.arrive("a", function, ETASK)
    served: Counter[str] = Counter()
    seen = 0
    for _ in range(600):
        world.step(lambda _: 0)
        for dispatch in world.dispatched[seen:]:
            function = world.arrivals[dispatch.request].function
            served[function] += 1
            world.arrive("a", function, ETASK)
        seen = len(world.dispatched)
    assert set(served) == set(functions)
    assert max(served.values()) <= 2 * min(served.values()) + devices


def test_groups_for_which_nothing_waits_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "GROUPS", 8)
    world = World(Exclusive, 1)
    world.tick()
    for function in ("has the device", "has it next"):
        world.arrive("c", function)
    for other in range(20):
        for function in ("waits", f"gives up {other}"):
            world.arrive("c", function)
        world.cancel(world.next_request - 1)
        assert len(world.raw._placement.groups) <= scheduler.GROUPS  # type: ignore[attr-defined]
    world.settle(lambda _: 0)

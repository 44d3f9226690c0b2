"""Guarantees of every policy: each request ends once, and no rule of `CheckedPolicy` is broken."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.config import LARGEST, MOST
from kaas.errors import PolicyError
from kaas.scheduling.decisions import Decision, PolicyFactory
from kaas.scheduling.events import Event, FunctionKnown, ObjectUse, PhysicalDevice
from kaas.scheduling.policies import POLICIES
from kaas.scheduling.policies.cfs_affinity import CfsAffinity
from kaas.scheduling.policies.orders import FlowOrder, PriorityOrder
from kaas.scheduling.policies.scheduler import Scheduler
from kaas.scheduling.policies.state import Queue, RequestOrder, Serves
from kaas.scheduling.policies.static import Static
from tests.scheduling.policies.world import ETASK, EXECUTOR, World

FACTORIES: dict[str, PolicyFactory] = {
    **POLICIES,
    "cfs_affinity, last": partial(CfsAffinity, affinity="last"),
    "static, shares": partial(Static, shares={"a": 1}),
}
CLIENTS = "abc"


class Chaos:
    """Draws the next events."""

    def __init__(self, world: World, draw: Callable[[int], int]) -> None:
        self.world, self.draw = world, draw

    def pick(self, among: set[int]) -> int | None:
        return sorted(among)[self.draw(len(among))] if among else None

    def arrive(self) -> None:
        world = self.world
        uses = [(bytes([self.draw(4)]), 1 + self.draw(3), self.draw(2) == 1) for _ in range(self.draw(3))]
        inputs = tuple(ObjectUse(key, nbytes, constant=constant) for key, nbytes, constant in uses)
        world.arrive(
            CLIENTS[self.draw(3)],
            "fg"[self.draw(2)],
            ETASK if self.draw(3) == 0 else EXECUTOR,
            ready=self.draw(3) > 0,
            alone=self.draw(6) == 5,
            inputs=inputs,
        )

    def time_passes(self) -> None:
        self.world.time_s += self.draw(3)
        self.world.step(self.draw, self.draw(4) / 2)

    def cancel(self) -> None:
        world = self.world
        if (request := self.pick((world.waiting | world.queued | set(world.running)) - world.left)) is not None:
            world.cancel(request)

    def die(self) -> None:
        world = self.world
        if (worker := self.pick(set(world.workers))) is not None:
            world.gone(worker, again=self.draw(3), alone=self.draw(2) == 1)

    def fail_to_start(self) -> None:
        if (worker := self.pick(set(self.world.starting) - self.world.stopping)) is not None:
            self.world.gone(worker, "no driver")

    def settings(self) -> None:
        limits = (None, 1, 2)
        self.world.known(
            CLIENTS[self.draw(3)],
            weight=1.0 + self.draw(3),
            priority=self.draw(2),
            max_running=limits[self.draw(3)],
            max_share=(None, 0.25, 1.0)[self.draw(3)],
        )

    def device_comes_or_goes(self) -> None:
        world, device = self.world, self.draw(self.world.devices)
        if device in world.away:
            world.add_device(device)
        else:
            world.remove_device(device)

    def residency(self) -> None:
        world = self.world
        ready = {number for number, worker in world.workers.items() if worker.kind is EXECUTOR}
        if (worker := self.pick(ready)) is not None:
            world.resident(worker, (bytes([self.draw(4)]),), (bytes([self.draw(4)]),))


def chaos(world: World, data: st.DataObject, *, scaled: bool = False) -> None:
    """Draw events until all requests have ended. scaled: devices come and go, too."""

    def draw(n: int) -> int:
        return data.draw(st.integers(0, n - 1))

    world.tick()
    drawn = Chaos(world, draw)
    usual = [drawn.arrive, drawn.arrive, drawn.time_passes, drawn.time_passes]
    rare = [drawn.cancel, drawn.die, drawn.fail_to_start, drawn.settings, drawn.residency]
    rare += [drawn.device_comes_or_goes] * scaled
    for action in data.draw(st.lists(st.sampled_from(usual + rare), min_size=10, max_size=60)):
        action()
    world.settle(draw)


@pytest.mark.parametrize("name", FACTORIES)
@given(data=st.data(), devices=st.integers(1, 5), slots=st.integers(1, 3), etask_workers=st.integers(1, 3))
def test_every_request_is_answered_once(
    name: str, data: st.DataObject, devices: int, slots: int, etask_workers: int
) -> None:
    chaos(World(FACTORIES[name], devices, slots, etask_workers), data)


@pytest.mark.parametrize("name", FACTORIES)
@given(data=st.data(), devices=st.integers(1, 4), slots=st.integers(1, 2), etask_workers=st.integers(1, 2))
def test_every_request_is_answered_once_whatever_devices_come_and_go(
    name: str, data: st.DataObject, devices: int, slots: int, etask_workers: int
) -> None:
    chaos(World(FACTORIES[name], devices, slots, etask_workers), data, scaled=True)


class Twins:
    """A policy, and another one in which each request takes a place among others: that of a watched policy."""

    def __init__(self, factory: Callable[[Sequence[PhysicalDevice]], Scheduler], devices: Sequence[PhysicalDevice]):
        self._policy, self._twin = factory(devices), factory(devices)
        self._twin.watch(lambda *_: None)

    def __getattr__(self, name: str) -> object:
        return getattr(self._policy, name)

    def handle(self, event: Event) -> list[Decision]:
        decisions = self._policy.handle(event)
        assert decisions == self._twin.handle(event)
        return decisions


@pytest.mark.parametrize("name", FACTORIES)
@given(data=st.data(), devices=st.integers(1, 5), slots=st.integers(1, 3), etask_workers=st.integers(1, 3))
def test_a_request_that_need_not_wait_goes_where_it_would_go_among_others(
    name: str, data: st.DataObject, devices: int, slots: int, etask_workers: int
) -> None:
    factory = cast("Callable[[Sequence[PhysicalDevice]], Scheduler]", FACTORIES[name])
    chaos(World(partial(Twins, factory), devices, slots, etask_workers), data)


@pytest.mark.parametrize("name", sorted({*POLICIES} - {"batch", "mqfq_sticky"}))
def test_a_request_that_need_not_wait_takes_no_place_among_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def add(*_: object) -> None:
        raise AssertionError("nothing waits")

    world = World(FACTORIES[name])
    world.tick()
    if name == "exclusive":  # no worker starts before a request needs one
        world.arrive()
    world.up(0)
    if world.running:
        world.finish(0)
    monkeypatch.setattr(FlowOrder, "add", add)
    for _ in range(3):
        world.finish(world.arrive())


@pytest.mark.parametrize("name", ["lalb", "lalbo3", "adaptive"])
def test_a_request_that_waits_for_a_busy_device_goes_elsewhere_once_that_device_is_removed(name: str) -> None:
    world = World(FACTORIES[name], 2, memory_bytes=2)
    world.feed(FunctionKnown(0.0, "f", "software", 1.0, 100.0, 1, 20))
    world.tick()
    for worker in (0, 1):
        world.up(worker)
    reads = (ObjectUse(b"f", 1, constant=True),)
    loading = world.arrive(inputs=reads)
    holder, _ = world.running[loading]
    world.resident(holder, (b"f",))
    world.finish(loading)
    first, second = world.arrive(inputs=reads), world.arrive(inputs=reads)
    assert second in world.queued, "a load takes longer than the wait"
    world.remove_device(holder)
    assert world.running[second] == (1 - holder, 0)
    assert world.running[first] == (holder, 0), "what runs there ends first"


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("seconds", [0.0, LARGEST])
def test_the_least_and_the_largest_profile_end_no_policy(name: str, seconds: float) -> None:
    world = World(FACTORIES[name], 2)
    world.tick()
    for function, batch in (("f", seconds), ("g", 1.0)):
        nbytes = 1 if seconds else MOST
        world.feed(FunctionKnown(0.0, function, "software", seconds, seconds, nbytes, MOST, "family", batch))
    for client, function in ("af", "bg", "ah", "bf") * 3:
        world.arrive(client, function, inputs=(ObjectUse(function.encode(), MOST >> 4, constant=True),))
    world.settle(lambda _: 0)


@pytest.mark.parametrize("place", [None, 3])
def test_a_place_that_is_no_tuple_is_named(place: Any) -> None:
    class Nowhere(PriorityOrder):
        def place(self, queue: Queue) -> Any:  # noqa: ARG002
            return place

    class Lost(Scheduler):
        def order(self, serves: Serves) -> RequestOrder:  # noqa: ARG002
            return Nowhere(self.suited)

    world = World(Lost)
    world.tick()
    with pytest.raises(PolicyError, match=f"Nowhere.place returned {place}, not a tuple of numbers"):
        world.arrive()


def test_an_order_with_its_own_next_request_is_asked_for_each() -> None:
    """A user's order may keep a device free although a request waits."""

    class Never(PriorityOrder):
        def next(self) -> None:
            return None

    class Waits(Scheduler):
        def order(self, serves: Serves) -> RequestOrder:  # noqa: ARG002
            return Never(self.suited)

    world = World(Waits)
    world.tick()
    world.up(0)
    world.arrive()
    assert not world.running


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "exclusive"])
def test_a_request_that_finds_a_free_device_takes_few_calls(name: str) -> None:
    """In a pool this code runs cold: each call, from the arrival to the end, takes some microseconds."""
    world, calls, requests = World(POLICIES[name]), 0, 10

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_globals.get("__name__", "").startswith("kaas.")

    def run() -> None:
        for _ in range(requests):
            world.time_s += 1.0
            world.finish(world.arrive(), 0.5)

    world.tick()
    world.up(0)
    run()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(before)
    assert calls <= 60 * requests

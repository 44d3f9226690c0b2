"""The number of devices follows the load, and does not swing with it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaas.scheduling.decisions import Granted, GrantedShare
from kaas.scheduling.events import DeviceAdded, DeviceRemoved, ShareGone, Tick, WorkerKind
from kaas.scheduling.policies import POLICIES, factory
from kaas.scheduling.sharing.devices import RETRY_S, DeviceScaler
from tests.scheduling.policies.test_every_policy import FACTORIES, Chaos
from tests.scheduling.policies.world import World

START_S, IDLE_S = 2.0, 60.0


class Scaled(World):
    """A pool with a scale, in a time of its own; workers start in START_S."""

    def begin(self, least: int, *, holds: Callable[[int], bool] | None = None) -> None:
        self.scaler = DeviceScaler(
            least,
            self.devices,
            idle_s=IDLE_S,
            holds=holds or self.policy.holds,
        )
        handle = self.policy.handle

        def heard(event):  # type: ignore[no-untyped-def]
            decisions = handle(event)
            self.scaler.observe(event, decisions)
            return decisions

        self.policy.handle = heard  # type: ignore[method-assign]
        self.change(self.scaler.begin((), self.time_s))
        self.tick()

    def change(self, changes: list[DeviceAdded | DeviceRemoved] | list[DeviceRemoved]) -> None:
        for event in changes:
            (self.away.discard if isinstance(event, DeviceAdded) else self.away.add)(event.device)
            self.feed(event)

    def look(self) -> None:
        """Let the time come at which the scaler wants to look."""
        if self.scaler.wake_s < math.inf:
            self.time_s = max(self.time_s, self.scaler.wake_s)
        self.change(self.scaler.decide(self.time_s))

    def pass_(self, seconds: float) -> None:
        """Let time pass; workers start meanwhile, and stop."""
        until_s = self.time_s + seconds
        while True:
            for worker in self.stopped():
                self.gone(worker, "stopped")
            starts = sorted(set(self.starting) - self.stopping)
            ready = {worker: self.began_s.setdefault(worker, self.time_s) + START_S for worker in starts}
            first = min(ready, key=ready.__getitem__, default=None)
            next_s = min(self.scaler.wake_s, math.inf if first is None else ready[first])
            if next_s > until_s:
                break
            if first is not None and ready[first] == next_s:
                self.time_s = max(self.time_s, next_s)
                self.up(first)
            else:
                self.look()
        self.time_s = until_s

    def __post_init__(self) -> None:
        super().__post_init__()
        self.began_s: dict[int, float] = {}

    @property
    def there(self) -> list[int]:
        return sorted(self.scaler.present)


def scaled(least: int, most: int, policy: str = "fcfs", **options: object) -> Scaled:
    world = Scaled(factory(policy), most, **options)  # type: ignore[arg-type]
    world.begin(least)
    world.pass_(START_S)
    return world


def test_one_device_while_idle_more_under_load_and_one_again_later() -> None:
    world = scaled(1, 4)
    assert world.there == [0]
    for _ in range(20):
        world.arrive()
    world.pass_(START_S - 0.1)
    assert world.there == [0], "a shorter wait is over before a device is there"
    world.pass_(0.2)
    assert world.there == [0, 1]
    world.pass_(2 * START_S)
    assert world.there == [0, 1, 2, 3], "as many more as there are"
    world.pass_(START_S)
    assert len(world.running) == 4
    world.settle(lambda _: 0)
    world.pass_(IDLE_S - 1.0)
    assert world.there == [0, 1, 2, 3]
    world.pass_(2.0)
    assert len(world.there) == 1


def test_a_load_that_swings_within_the_idle_time_keeps_its_devices() -> None:
    world = scaled(1, 2)
    for _ in range(4):
        world.arrive()
    world.pass_(3 * START_S)
    world.settle(lambda _: 0)
    for _ in range(5):
        world.pass_(IDLE_S * 0.9)
        requests = [world.arrive(), world.arrive()]
        assert len(world.running) == 2
        for request in requests:
            world.finish(request)
    assert world.there == [0, 1]


def test_a_load_for_two_devices_that_lie_on_four_keeps_two() -> None:
    world = scaled(1, 4)
    for _ in range(16):
        world.arrive()
    world.pass_(5 * START_S)
    world.settle(lambda _: 0)
    for _ in range(20):
        requests = [world.arrive(), world.arrive()]
        world.pass_(IDLE_S / 8)
        for request in requests:
            world.finish(request)
    assert len(world.there) == 2


def test_no_more_devices_come_than_the_waiting_requests_fill() -> None:
    world = scaled(3, 8, slots=4)
    for _ in range(13):
        world.arrive()
    world.pass_(2 * START_S)
    assert world.there == [0, 1, 2, 3]


def test_requests_that_limits_hold_back_bring_no_device() -> None:
    world = scaled(1, 4)
    world.known("c", max_running=1)
    for _ in range(9):
        world.arrive()
    world.pass_(10 * START_S)
    assert world.there == [0]
    world.known("c", max_running=None)
    world.pass_(3 * START_S)
    assert len(world.there) > 1


@pytest.mark.parametrize("policy", POLICIES)
def test_from_none_the_first_request_brings_one(policy: str) -> None:
    world = scaled(0, 2, policy)
    assert world.there == []
    world.arrive()
    world.pass_(START_S)
    assert len(world.there) == len(world.running) == 1
    world.settle(lambda _: 0)
    world.pass_(2 * IDLE_S)
    assert world.there == []
    assert not world.workers


def granted(world: Scaled, missing_per_s: float, *devices: int) -> None:
    """Let the policy tell where the instances of a function with a promise are."""
    instances = tuple(GrantedShare(device, 0.5, 1.0) for device in devices)
    world.scaler.observe(Tick(world.time_s), [Granted("f", instances, missing_per_s)])


def test_a_load_without_room_brings_devices_and_those_with_instances_stay() -> None:
    world = scaled(1, 3)
    granted(world, 5.0, 0)
    world.pass_(2 * START_S)
    assert world.there == [0, 1]
    granted(world, 0.0, 0, 1)
    world.pass_(3 * IDLE_S)
    assert world.there == [0, 1]
    world.scaler.observe(ShareGone(world.time_s, "f"), [])
    world.arrive()
    world.finish(0)
    world.pass_(3 * IDLE_S)
    assert len(world.there) == 1


def test_a_device_that_does_not_start_is_given_up_and_asked_for_again_later() -> None:
    world = scaled(1, 2)
    world.arrive()
    world.arrive()
    world.pass_(START_S)
    (starting,) = world.starting
    world.gone(starting, "no GPU came")
    world.look()
    assert world.there == [0]
    world.pass_(RETRY_S + START_S)
    assert world.there == [0, 1]
    assert len(world.running) == 2


def test_another_device_takes_the_place_of_one_that_does_not_start() -> None:
    world = Scaled(factory("fcfs"), 2)
    world.begin(1)
    world.gone(next(iter(world.starting)), "no driver")
    world.look()
    assert world.there == [1]
    world.pass_(START_S)
    assert {each.device for each in world.workers.values()} == {1}


def test_requests_are_refused_once_no_device_starts_and_one_is_tried_again() -> None:
    world = Scaled(factory("fcfs"), 2)
    world.begin(0)
    world.arrive()
    for _ in range(6):
        world.look()
        for worker in sorted(set(world.starting) - world.stopping):
            world.gone(worker, "no driver")
    while world.queued:
        world.look()
        for worker in sorted(set(world.starting) - world.stopping):
            world.gone(worker, "no driver")
        for worker in world.stopped():
            world.gone(worker, "stopped")
    assert world.rejected
    request = world.arrive()
    assert request in world.rejected
    world.pass_(RETRY_S + 3 * START_S)
    assert world.workers, "the refused request has brought one"
    world.arrive()
    assert world.running


@pytest.mark.parametrize("name", FACTORIES)
@settings(max_examples=15)
@given(data=st.data(), most=st.integers(1, 4), slots=st.integers(1, 2), part=st.integers(0, 4))
def test_every_request_is_answered_once_by_a_scale(
    name: str, data: st.DataObject, most: int, slots: int, part: int
) -> None:
    least = min(part, most)
    world = Scaled(FACTORIES[name], most, slots)
    world.begin(least)

    def draw(n: int) -> int:
        return data.draw(st.integers(0, n - 1))

    drawn = Chaos(world, draw)
    looks = [world.look, lambda: world.pass_(draw(40) / 2)]
    acts = [drawn.arrive, drawn.arrive, drawn.time_passes, *looks, drawn.die, drawn.cancel, drawn.fail_to_start]
    for act in data.draw(st.lists(st.sampled_from(acts), min_size=10, max_size=40)):
        act()
        assert len(world.scaler.present) <= most
    for _ in range(300):
        for request in sorted(world.waiting):
            world.inputs(request)
        for request in sorted(world.running):
            world.finish(request, 0.5)
        while world.wakes and min(world.wakes) <= world.time_s:
            world.wake()
        if not (world.queued or world.running or world.waiting):
            break
        world.pass_(RETRY_S)
    assert not world.queued
    assert world.answered.keys() == world.arrivals.keys()
    world.pass_(3 * IDLE_S)
    assert len(world.there) == least
    kinds = {each.kind for each in world.workers.values() if each.device in world.away}
    assert not kinds & {WorkerKind.EXECUTOR}, "nothing is left on devices that went"

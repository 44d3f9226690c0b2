"""Shares of devices under every policy: each has what it was promised, and no time is lost that others can use."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from kaas.errors import PolicyError
from kaas.scheduling.checks import CheckedPolicy
from kaas.scheduling.decisions import Dispatch, StartWorker, WakeAt
from kaas.scheduling.events import (
    Event,
    Outcome,
    PhysicalDevice,
    RequestArrived,
    RequestCancelled,
    RequestDone,
    ShareGone,
    ShareKnown,
    Tick,
    WorkerGone,
    WorkerKind,
    WorkerReady,
)
from kaas.scheduling.policies import POLICIES, factory

SMS, STEP = 128, 8
WINDOW_S = 0.1
SHARING = sorted(POLICIES.keys() - {"static", "exclusive"})
"""Under the others a device belongs to one client or function at a time."""


@dataclass(frozen=True)
class Load:
    """Requests of one function, of which so many are always there."""

    run_s: float = 0.01
    depth: int = 4
    share: str = ""


@dataclass(frozen=True)
class Held:
    """The time for which a request had SMs of a device."""

    share: str
    device: int
    sms: int
    from_s: float
    to_s: float


class Devices:
    """Devices whose requests run in virtual time, each for as long as its load says."""

    def __init__(self, policy: str, loads: Mapping[str, Load], *shares: ShareKnown, devices: int = 1) -> None:
        places = [PhysicalDevice(index, "software", 1 << 30, slots=4) for index in range(devices)]
        self.policy = CheckedPolicy(factory(policy)(places), places)
        self.loads, self.now_s = loads, 0.0
        self.held: list[Held] = []
        self._coming: list[tuple[float, int, Event]] = []
        self._functions: dict[int, str] = {}
        self._devices: dict[int, int] = {}
        self.running: dict[int, tuple[Dispatch, float]] = {}
        self._order = self.ticks = 0
        self.feed(Tick(0.0))
        self.run(0.0)
        for share in shares:
            self.feed(share)
        for function, load in loads.items():
            for _ in range(load.depth):
                self.arrive(function)

    def feed(self, event: Event) -> None:
        for decision in self.policy.handle(event):
            match decision:
                case StartWorker(worker=worker, device=device):
                    self._devices[worker] = device
                    ready = WorkerReady(self.now_s, worker, WorkerKind.EXECUTOR, device, 4, 1 << 30, SMS, STEP)
                    self._later(ready)
                case WakeAt(time_s=time_s):
                    self._later(Tick(time_s))
                case Dispatch(request=request, worker=worker, slot=slot):
                    run_s = self.loads[self._functions[request]].run_s
                    self.running[request] = decision, self.now_s
                    done = RequestDone(self.now_s + run_s, request, worker, slot, Outcome.SUCCEEDED, run_s, run_s)
                    self._later(done)

    def _later(self, event: Event) -> None:
        self._order += 1
        heapq.heappush(self._coming, (event.time_s, self._order, event))

    def arrive(self, function: str) -> int:
        request = len(self._functions)
        self._functions[request] = function
        self.feed(RequestArrived(self.now_s, request, function, function, share=self.loads[function].share))
        return request

    def run(self, until_s: float) -> Devices:
        while self._coming and self._coming[0][0] <= until_s:
            self.now_s, _, event = heapq.heappop(self._coming)
            self.ticks += isinstance(event, Tick)
            if isinstance(event, RequestDone):
                dispatch, began_s = self.running.pop(event.request)
                device, sms = self._devices[event.worker], dispatch.sms or SMS
                load = self.loads[self._functions[event.request]]
                self.held.append(Held(load.share, device, sms, began_s, self.now_s))
                self.feed(event)
                self.arrive(self._functions[event.request])
            else:
                self.feed(event)
        return self

    def part(self, share: str, from_s: float = 0.0) -> float:
        """Return the part of the time since then that a share held SMs, each device's time once."""
        total_s = 0.0
        for device in set(self._devices.values()):
            until_s = from_s
            for held in sorted((each for each in self.held if each.device == device), key=lambda each: each.from_s):
                if held.share == share:
                    total_s += max(0.0, held.to_s - max(until_s, held.from_s))
                    until_s = max(until_s, held.to_s)
        return total_s / (self.now_s - from_s)

    def most_sms(self) -> int:
        """Return the most SMs that were held at a time on a device, where requests of one share hold the same ones."""
        changes = [(each.from_s, 1, each) for each in self.held] + [(each.to_s, 0, each) for each in self.held]
        changes.sort(key=lambda change: change[:2])
        holding: dict[tuple[int, str], list[int]] = defaultdict(list)
        most = 0
        for _, begins, each in changes:
            mine = holding[each.device, each.share]
            if begins:
                mine.append(each.sms)
            else:
                mine.remove(each.sms)
            on_device = [max(sms) for (device, _), sms in holding.items() if device == each.device and sms]
            most = max(most, sum(on_device))
        return most


def share(name: str, sms: float = 1.0, least: float = 0.0, most: float = 1.0) -> ShareKnown:
    return ShareKnown(0.0, name, sms, least, most)


@pytest.mark.parametrize("policy", SHARING)
def test_two_saturating_shares_divide_the_time_as_they_were_promised(policy: str) -> None:
    loads = {"f": Load(share="a"), "g": Load(share="b", run_s=0.007)}
    ran = Devices(policy, loads, share("a", least=0.1), share("b", least=0.9)).run(10.0)
    assert (ran.part("a"), ran.part("b")) == pytest.approx((0.1, 0.9), rel=0.05)


@pytest.mark.parametrize("policy", SHARING)
def test_shares_of_sms_run_beside_each_other_and_never_on_the_same_ones(policy: str) -> None:
    loads = {name: Load(share=name, run_s=0.004 + number / 1000) for number, name in enumerate("abcd")}
    ran = Devices(policy, loads, *(share(name, 0.25) for name in "abcd")).run(2.0)
    assert [ran.part(name) for name in "abcd"] == pytest.approx([1.0] * 4, rel=0.01)
    assert ran.most_sms() == SMS
    assert {each.sms for each in ran.held} == {32}


@pytest.mark.parametrize("policy", SHARING)
def test_a_flood_without_a_share_leaves_a_share_its_least(policy: str) -> None:
    loads = {"f": Load(share="a", depth=1), "flood": Load(depth=40), "others": Load(depth=40, run_s=0.03)}
    ran = Devices(policy, loads, share("a", 0.25, 0.3, 0.5)).run(10.0)
    assert 0.28 <= ran.part("a") <= 0.52
    assert ran.part("") > 0.9, "it runs beside the share, on the other SMs"
    assert ran.most_sms() <= SMS


@pytest.mark.parametrize("policy", SHARING)
def test_requests_without_a_share_have_the_whole_device_while_no_share_waits(policy: str) -> None:
    ran = Devices(policy, {"f": Load()}, share("a", 0.25, 0.3, 0.5)).run(1.0)
    assert {each.sms for each in ran.held} == {SMS}
    assert ran.part("") == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("policy", SHARING)
def test_a_share_has_no_more_than_its_most_on_each_device(policy: str) -> None:
    ran = Devices(policy, {"f": Load(share="a", depth=8)}, share("a", 0.5, 0.1, 0.25), devices=2).run(10.0)
    assert ran.part("a") == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("policy", SHARING)
def test_a_share_that_has_had_its_most_wakes_the_policy_once_a_window(policy: str) -> None:
    """Other requests end when windows do. So an event may come before the Tick of its time, and after it."""
    loads = {"f": Load(share="a", depth=2), "g": Load(share="b", run_s=0.05, depth=2)}
    ran = Devices(policy, loads, share("a", 0.5), share("b", 0.5, 0.0, 0.001)).run(20.0)
    assert ran.ticks <= 2 * 20.0 / WINDOW_S


@pytest.mark.parametrize("policy", SHARING)
def test_a_share_is_resized_while_its_requests_run(policy: str) -> None:
    ran = Devices(policy, {"f": Load(share="a"), "g": Load(share="b")}, share("a", least=0.2), share("b", least=0.8))
    ran.run(2.0)
    ran.feed(ShareKnown(ran.now_s, "a", 1.0, 0.7, 1.0))
    ran.feed(ShareKnown(ran.now_s, "b", 1.0, 0.3, 1.0))
    ran.run(6.0)
    assert ran.part("a", 2.2) == pytest.approx(0.7, abs=0.03)


@pytest.mark.parametrize("policy", SHARING)
def test_requests_of_a_share_that_is_taken_away_run_as_others(policy: str) -> None:
    ran = Devices(policy, {"f": Load(share="a"), "g": Load(share="b")}, share("a", 0.25, 0, 0.1), share("b", 0.25))
    ran.run(1.0)
    before = len(ran.held)
    ran.feed(ShareGone(ran.now_s, "a"))
    ran.feed(ShareGone(ran.now_s, "b"))
    ran.run(3.0)
    assert {each.sms for each in ran.held[before + 8 :]} == {SMS}
    assert ran.part("a", 1.1) > 0.4


@pytest.mark.parametrize("policy", SHARING)
def test_a_device_that_is_lost_gives_all_tokens_back(policy: str) -> None:
    ran = Devices(policy, {"f": Load(share="a"), "g": Load(share="b")}, share("a", 0.5, 0.5), share("b", 0.75, 0.5))
    ran.run(0.504)
    lost = list(ran.running)
    ran._coming = [each for each in ran._coming if not isinstance(each[2], RequestDone)]
    heapq.heapify(ran._coming)
    ran.feed(WorkerGone(ran.now_s, ran.running[lost[0]][0].worker, "killed"))
    for request in lost:
        del ran.running[request]
        ran.arrive("f")
        ran.arrive("g")
    ran.run(5.0)
    assert ran.part("a", 1.0) == pytest.approx(0.5, abs=0.05)
    assert ran.part("b", 1.0) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("policy", SHARING)
def test_a_cancelled_request_of_a_share_takes_no_tokens(policy: str) -> None:
    ran = Devices(policy, {"f": Load(share="a", depth=0)}, share("a", 0.5, 0.5))
    first, second = ran.arrive("f"), ran.arrive("f")
    assert list(ran.running) == [first], "one request of a share at a time on a device"
    ran.feed(RequestCancelled(ran.now_s, second))
    third = ran.arrive("f")
    ran.run(0.015)
    assert third in ran.running


def test_a_share_beyond_a_device_is_refused() -> None:
    for wrong in (share("a", 1.5), share("a", 0.0), share("a", 0.5, 0.6, 0.5), share("", 0.5), share("a", 0.5, 0, 0)):
        with pytest.raises(PolicyError, match="a share has parts of a device"):
            Devices("fcfs", {}, wrong)


def test_a_request_that_is_repeated_alone_has_the_sms_of_its_share() -> None:
    """Another tenant's fault lets it run alone: its bill is no larger for that."""
    made = Devices("fcfs", {"f": Load(share="alice", depth=0)}, share("alice", sms=0.25)).run(0.1)
    made._functions[0] = "f"
    made.feed(RequestArrived(made.now_s, 0, "f", "f", attempt=2, alone=True, share="alice"))
    decision, _ = made.running[0]
    assert decision.sms == SMS // 4

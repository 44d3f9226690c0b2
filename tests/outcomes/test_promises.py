"""A user promises a latency, and gets it: with the fewest SMs, while others run beside."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import pytest

from kaas.scheduling.checks import CheckedPolicy
from kaas.scheduling.decisions import Decision, Granted, PolicyFactory, StartWorker
from kaas.scheduling.events import (
    DeviceAdded,
    DeviceRemoved,
    Event,
    FunctionKnown,
    PhysicalDevice,
    PromiseKnown,
    RequestArrived,
    RequestDone,
    Tick,
    WorkerKind,
    WorkerReady,
)
from kaas.scheduling.policies import factory
from kaas.scheduling.policies.adaptive import Adaptive
from kaas.scheduling.sharing.load import RecentLoad
from kaas.scheduling.sharing.scaling import Configuration
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulator import simulate

SLO_S = 0.069
RUN_S = 0.012
"""Of the paper's ResNet on all SMs, of which it fills 24 %."""
DEVICE = {"sms": 80, "sm_step": 2, "slots": 16}


def trace(rates: list[float], function: str) -> list[dict[str, Any]]:
    """Return requests of so many a second, for a second each rate, evenly."""
    return [
        {"function": function, "at_s": second + number / rate}
        for second, rate in enumerate(rates)
        for number in range(int(rate))
    ]


class Run:
    """A simulation, with what each request took and what the functions were granted."""

    def __init__(
        self,
        requests: list[dict[str, Any]],
        policy: str = "fcfs",
        scale: dict[str, Any] | None = None,
        **functions: Any,
    ) -> None:
        self.devices: list[tuple[float, int]] = [(0.0, 0)]
        self.granted: list[tuple[float, Granted]] = []
        self.latencies: dict[str, list[tuple[float, float]]] = {name: [] for name in functions}
        self._arrived: dict[int, RequestArrived] = {}
        defaults = {"run_s": RUN_S, "fills": 0.24}
        asked = read(
            {
                "policy": {"name": policy},
                "window_s": 0.02,
                "devices": [DEVICE] if scale is None else scale | {"device": DEVICE},
                "functions": {name: {**defaults, "client": name, **each} for name, each in functions.items()},
                "requests": sorted(requests, key=lambda each: each["at_s"]),
            }
        )
        self.done = simulate(asked, observe=self._observe)

    def _observe(self, event: Event, decisions: Sequence[Decision]) -> None:
        if isinstance(event, RequestArrived):
            self._arrived[event.request] = event
        elif isinstance(event, RequestDone):
            arrived = self._arrived[event.request]
            self.latencies[arrived.function].append((arrived.time_s, event.time_s - arrived.time_s))
        elif isinstance(event, DeviceAdded | DeviceRemoved):
            self.devices.append((event.time_s, self.devices[-1][1] + (1 if isinstance(event, DeviceAdded) else -1)))
        self.granted += [(event.time_s, each) for each in decisions if isinstance(each, Granted)]

    def late(self, function: str, from_s: float = 0.0) -> float:
        """Return the part of a function's requests, of those that came since then, that took longer than promised."""
        taken = [latency_s for at_s, latency_s in self.latencies[function] if at_s >= from_s]
        return sum(latency_s > SLO_S for latency_s in taken) / len(taken)

    def area(self, function: str, until_s: float = inf) -> float:
        """Return the devices that a function is granted at a time."""
        told = [each for at_s, each in self.granted if each.share == f"function {function}" and at_s <= until_s]
        return sum(sms * quota for _, sms, quota in told[-1].instances)


def test_a_promise_is_kept_with_a_part_of_a_device_while_the_load_changes() -> None:
    rates = [20.0] * 10 + [60.0] * 10 + [150.0] * 10 + [20.0] * 10
    ran = Run(trace(rates, "f"), f={"slo_s": SLO_S})
    assert ran.done.summary.rejected == 0
    assert ran.late("f") <= 0.01
    assert 0 < ran.area("f", 8.0) < ran.area("f", 28.0) <= 1


def test_a_function_is_measured_on_ever_fewer_sms_by_its_own_requests() -> None:
    ran = Run(trace([50.0] * 5, "f"), f={"slo_s": SLO_S})
    tried = [each.trial_sms for _, each in ran.granted if each.trial_sms is not None]
    assert tried == [1.0, 0.5, 0.25, 0.12, 0.06]
    assert ran.granted[-1][1].instances


def test_a_neighbour_without_a_promise_has_what_is_left_and_breaks_none() -> None:
    flood = [{"function": "flood", "at_s": 0.001 * number} for number in range(12_000)]
    ran = Run(trace([40.0] * 15, "f") + flood, f={"slo_s": SLO_S}, flood={"fills": 1.0})
    assert ran.late("f", from_s=5.0) <= 0.01
    assert len(ran.latencies["flood"]) == len(flood)


def test_a_load_that_no_device_has_room_for_is_run_late_or_refused_as_the_function_chose() -> None:
    for best_effort in (True, False):
        ran = Run(trace([1000.0] * 5, "f"), f={"slo_s": SLO_S, "best_effort": best_effort})
        told = ran.granted[-1][1]
        assert told.missing_per_s > 0
        if best_effort:
            assert (ran.done.summary.rejected, len(ran.latencies["f"])) == (0, 5000)
        else:
            assert ran.done.summary.rejected > 0
            assert ran.late("f", from_s=2.0) <= 0.01, "those that are admitted keep the promise"


def test_a_promise_below_the_least_that_a_function_takes_says_so() -> None:
    ran = Run(trace([20.0] * 5, "f"), f={"slo_s": RUN_S / 2, "best_effort": False})
    assert ran.granted[-1][1].unmet_s == pytest.approx(RUN_S)
    assert ran.done.summary.rejected > 0


def test_two_functions_with_promises_share_a_device() -> None:
    ran = Run(trace([60.0] * 20, "f") + trace([30.0] * 20, "g"), f={"slo_s": SLO_S}, g={"slo_s": SLO_S})
    assert (ran.late("f", 5.0), ran.late("g", 5.0)) == (0, 0)
    assert ran.area("f") + ran.area("g") <= 1


@pytest.mark.parametrize("policy", ["mqfq_sticky", "adaptive", "lalb", "cfs_affinity", "sjf"])
def test_a_promise_is_kept_under_every_policy(policy: str) -> None:
    flood = [{"function": "flood", "at_s": 0.002 * number} for number in range(5_000)]
    ran = Run(trace([40.0] * 10, "f") + flood, policy=policy, f={"slo_s": SLO_S}, flood={"fills": 1.0})
    assert ran.late("f", from_s=5.0) <= 0.01


def test_instances_of_a_device_that_goes_go_to_another_one() -> None:
    places = [PhysicalDevice(index, "software", 1 << 30, slots=4) for index in range(2)]
    policy = CheckedPolicy(factory("fcfs")(places), places)
    told: list[Granted] = []

    def feed(event: Event) -> list[Decision]:
        decisions = policy.handle(event)
        told.extend(each for each in decisions if isinstance(each, Granted))
        return decisions

    points = (Configuration(0.25, 1.0, 100.0, 0.01),)
    started = [each for each in feed(Tick(0.0)) if isinstance(each, StartWorker)]
    for each in started:
        feed(WorkerReady(0.0, each.worker, WorkerKind.EXECUTOR, each.device, 4, 1 << 30, 128, 8))
    feed(FunctionKnown(0.0, "f", "software", 0.01, 0.0, 0, 1, points=points))
    feed(PromiseKnown(0.0, "function f", SLO_S))
    feed(RequestArrived(0.0, 0, "alice", "f", share="function f"))
    (before,) = told[-1].instances
    feed(DeviceRemoved(0.1, before.device))
    (after,) = told[-1].instances
    assert after.device != before.device
    assert (after.sms, after.quota) == (before.sms, before.quota)


def test_a_scale_brings_devices_for_a_promise_and_sends_them_away_when_the_load_falls() -> None:
    rates = [100.0] * 5 + [700.0] * 15 + [20.0] * 120
    scale = {"min": 1, "max": 4, "start_s": 1.0, "idle_s": 20.0}
    ran = Run(trace(rates, "f"), scale=scale, f={"slo_s": SLO_S})
    counts = [count - ran.devices[3][1] + 1 for _, count in ran.devices[3:]]  # three go at the start
    assert max(counts) > 2
    assert counts[-1] == 1
    assert ran.done.summary.rejected == 0
    assert ran.late("f", from_s=14.0) <= 0.01


def test_a_policy_of_one_s_own_expects_another_load() -> None:
    """It expects a crowd: the instances are there before the crowd is."""

    class Expecting(Adaptive):
        def predicted_rate(self, recent: RecentLoad) -> float:
            return max(500.0, recent.now_per_s)

    def part(policy: PolicyFactory) -> float:
        """Return the part of the device that a function with five requests a second has at the end."""
        asked = read(
            {
                "window_s": 0.02,
                "devices": [DEVICE],
                "functions": {"f": {"run_s": RUN_S, "fills": 0.24, "client": "c", "slo_s": SLO_S}},
                "requests": trace([5] * 20, "f"),
            }
        )
        granted: list[Granted] = []

        def observe(_: Event, decisions: Sequence[Decision]) -> None:
            granted.extend(each for each in decisions if isinstance(each, Granted))

        simulate(asked, policy, observe=observe)
        return sum(each.sms * each.quota for each in granted[-1].instances)

    assert part(Expecting) > 2 * part(Adaptive) > 0


@pytest.mark.parametrize("crowd", [2, 16])
def test_a_crowd_that_comes_at_once_is_in_time_where_devices_are_free(crowd: int) -> None:
    """The function has one small instance, by its load so far. It refuses what would be late."""
    calm = [{"function": "f", "at_s": 0.2 * number} for number in range(100)]
    asked = read(
        {
            "devices": [DEVICE] * 4,
            "functions": {"f": {"run_s": RUN_S, "fills": 0.24, "slo_s": SLO_S, "best_effort": False}},
            "requests": [*calm, *({"function": "f", "at_s": 60.0} for _ in range(crowd))],
        }
    )
    came_s: dict[int, float] = {}
    took_s: list[float] = []

    def observe(event: Event, _: Sequence[Decision]) -> None:
        if isinstance(event, RequestArrived):
            came_s[event.request] = event.time_s
        elif isinstance(event, RequestDone) and came_s[event.request] == 60.0:
            took_s.append(event.time_s - 60.0)

    done = simulate(asked, observe=observe)
    assert not [each for each in done.rejected if each.at_s >= 60.0]
    assert len(took_s) == crowd
    assert max(took_s) <= SLO_S

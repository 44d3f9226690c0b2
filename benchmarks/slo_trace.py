"""FaST-GShare's Figure 12 in the simulator: a load that rises, bursts and falls, and a promise of latency."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from kaas.papers.scheduling.fast import DEVICES, SLO_S, rates
from kaas.scheduling.decisions import Decision, Granted
from kaas.scheduling.events import Event, RequestArrived, RequestDone
from kaas.scheduling.simulation.scenario import Scenario
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulator import simulate

RUN_S, FILLS = 0.012, 0.24
"""A run of ResNet on a whole device, and the part of the SMs that it fills (Figure 8: beyond it, none gains)."""
SECONDS = 160
SEED = 12
FLOOD_RUN_S, FLOOD_PER_S = 0.01, 105
"""Requests of another client, which fill a device, for each device: five in a hundred more than it can run."""


def trace(flooded: bool, best_effort: bool) -> Scenario:
    """Return the scenario: requests come as in a Poisson process."""
    random = Random(SEED)
    requests: list[dict[str, Any]] = []
    for second, rate in enumerate(rates()):
        at_s = second + random.expovariate(rate)
        while at_s < second + 1:
            requests.append({"function": "resnet", "at_s": at_s})
            at_s += random.expovariate(rate)
    if flooded:
        gap_s = 1 / (FLOOD_PER_S * DEVICES)
        requests += [{"function": "flood", "at_s": number * gap_s} for number in range(int(SECONDS / gap_s))]
    promise = {"slo_s": SLO_S, "best_effort": best_effort}
    return read(
        {
            "policy": {"name": "adaptive"},
            "devices": [{"sms": 80, "sm_step": 2, "slots": 16}] * DEVICES,
            "functions": {
                "resnet": {"run_s": RUN_S, "fills": FILLS, "client": "user", **promise},
                "flood": {"run_s": FLOOD_RUN_S, "client": "flood"},
            },
            "requests": sorted(requests, key=lambda each: each["at_s"]),
        }
    )


class Watched:
    """The times of the requests with a promise, and the shares that were granted for them."""

    def __init__(self) -> None:
        self.arrived_s: dict[int, float] = {}
        self.late = 0
        self.most_instances = 0
        self.most_devices = 0.0

    def __call__(self, event: Event, decisions: Sequence[Decision]) -> None:
        if isinstance(event, RequestArrived) and event.function == "resnet":
            self.arrived_s[event.request] = event.time_s
        elif isinstance(event, RequestDone) and event.request in self.arrived_s:
            self.late += event.time_s - self.arrived_s[event.request] > SLO_S
        for decision in decisions:
            if isinstance(decision, Granted):
                self.most_instances = max(self.most_instances, len(decision.instances))
                devices = sum(each.sms * each.quota for each in decision.instances)
                self.most_devices = max(self.most_devices, devices)


def violations(flooded: bool, best_effort: bool) -> dict[str, float]:
    """Return the part of the requests that took longer than promised, or were refused, and what was granted."""
    watched = Watched()
    done = simulate(trace(flooded, best_effort), observe=watched)
    count = len(watched.arrived_s)
    return {
        "requests": count,
        "late": watched.late / count,
        "refused": done.summary.rejected / count,
        "most_instances": watched.most_instances,
        "most_devices": watched.most_devices,
    }

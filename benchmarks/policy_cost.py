"""The cost of decisions: a policy's share of a pool's time per request, and the rate of a policy's decisions alone.

    python -m benchmarks.policy_cost [--json]

Live, on Ray: four software devices, and 16 clients with one request each in flight all the time, so that the pool has
no pause. The median of three turns counts. Under exclusive, where each change of the client starts a process, 64
requests suffice. policy_share is the
seconds of the policy, with its checks (`kaas.stats().policy_s`), over the seconds of the run: the policy's time for a
request, over the pool's time for a request at full throughput. share_of_cpu is over the processor time of the pool's
process, with Ray's threads. The bar is for the worst of all policies. Alone: the simulator with 4, 64 and 1,024
devices. The figures are decisions a second (of processor time) of the whole simulation, with its own work and the
checks, and of the policy by itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from operator import itemgetter
from time import perf_counter, process_time
from typing import Any

import numpy as np

from benchmarks.report import parser, report

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # Ray reads it when it is imported

import ray

import kaas
from kaas.api.attached import current_session
from kaas.api.ray_session import RaySession
from kaas.peers.overhead import ELEMENTS, subtraction
from kaas.scheduling.decisions import Decision, Policy
from kaas.scheduling.events import Event, PhysicalDevice
from kaas.scheduling.policies import POLICIES
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulator import simulate

CLIENTS = 16
DEVICES = 4
WARM_UP = 200
TURNS = 3
"""Of each policy: a share that other processes of the machine have made larger or smaller does not count."""
EXCLUSIVE_REQUESTS = 64
SIMULATED = {4: 4000, 64: 4000, 1024: 4000}
"""The number of devices -> the number of requests."""


def live(policy: str, requests: int) -> dict[str, float]:
    """Return the policy's seconds, its events, and the seconds of the run, for each request: of the median turn."""
    kaas.init(devices=[kaas.Device("software", 64 << 20)] * DEVICES, policy=policy)
    try:
        task, x = subtraction(), np.zeros(ELEMENTS, np.float32)
        turn(task, x, min(WARM_UP, requests))
        turns = [measured(task, x, -(-requests // TURNS)) for _ in range(TURNS)]
    finally:
        kaas.shutdown()
    return sorted(turns, key=itemgetter("share"))[TURNS // 2]


def measured(task: kaas.KTask, x: Any, requests: int) -> dict[str, float]:
    """Return the figures of one turn."""
    kaas.stats(reset=True)
    cpu_s = -pool_cpu_s()
    began = perf_counter()
    turn(task, x, requests)
    took_s = perf_counter() - began
    cpu_s += pool_cpu_s()
    stats = kaas.stats()
    return {
        "policy_us": stats.policy_s / requests * 1e6,
        "events": stats.policy_events / requests,
        "request_us": took_s / requests * 1e6,
        "share": stats.policy_s / took_s,
        "share_of_cpu": stats.policy_s / cpu_s,
    }


def pool_cpu_s() -> float:
    """Return the processor time of the pool's process, in seconds."""
    session = current_session()
    assert isinstance(session, RaySession), "as init has it"
    seconds: float = ray.get(session.pool.__ray_call__.remote(lambda _: process_time()))
    return seconds


def turn(task: kaas.KTask, x: Any, requests: int) -> None:
    """Send each client's requests in a closed loop."""
    waiting: dict[Any, str] = {}
    for number in range(requests + CLIENTS):
        client = f"c{number}"
        if number >= CLIENTS:
            (done,), _ = ray.wait(list(waiting))
            client = waiting.pop(done)
            ray.get(done)
        if number < requests:
            waiting[kaas.invoke(task, {"x": x}, client=client)] = client


class Witness:
    """A policy that keeps its events and counts its decisions."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.events: list[Event] = []
        self.decisions = 0

    def handle(self, event: Event) -> list[Decision]:
        decisions = self.policy.handle(event)
        self.events.append(event)
        self.decisions += len(decisions)
        return decisions


def alone(policy: str, devices: int, requests: int) -> tuple[float, float]:
    """Return the decisions a second of the simulation, and of the policy, with busy devices and waiting requests."""
    functions = {f"f{n}": {"memory_mb": 1, "run_s": 1, "cold_s": 0.5, "client": f"c{n}"} for n in range(CLIENTS)}
    gap_s = 0.9 / devices
    arrivals = [{"function": f"f{n * 7 % CLIENTS}", "at_s": n * gap_s} for n in range(requests)]
    scenario = read(
        {"policy": {"name": policy}, "devices": [{}] * devices, "functions": functions, "requests": arrivals}
    )
    made: list[Witness] = []
    given: list[Sequence[PhysicalDevice]] = []

    def make(places: Sequence[PhysicalDevice]) -> Witness:
        given.append(places)
        made.append(Witness(scenario.make_policy(places)))
        return made[-1]

    began = process_time()
    simulate(scenario, make)
    whole_s = process_time() - began
    fresh = scenario.make_policy(given[0])
    began = process_time()
    for event in made[0].events:
        fresh.handle(event)
    return made[0].decisions / whole_s, made[0].decisions / (process_time() - began)


def main() -> None:
    options = parser(__doc__.partition("\n")[0] if __doc__ else "")
    options.add_argument("--requests", type=int, default=3000)
    chosen = options.parse_args()
    detail: dict[str, Any] = {"clients": CLIENTS, "devices": DEVICES, "requests": chosen.requests}
    shares = []
    for policy in POLICIES:
        figures = live(policy, EXCLUSIVE_REQUESTS if policy == "exclusive" else chosen.requests)
        shares.append(figures["share"])
        detail |= {f"{policy}_{name}": round(value, 4) for name, value in figures.items()}
    for policy in POLICIES:
        for devices, requests in SIMULATED.items():
            whole, decided = alone(policy, devices, requests)
            detail[f"{policy}_{devices}_devices_decisions_per_s"] = round(whole)
            detail[f"{policy}_{devices}_devices_policy_decisions_per_s"] = round(decided)
    report("policy_cost", {"policy_share": (max(shares), "<=", 0.1)}, detail, chosen.json)


if __name__ == "__main__":
    main()

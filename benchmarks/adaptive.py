"""The policy `adaptive` over the best of the other policies, cell by cell, in virtual time.

    python -m benchmarks.adaptive [--json] [--seeds N] [--only WORKLOAD]

A cell is a workload of `benchmarks.workloads` at a load: a warm utilisation of 0.4, 0.6 or 0.8. Run times vary with a
coefficient of 0.8, no policy is told them, and all requests have one client. The best policy of a cell is the one with
the least mean latency there, of all policies but exclusive and static, each with its defaults; p99 likewise. Bars are
the geometric mean over the cells, and the worst one.

Fairness is measured apart: in the same cells with four clients of weights 1, 1, 2 and 4, of which the first calls
three times as often as its part of the load. There the others are cfs_affinity and mqfq_sticky, which are fair. The due
of a client are the run seconds that it asks for until the last arrival, or its share by weight of what clients that ask
for less leave over. Jain's index is that of what clients got over their due. The price is the mean with `fair` over
that without. `kaas serve` has another T by default, whose mean and index are compared with those of cfs_affinity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from statistics import fmean, geometric_mean
from typing import Any

from benchmarks.report import parser, positive, report
from benchmarks.workloads import WORKLOADS
from kaas.scheduling.decisions import Decision, Policy
from kaas.scheduling.events import Event, PhysicalDevice, RequestArrived, RequestDone
from kaas.scheduling.policies import POLICIES
from kaas.scheduling.simulation import start
from kaas.scheduling.simulation.clock import seconds
from kaas.scheduling.simulation.simulated import jain
from kaas.scheduling.simulation.simulator import simulate
from kaas.server.config.pool_settings import LEAD_S

LOADS = (0.4, 0.6, 0.8)
SEEDS = 5
RUN_CV = 0.8
OURS = "adaptive"
CFS = "cfs_affinity"
FAIR = (CFS, "mqfq_sticky")
AT_A_SERVER = (("T", LEAD_S),)
WEIGHTS = (1.0, 1.0, 2.0, 4.0)
OTHERS = tuple(name for name in POLICIES if name not in ("exclusive", "static", OURS))


@dataclass(frozen=True)
class Cell:
    """A workload at a load, under a policy with options. fair: with four clients."""

    workload: str
    load: float
    policy: str
    seed: int
    fair: bool = False
    options: tuple[tuple[str, Any], ...] = ()


class Witness:
    """A policy, and the run seconds of each client that ended until a time."""

    def __init__(self, policy: Policy, until_s: float) -> None:
        self._policy = policy
        self._until_s = until_s
        self._clients: dict[int, str] = {}
        self.work_conserving = getattr(policy, "work_conserving", False)
        self.utilisation_every_s = getattr(policy, "utilisation_every_s", None)
        self.run_s: dict[str, float] = {}

    def handle(self, event: Event) -> list[Decision]:
        """Pass an event on."""
        if isinstance(event, RequestArrived):
            self._clients[event.request] = event.client
        elif isinstance(event, RequestDone) and event.time_s <= self._until_s:
            client = self._clients[event.request]
            self.run_s[client] = self.run_s.get(client, 0.0) + event.run_s
        return self._policy.handle(event)


def measure(cell: Cell) -> tuple[float, float, float]:
    """Return mean latency, p99 latency, and Jain's index of what clients got over their due."""
    workload = dict(WORKLOADS)[cell.workload]()
    told = {"name": cell.policy, **dict(cell.options)}
    weights = WEIGHTS if cell.fair else ()
    scenario = workload.scenario(cell.load, cell.seed, told, weights=weights, run_cv=RUN_CV, profiles=False)
    if not cell.fair:
        summary = simulate(scenario).summary
        return summary.mean_latency_s, summary.p99_latency_s, 1.0
    until_s = max(request.at_s for request in scenario.requests)
    made: list[Witness] = []

    def make(devices: Sequence[PhysicalDevice]) -> Policy:
        made.append(Witness(scenario.make_policy(devices), until_s))
        return made[0]

    summary = simulate(scenario, make).summary
    asked = dict.fromkeys((f"c{number}" for number in range(len(weights))), 0.0)
    for request in start.requests(scenario):
        asked[request.arrival.client] += seconds(request.run_ps[scenario.devices[0].kind])
    due = dues(asked, dict(zip(asked, weights, strict=True)), workload.devices * until_s)
    got = [min(1.0, made[0].run_s.get(client, 0.0) / due[client]) for client in asked]
    return summary.mean_latency_s, summary.p99_latency_s, jain(got)


def dues(asked: Mapping[str, float], weights: Mapping[str, float], capacity: float) -> dict[str, float]:
    """Return each client's share by weight of a capacity; what clients do not ask for goes to the others."""
    due: dict[str, float] = {}
    left, open_ = capacity, dict(asked)
    while open_:
        level = left / sum(weights[client] for client in open_)
        modest = [client for client, demand in open_.items() if demand <= level * weights[client]]
        for client in modest or list(open_):
            due[client] = min(open_.pop(client), level * weights[client])
            left -= due[client]
    return due


def main() -> None:
    """Run all cells, and report."""
    options = parser((__doc__ or "").partition("\n")[0])
    options.add_argument("--seeds", type=positive, default=SEEDS)
    options.add_argument("--only", choices=[name for name, _ in WORKLOADS])
    chosen = options.parse_args()
    names = [name for name, _ in WORKLOADS if chosen.only in (None, name)]
    seeds = range(chosen.seeds)
    alone = [Cell(*each) for each in product(names, LOADS, (*OTHERS, OURS), seeds)]
    fair = [Cell(*each, fair=True) for each in product(names, LOADS, (*FAIR, OURS), seeds)]
    unfair = [Cell(*each, fair=True, options=(("fair", False),)) for each in product(names, LOADS, (OURS,), seeds)]
    server = [Cell(*each, fair=True, options=AT_A_SERVER) for each in product(names, LOADS, (OURS,), seeds)]
    cells = [*alone, *fair, *unfair, *server]
    with ProcessPoolExecutor() as processes:
        measured = dict(zip(cells, processes.map(measure, cells, chunksize=4), strict=True))

    def mean(workload: str, load: float, policy: str, figure: int, **more: Any) -> float:
        return fmean(measured[Cell(workload, load, policy, seed, **more)][figure] for seed in seeds)

    detail: dict[str, Any] = {"seeds": chosen.seeds, "run_cv": RUN_CV}
    means, tails, fair_means, below, prices = [], [], [], [], []
    server_means, server_below = [], []
    for name, load in product(names, LOADS):
        found = {policy: [mean(name, load, policy, figure) for figure in (0, 1)] for policy in (*OTHERS, OURS)}
        best = min(OTHERS, key=lambda policy: found[policy][0])
        least = min(OTHERS, key=lambda policy: found[policy][1])
        means.append(found[OURS][0] / found[best][0])
        tails.append(found[OURS][1] / found[least][1])
        cell = f"{name} at {load}"
        detail[f"{cell}, mean over best"] = [round(means[-1], 3), best]
        detail[f"{cell}, p99 over best"] = [round(tails[-1], 3), least]
        detail[f"{cell}, means"] = {policy: round(values[0], 4) for policy, values in found.items()}
        ours = mean(name, load, OURS, 0, fair=True)
        fair_means.append(ours / min(mean(name, load, policy, 0, fair=True) for policy in FAIR))
        indices = {policy: mean(name, load, policy, 2, fair=True) for policy in (*FAIR, OURS)}
        below.append(max(indices[policy] for policy in FAIR) - indices[OURS])
        prices.append(ours / mean(name, load, OURS, 0, fair=True, options=(("fair", False),)))
        server_means.append(
            mean(name, load, OURS, 0, fair=True, options=AT_A_SERVER) / mean(name, load, CFS, 0, fair=True)
        )
        server_below.append(indices[CFS] - mean(name, load, OURS, 2, fair=True, options=AT_A_SERVER))
        detail[f"{cell}, fair: mean over best, price"] = [round(fair_means[-1], 3), round(prices[-1], 3)]
        detail[f"{cell}, fair: Jain's index"] = {policy: round(value, 3) for policy, value in indices.items()}
    bars = {
        "mean_over_best": (geometric_mean(means), "<=", 0.85),
        "worst_cell": (max(means), "<=", 1.1),
        "p99_over_best": (geometric_mean(tails), "<=", 1.0),
        "worst_p99": (max(tails), "<=", 1.2),
        "fair_mean_over_best": (geometric_mean(fair_means), "<=", 0.8),
        "jain_below_best": (fmean(below), "<=", 0.02),
        "fairness_price": (geometric_mean(prices), "<=", 1.3),
        "server_over_cfs_affinity": (geometric_mean(server_means), "<=", 0.8),
        "server_jain_below_cfs_affinity": (max(server_below), "<=", 0.02),
    }
    report("adaptive", bars, detail, chosen.json)


if __name__ == "__main__":
    main()

"""Workloads of schedulers, as scenarios: those of the papers, and others of the kinds that services have.

Loads are warm utilisations: the arrivals' run times, without loads, over the devices' time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from kaas.papers.scheduling.functions import AZURE_EXPONENT, LALB_MODELS, LEAST_LOAD_S, MQFQ_FUNCTIONS, zipf
from kaas.scheduling.simulation.scenario import Scenario, ScenarioRequest
from kaas.scheduling.simulation.scenario_file import read

FLOOD = 3.0
"""How often a flooding client calls, over what its part of the load allows."""


@dataclass(frozen=True)
class Function:
    """A function of a workload. popularity: its part of the calls, in any unit."""

    memory_mb: float
    load_s: float
    run_s: float
    popularity: float


@dataclass(frozen=True)
class Workload:
    """Functions on devices, and how their calls come.

    Fields:
        gap_cv: of the times between the calls of a function: 1 for Poisson arrivals, more for bursts. requests: about
            how many.
    """

    devices: int
    memory_mb: float
    functions: tuple[Function, ...]
    gap_cv: float = 1.0
    requests: int = 1500

    def scenario(
        self, load: float, seed: int, policy: Mapping[str, Any], *, weights: Sequence[float] = (), **more: Any
    ) -> Scenario:
        """Return the scenario at a load.

        Args:
            load: warm utilisation. seed: of the arrivals and the run times. policy: its name and options.
            weights: those of clients c0, c1 ..., which have the functions in turn. c0 floods: it calls `FLOOD` times as
                often as its part of the load. Without weights all functions have one client.
            more: other keys of a scenario; run_cv is that of all functions.
        """
        draws = Random(seed)
        every = sum(each.popularity for each in self.functions)
        mean_s = sum(each.run_s * each.popularity for each in self.functions) / every
        rate = load * self.devices / mean_s
        until_s = self.requests / rate
        calls = []
        for number, each in enumerate(self.functions):
            floods = bool(weights) and number % len(weights) == 0
            at_s, gap_s = 0.0, every / (rate * each.popularity * (FLOOD if floods else 1.0))
            at_s -= draws.random() * gap_s  # the first call may come at once
            while True:
                at_s += gap_s * lognormal(draws, self.gap_cv) if self.gap_cv != 1 else draws.expovariate(1 / gap_s)
                if at_s >= until_s:
                    break
                if at_s >= 0:
                    calls.append({"function": f"f{number}", "at_s": at_s})
        functions = {
            f"f{number}": {
                "memory_mb": each.memory_mb,
                "load_s": each.load_s,
                "run_s": each.run_s,
                "run_cv": more.get("run_cv", 0.0),
                "client": f"c{number % len(weights)}" if weights else "default",
            }
            for number, each in enumerate(self.functions)
        }
        told = {
            "policy": dict(policy),
            "seed": seed,
            "devices": [{"memory_mb": self.memory_mb}] * self.devices,
            "functions": functions,
            "clients": {f"c{number}": {"weight": weight} for number, weight in enumerate(weights)},
            "requests": calls,
        }
        return read(told | {key: value for key, value in more.items() if key != "run_cv"})

    def calls(self, load: float, seed: int, run_cv: float = 0.0) -> Iterator[ScenarioRequest]:
        """Yield calls at a load in the order of their arrival, without end. Each has a run time of its own."""
        draws = Random(seed)
        every = sum(each.popularity for each in self.functions)
        mean_s = sum(each.run_s * each.popularity for each in self.functions) / every
        rate = load * self.devices / mean_s
        gaps_s = [every / (rate * each.popularity) for each in self.functions]
        next_calls = [(draws.random() * gap_s, number) for number, gap_s in enumerate(gaps_s)]
        heapq.heapify(next_calls)
        while True:
            at_s, number = next_calls[0]
            run_s = self.functions[number].run_s * (lognormal(draws, run_cv) if run_cv else 1.0)
            yield ScenarioRequest(f"f{number}", at_s, None, run_s)
            heapq.heapreplace(next_calls, (at_s + gaps_s[number] * lognormal(draws, self.gap_cv), number))


def lognormal(draws: Random, cv: float) -> float:
    """Return a lognormal number of mean 1."""
    variance = math.log1p(cv * cv)
    return draws.lognormvariate(-variance / 2, math.sqrt(variance))


def lalb(functions: int) -> Workload:
    """Return LALB's working set of so many functions, of sizes spread evenly over its table, on its 12 GPUs of 8 GB."""
    models = [LALB_MODELS[number * len(LALB_MODELS) // functions] for number in range(functions)]
    Random(functions).shuffle(models)
    made = [
        Function(*model, popularity) for model, popularity in zip(models, zipf(functions, AZURE_EXPONENT), strict=True)
    ]
    return Workload(12, 8192, tuple(made))


def mqfq(devices: int) -> Workload:
    """Return MQFQ-Sticky's 24 functions with heavy-tailed arrivals, on GPUs of 16 GB; sizes are a choice of ours."""
    draws = Random(24)
    popularity = zipf(24, 1.1)
    draws.shuffle(popularity)
    made = []
    for number, part in enumerate(popularity):
        warm_s, _, cold_s = MQFQ_FUNCTIONS[number % len(MQFQ_FUNCTIONS)]
        memory_mb = draws.choice((1000, 1500, 2500, 4000))
        made.append(Function(memory_mb, max(LEAST_LOAD_S, cold_s - warm_s), warm_s, part))
    return Workload(devices, 16384, tuple(made), gap_cv=2.0)


def kaas_clients() -> Workload:
    """Return 16 functions on the KaaS paper's four GPUs of 16 GB: short ones, that load for longer than they run."""
    draws = Random(16)
    made = []
    for _ in range(16):
        run_s = draws.choice((0.02, 0.05, 0.1, 0.3))
        memory_mb = draws.choice((1000, 3000, 6000, 9000))
        made.append(Function(memory_mb, memory_mb / 6000, run_s, 1.0))
    return Workload(4, 16384, tuple(made))


def azure(functions: int, devices: int) -> Workload:
    """Return functions with the popularity and the lognormal run times of Azure's trace, in bursts."""
    draws = Random(functions)
    made = []
    for popularity in zipf(functions, AZURE_EXPONENT):
        run_s = min(20.0, max(0.02, draws.lognormvariate(-0.38, 1.4)))
        memory_mb = min(8000, max(100, draws.lognormvariate(6.5, 0.9)))
        made.append(Function(memory_mb, LEAST_LOAD_S + memory_mb / 1000, run_s, popularity))
    return Workload(devices, 8192, tuple(made), gap_cv=2.0)


def mixture() -> Workload:
    """Return models, short kernels and long jobs together on six devices."""
    models, kernels = lalb(12).functions, kaas_clients().functions
    jobs = [Function(memory_mb, 1.0, 15.0, 0.02) for memory_mb in (500, 2000, 6000)]
    parts = [(models, 0.5), (kernels, 3.0), (jobs, 0.06)]
    made = []
    for functions, part in parts:
        every = sum(each.popularity for each in functions)
        made += [Function(f.memory_mb, f.load_s, f.run_s, f.popularity / every * part) for f in functions]
    return Workload(6, 12288, tuple(made))


WORKLOADS: Sequence[tuple[str, Callable[[], Workload]]] = (
    ("lalb_15", lambda: lalb(15)),
    ("lalb_25", lambda: lalb(25)),
    ("lalb_35", lambda: lalb(35)),
    ("mqfq_1", lambda: mqfq(1)),
    ("mqfq_2", lambda: mqfq(2)),
    ("kaas_16_clients", kaas_clients),
    ("azure_120", lambda: azure(120, 8)),
    ("mixture", mixture),
)

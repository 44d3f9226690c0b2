"""Figures of many simulated runs, in parallel processes, and their spread over seeds."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, fields
from multiprocessing import active_children
from statistics import fmean, stdev
from typing import Any

from kaas.errors import KaasError
from kaas.import_target import modules_here
from kaas.scheduling.comparing.figures import PolicyFigures, measure
from kaas.scheduling.comparing.parent_end import end_with_parent
from kaas.scheduling.policies import factory
from kaas.scheduling.policy_choice import choose_policy
from kaas.scheduling.simulation.scenario import Scenario
from kaas.scheduling.workloads.workload import open_workload

Spread = tuple[float, float]
"""The mean of a figure over seeds, and its standard deviation, which is 0 for one seed."""


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """A run for another process.

    Fields:
        make: returns the scenario. policy: module:Class as `name`, and its options, instead of the scenario's policy.
    """

    make: Callable[[], Scenario]
    policy: Mapping[str, Any] | None = None

    def figures(self) -> PolicyFigures:
        """Return the figures of the run, in this process; raise as `open_workload` and `simulate` do."""
        scenario, requests = open_workload(self.make())
        if self.policy is None:
            return measure(scenario, requests=requests)
        with modules_here():
            return measure(scenario, factory(choose_policy("policy", self.policy)), requests)


def measure_all(runs: Sequence[SimulatedRun], done: Callable[[], None] = lambda: None) -> list[PolicyFigures]:
    """Return the figures of runs, in their order. done: is called after each.

    Raises:
        KaasError: the first one of a run; the others are not run any more. Or a process was killed.
    """
    others = set(active_children())
    with ProcessPoolExecutor(initializer=_begin) as processes:
        submitted = [processes.submit(run.figures) for run in runs]
        try:
            for ended in as_completed(submitted):
                ended.result()
                done()
        except BrokenProcessPool as error:
            raise KaasError("the process of a simulation was killed; perhaps it needed too much memory") from error
        except BaseException:
            processes.shutdown(wait=False, cancel_futures=True)
            for process in set(active_children()) - others:  # those of these runs, which may take long
                process.terminate()
            raise
        return [each.result() for each in submitted]


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    end_with_parent()


def spreads(measured: Sequence[PolicyFigures]) -> dict[str, Spread]:
    """Return the spread of each figure over runs that differ by their seed alone."""
    names = [field.name for field in fields(PolicyFigures) if field.name != "per_client"]
    return {name: spread(getattr(each, name) for each in measured) for name in names}


def client_spreads(measured: Sequence[PolicyFigures]) -> dict[str, dict[str, Spread]]:
    """Return the spreads of each client's latencies, in seconds, over the runs in which it has requests."""
    return {
        client: {
            name: spread(getattr(each.per_client[client], name) for each in measured if client in each.per_client)
            for name in ("mean_latency_s", "p99_latency_s")
        }
        for client in dict.fromkeys(client for each in measured for client in each.per_client)
    }


def spread(values: Iterable[float]) -> Spread:
    """Return mean and sample standard deviation."""
    numbers = list(values)
    return fmean(numbers), stdev(numbers) if len(numbers) > 1 else 0.0

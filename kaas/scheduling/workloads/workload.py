"""Opens the workload of a scenario: the functions that it brings, and its requests in the order of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kaas.scheduling.simulation.scenario import (
    AzureTrace,
    RecordedWorkload,
    Scenario,
    ScenarioRequest,
    SyntheticWorkload,
)
from kaas.scheduling.workloads.azure2019 import Azure2019
from kaas.scheduling.workloads.record import RecordStream
from kaas.scheduling.workloads.synthetic import Synthetic


def open_workload(scenario: Scenario) -> tuple[Scenario, Iterator[ScenarioRequest] | None]:
    """Return the scenario with its workload's functions, and the requests; None if the scenario lists its own.

    A function that the scenario lists by the name of one of the workload has the scenario's memory and times.

    Raises:
        InvalidTrace: a file of the trace is not as published, or is missing. The requests may raise it, too.
        InvalidRecord: the file is no record. The requests may raise it, too.
    """
    opened: Azure2019 | Synthetic | RecordStream
    match scenario.workload:
        case None:
            return scenario, None
        case AzureTrace() as trace:
            opened = Azure2019(trace, scenario.seed)
        case SyntheticWorkload() as synthetic:
            opened = Synthetic(synthetic, scenario.seed)
        case RecordedWorkload() as recorded:
            opened = RecordStream(recorded)
    functions = {**opened.functions(), **scenario.functions}
    return replace(scenario, functions=functions, workload=None), opened.requests()

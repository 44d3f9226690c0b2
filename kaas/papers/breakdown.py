"""Figure 8, the time of the micro-benchmark's requests by stage (§5.2), and Table 1 as the server's figures have it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from enum import Enum
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from kaas.client.client import Client
from kaas.papers.workloads import WORKLOADS

if TYPE_CHECKING:
    from kaas.papers.experiment_server import ExperimentServer, Replicas
    from kaas.papers.workloads import Workload

CLIENTS = 5
"""The number of clients; the mean of their first requests is the figure."""
PROBES = 3
"""The number of requests for a column of Table 1."""
WARM = 20
"""The number of warm requests of each of these clients."""
TASKS = ("kTask", "eTask")
BREAKDOWNS = 5
"""Of kTasks cold, of a new client, and warm; of eTasks cold and warm."""
TABLE = ("resnet50", "bert", "cgemm", "jacobi")
"""The workloads of Table 1."""

PARTS = {
    "kernels": "Kernel Run",
    "plan": "Kernel Init",
    "memory": "GPU Malloc",
    "copy_in": "GPU Copy",
    "copy_out": "GPU Copy",
    "fetch": "Data Layer",
    "start": "Worker Start",
    "run": "Function",
}
"""Stage of KaaS -> the paper's. An eTask has two: the start of its process, and its function, which is a whole."""
OVERHEADS = "Overheads"
"""The rest of the time that the client sees."""


class Warmth(Enum):
    """The figures that the system keeps of a request.

    COLD: nothing of the function, as in the paper; of an eTask each client's first request is one, as it starts a
    process. NEW_CLIENT: the function's kernels, but none of a client's constants. WARM: all.
    """

    COLD = "cold"
    NEW_CLIENT = "a new client's"
    WARM = "warm"


class Breakdown(msgspec.Struct, frozen=True, tag=True):
    """Mean seconds of some requests by the paper's stages, from a client's view."""

    task: str
    start: Warmth
    requests: int
    stages_s: dict[str, float]

    def __post_init__(self) -> None:
        """Check the fields, which may come from a file."""
        known = self.task in TASKS and self.stages_s.keys() <= {*PARTS.values(), OVERHEADS} and self.requests >= 1
        if not known or not 0 < self.total_s < math.inf or min(self.stages_s.values()) < 0:
            raise ValueError("no request has such stages")

    @property
    def total_s(self) -> float:
        """The time that the client sees."""
        return sum(self.stages_s.values())


class Properties(msgspec.Struct, frozen=True, tag=True):
    """A column of Table 1, as measured: the scale is taken out.

    Fields:
        constant_bytes: that a first request fetched. gpu_s, cpu_s: median times of the kernels, and of both steps.
    """

    workload: str
    constant_bytes: float
    gpu_s: float
    cpu_s: float

    def __post_init__(self) -> None:
        """Check the fields, which may come from a file."""
        figures = (self.constant_bytes, self.gpu_s, self.cpu_s)
        if self.workload not in TABLE or not all(0 <= each < math.inf for each in figures):
            raise ValueError(f"no properties of a workload of Table 1: {self.workload!r}")


def properties(server: ExperimentServer) -> list[Properties]:
    """Return Table 1 of the server's own figures of some requests, one after the other."""
    made: list[Properties] = []
    for workload in map(WORKLOADS.__getitem__, TABLE):
        with server.ktasks(workload, 1) as replica:
            replica.warm(1, 1)
            for _ in range(PROBES):
                replica.check(0, replica.send(0).result())
            with Client(server.address, keys=server.keys[0]) as client:
                stats = client.stats()
        median_s = {row["stage"]: row["p50_s"] for row in _rows(stats, "stages", workload)}
        nbytes = sum(row["nbytes"] for row in _rows(stats, "tiers", workload) if row["tier"] == "store")
        steps_s = median_s.get("before", 0.0) + median_s.get("after", 0.0)
        bed = server.testbed
        made.append(Properties(workload.name, nbytes * bed.shrink, median_s["kernels"] / bed.slow, steps_s / bed.slow))
    return made


def _rows(stats: Mapping[str, Any], table: str, workload: Workload) -> list[Mapping[str, Any]]:
    """Return the rows of a workload's function; its name has a part of its key behind a slash if it has constants."""
    return [row for row in stats[table] if row["function"].partition("/")[0] == workload.name]


def breakdowns(server: ExperimentServer) -> list[Breakdown]:
    """Measure kTasks and eTasks at a server that has seen neither; its executors run already, as in the paper."""
    workload = WORKLOADS["micro"]
    task = server.testbed.task(workload)
    firsts: dict[str, list[dict[str, float]]] = {kind: [] for kind in TASKS}
    warm: dict[str, list[dict[str, float]]] = {kind: [] for kind in TASKS}
    for kind in firsts:
        for number, keys in enumerate(server.keys[: CLIENTS + 1]):
            with Client(server.address, keys=keys) as client:
                value = number + 1.0 if kind == "kTask" else 1.0
                if kind == "kTask":
                    function: Any = client.register(task, server.testbed.constants(workload, value))
                else:
                    function = client.function(workload.name)
                replica = server.replicas(workload, [function], [value])
                firsts[kind].append(_measured(client, replica, 1))
                warm[kind].append(_measured(client, replica, WARM))
    first, *later = firsts["kTask"]
    return [  # as many as BREAKDOWNS
        Breakdown("kTask", Warmth.COLD, 1, _mean([first])),
        Breakdown("kTask", Warmth.NEW_CLIENT, len(later), _mean(later)),
        Breakdown("kTask", Warmth.WARM, len(later) * WARM, _mean(warm["kTask"][1:])),
        Breakdown("eTask", Warmth.COLD, len(firsts["eTask"]), _mean(firsts["eTask"])),
        Breakdown("eTask", Warmth.WARM, len(later) * WARM, _mean(warm["eTask"][1:])),
    ]


def _measured(client: Client, replica: Replicas, count: int) -> dict[str, float]:
    """Return the mean seconds of some requests, one after the other, by the paper's stages."""
    before, began_s = _totals(client.stats()), perf_counter()
    for _ in range(count):
        result = replica.send(0).result()
    seconds = perf_counter() - began_s
    replica.check(0, result)
    stages: dict[str, float] = defaultdict(float)
    for stage, total_s in _totals(client.stats()).items():
        stages[PARTS[stage]] += (total_s - before.get(stage, 0.0)) / count
    return {**stages, OVERHEADS: max(0.0, seconds / count - sum(stages.values()))}


def _totals(stats: Mapping[str, Any]) -> dict[str, float]:
    totals: dict[str, float] = defaultdict(float)
    for row in stats["stages"]:
        if row["stage"] in PARTS:
            totals[row["stage"]] += row["total_s"]
    return totals


def _mean(rows: list[dict[str, float]]) -> dict[str, float]:
    names = [*dict.fromkeys([*PARTS.values(), OVERHEADS])]
    return {name: sum(row.get(name, 0.0) for row in rows) / len(rows) for name in names}

"""The cells of the experiments over replicas: one load on one setting."""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from kaas.bench.arrivals import poisson
from kaas.bench.load import Load
from kaas.bench.measure import measure
from kaas.bench.windows import Stability
from kaas.errors import WrongAnswer
from kaas.papers.experiment_server import SLOTS

if TYPE_CHECKING:
    from kaas.papers.experiment_server import Replicas
    from kaas.papers.workloads import Scale, Workload

PEAK_SHARE = 0.8
"""The rate of an online load, as a share of the offline load's (§5.3.2)."""
DRAIN_S = 60.0
WINDOW_REQUESTS = 50
"""The least number of requests that devices can run in a window: fewer would hardly agree within 10 %."""
SHORTEST_S, LONGEST_S = 1.5, 4.0
"""Bounds of a window's seconds."""
WINDOWS = 5
"""The most windows of a cell; three that agree end it."""


class Side(Enum):
    """A kind of task under a policy, as the paper compares them (§4.1.4)."""

    KTASK = "kTask, CFS-Affinity"
    KTASK_EXCLUSIVE = "kTask, Exclusive"
    ETASK_EXCLUSIVE = "eTask, Exclusive"

    @property
    def policy(self) -> str:
        """The policy of the pool."""
        return "cfs_affinity" if self is Side.KTASK else "exclusive"


class Cell(msgspec.Struct, frozen=True):
    """A load on a setting.

    Fields:
        online: requests arrive at random, at PEAK_SHARE of the rate of the offline cell `peak` (by default the one of
            the same setting); offline: callers send as fast as they can.
    """

    workload: str
    side: Side
    replicas: int
    online: bool = False
    peak: Side | None = None

    @property
    def offline(self) -> Cell:
        """The cell whose rate an online cell's is a share of."""
        return Cell(self.workload, self.peak or self.side, self.replicas)


class Found(msgspec.Struct, frozen=True):
    """The figures that the clients of a cell saw.

    Fields:
        offered_per_s: of an online cell. state: as `kaas.bench.windows.Stability`; without a steady state no latency
            means anything. cdf_s: latencies at 0, 1, ... 100 % of the requests.
    """

    rate_per_s: float
    state: str
    requests: int
    p50_s: float
    p90_s: float
    cdf_s: tuple[float, ...]
    errors: dict[str, int]
    lost: int
    seconds: float
    offered_per_s: float = 0.0


def measured(cell: Cell, replicas: Replicas, scale: Scale, peak_per_s: float | None) -> Found:
    """Measure a cell. peak_per_s: the rate of `cell.offline`, for an online cell.

    Raises:
        WrongAnswer: a result is not the replica's.
    """
    workload = replicas.workload
    replicas.warm()
    load = Load(replicas.send, replicas.check)
    window_s = min(max(WINDOW_REQUESTS * scale.gpu_s(workload) / scale.devices, SHORTEST_S), LONGEST_S)
    if cell.online:
        assert peak_per_s is not None, "an online cell comes after its offline cell"
        offered_per_s = PEAK_SHARE * peak_per_s
        window_s = max(window_s, min(WINDOW_REQUESTS / offered_per_s, LONGEST_S))
        loop = load.opened(poisson(offered_per_s))
    else:
        offered_per_s = 0.0
        loop = load.closed(callers(workload, scale, cell.replicas))
    measurement = measure(load, loop, open_loop=cell.online, window_s=window_s, limit_s=WINDOWS * window_s)
    if measurement.interrupted:
        raise KeyboardInterrupt
    load.cancel()
    for _ in load.drain(DRAIN_S):  # cancelled ones are not lost
        pass
    if WrongAnswer.__name__ in measurement.errors:
        raise WrongAnswer(f"{measurement.errors[WrongAnswer.__name__]} wrong results in {cell}")
    latencies = measurement.latencies
    seconds = sum(window.seconds for window in measurement.windows)
    answered = sum(window.answered for window in measurement.windows)
    return Found(
        answered / seconds if measurement.rate_per_s is None else measurement.rate_per_s,
        measurement.stability.value,
        latencies.count,
        latencies.percentiles["p50"],
        latencies.percentiles["p90"],
        latencies.cdf,
        measurement.errors,
        load.outstanding,
        seconds,
        offered_per_s,
    )


def callers(workload: Workload, scale: Scale, replicas: int) -> int:
    """Return the number of outstanding requests that keeps devices and steps busy: each replica has one at least."""
    per_device = 2 * SLOTS * (workload.gpu_s + workload.cpu_s) / workload.gpu_s
    return max(replicas, math.ceil(scale.devices * per_device))


def steady(found: Found) -> bool:
    """Return True if a cell's latencies are those of a steady state."""
    return found.state != Stability.UNSTABLE.value

"""The cells of the experiments over replicas: one load on one setting."""

from __future__ import annotations

import math
import random
from concurrent.futures import CancelledError
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from kaas.bench.arrivals import poisson_of
from kaas.bench.load import Load
from kaas.bench.measure import PERCENTILES, Measurement, complete, measure
from kaas.bench.windows import STABLE_WINDOWS, Stability
from kaas.errors import DeadlineExceeded, WrongAnswer
from kaas.papers.experiment_server import SLOTS
from kaas.papers.workloads import WORKLOADS

if TYPE_CHECKING:
    from kaas.papers.experiment_server import Replicas
    from kaas.papers.testbed import Testbed
    from kaas.papers.workloads import Workload

PEAK_SHARE = 0.8
"""The rate of an online load, as a share of the offline load's (§5.3.2)."""
DRAIN_S = 60.0
WINDOW_REQUESTS = 40
"""The number of requests of a window that can agree with others: with fewer, one batch more or less is too much."""
SHORTEST_S, LONGEST_S = 1.2, 2.5
"""Bounds of the seconds of a window with so many. One of random arrivals has LONGEST_S: a percentile takes many."""
FEW_S = 1.8
"""Seconds of a window with fewer: of long kernels, or where nearly each request starts a process. If the start takes
longer than START_S, so do these windows."""
START_S = 0.6
LEAST_ARRIVALS = 13
"""Of an online cell: with so many more than the slowest request is above the 90th percentile."""
WINDOWS, MANY_WINDOWS = 4, 7
"""The most windows of a cell; three that agree end it. Windows with too few requests to agree have no fourth;
but online four are the least that show a growing queue. With enough requests MANY_WINDOWS are time for devices that at
the beginning lack some replicas' constants."""
RAMP, LATE = 0.5, 0.1
"""The longest ramp, and how much later than their time the windows end together: in windows."""
LEAST_EACH = 2
"""The results that each replica has on average in three windows that end a cell."""
FEWEST, ENOUGH = 4, 8
"""Results that stand behind a rate; it is that of the first ones of each device to the last. Where nearly each request
starts a process, ENOUGH end an offline cell: two of each device."""
SHARED = 4
"""The most processes of eTasks on a device, on the side that has them take turns there."""
CROWDED = 5
"""Replicas of Figure 11: one more than devices."""
DRAWS = 10_000
"""The number of random arrivals after which their clients repeat."""


class Side(Enum):
    """A kind of task under a policy, as the paper compares them (§4.1.4)."""

    KTASK = "kTask, CFS-Affinity"
    KTASK_EXCLUSIVE = "kTask, Exclusive"
    ETASK_EXCLUSIVE = "eTask, Exclusive"
    ETASK_SHARED = f"eTask, Exclusive, {SHARED} processes a device"
    """Not in the paper: processes stay on a device while others run there (`etask_workers`), if their memory fits."""

    @property
    def policy(self) -> str:
        """The policy of the pool."""
        return "exclusive" if self.exclusive else "cfs_affinity"

    @property
    def is_etask(self) -> bool:
        """True if the replicas are eTasks."""
        return self in (Side.ETASK_EXCLUSIVE, Side.ETASK_SHARED)

    @property
    def etask_workers(self) -> int:
        """The most processes of eTasks on a device."""
        return SHARED if self is Side.ETASK_SHARED else 1

    @property
    def exclusive(self) -> bool:
        """True if a process on a device is one replica's."""
        return self is not Side.KTASK


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

    def __post_init__(self) -> None:
        """Check the fields, which may come from a file."""
        if self.workload not in WORKLOADS or self.replicas < 1:
            raise ValueError(f"no such experiment: {self.workload!r}, {self.replicas} replicas")

    @property
    def offline(self) -> Cell:
        """The cell whose rate an online cell's is a share of."""
        return Cell(self.workload, self.peak or self.side, self.replicas)

    @property
    def title(self) -> str:
        """The cell in words."""
        load = "offline"
        if self.online:
            load = "online" if self.peak is None else f"online at the rate of {self.peak.value}"
        return f"{self.workload}, {self.side.value}, {self.replicas} replicas, {load}"


class Found(msgspec.Struct, frozen=True):
    """The figures that the clients of a cell saw.

    Fields:
        state: UNSTABLE: the queue grew, so that no latency means anything. UNSETTLED: the windows did not agree, so
            the figures are of all. offered_per_s: of an online cell. cdf_s: latencies at 0, 1, ... 100 % of the
            requests.
    """

    rate_per_s: float
    state: Stability
    requests: int
    cdf_s: tuple[float, ...]
    seconds: float
    offered_per_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the fields, which may come from a file."""
        figures = (self.rate_per_s, self.requests, self.seconds)
        rising = len(self.cdf_s) == PERCENTILES and list(self.cdf_s) == sorted(self.cdf_s) and self.cdf_s[0] > 0
        if not all(0 < each < math.inf for each in figures) or not rising or not 0 <= self.offered_per_s < math.inf:
            raise ValueError("a cell has positive figures, and a distribution in steps of 1 %")

    @property
    def p10_s(self) -> float:
        """The 10th percentile."""
        return self.cdf_s[10]

    @property
    def p50_s(self) -> float:
        """The median latency."""
        return self.cdf_s[50]

    @property
    def p90_s(self) -> float:
        """The 90th percentile."""
        return self.cdf_s[90]

    def tells(self, percent: int) -> bool:
        """Return True if more than one request is beyond a percentile, above one of the upper half, else below it."""
        return self.requests * min(percent, 100 - percent) > 100

    @property
    def steady(self) -> bool:
        """True if the queue did not grow."""
        return self.state in (Stability.STABLE, Stability.UNSETTLED)


def measured(
    cell: Cell, replicas: Replicas, testbed: Testbed, peak_per_s: float | None, start_s: float = START_S
) -> Found:
    """Measure a cell.

    Args:
        cell: the load and the setting.
        replicas: those of the cell.
        testbed: what they run on.
        peak_per_s: the rate of `cell.offline`, for an online cell.
        start_s: the time of a request that starts a process, on this machine.

    Raises:
        WrongAnswer: a result is not the replica's, or a request has none.
        DeadlineExceeded: too few requests have a result in the cell's time, so that there is no figure.
    """
    assert peak_per_s is not None or not cell.online, "an online cell comes after its offline cell"
    crowded = is_crowded(cell, testbed)
    places = testbed.devices * (1 if cell.side.is_etask or crowded else SLOTS)
    if not crowded:  # else nearly each request starts a process, the first ones as the others
        replicas.warm(places, testbed.devices)
    offered_per_s = PEAK_SHARE * peak_per_s if cell.online and peak_per_s else 0.0
    count = 0 if cell.online else callers(replicas.workload, testbed, cell.replicas)
    window_s, windows = _windows(cell, testbed, offered_per_s, start_s)
    if cell.online:
        load = _random_clients(cell.replicas, replicas)
        count_online = max(1, round(offered_per_s * windows * window_s))
        # the same draw for all: cells are compared, and so few arrivals have quiet and busy ones
        loop = load.opened(poisson_of(offered_per_s, count_online, seed=0))
    else:
        load = Load(replicas.send, replicas.check)
        loop = load.closed(count)
    # the first results of each device wait for an empty pipeline to fill, or find a process that is there
    ramp = 0 if cell.online else places
    limit_s, least = (windows + (RAMP if ramp else LATE)) * window_s, LEAST_EACH * cell.replicas
    found = measure(
        load,
        loop,
        open_loop=cell.online,
        window_s=window_s,
        limit_s=limit_s,
        least=least,
        callers=count,
        ramp=ramp,
        enough=ENOUGH if crowded and not cell.online else None,
    )
    if found.interrupted:
        raise KeyboardInterrupt
    if cell.online and found.stability is not Stability.UNSTABLE:
        found = complete(found, load, DRAIN_S)
        lost = found.lost
    else:  # results that callers of a long queue get after the end say nothing
        load.cancel()
        errors = [each.error for each in load.drain(DRAIN_S)]
        lost = sum(each is not None and not isinstance(each, CancelledError) for each in errors) + load.outstanding
    if found.errors or lost:
        raise WrongAnswer(f"{cell}: {found.errors or 'no request'} in time and {lost} at the end have no right result")
    latencies, rate_per_s = found.latencies, _rate_per_s(cell, found)
    if min(latencies.count, found.results) < FEWEST or not rate_per_s:
        message = f"{found.results} results within {limit_s:.3g} s: this machine is too slow, or too busy"
        raise DeadlineExceeded(message, deadline_s=limit_s)
    seconds = sum(each.seconds for each in found.windows)
    return Found(rate_per_s, found.stability, latencies.count, latencies.cdf, seconds, offered_per_s)


def _rate_per_s(cell: Cell, found: Measurement) -> float:
    if not cell.online and found.stability is Stability.UNSETTLED and found.results:
        # long kernels end in batches, of which the end of the last window would cut off a part
        return found.results / found.last_result_s
    if found.rate_per_s is None:
        return sum(each.answered for each in found.windows) / sum(each.seconds for each in found.windows)
    return found.rate_per_s


def _windows(cell: Cell, testbed: Testbed, offered_per_s: float, start_s: float) -> tuple[float, int]:
    """Return the seconds of a cell's windows, and the most windows."""
    crowded = is_crowded(cell, testbed)
    few_s = FEW_S * max(1.0, start_s / START_S) if crowded else FEW_S
    if cell.online:
        enough = offered_per_s * LONGEST_S >= WINDOW_REQUESTS
        return (LONGEST_S, MANY_WINDOWS) if enough else (max(few_s, LEAST_ARRIVALS / offered_per_s / WINDOWS), WINDOWS)
    enough_s = WINDOW_REQUESTS * testbed.kernels_s(WORKLOADS[cell.workload]) / testbed.devices
    if crowded or enough_s > LONGEST_S:
        return few_s, STABLE_WINDOWS + crowded  # the first results of processes come late
    return max(enough_s, SHORTEST_S), WINDOWS


def is_crowded(cell: Cell, testbed: Testbed) -> bool:
    """Return True if each process is one replica's, and there are more replicas than places for processes."""
    return cell.side.exclusive and cell.replicas > testbed.devices * cell.side.etask_workers


def _random_clients(count: int, replicas: Replicas) -> Load:
    """Return a load of which each request is of a random one of so many replicas."""
    chosen = random.Random(0).choices(range(count), k=DRAWS)
    return Load(
        lambda number: replicas.send(chosen[number % DRAWS]),
        lambda number, result: replicas.check(chosen[number % DRAWS], result),
    )


def callers(workload: Workload, testbed: Testbed, replicas: int) -> int:
    """Return the number of outstanding requests that keeps devices and steps busy: each replica has one at least."""
    per_device = 2 * SLOTS * (workload.gpu_s + workload.cpu_s) / workload.gpu_s
    return max(replicas, math.ceil(testbed.devices * per_device))

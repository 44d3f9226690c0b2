"""The result of a simulation: dispatches, rejections, and a summary in figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Start = Literal["hit", "load", "cold"]
"""hit: the function's memory was on the device. load: it was not. cold: a worker started for the request's function."""


@dataclass(frozen=True, slots=True)
class Dispatched:
    """A request that began on a device.

    Fields:
        evicted: the functions whose memory left for it, in this order. false_miss: the memory was loaded though another
            device had it. promised: the request waited for this device while others were free.
    """

    request: int
    device: int
    at_s: float
    start: Start
    evicted: tuple[str, ...]
    false_miss: bool = False
    promised: bool = False


@dataclass(frozen=True, slots=True)
class Rejected:
    """A request that the policy rejected."""

    request: int
    at_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Completed:
    """A request that ran; its latency lasts from its arrival to its end."""

    client: str
    latency_s: float


@dataclass(frozen=True, slots=True)
class ClientSummary:
    """Requests, mean latency and charged device seconds of a client."""

    requests: int
    mean_latency_s: float
    charged_s: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a simulation.

    Latencies are those of completed requests, with quantiles by nearest rank; 0 if none completed.

    Fields:
        device_busy_s: seconds of starts, loads and runs on each device.
        jain: Jain's index of fairness over the charged seconds per weight of the clients that have requests: 1 is
            fair, 1/n all to one of n.
    """

    mean_latency_s: float
    p50_latency_s: float
    p99_latency_s: float
    hits: int
    loads: int
    colds: int
    evictions: int
    device_busy_s: tuple[float, ...]
    jain: float
    per_client: dict[str, ClientSummary]


@dataclass(frozen=True, slots=True)
class Simulated:
    """The result of a simulation."""

    dispatches: tuple[Dispatched, ...]
    rejected: tuple[Rejected, ...]
    summary: Summary


def summarise(
    dispatches: Sequence[Dispatched],
    completed: Sequence[Completed],
    *,
    device_busy_s: Iterable[float],
    requests: Mapping[str, int],
    charged_s: Mapping[str, float],
    weights: Mapping[str, float],
) -> Summary:
    """Return the figures of a run. requests, charged_s and weights are by client, for the same clients."""
    starts = Counter(dispatch.start for dispatch in dispatches)
    latencies = sorted(each.latency_s for each in completed)
    of_client: dict[str, list[float]] = {client: [] for client in requests}
    for each in completed:
        of_client[each.client].append(each.latency_s)
    return Summary(
        mean_latency_s=_mean(latencies),
        p50_latency_s=_quantile(latencies, 50),
        p99_latency_s=_quantile(latencies, 99),
        hits=starts["hit"],
        loads=starts["load"],
        colds=starts["cold"],
        evictions=sum(len(dispatch.evicted) for dispatch in dispatches),
        device_busy_s=tuple(device_busy_s),
        jain=jain([charged_s[client] / weights[client] for client, count in requests.items() if count]),
        per_client={
            client: ClientSummary(count, _mean(of_client[client]), charged_s[client])
            for client, count in requests.items()
        },
    )


def jain(shares: Sequence[float]) -> float:
    """Return (sum x)^2 / (n sum x^2): 1 for equal shares, and if no client had any."""
    squares = math.fsum(share * share for share in shares)
    return math.fsum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _quantile(ordered: Sequence[float], percent: int) -> float:
    """Return a quantile by nearest rank: the smallest value that at least so many percent do not exceed."""
    return ordered[-(-percent * len(ordered) // 100) - 1] if ordered else 0.0

"""The result of a simulation: dispatches, rejections, and a summary in figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from kaas.scheduling.decisions import Decision
from kaas.scheduling.events import Event

EventObserver = Callable[[Event, Sequence[Decision]], None]
"""Hears each event of a simulation, and the policy's decisions about it."""
Start = Literal["hit", "load", "fetch", "cold"]
"""hit: the function's memory was on the device. load: its host had it. fetch: neither had it, and to fetch it takes
time. cold: a worker started for the request's function."""


class Dispatched(msgspec.Struct, frozen=True):
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


class Rejected(msgspec.Struct, frozen=True):
    """A request that got no result."""

    request: int
    at_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class ClientSummary:
    """Requests, latencies and charged device seconds of a client."""

    requests: int
    mean_latency_s: float
    charged_s: float
    p99_latency_s: float


@dataclass(frozen=True, slots=True)
class ShareSummary:
    """Device seconds and SM-seconds that a share has had, and the windows that it has missed, as `ShareStatus`."""

    device_s: float
    sm_s: float
    missed: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a simulation.

    Latencies are those of completed requests, with quantiles by nearest rank; 0 if none completed.

    Fields:
        hits, loads, fetches, colds: dispatches by their start.
        device_busy_s: seconds of starts, loads and runs of requests on each device; prefetches do not count.
        jain: Jain's index of fairness over the charged seconds per weight of the clients that have requests: 1 is
            fair, 1/n all to one of n.
        per_share: by "function" or "client", and the name.
    """

    mean_latency_s: float
    p50_latency_s: float
    p99_latency_s: float
    hits: int
    loads: int
    fetches: int
    colds: int
    false_misses: int
    evictions: int
    rejected: int
    device_busy_s: tuple[float, ...]
    jain: float
    per_client: dict[str, ClientSummary]
    per_share: dict[str, ShareSummary] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Simulated:
    """The result of a simulation. A run that keeps no dispatches has none here, and no rejections."""

    dispatches: tuple[Dispatched, ...]
    rejected: tuple[Rejected, ...]
    summary: Summary


def jain(shares: Sequence[float]) -> float:
    """Return (sum x)^2 / (n sum x^2): 1 for equal shares, and if no client had any."""
    squares = math.fsum(share * share for share in shares)
    return math.fsum(shares) ** 2 / (len(shares) * squares) if squares else 1.0

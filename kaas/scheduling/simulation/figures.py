"""The figures of a simulation, counted while it runs: what has ended is forgotten."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from kaas.scheduling.events import RequestArrived
from kaas.scheduling.simulation.clock import SECOND_PS, seconds
from kaas.scheduling.simulation.simulated import (
    ClientSummary,
    Dispatched,
    Rejected,
    ShareSummary,
    Simulated,
    Start,
    Summary,
    jain,
)

BUCKET = 1.001
"""The quotient of the limits of a bucket of latencies: a quantile is wrong by 0.05 % at most."""


class Latencies(ABC):
    """Collected latencies, and their quantiles."""

    @abstractmethod
    def add(self, latency_ps: int) -> None:
        """Add a latency."""

    @abstractmethod
    def join(self, other: Self) -> None:
        """Add the latencies of another collection of this kind."""

    @abstractmethod
    def quantiles_s(self, percents: Sequence[int]) -> list[float]:
        """Return quantiles by nearest rank: the least value that so many percent do not exceed; 0 of no values."""


class ExactLatencies(Latencies):
    """All latencies: eight bytes each."""

    def __init__(self) -> None:
        self._values = array("d")

    def add(self, latency_ps: int) -> None:
        """Add a latency."""
        self._values.append(latency_ps / SECOND_PS)

    def join(self, other: Self) -> None:
        """Add all latencies of another collection."""
        self._values.extend(other._values)

    def quantiles_s(self, percents: Sequence[int]) -> list[float]:
        """Return the quantiles of all latencies."""
        ordered = sorted(self._values)
        return [ordered[_rank(percent, len(ordered)) - 1] if ordered else 0.0 for percent in percents]


class LatencyBuckets(Latencies):
    """How many latencies there are in each bucket: some thousand buckets, for any number of latencies."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._zeros = 0
        self._scale = 1.0 / math.log(BUCKET)

    def add(self, latency_ps: int) -> None:
        """Count a latency."""
        if latency_ps:
            self._counts[int(math.log(latency_ps) * self._scale)] += 1
        else:
            self._zeros += 1

    def join(self, other: Self) -> None:
        """Add the counts of another collection."""
        self._counts.update(other._counts)
        self._zeros += other._zeros

    def quantiles_s(self, percents: Sequence[int]) -> list[float]:
        """Return the middles of the quantiles' buckets."""
        ordered = sorted(self._counts.items())
        count = self._zeros + self._counts.total()
        return [self._quantile_s(ordered, _rank(percent, count)) for percent in percents]

    def _quantile_s(self, ordered: Iterable[tuple[int, int]], rank: int) -> float:
        before = self._zeros
        if rank <= before:
            return 0.0
        for bucket, count in ordered:
            before += count
            if rank <= before:
                return math.exp((bucket + 0.5) / self._scale) / SECOND_PS
        return 0.0


def _rank(percent: int, count: int) -> int:
    return -(-percent * count // 100)


@dataclass(slots=True, eq=False)
class _ClientFigures:
    """Counts of one client's requests, sums in picoseconds, and latencies."""

    latencies: Latencies
    requests: int = 0
    completed: int = 0
    latency_ps: int = 0
    charged_ps: int = 0

    def summary(self) -> ClientSummary:
        mean_s, (p99_s,) = _mean_s(self.latency_ps, self.completed), self.latencies.quantiles_s((99,))
        return ClientSummary(self.requests, mean_s, seconds(self.charged_ps), p99_s)


class RunFigures:
    """The figures of all requests so far.

    Args:
        clients: those that are there from the start. keep: all dispatches and rejections are kept, and all latencies.
    """

    def __init__(self, clients: Iterable[str], *, keep: bool) -> None:
        self.ended = 0
        self._keep = keep
        self._latencies: type[Latencies] = ExactLatencies if keep else LatencyBuckets
        self._clients = {client: _ClientFigures(self._latencies()) for client in clients}
        self._shares_ps: dict[str, tuple[int, float]] = {}
        self._starts: Counter[Start] = Counter()
        self._evictions = 0
        self._false_misses = 0
        self._refused = 0
        self._dispatches: list[Dispatched] = []
        self._rejected: list[Rejected] = []

    def arrived(self, client: str) -> None:
        """Count a request."""
        found = self._clients.get(client)
        if found is None:
            found = self._clients[client] = _ClientFigures(self._latencies())
        found.requests += 1

    def began(
        self,
        request: int,
        device: int,
        at_s: float,
        start: Start,
        evicted: tuple[bytes, ...],
        *,
        elsewhere: bool,
        promised: bool,
    ) -> None:
        """Count a request that began on a device. elsewhere: another device had the memory that the request loads."""
        self._starts[start] += 1
        self._evictions += len(evicted)
        self._false_misses += elsewhere
        if self._keep:
            names = tuple(key.decode() for key in evicted)
            self._dispatches.append(Dispatched(request, device, at_s, start, names, elsewhere, promised))

    def completed(self, client: str, latency_ps: int) -> None:
        """Count a request that ran to its end in time."""
        found = self._clients[client]
        found.latencies.add(latency_ps)
        found.completed += 1
        found.latency_ps += latency_ps

    def charged(self, request: RequestArrived, charged_ps: int, part: float) -> None:
        """Count the device time of a request that left its slot, and was on a part of the SMs."""
        self._clients[request.client].charged_ps += charged_ps
        if request.share:
            device_ps, sm_ps = self._shares_ps.get(request.share, (0, 0.0))
            self._shares_ps[request.share] = device_ps + charged_ps, sm_ps + charged_ps * part

    def rejected(self, request: int, at_s: float, reason: str) -> None:
        """Count a request that got no result."""
        self._refused += 1
        if self._keep:
            self._rejected.append(Rejected(request, at_s, reason))

    def result(
        self, device_busy_ps: Iterable[int], weights: Mapping[str, float], missed: Mapping[str, int]
    ) -> Simulated:
        """Return the result of the run. weights: of clients; that of others is 1. missed: windows by share."""
        clients = {name: figures.summary() for name, figures in self._clients.items()}
        completed = sum(figures.completed for figures in self._clients.values())
        latencies = self._latencies()
        for figures in self._clients.values():
            latencies.join(figures.latencies)
        p50_s, p99_s = latencies.quantiles_s((50, 99))
        summary = Summary(
            mean_latency_s=_mean_s(sum(figures.latency_ps for figures in self._clients.values()), completed),
            p50_latency_s=p50_s,
            p99_latency_s=p99_s,
            hits=self._starts["hit"],
            loads=self._starts["load"],
            fetches=self._starts["fetch"],
            colds=self._starts["cold"],
            false_misses=self._false_misses,
            evictions=self._evictions,
            rejected=self._refused,
            device_busy_s=tuple(seconds(busy_ps) for busy_ps in device_busy_ps),
            jain=jain([each.charged_s / weights.get(name, 1.0) for name, each in clients.items() if each.requests]),
            per_client=clients,
            per_share={
                share: ShareSummary(seconds(device_ps), sm_ps / SECOND_PS, missed.get(share, 0))
                for share, (device_ps, sm_ps) in sorted(self._shares_ps.items())
            },
        )
        return Simulated(tuple(self._dispatches), tuple(self._rejected), summary)


def _mean_s(sum_ps: int, count: int) -> float:
    return sum_ps / (count * SECOND_PS) if count else 0.0

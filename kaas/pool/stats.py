"""Where time and bytes went: counts, totals and quantiles by stage, function, client and tier."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import add

from kaas.executor.profile import KernelTime
from kaas.executor.tiers import TierUse

_STEP = math.log(1.05)
_SMALLEST_S = 1e-9
BATCH = 64
"""Requests whose measurements are added up together."""


@dataclass(frozen=True, slots=True)
class StageStats:
    """Time that requests of one client to one function spent in one stage.

    Stages: "queue" (arrival to dispatch), the executor's "plan", "fetch", "memory" (waiting for room), "copy_in",
    "kernels", "copy_out" and "total", and "request" (arrival to answer). Quantiles are within 2.5 %.
    """

    function: str
    client: str
    stage: str
    count: int
    total_s: float
    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class TierStats:
    """What one client's requests to one function did in one tier of a device's cache.

    Loads by `kaas.prefetch` and `kaas.pin` count here too, those of objects without a function.

    Fields:
        tier: "device", "host" (page-locked memory) or "store" (Ray's object store).
        objects, nbytes: input objects that were found there: hits of this tier.
        compulsory, capacity: those that were not, since they had never been there, or had been driven out.
        evictions, evicted_bytes: objects that left to make room.
        seconds: spent bringing objects into this tier; of the store, spent waiting for it.
    """

    function: str
    client: str
    device: int
    tier: str
    objects: int
    nbytes: int
    compulsory: int = 0
    capacity: int = 0
    evictions: int = 0
    evicted_bytes: int = 0
    seconds: float = 0.0

    @property
    def misses(self) -> int:
        return self.compulsory + self.capacity


@dataclass(frozen=True, slots=True)
class KernelStats:
    """What one kernel of a function took of the device in one client's requests with `profile=True`.

    Such requests run their kernels one by one, without the graph: this is what each takes alone, and not beside others.
    In the other figures they count among all requests.

    Fields:
        index, symbol: its place among the kTask's kernels, and its name in the code.
        launches: one for each request and iteration.
        graph: whether the kernels ran as a graph: they never do here.
    """

    function: str
    client: str
    index: int
    symbol: str
    launches: int
    total_s: float
    mean_s: float
    graph: bool = False


@dataclass(frozen=True, slots=True)
class OutcomeStats:
    """Requests of one client to one function by how they ended: "succeeded", "cancelled" or the name of the error.

    device is where they ran, None for those that ended in the queue. What the policy wanted of a cache and did not get
    has neither function nor client.
    """

    function: str
    client: str
    device: int | None
    outcome: str
    count: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Everything since the pool started or the last reset.

    Fields:
        kernels: of requests that ran without the graph, to tell.
        policy_s: seconds that the policy took for its decisions, and its checks. policy_events: what it heard.
    """

    since_s: float
    stages: tuple[StageStats, ...]
    tiers: tuple[TierStats, ...]
    outcomes: tuple[OutcomeStats, ...]
    kernels: tuple[KernelStats, ...] = ()
    policy_s: float = 0.0
    policy_events: int = 0

    def hit_rate(self, *, client: str | None = None) -> float:
        """The share of input objects found on the device, 0 to 1; nan when there were none. Objects that were loaded
        ahead of requests count among them."""
        found = [tier for tier in self.tiers if client in (None, tier.client)]
        total = sum(tier.objects for tier in found)
        return sum(tier.objects for tier in found if tier.tier == "device") / total if total else math.nan


class Histogram:
    """Counts in buckets 5 % wide: an entry costs a logarithm and a dictionary entry, and quantiles need no list."""

    __slots__ = ("buckets", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.buckets: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds
        bucket = int(math.log(max(seconds, _SMALLEST_S) / _SMALLEST_S) / _STEP)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def quantile(self, share: float) -> float:
        """The value below which a share (0 to 1) of the entries lies: the middle of its bucket; nan without entries."""
        rank = share * self.count
        seen = 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= rank:
                return _SMALLEST_S * math.exp((bucket + 0.5) * _STEP)
        return math.nan


@dataclass(frozen=True, slots=True)
class Entry:
    """A request that left: what it was, where it ran (None: nowhere), how it ended, and what was measured if it ran.

    outcome: None if it was no request, but something that was done to a cache. stages: seconds. tiers: what it did in
    each tier of the cache. kernels: what each took, if it was asked to tell.
    """

    function: str
    client: str
    device: int | None
    outcome: str | None
    stages: Mapping[str, float] = field(default_factory=dict)
    tiers: Mapping[str, TierUse] = field(default_factory=dict)
    kernels: Sequence[KernelTime] = ()


class Ledger:
    """What the pool writes into while it runs. now_s: the pool's monotonic clock.

    Entries are kept as they come and added up in batches: when one comes, somebody waits for an answer.
    """

    def __init__(self, now_s: float) -> None:
        self.reset(now_s)

    def reset(self, now_s: float) -> None:
        self._since_s = now_s
        self._entries: list[Entry] = []
        self._stages: dict[tuple[str, str], dict[str, Histogram]] = {}
        self._tiers: dict[tuple[str, str, int, str], TierUse] = {}
        self._outcomes: dict[tuple[str, str, int | None, str], int] = {}
        self._kernels: dict[tuple[str, str, int, str], tuple[int, float]] = {}

    def write(self, entry: Entry) -> None:
        self._entries.append(entry)
        if len(self._entries) >= BATCH:
            self._add_up()

    def _add_up(self) -> None:
        for entry in self._entries:
            flow = (entry.function, entry.client)
            if entry.outcome is not None:
                outcome = (*flow, entry.device, entry.outcome)
                self._outcomes[outcome] = self._outcomes.get(outcome, 0) + 1
            if entry.device is None:
                continue
            histograms = self._stages.setdefault(flow, {})
            for stage, seconds in entry.stages.items():
                histogram = histograms.get(stage)
                if histogram is None:
                    histogram = histograms[stage] = Histogram()
                histogram.add(seconds)
            for tier, use in entry.tiers.items():
                where = (*flow, entry.device, tier)
                total = self._tiers.get(where)
                self._tiers[where] = use if total is None else TierUse(*map(add, total, use))
            for kernel in entry.kernels:
                which = (*flow, kernel.index, kernel.symbol)
                launches, seconds = self._kernels.get(which, (0, 0.0))
                self._kernels[which] = launches + kernel.launches, seconds + kernel.seconds
        self._entries.clear()

    def read(self, now_s: float) -> Stats:
        self._add_up()
        stages = (
            _stage(function, client, stage, histogram)
            for (function, client), histograms in self._stages.items()
            for stage, histogram in histograms.items()
        )
        return Stats(
            since_s=now_s - self._since_s,
            stages=tuple(stages),
            tiers=tuple(TierStats(*key, **use._asdict()) for key, use in self._tiers.items()),
            outcomes=tuple(OutcomeStats(*key, count) for key, count in self._outcomes.items()),
            kernels=tuple(
                KernelStats(*key, launches, seconds, seconds / launches)
                for key, (launches, seconds) in sorted(self._kernels.items())
            ),
        )


def _stage(function: str, client: str, stage: str, histogram: Histogram) -> StageStats:
    quantiles = (histogram.quantile(share) for share in (0.5, 0.9, 0.99))
    mean = histogram.total / histogram.count
    return StageStats(function, client, stage, histogram.count, histogram.total, mean, *quantiles)

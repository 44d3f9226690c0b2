"""Counts of a running pool. Adding an entry is cheap; entries are added up in batches, or when a reader asks."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import add

import msgspec
import numpy as np

from kaas.executor.cache.tiers import TierUse
from kaas.executor.profile import KernelTime
from kaas.wire.status.stats import KernelStats, OutcomeStats, StageStats, Stats, TierStats

_STEP = math.log(1.05)
_SMALLEST_S = 1e-9
"""Width of the first bucket, which begins at zero. From a microsecond on, a bucket is 5 % wide."""
BATCH = 64
"""Number of requests whose measurements are added up together."""
FUNCTIONS_PER_CLIENT = 1000
"""Number of functions of a client that are counted separately, in the order of their first calls. Without a limit, a
client could exhaust the memory with new functions."""
KERNELS_PER_FUNCTION = 4096
"""Number of kernels of a function that are counted separately."""
OTHERS = "(others)"
"""The name of all further functions of a client, and of all further kernels of a function."""


class Histogram:
    """Counts in buckets 5 % wide, so that quantiles need no list of values."""

    __slots__ = ("buckets", "total")

    def __init__(self) -> None:
        self.total = 0.0
        self.buckets: Counter[int] = Counter()

    @property
    def count(self) -> int:
        """Number of entries."""
        return self.buckets.total()

    def merge(self, other: Histogram) -> None:
        """Add the entries of another histogram."""
        self.total += other.total
        self.buckets.update(other.buckets)

    def up_to(self, bounds: Sequence[float]) -> list[int]:
        """Return the number of entries up to each of these ordered bounds, which are exact within 2.5 %."""
        counts = [0] * len(bounds)
        for bucket, count in self.buckets.items():
            at = bisect_left(bounds, _middle(bucket))
            if at < len(counts):
                counts[at] += count
        return list(accumulate(counts))

    def quantiles(self, *shares: float) -> list[float]:
        """Return, for each share (0 to 1), the value below which this share of the entries lies; nan without entries.

        The value is the middle of its bucket.
        """
        buckets = sorted(self.buckets)
        counts = list(accumulate(self.buckets[bucket] for bucket in buckets))
        places = [bisect_left(counts, share * self.count) for share in shares]
        return [_middle(buckets[place]) if place < len(buckets) else math.nan for place in places]


def add_to(histograms: Sequence[Histogram], seconds: Sequence[float]) -> None:
    """Add to each histogram the entry at its position. All logarithms at once take the time of a few."""
    buckets = (np.log1p(np.maximum(seconds, 0.0) / _SMALLEST_S) / _STEP).astype(int).tolist()
    for (histogram, bucket), count in Counter(zip(histograms, buckets, strict=True)).items():
        histogram.buckets[bucket] += count
    for histogram, each in zip(histograms, seconds, strict=True):
        histogram.total += each


def _middle(bucket: int) -> float:
    return _SMALLEST_S * math.expm1((bucket + 0.5) * _STEP)


class LedgerEntry(msgspec.Struct, frozen=True):
    """An answered request, with its measurements.

    Fields:
        device: index, None if the request did not run. outcome: None of a cache command. stages: seconds by stage.
        tiers: use of each tier of the cache. kernels: times of the kernels, if the configuration asks for them.
    """

    function: str
    client: str
    device: int | None
    outcome: str | None
    stages: Mapping[str, float] = {}
    tiers: Mapping[str, TierUse] = {}
    kernels: Sequence[KernelTime] = ()


class Figures:
    """Sums of entries.

    Fields:
        stages: by function and client, then by stage. tiers: by function, client, device and tier. outcomes: by
            function, client, device and outcome. kernels: launches and seconds by function, client, index and symbol.
    """

    def __init__(self) -> None:
        self.stages = defaultdict[tuple[str, str], defaultdict[str, Histogram]](lambda: defaultdict(Histogram))
        self.tiers: dict[tuple[str, str, int, str], TierUse] = {}
        self.outcomes: dict[tuple[str, str, int | None, str], int] = {}
        self.kernels: dict[tuple[str, str, int, str], tuple[int, float]] = {}
        self._flows: set[tuple[str, str]] = set()
        self._functions: dict[str, int] = {}
        self._kernels: dict[tuple[str, str], int] = {}

    def add(self, entries: Iterable[LedgerEntry]) -> None:
        """Add entries."""
        histograms: list[Histogram] = []
        seconds: list[float] = []
        for entry in entries:
            flow, device = self._flow(entry.function, entry.client), entry.device
            if entry.outcome is not None:
                self._count((*flow, device, entry.outcome), 1)
            histograms += map(self.stages[flow].__getitem__, entry.stages) if entry.stages else ()
            seconds += entry.stages.values()
            if device is None:
                continue
            for tier, use in entry.tiers.items():
                self._used((*flow, device, tier), use)
            for kernel in entry.kernels:
                self._ran((*flow, kernel.index, kernel.symbol), kernel.launches, kernel.seconds)
        add_to(histograms, seconds)

    def merge(self, other: Figures) -> None:
        """Add the entries of other figures."""
        for flow, histograms in other.stages.items():
            own = self.stages[self._flow(*flow)]
            for stage, histogram in histograms.items():
                own[stage].merge(histogram)
        for (function, client, device, tier), use in other.tiers.items():
            self._used((*self._flow(function, client), device, tier), use)
        for (function, client, where, outcome), count in other.outcomes.items():
            self._count((*self._flow(function, client), where, outcome), count)
        for (function, client, index, symbol), (launches, seconds) in other.kernels.items():
            self._ran((*self._flow(function, client), index, symbol), launches, seconds)

    def _flow(self, function: str, client: str) -> tuple[str, str]:
        """Return the function and client under which an entry is counted."""
        flow = (function, client)
        if flow in self._flows:
            return flow
        count = self._functions.get(client, 0)
        if count >= FUNCTIONS_PER_CLIENT:
            return OTHERS, client
        self._flows.add(flow)
        self._functions[client] = count + 1
        return flow

    def _count(self, outcome: tuple[str, str, int | None, str], count: int) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count

    def _used(self, where: tuple[str, str, int, str], use: TierUse) -> None:
        total = self.tiers.get(where)
        self.tiers[where] = use if total is None else TierUse(*map(add, total, use))

    def _ran(self, which: tuple[str, str, int, str], launches: int, seconds: float) -> None:
        if which not in self.kernels:
            flow = which[:2]
            self._kernels[flow] = self._kernels.get(flow, 0) + 1
            if self._kernels[flow] > KERNELS_PER_FUNCTION:
                which = *flow, -1, OTHERS
        before, so_far_s = self.kernels.get(which, (0, 0.0))
        self.kernels[which] = before + launches, so_far_s + seconds


class Ledger:
    """The entries of a running pool. now_s: the pool's monotonic clock.

    Entries are added up in batches, since a caller waits for its reply while an entry is written.

    Fields:
        policy_s, policy_events: as in `Stats`; the pool counts.
    """

    def __init__(self, now_s: float) -> None:
        self.policy_s, self.policy_events = 0.0, 0
        self._since_s = now_s
        self._entries: list[LedgerEntry] = []
        self._figures = Figures()
        self._before = Figures()

    def reset(self, now_s: float) -> None:
        """Begin new statistics."""
        self._add_up()
        self._before.merge(self._figures)
        self._since_s, self._figures = now_s, Figures()
        self.policy_s, self.policy_events = 0.0, 0

    def write(self, entry: LedgerEntry) -> None:
        """Add an entry."""
        self._entries.append(entry)
        if len(self._entries) >= BATCH:
            self._add_up()

    def _add_up(self) -> None:
        self._figures.add(self._entries)
        self._entries.clear()

    def seconds(self, now_s: float) -> float:
        """Return the seconds since the last reset."""
        return now_s - self._since_s

    def since_the_start(self) -> Figures:
        """Return the figures since the pool's start, regardless of resets."""
        self._add_up()
        figures = Figures()
        figures.merge(self._before)
        figures.merge(self._figures)
        return figures

    def rows(self, client: str | None) -> Iterator[StageStats | TierStats | OutcomeStats]:
        """Yield the rows of one client, or of all clients if None.

        With thousands of functions this takes a while, and later entries may be among the rows.
        """
        self._add_up()
        figures = self._figures
        for (function, owner), histograms in list(figures.stages.items()):
            if client in (None, owner):
                for stage, histogram in list(histograms.items()):
                    yield _stage(function, owner, stage, histogram)
        yield from (TierStats(*key, **use._asdict()) for key, use in list(figures.tiers.items())
                    if client in (None, key[1]))  # fmt: skip
        yield from (OutcomeStats(*key, count) for key, count in list(figures.outcomes.items())
                    if client in (None, key[1]))  # fmt: skip

    def read(self, now_s: float) -> Stats:
        """Return all statistics since the last reset."""
        rows = list(self.rows(None))
        figures = self._figures
        return Stats(
            since_s=self.seconds(now_s),
            stages=tuple(row for row in rows if isinstance(row, StageStats)),
            tiers=tuple(row for row in rows if isinstance(row, TierStats)),
            outcomes=tuple(row for row in rows if isinstance(row, OutcomeStats)),
            kernels=tuple(
                KernelStats(*key, launches, seconds, seconds / launches)
                for key, (launches, seconds) in sorted(figures.kernels.items())
            ),
            policy_s=self.policy_s,
            policy_events=self.policy_events,
        )


def _stage(function: str, client: str, stage: str, histogram: Histogram) -> StageStats:
    quantiles = histogram.quantiles(0.5, 0.9, 0.99)
    mean = histogram.total / histogram.count
    return StageStats(function, client, stage, histogram.count, histogram.total, mean, *quantiles)

"""Statistics of time and bytes: counts, totals and quantiles by stage, function, client and tier."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from kaas.config import FunctionProfile
from kaas.wire.status.tables import Shown, as_html, as_text


@dataclass(frozen=True, slots=True)
class StageStats:
    """Time that requests of one client to one function spent in one stage.

    Stages: "queue" (arrival to dispatch), the executor's "plan", "fetch", "memory" (looking up objects in the caches,
    waiting for room), "copy_in", "kernels", "copy_out" and "total", and "request" (arrival to reply). A server's steps
    are "before" and "after"; its queue begins when the first has ended. Quantiles are within 2.5 %.
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
    """Hits, misses and evictions of one client's requests to one function in one tier of a device's cache.

    Loads by `kaas.prefetch` and `kaas.pin` count here too, those of objects without a function.

    Fields:
        device: its index, as in `kaas.status().devices`; each device has rows of its own, of every tier.
        tier: "device", "host" (page-locked memory) or "store" (Ray's object store).
        objects, nbytes: input objects that were found there: hits of this tier.
        compulsory, capacity: misses of objects that had never been there, and of objects that had been evicted.
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
    """The device time of one kernel of a function in one client's requests with `profile=True`.

    Such requests run their kernels one by one, without the graph: the time is that of the kernel alone, not in parallel
    with others. In the other figures such requests count among all requests.

    Fields:
        index, symbol: its place among the kTask's kernels, and its name in the code.
        launches: one for each request and iteration.
        graph: True if the kernels ran as a graph: they never do here.
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

    device is where they ran, None for those that ended in the queue. A decision of the policy about a cache that failed
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
        kernels: of requests that ran without the graph, with `profile=True`.
        policy_s: seconds that the policy took for its decisions, and its checks. policy_events: events that it got.
        profiles: the functions' measured times and memory, since the pool began: resets leave them. A function that
            shares its label with others is named by its key.
    """

    since_s: float
    stages: tuple[StageStats, ...]
    tiers: tuple[TierStats, ...]
    outcomes: tuple[OutcomeStats, ...]
    kernels: tuple[KernelStats, ...] = ()
    policy_s: float = 0.0
    policy_events: int = 0
    profiles: tuple[FunctionProfile, ...] = ()

    def hit_rate(self, *, client: str | None = None) -> float:
        """Return the share of input objects found on the device, 0 to 1; nan if there were no input objects.

        Objects that were loaded ahead of requests count among them.
        """
        found = [tier for tier in self.tiers if client in (None, tier.client)]
        total = sum(tier.objects for tier in found)
        return sum(tier.objects for tier in found if tier.tier == "device") / total if total else math.nan

    def __str__(self) -> str:
        """Return the tables of `kaas stats`."""
        return as_text(stats_tables(self))

    def _repr_html_(self) -> str:
        return as_html(stats_tables(self))


STAGES = {"queue": "queue", "copy_in": "copy in", "kernels": "kernels", "copy_out": "copy out", "request": "all"}
"""The stages whose median is shown, and the names of their columns."""


def stats_tables(stats: Stats) -> list[Shown]:
    """Return requests by function and client, caches by device and tier, and profiled kernels if there are any."""
    tables = [_requests(stats.stages, stats.outcomes), _caches(stats.tiers)]
    if stats.kernels:
        tables.append(_kernels(stats.kernels))
    spent = f"{stats.policy_s * 1e3:.1f} ms for {stats.policy_events} events"
    note = f"in the last {stats.since_s:.1f} s; the policy took {spent}"
    last = tables[-1]
    return [*tables[:-1], Shown(last.title, last.columns, last.rows, (note,))]


def _requests(stages: Sequence[StageStats], outcomes: Sequence[OutcomeStats]) -> Shown:
    ended: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        ended[outcome.function, outcome.client][outcome.outcome] += outcome.count
    times: defaultdict[tuple[str, str], dict[str, StageStats]] = defaultdict(dict)
    for stage in stages:
        times[stage.function, stage.client][stage.stage] = stage
    rows = []
    for flow in sorted({*ended, *times}):
        counts = dict(ended[flow])
        well = counts.pop("succeeded", 0)
        others = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        medians = [_milliseconds(times[flow].get(name), "p50_s") for name in STAGES]
        rows.append((*flow, str(well), others, *medians, _milliseconds(times[flow].get("request"), "p99_s")))
    columns = (*(f"{column}, ms" for column in STAGES.values()), "all, p99")
    return Shown("requests: medians of their stages", ("function", "client", "succeeded", "others", *columns), rows)


def _milliseconds(stage: StageStats | None, quantile: str) -> str:
    return "" if stage is None else _digits(getattr(stage, quantile) * 1e3)


def _digits(value: float) -> str:
    """Return three digits, or those before the point."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _caches(tiers: Sequence[TierStats]) -> Shown:
    found: defaultdict[tuple[int, str], list[TierStats]] = defaultdict(list)
    for tier in tiers:
        found[tier.device, tier.tier].append(tier)
    rows = []
    for (device, name), parts in sorted(found.items()):
        mebibytes = sum(part.nbytes for part in parts) / (1 << 20)
        counts = ("objects", "compulsory", "capacity", "evictions")
        hits, *others = (str(sum(getattr(part, each) for part in parts)) for each in counts)
        rows.append((str(device), name, hits, f"{mebibytes:.1f}", *others))
    columns = ("device", "tier", "hits", "MiB", "misses, first", "misses, driven out", "evictions")
    return Shown("caches: input objects by where they were found", columns, rows)


def _kernels(kernels: Sequence[KernelStats]) -> Shown:
    rows = [
        (each.function, each.client, str(each.index), each.symbol, str(each.launches), _digits(each.mean_s * 1e3))
        for each in kernels
    ]
    return Shown("kernels, one by one", ("function", "client", "place", "kernel", "launches", "mean, ms"), rows)

"""A pool's figures as metrics, with their final names; exporters add nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from kaas.pool.observing.ledger import Figures, Histogram
from kaas.wire.status.status import ShareStatus

BOUNDS_S = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
            5.0, 10.0, 30.0, 60.0)  # fmt: skip
"""Upper bounds of the buckets of histograms, in seconds."""
TIERS = ("device", "host")
"""The tiers that have a size, in the order of `RunRecord.cached_bytes`."""

SHARES = 1000
"""Shares that have metrics, in the order in which they were given."""

MetricKind = Literal["counter", "gauge", "histogram"]

_OF_SHARES: tuple[tuple[str, MetricKind, str, Callable[[ShareStatus], float]], ...] = (
    ("device_seconds_total", "counter", "Device seconds of a share's requests.", lambda each: each.device_s),
    ("sm_seconds_total", "counter", "The same, each request's times the part of the SMs that it had.",
     lambda each: each.sm_s),
    ("missed_windows_total", "counter", "Windows in which a share always had requests, and at whose end it lacked more "
     "than the least of a window, which it does not get any more.", lambda each: each.missed),
    ("sms", "gauge", "The part of the SMs that was asked for.", lambda each: each.sms),
    ("least", "gauge", "The least part of the time.", lambda each: each.quota[0]),
    ("most", "gauge", "The most part of the time.", lambda each: each.quota[1]),
)  # fmt: skip


class Buckets(NamedTuple):
    """The number of entries up to each of `BOUNDS_S`, the number of all entries, and their sum."""

    counts: Sequence[int]
    entries: int
    total_s: float


class Sample(NamedTuple):
    """A value of a metric. The value of a histogram is Buckets."""

    labels: tuple[str, ...]
    value: float | Buckets


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric family of Prometheus. labels: names, in the order of each sample's values."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...]
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of a pool at one moment.

    Fields:
        figures: since the start of the pool's process. cached_bytes: by tier. devices: number in each state.
        outcomes: number of requests by client and outcome, of clients that a server counts itself. They replace the
            outcomes of these clients in `figures`.
        worker_starts: by device. worker_ends: by device and cause. faults: devices that functions ended, by client.
        lost: by device, the reason why it has no worker. refused: connections that a server refused, by reason.
        shares: of functions and clients.
    """

    figures: Figures
    queued: int = 0
    running: int = 0
    cached_bytes: Mapping[str, int] = field(default_factory=dict)
    devices: Mapping[str, int] = field(default_factory=dict)
    outcomes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    worker_starts: Mapping[int, int] = field(default_factory=dict)
    worker_ends: Mapping[tuple[int, str], int] = field(default_factory=dict)
    faults: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[int, str] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
    shares: Sequence[ShareStatus] = ()


def metrics(measured: Measured) -> tuple[Metric, ...]:
    """Return all metrics, also those without a sample, so that their names can be found."""
    stages = _stages(measured.figures)
    hits: dict[str, int] = {}
    evictions: dict[str, int] = {}
    for (_, _, _, tier), use in measured.figures.tiers.items():
        hits[tier] = hits.get(tier, 0) + use.objects
        evictions[tier] = evictions.get(tier, 0) + use.evictions
    queue = _buckets(stages.pop("queue", Histogram()))
    return (
        Metric("kaas_requests_total", "counter", "Requests that were answered, by how.", ("client", "outcome"),
               tuple(_requests(measured))),
        Metric("kaas_queue_seconds", "histogram", "From a request's arrival to its dispatch.", (),
               (Sample((), queue),)),
        Metric("kaas_stage_seconds", "histogram", "What a request took in each stage; request: all in all.", ("stage",),
               tuple(Sample((stage,), _buckets(stages[stage])) for stage in sorted(stages))),
        Metric("kaas_cache_hits_total", "counter", "Input objects that were found in a tier.", ("tier",),
               _by_tier(hits)),
        Metric("kaas_cache_evictions_total", "counter", "Objects that left a tier to make room.", ("tier",),
               _by_tier(evictions)),
        Metric("kaas_cache_bytes", "gauge", "Of objects in a tier, of all devices.", ("tier",),
               _by_tier(measured.cached_bytes)),
        Metric("kaas_requests_queued", "gauge", "Requests that wait for a slot, or for inputs.", (),
               (Sample((), measured.queued),)),
        Metric("kaas_requests_running", "gauge", "Requests that have a slot.", (), (Sample((), measured.running),)),
        Metric("kaas_devices", "gauge", "Devices by state, as kaas.status() has it.", ("state",),
               _by_tier(measured.devices)),
        Metric("kaas_device_lost", "gauge", "1 for a device that has no worker, with the reason.", ("device", "reason"),
               tuple(Sample((str(each), measured.lost[each]), 1) for each in sorted(measured.lost))),
        Metric("kaas_worker_starts_total", "counter", "Workers that could run requests; more than one a device: "
               "restarts.", ("device",), _by_tier({str(each): n for each, n in measured.worker_starts.items()})),
        Metric("kaas_worker_ends_total", "counter", "Workers that ended, by why.", ("device", "cause"),
               tuple(Sample((str(device), why), n) for (device, why), n in sorted(measured.worker_ends.items()))),
        Metric("kaas_device_faults_total", "counter", "Devices that a client's functions ended, alone on them.",
               ("client",), _by_tier(measured.faults)),
        Metric("kaas_connections_refused_total", "counter", "Connections that a server refused, by why.", ("reason",),
               _by_tier(measured.refused)),
        *_shares(measured.shares),
    )  # fmt: skip


def _requests(measured: Measured) -> Iterator[Sample]:
    counts = dict(measured.outcomes)
    counted = {client for client, _ in counts}
    for (_, client, _, outcome), count in measured.figures.outcomes.items():
        if client and client not in counted:  # an entry without a client is a decision of the policy, not a request
            counts[client, outcome] = counts.get((client, outcome), 0) + count
    return (Sample(labels, counts[labels]) for labels in sorted(counts))


def _shares(shares: Sequence[ShareStatus]) -> Iterator[Metric]:
    """Yield the metrics of shares by their names; those of one name, as of two functions f, count as one."""
    named: dict[str, list[ShareStatus]] = {}
    for each in shares:
        if each.of in named or len(named) < SHARES:
            named.setdefault(each.of, []).append(each)
    for name, kind, words, value in _OF_SHARES:
        samples = (Sample((of,), sum(map(value, named[of]))) for of in sorted(named))
        yield Metric(f"kaas_share_{name}", kind, words, ("share",), tuple(samples))


def _stages(figures: Figures) -> dict[str, Histogram]:
    sums: dict[str, Histogram] = {}
    for histograms in figures.stages.values():
        for stage, histogram in histograms.items():
            sums.setdefault(stage, Histogram()).merge(histogram)
    return sums


def _buckets(histogram: Histogram) -> Buckets:
    return Buckets(histogram.up_to(BOUNDS_S), histogram.count, histogram.total)


def _by_tier(values: Mapping[str, int]) -> tuple[Sample, ...]:
    return tuple(Sample((name,), values[name]) for name in sorted(values))

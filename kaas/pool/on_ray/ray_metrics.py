"""A pool's metrics as Ray's own: its agents export them, with `ray_` before their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from ray.util.metrics import Counter, Gauge

from kaas.pool.observing.metrics import BOUNDS_S, Buckets, Metric

EVERY_S = 10.0
"""Interval of reports in seconds. Ray exports its own metrics no more often."""


class _Counter(Protocol):
    def inc(self, value: float, tags: dict[str, str]) -> None: ...


class _Gauge(Protocol):
    def set(self, value: float, tags: dict[str, str]) -> None: ...


class RayMetrics:
    """The metrics of one process of a pool."""

    def __init__(
        self,
        pool: str,
        counter: Callable[[str, str, tuple[str, ...]], _Counter] = Counter,
        gauge: Callable[[str, str, tuple[str, ...]], _Gauge] = Gauge,
    ) -> None:
        self._pool = pool
        self._make_counter, self._make_gauge = counter, gauge
        self._counters: dict[str, _Counter] = {}
        self._gauges: dict[str, _Gauge] = {}
        self._reported: dict[tuple[str, tuple[str, ...]], float] = {}  # values of counters at the last report
        self._shown: dict[str, set[tuple[str, ...]]] = {}  # labels of gauges at the last report

    def update(self, found: Iterable[Metric]) -> None:
        """Set Ray's metrics to these values."""
        for metric in found:
            if metric.kind == "gauge":
                self._end_absent(metric)
            for labels, value in metric.samples:
                tags = {"pool": self._pool, **dict(zip(metric.labels, labels, strict=True))}
                if isinstance(value, Buckets):
                    self._histogram(metric, tags, value)
                elif metric.kind == "counter":
                    self._count(metric, labels, tags, value)
                else:
                    self._set(metric.name, metric, tags, value)

    def _count(self, metric: Metric, labels: tuple[str, ...], tags: dict[str, str], value: float) -> None:
        if metric.name not in self._counters:
            self._counters[metric.name] = self._make_counter(metric.name, metric.help, ("pool", *metric.labels))
        before = self._reported.get((metric.name, labels), 0)
        more = value - before if value >= before else value  # a share that is given again is counted anew
        if more > 0:
            self._counters[metric.name].inc(more, tags)
        self._reported[metric.name, labels] = value

    def _end_absent(self, metric: Metric) -> None:
        """Set series that have no sample now to 0, since Ray would keep the last value."""
        now = {labels for labels, _ in metric.samples}
        for labels in self._shown.get(metric.name, set()) - now:
            self._set(metric.name, metric, {"pool": self._pool, **dict(zip(metric.labels, labels, strict=True))}, 0)
        self._shown[metric.name] = now

    def _histogram(self, metric: Metric, tags: dict[str, str], buckets: Buckets) -> None:
        """Set a histogram's series as gauges: Ray's histograms would need a call for every request."""
        for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], [*buckets.counts, buckets.entries], strict=True):
            self._set(f"{metric.name}_bucket", metric, {**tags, "le": bound}, count)
        self._set(f"{metric.name}_count", metric, tags, buckets.entries)
        self._set(f"{metric.name}_sum", metric, tags, buckets.total_s)

    def _set(self, name: str, metric: Metric, tags: Mapping[str, str], value: float) -> None:
        if name not in self._gauges:
            self._gauges[name] = self._make_gauge(name, metric.help, tuple(tags))
        self._gauges[name].set(value, dict(tags))

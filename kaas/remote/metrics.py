"""A server's metrics for Prometheus, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from kaas.errors import InvalidConfig
from kaas.pool.metrics import BOUNDS_S, Buckets, Measured, Metric, metrics

LOOPBACK = "127.0.0.1"
ASK_LIMIT_S = 5.0
"""How long the pool's loop may take to say what it has counted."""

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class MetricsServer:
    """Answers `GET /metrics` from threads of its own; a request for it costs the pool's loop one turn, and requests of
    clients nothing."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, measured: Callable[[], Measured], port: int, host: str = LOOPBACK
    ) -> None:
        """measured: called in the loop. port: 0 for any that is free."""
        self._collector = _Collector(loop, measured)
        self._host, self._port = host, port
        self._server: WSGIServer | None = None
        self._thread: Thread | None = None

    def open(self) -> None:
        """
        Raises:
            InvalidConfig: nothing can listen there.
        """
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self._collector)
        try:
            self._server, self._thread = start_http_server(self._port, self._host, registry)
        except OSError as error:
            message = f"metrics cannot be had at {self._host}:{self._port}: {error.strerror}"
            raise InvalidConfig(message, field="metrics_port") from error

    @property
    def url(self) -> str:
        assert self._server is not None, "open comes first"
        return f"http://{self._host}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Called in another thread than the loop's, or when nobody asks any more, it waits for nothing."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


class _Collector(Collector):
    def __init__(self, loop: asyncio.AbstractEventLoop, measured: Callable[[], Measured]) -> None:
        self._loop, self._measured = loop, measured

    def collect(self) -> Iterator[Family]:
        """
        Raises:
            TimeoutError: the pool says nothing.
        """
        told: Future[Measured] = Future()
        self._loop.call_soon_threadsafe(_tell, told, self._measured)
        yield from map(_family, metrics(told.result(ASK_LIMIT_S)))


def _tell(told: Future[Measured], measured: Callable[[], Measured]) -> None:
    try:
        told.set_result(measured())
    except Exception as error:  # noqa: BLE001 - it goes to who asked
        told.set_exception(error)


def _family(metric: Metric) -> Family:
    family = _empty(metric)
    for labels, value in metric.samples:
        if isinstance(value, Buckets):
            assert isinstance(family, HistogramMetricFamily), "its kind says so"
            bounds = zip([*map(str, BOUNDS_S), "+Inf"], [*value.counts, value.entries], strict=True)
            family.add_metric(labels, list(bounds), value.total_s)
        else:
            assert not isinstance(family, HistogramMetricFamily), "its kind says so"
            family.add_metric(labels, value)
    return family


def _empty(metric: Metric) -> Family:
    match metric.kind:
        case "counter":
            return CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
        case "gauge":
            return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
        case "histogram":
            return HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)

"""A server's metrics and health, over HTTP: `/metrics` for Prometheus, `/healthz` and `/readyz` for supervisors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from kaas.errors import InvalidConfig
from kaas.pool.observing.metrics import BOUNDS_S, Buckets, Measured, Metric, metrics

LOOPBACK = "127.0.0.1"
ASK_LIMIT_S = 5.0
"""Seconds that the pool's loop may take to return its counts."""

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
Health = Callable[[], Mapping[str, Any]]
T = TypeVar("T")


class _ThreadingServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Silent(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing: probes come every few seconds."""


class MetricsServer:
    """Serves `GET` of `/metrics`, `/healthz` and `/readyz` from its own threads. A request costs the pool's loop one
    turn, and clients' requests nothing."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        measured: Callable[[], Measured],
        health: Health,
        port: int,
        host: str = LOOPBACK,
    ) -> None:
        """measured, health: called in the loop; health returns `live`, `ready` and more. port: 0 for any free port."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(loop, measured))
        self._metrics: Any = make_wsgi_app(registry)
        self._ask_health = partial(_call_in_loop, loop, health)
        self._host, self._port = host, port
        self._server: WSGIServer | None = None
        self._thread: Thread | None = None

    def open(self) -> None:
        """Listen and serve in a new thread.

        Raises:
            InvalidConfig: the address cannot be used.
        """
        try:
            self._server = make_server(self._host, self._port, self._answer, _ThreadingServer, _Silent)
        except OSError as error:
            message = f"metrics cannot be served at {self._host}:{self._port}: {error.strerror}"
            raise InvalidConfig(message, field="metrics_port") from error
        self._thread = Thread(target=self._server.serve_forever, name="kaas-metrics", daemon=True)
        self._thread.start()

    def _answer(self, environment: dict[str, Any], start: Callable[..., Any]) -> Any:
        path = environment["PATH_INFO"]
        if path == "/metrics":
            return self._metrics(environment, start)
        if path not in ("/healthz", "/readyz"):
            return _respond(start, "404 Not Found", {"error": "there are /metrics, /healthz and /readyz"})
        try:
            health = self._ask_health()
        except Exception as error:  # noqa: BLE001 - any error means that the server is not well
            trouble = f"the server does not report its health: {type(error).__name__}: {error}"
            return _respond(start, "503 Service Unavailable", {"live": False, "ready": False, "trouble": [trouble]})
        well = health["live" if path == "/healthz" else "ready"]
        return _respond(start, "200 OK" if well else "503 Service Unavailable", health)

    @property
    def url(self) -> str:
        """The address of `/metrics`, once it is open."""
        assert self._server is not None, "open comes first"
        return f"http://{self._host}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Stop serving. Call it from another thread than the loop's, for which a running request waits."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


class _Collector(Collector):
    def __init__(self, loop: asyncio.AbstractEventLoop, measured: Callable[[], Measured]) -> None:
        self._loop, self._measured = loop, measured

    def collect(self) -> Iterator[Family]:
        """Yield the current metrics.

        Raises:
            TimeoutError: the pool's loop does not respond.
        """
        yield from map(_family, metrics(_call_in_loop(self._loop, self._measured)))


def _respond(start: Callable[..., Any], status: str, body: Mapping[str, Any]) -> list[bytes]:
    start(status, [("Content-Type", "application/json"), ("Cache-Control", "no-store")])
    return [json.dumps(body).encode() + b"\n"]


def _call_in_loop(loop: asyncio.AbstractEventLoop, function: Callable[[], T]) -> T:
    """Call a function in the loop from another thread, and return its result.

    Raises:
        TimeoutError: the loop does not respond.
    """
    result: Future[T] = Future()
    loop.call_soon_threadsafe(_set_result, result, function)
    return result.result(ASK_LIMIT_S)


def _set_result(result: Future[T], function: Callable[[], T]) -> None:
    try:
        result.set_result(function())
    except Exception as error:  # noqa: BLE001 - the caller gets it
        result.set_exception(error)


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

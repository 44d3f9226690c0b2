"""A pool's metrics where Ray exports its own: at the port of its agent on this node."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from importlib.util import find_spec
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families

import kaas
from kaas.api.attached import current_session
from kaas.pool.observing.ledger import Figures
from kaas.pool.observing.metrics import Measured, metrics
from tests.api.conftest import DEVICE_BYTES, numbers, scale_task
from tests.timeouts import TIMEOUT_S

AGENT = ("aiohttp", "opencensus", "opentelemetry")
"""Modules that Ray's agents need: they come with ray[default]."""

OFTEN = {"metrics_report_interval_ms": 1000}
LABELS = ("pool", "client", "outcome", "stage", "tier", "state", "le")
"""The labels that KaaS sets; Ray adds some of its own."""

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not all(map(find_spec, AGENT)), reason="Ray is here without its agents: ray[default]"),
]

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def port(own_ray: None) -> Iterator[int]:  # noqa: ARG001 - none runs
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ray.init("local", include_dashboard=False, _metrics_export_port=port, _system_config=OFTEN)
    kaas.init(name="measured", devices=[kaas.Device("software", DEVICE_BYTES)])
    yield port
    kaas.shutdown()


def scraped(port: int) -> Samples:
    """Return KaaS's series, by name and the labels that KaaS sets; none while the agent starts."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT_S) as reply:
            text = bytes(reply.read()).decode()
    except URLError:
        return {}
    return {
        (sample.name, frozenset((name, value) for name, value in sample.labels.items() if name in LABELS)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("ray_kaas_")
    }


def labelled(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return f"ray_{name}", frozenset({"pool": "measured", **labels}.items())


def exported() -> set[str]:
    """Return the names of all series."""
    histogram = ("_bucket", "_sum", "_count")
    return {
        f"ray_{metric.name}{suffix}"
        for metric in metrics(Measured(Figures()))
        for suffix in (histogram if metric.kind == "histogram" else ("",))
    }


def test_the_names_that_were_agreed_are_exported(port: int) -> None:
    client = current_session().client
    counted = labelled("kaas_requests_total", client=client, outcome="succeeded")
    ray.get([kaas.invoke(scale_task(), {"x": numbers()}, scalars={"factor": 2.0}) for _ in range(3)])
    found: Samples = {}
    until_s = time.monotonic() + TIMEOUT_S
    while found.get(counted) != 3:
        assert time.monotonic() < until_s, found
        found = scraped(port)
    assert found[labelled("kaas_queue_seconds_count")] == 3
    assert found[labelled("kaas_queue_seconds_bucket", le="+Inf")] == 3
    assert found[labelled("kaas_stage_seconds_count", stage="kernels")] == 3
    assert labelled("kaas_cache_bytes", tier="device") in found
    assert sum(value for (name, _), value in found.items() if name == "ray_kaas_devices") == 1
    assert {name for name, _ in found} <= exported()

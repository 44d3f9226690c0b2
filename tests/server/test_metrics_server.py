"""Metrics have their documented names and labels only, and those of the dashboard exist."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kaas.errors import InvalidConfig
from kaas.executor.cache.tiers import TierUse
from kaas.pool.loop import PoolLoop
from kaas.pool.observing.ledger import Figures, Ledger, LedgerEntry
from kaas.pool.observing.metrics import BOUNDS_S, Buckets, Measured, metrics
from kaas.pool.on_ray.ray_metrics import RayMetrics
from kaas.server.metrics_server import MetricsServer
from kaas.wire.status.status import ShareStatus
from tests.timeouts import TIMEOUT_S

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"
KEY = "ab" * 32
WELL = {"live": True, "ready": True, "trouble": []}


def measured() -> Measured:
    ledger = Ledger(0.0)
    tiers = {"device": TierUse(objects=3, nbytes=30, evictions=1), "host": TierUse(objects=1)}
    for client, seconds in (("a", 0.5), ("b", 0.002)):
        ledger.write(LedgerEntry("f", client, 0, "succeeded", {"queue": seconds, "kernels": seconds}, tiers))
    ledger.write(LedgerEntry(KEY, "a", None, "QueueFull"))
    ledger.write(LedgerEntry("", "", 0, "DeviceUnavailable"))
    return Measured(
        ledger.since_the_start(),
        4,
        2,
        {"device": 512, "host": 0},
        {"idle": 1, "busy": 1, "lost": 1},
        worker_starts={0: 3, 1: 1},
        worker_ends={(0, "died"): 1, (0, "device lost"): 1, (2, "not started"): 3},
        faults={"a": 1},
        lost={2: "no CUDA driver"},
        shares=shares(),
        refused={"key": 7},
    )


class Scraped:
    """The metrics endpoint of a server, its loop in a thread of its own."""

    def __init__(self, said: Callable[[], Measured], health: Mapping[str, Any] = WELL) -> None:
        self.loop = PoolLoop()
        self._thread = Thread(target=self.loop.run_forever)
        self._thread.start()
        self.server = MetricsServer(self.loop, said, lambda: health, 0)
        self.server.open()

    def get(self) -> str:
        with urlopen(self.server.url, timeout=TIMEOUT_S) as answer:
            return bytes(answer.read()).decode()

    def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        families = text_string_to_metric_families(self.get())
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    def close(self) -> None:
        self.server.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def __enter__(self) -> Scraped:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def labelled(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def test_a_scrape() -> None:
    with Scraped(measured) as scraped:
        samples = scraped.samples()
        text = scraped.get()
    assert samples[labelled("kaas_requests_total", client="a", outcome="succeeded")] == 1
    assert samples[labelled("kaas_requests_total", client="a", outcome="QueueFull")] == 1
    assert samples[labelled("kaas_requests_total", client="b", outcome="succeeded")] == 1
    assert samples[labelled("kaas_queue_seconds_count")] == 2
    assert samples[labelled("kaas_queue_seconds_sum")] == pytest.approx(0.502)
    assert samples[labelled("kaas_queue_seconds_bucket", le="0.0025")] == 1
    assert samples[labelled("kaas_queue_seconds_bucket", le="0.001")] == 0
    assert samples[labelled("kaas_queue_seconds_bucket", le="+Inf")] == 2
    assert samples[labelled("kaas_stage_seconds_count", stage="kernels")] == 2
    assert samples[labelled("kaas_cache_hits_total", tier="device")] == 6
    assert samples[labelled("kaas_cache_evictions_total", tier="device")] == 2
    assert samples[labelled("kaas_cache_bytes", tier="device")] == 512
    assert samples[labelled("kaas_requests_queued")] == 4
    assert samples[labelled("kaas_devices", state="busy")] == 1
    assert samples[labelled("kaas_device_lost", device="2", reason="no CUDA driver")] == 1
    assert samples[labelled("kaas_worker_starts_total", device="0")] == 3
    assert samples[labelled("kaas_worker_ends_total", device="0", cause="died")] == 1
    assert samples[labelled("kaas_device_faults_total", client="a")] == 1
    assert samples[labelled("kaas_connections_refused_total", reason="key")] == 7
    assert sum(name == "kaas_requests_total" for name, _ in samples) == 3  # a policy's order is no request
    assert KEY not in text


def shares() -> tuple[ShareStatus, ...]:
    return (
        ShareStatus("function 'f'", 0.25, (0.1, 0.8), (), 2.0, 0.5, 3),
        ShareStatus("client 'a'", 1.0, (0.3, 1.0), (), 4.0, 4.0),
        ShareStatus("function 'f'", 0.25, (0.1, 0.8), (), 1.0, 0.25),
    )


def test_shares_are_told_with_their_time_and_the_windows_that_they_missed() -> None:
    found = {
        metric.name.removeprefix("kaas_share_"): {sample.labels: sample.value for sample in metric.samples}
        for metric in metrics(Measured(Figures(), shares=shares()))
    }
    of_client, of_functions = ("client 'a'",), ("function 'f'",)
    assert found["device_seconds_total"] == {of_client: 4.0, of_functions: 3.0}
    assert found["sm_seconds_total"] == {of_client: 4.0, of_functions: 0.75}
    assert found["missed_windows_total"] == {of_client: 0, of_functions: 3}
    assert found["least"][of_client] == 0.3


def test_no_number_of_shares_makes_more_than_a_thousand_series() -> None:
    many = tuple(ShareStatus(f"function '{number}'", 1.0, (0.0, 1.0)) for number in range(2000))
    for metric in metrics(Measured(Figures(), shares=many)):
        assert len(metric.samples) <= 1000


def test_labels_are_those_that_were_agreed() -> None:
    labels = {metric.name: metric.labels for metric in metrics(measured())}
    agreed = {
        "kaas_requests_total": ("client", "outcome"),
        "kaas_queue_seconds": (),
        "kaas_stage_seconds": ("stage",),
        "kaas_cache_hits_total": ("tier",),
        "kaas_cache_evictions_total": ("tier",),
        "kaas_cache_bytes": ("tier",),
    }
    assert agreed.items() <= labels.items()


def test_metered_requests_of_a_client_are_not_counted_twice() -> None:
    found = Measured(measured().figures, outcomes={("a", "succeeded"): 7, ("a", "QuotaExceeded"): 2})
    (requests,) = [metric for metric in metrics(found) if metric.name == "kaas_requests_total"]
    assert [(*sample.labels, sample.value) for sample in requests.samples] == [
        ("a", "QuotaExceeded", 2),
        ("a", "succeeded", 7),
        ("b", "succeeded", 1),
    ]


def test_counters_do_not_begin_anew_when_statistics_do() -> None:
    ledger = Ledger(0.0)
    for _ in range(3):
        ledger.write(LedgerEntry("f", "a", 0, "succeeded", {"queue": 1.0}, {"device": TierUse(objects=2)}))
        ledger.reset(1.0)
        assert not ledger.read(2.0).outcomes
    figures = ledger.since_the_start()
    assert figures.outcomes == {("f", "a", 0, "succeeded"): 3}
    assert figures.stages["f", "a"]["queue"].count == 3
    assert figures.tiers["f", "a", 0, "device"].objects == 6


def test_a_scrape_of_a_pool_that_fails_is_an_http_error() -> None:
    def broken() -> Measured:
        raise ValueError("nothing to say")

    with Scraped(broken) as scraped, pytest.raises(HTTPError):
        scraped.get()


def status_of(server: MetricsServer, path: str) -> tuple[int, dict[str, Any]]:
    url = server.url.replace("/metrics", path)
    try:
        with urlopen(url, timeout=TIMEOUT_S) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        return error.code, json.loads(error.read())


def test_supervisors_learn_whether_a_server_is_live_and_ready() -> None:
    with Scraped(measured) as scraped:
        assert status_of(scraped.server, "/healthz") == (200, WELL)
        assert status_of(scraped.server, "/readyz") == (200, WELL)
        assert status_of(scraped.server, "/")[0] == 404
        assert status_of(scraped.server, "/metrics/more")[0] == 404
    drains = {"live": True, "ready": False, "trouble": ["it drains"]}
    with Scraped(measured, drains) as scraped:
        assert status_of(scraped.server, "/healthz") == (200, drains)
        assert status_of(scraped.server, "/readyz") == (503, drains)


def test_a_server_that_fails_to_report_its_health_is_unhealthy() -> None:
    with Scraped(measured, {}) as scraped:
        scraped.server._ask_health = lambda: 1 / 0  # type: ignore[assignment]
        for path in ("/healthz", "/readyz"):
            status, said = status_of(scraped.server, path)
            assert status == 503
            assert "ZeroDivisionError" in said["trouble"][0]


def test_a_port_that_is_taken() -> None:
    with Scraped(measured) as scraped:
        port = int(re.findall(r":(\d+)/", scraped.server.url)[0])
        with pytest.raises(InvalidConfig) as raised:
            MetricsServer(scraped.loop, measured, lambda: WELL, port).open()
        assert raised.value.field == "metrics_port"


def exported() -> set[str]:
    """Names of all series."""
    names: set[str] = set()
    for metric in metrics(measured()):
        suffixes = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        names |= {metric.name + suffix for suffix in suffixes}
    return names


def test_the_metrics_of_the_dashboard_exist() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    shown: set[str] = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            names = re.findall(r"\$\{prefix\}(\w+)", target["expr"])
            assert names, target["expr"]
            assert len(re.findall("kaas_", target["expr"])) == len(names)
            shown |= set(names)
            labels = set(re.findall(r"by \(([^)]*)\)", target["expr"]) + re.findall(r"{(\w+)", target["expr"]))
            assert {label for each in labels for label in each.split(", ")} <= {
                "le", "client", "outcome", "stage", "tier", "state", "prefix", "device", "cause", "reason", "share"
            }  # fmt: skip
    assert shown <= exported()
    families = {metric.name for metric in metrics(measured())}
    assert {name for name in families if not any(each.startswith(name) for each in shown)} == set()
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(places)


class Recorded:
    """Instead of a metric of Ray's."""

    def __init__(self, told: list[Any], name: str, _: str, tags: tuple[str, ...]) -> None:
        self._told, self._name, self._tags = told, name, tags

    def inc(self, value: float, tags: dict[str, str]) -> None:
        assert set(tags) == set(self._tags)
        self._told.append(("inc", self._name, tags, value))

    def set(self, value: float, tags: dict[str, str]) -> None:
        assert set(tags) == set(self._tags)
        self._told.append(("set", self._name, tags, value))


def test_metrics_of_ray() -> None:
    told: list[Any] = []
    ray = RayMetrics("p", partial(Recorded, told), partial(Recorded, told))
    ray.update(metrics(measured()))
    tags = {"pool": "p", "client": "a", "outcome": "succeeded"}
    assert ("inc", "kaas_requests_total", tags, 1) in told
    assert ("set", "kaas_cache_bytes", {"pool": "p", "tier": "device"}, 512) in told
    assert ("set", "kaas_queue_seconds_bucket", {"pool": "p", "le": "+Inf"}, 2) in told
    assert {name for _, name, _, _ in told} == exported()
    told.clear()
    ray.update(metrics(measured()))
    assert not [entry for entry in told if entry[0] == "inc"]  # nothing has come
    more = Measured(Figures(), outcomes={("a", "succeeded"): 5})
    ray.update(metrics(more))
    assert ("inc", "kaas_requests_total", tags, 4) in told
    assert ("set", "kaas_cache_bytes", {"pool": "p", "tier": "device"}, 0) in told  # it is not reported any more
    ray.update(metrics(Measured(Figures(), shares=shares())))
    told.clear()
    ray.update(metrics(Measured(Figures(), shares=(ShareStatus("client 'a'", 1.0, (0.3, 1.0), (), 1.0),))))
    seconds = "kaas_share_device_seconds_total", {"pool": "p", "share": "client 'a'"}
    assert ("inc", *seconds, 1.0) in told, "of a share that was taken away, and given again"


def test_buckets_hold_all_up_to_their_bound() -> None:
    ledger = Ledger(0.0)
    for bound in BOUNDS_S:
        ledger.write(LedgerEntry("f", "a", 0, "succeeded", {"queue": bound * 0.9}))
    (queue,) = [metric for metric in metrics(Measured(ledger.since_the_start())) if metric.name == "kaas_queue_seconds"]
    (sample,) = queue.samples
    assert isinstance(sample.value, Buckets)
    assert sample.value.counts == list(range(1, len(BOUNDS_S) + 1))

"""MLPerf's scenarios: the queries that they send, and the rules that a run keeps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from threading import Event, Thread, Timer
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from kaas.bench.load import Completion, Load
from kaas.bench.mlperf import scenarios
from kaas.bench.mlperf.scenarios import MlperfScenario, early_stopping, gathered, run
from kaas.errors import InvalidRequest, QueueFull
from tests.timeouts import TIMEOUT_S


def answered(_: int) -> Future[Any]:
    done: Future[Any] = Future()
    done.set_result(None)
    return done


@pytest.mark.parametrize(("percentile", "queries"), [(0.9, 64), (0.99, 662)])
def test_the_least_number_of_queries_for_a_percentile_is_that_of_the_rules(percentile: float, queries: int) -> None:
    latencies = [float(number) for number in range(queries)]
    assert early_stopping(latencies, percentile) == latencies[-1]
    assert early_stopping(latencies[1:], percentile) is None


def test_the_estimate_is_above_the_percentile_and_comes_near_it_with_more_queries() -> None:
    random = np.random.default_rng(3)
    gaps = []
    for queries in (100, 1000, 10_000, 100_000):
        latencies = sorted(random.random(queries))
        estimate = early_stopping(latencies, 0.9)
        assert estimate is not None
        assert estimate >= np.quantile(latencies, 0.9)
        gaps.append(estimate - 0.9)
    assert gaps[-1] < 0.01 < gaps[0]


def test_a_query_of_several_samples_ends_with_the_last_of_them() -> None:
    sent: dict[int, Future[Any]] = {}

    def send(number: int) -> Future[Any]:
        sent[number] = Future()
        return sent[number]

    query = gathered(send, 8, 3)
    assert sorted(sent) == [8, 9, 10]
    for number in (10, 8):
        sent[number].set_result(None)
        assert not query.done()
    sent[9].set_exception(QueueFull("the queue is full"))
    with pytest.raises(QueueFull):
        query.result(0)


@pytest.mark.parametrize(
    ("scenario", "samples"),
    [(MlperfScenario.SINGLE_STREAM, 1), (MlperfScenario.MULTI_STREAM, 8), (MlperfScenario.SERVER, 1)],
)
def test_a_short_run_has_figures_and_names_the_rules_that_it_breaks(scenario: MlperfScenario, samples: int) -> None:
    counts = Counter[int]()

    def send(number: int) -> Future[Any]:
        counts["sent"] += 1  # type: ignore[index]
        return answered(number)

    found = run(send, scenario, rate_per_s=2000.0, bound_s=1.0, duration_s=0.2)
    assert found.queries * samples == sum(counts.values())
    assert found.rate_per_s > 0
    assert not found.valid
    assert found.missing[0].startswith("a run takes 600 s or more, not 0.")


@pytest.mark.parametrize("scenario", [MlperfScenario.SINGLE_STREAM, MlperfScenario.SERVER])
def test_a_slow_last_query_makes_no_short_run_valid(monkeypatch: pytest.MonkeyPatch, scenario: MlperfScenario) -> None:
    monkeypatch.setattr(scenarios, "DURATION_S", 0.3)

    def send(number: int) -> Future[Any]:
        counts["sent"] += 1
        if counts["sent"] != 50:
            return answered(number)
        slow: Future[Any] = Future()
        Timer(0.4, slow.set_result, (None,)).start()
        return slow

    counts = Counter[str]()
    found = run(send, scenario, rate_per_s=1000.0, bound_s=1.0, duration_s=0.1)
    assert found.seconds > 0.3
    assert found.missing[0] == "a run takes 0.3 s or more, not 0.1 s"


def test_ctrl_c_while_an_offline_query_is_sent_is_told() -> None:
    def send(number: int) -> Future[Any]:
        if number == 3:
            raise KeyboardInterrupt
        return answered(number)

    found = run(send, MlperfScenario.OFFLINE, rate_per_s=50.0, bound_s=1.0, duration_s=0.2)
    assert (found.interrupted, found.queries, found.missing[0]) == (True, 0, "Ctrl-C ended it")


def test_an_interrupted_run_has_the_figures_that_there_are() -> None:
    def send(number: int) -> Future[Any]:
        if number == 0 and counts["sent"] == 3:
            raise KeyboardInterrupt
        counts["sent"] += 1
        return answered(number)

    counts = Counter[str]()
    found = run(send, MlperfScenario.SINGLE_STREAM, rate_per_s=1.0, bound_s=1.0, duration_s=60.0)
    assert (found.queries, found.valid) == (2, False), "the end after which Ctrl-C came is not counted"


def test_the_offline_scenario_sends_all_samples_in_one_query() -> None:
    sent: list[int] = []

    def send(number: int) -> Future[Any]:
        sent.append(number)
        return answered(number)

    found = run(send, MlperfScenario.OFFLINE, rate_per_s=500.0, bound_s=1.0, duration_s=0.2)
    assert (found.queries, sent, found.latency_s) == (1, [*range(100)], None)
    assert any(reason.startswith("the query has 24576 samples or more") for reason in found.missing)


def end(futures: list[Future[Any]]) -> None:
    for future in futures:
        future.set_result(None)


def test_an_offline_query_is_waited_for_as_long_as_it_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "DRAIN_S", 0.0)
    futures: list[Future[Any]] = []

    def send(_: int) -> Future[Any]:
        futures.append(Future())
        if len(futures) == 100:
            Thread(target=end, args=(futures,)).start()
        return futures[-1]

    found = run(send, MlperfScenario.OFFLINE, rate_per_s=5.0, bound_s=1.0, duration_s=20.0)
    assert (found.queries, found.errors, found.lost) == (1, 0, 0)
    assert found.rate_per_s == pytest.approx(100 / found.seconds)


def test_ctrl_c_while_the_last_queries_are_waited_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Iterator[Completion]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Load, "drain", interrupted)
    found = run(lambda _: Future(), MlperfScenario.OFFLINE, rate_per_s=5.0, bound_s=1.0, duration_s=0.1)
    assert (found.interrupted, found.lost, found.errors, found.queries) == (True, 1, 1, 0)
    assert found.missing[0] == "Ctrl-C ended it"


def test_a_query_with_a_cancelled_sample_ends() -> None:
    futures = [Future[Any](), Future[Any]()]
    whole = gathered(lambda number: futures[number], 0, 2)
    futures[0].cancel()
    assert not whole.done()
    futures[1].set_result(None)
    assert isinstance(whole.exception(timeout=TIMEOUT_S), CancelledError)


def test_a_run_that_keeps_the_rules_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "DURATION_S", 0.2)
    found = run(answered, MlperfScenario.SINGLE_STREAM, rate_per_s=1.0, bound_s=1.0, duration_s=0.2)
    assert (found.valid, found.missing) == (True, ())
    slow = run(answered, MlperfScenario.SERVER, rate_per_s=5000.0, bound_s=1e-9, duration_s=0.2)
    assert [reason.partition(" is ")[0] for reason in slow.missing] == ["the 99th percentile"]


@pytest.mark.full
def test_the_estimate_is_that_of_mlperfs_load_generator(tmp_path: Path) -> None:
    """Both have the latencies of the same run: the generator's own, and ours around each query."""
    loadgen: Any = pytest.importorskip("mlperf_loadgen")
    seconds: list[float] = []
    random = np.random.default_rng(5)

    def issue(samples: Any) -> None:
        began = perf_counter()
        Event().wait(random.uniform(1e-3, 3e-3))
        seconds.append(perf_counter() - began)
        loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(sample.id, 0, 0) for sample in samples])

    settings, logs = loadgen.TestSettings(), loadgen.LogSettings()
    settings.scenario, settings.mode = loadgen.TestScenario.SingleStream, loadgen.TestMode.PerformanceOnly
    settings.min_duration_ms, settings.min_query_count, settings.max_query_count = 1, 300, 300
    logs.log_output.outdir = str(tmp_path)
    service = loadgen.ConstructSUT(issue, lambda: None)
    library = loadgen.ConstructQSL(1, 1, lambda _: None, lambda _: None)
    loadgen.StartTestWithLogSettings(service, library, settings, logs)
    loadgen.DestroyQSL(library)
    loadgen.DestroySUT(service)
    told = (tmp_path / "mlperf_log_summary.txt").read_text()
    (theirs_ns,) = re.findall(r"Early stopping 90.0th percentile estimate: (\d+)", told)
    ours = early_stopping(sorted(seconds), 0.9)
    assert ours == pytest.approx(int(theirs_ns) / 1e9, rel=0.05)
    (discarded,) = re.findall(r"Would discard (\d+) highest latency queries", told)
    assert early_stopping([*range(300)], 0.9) == 299 - int(discarded)


def test_a_run_without_a_reply_and_one_that_is_too_large() -> None:
    slow = run(answered, MlperfScenario.SERVER, rate_per_s=0.001, bound_s=1.0, duration_s=0.01)
    assert (slow.queries, slow.valid) == (0, False)
    with pytest.raises(InvalidRequest, match="1000000 samples at most"):
        run(answered, MlperfScenario.OFFLINE, rate_per_s=100.0, bound_s=1.0, duration_s=float("inf"))

"""MLPerf's own load generator as the driver of its scenarios (`pip install mlcommons-loadgen`).

It decides when each query is sent, takes the times, and judges the run. Source: MLCommons' LoadGen, `mlperf_loadgen`.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from time import perf_counter
from typing import Any

from kaas.bench.load import Send
from kaas.bench.mlperf.scenarios import (
    DURATION_S,
    OBSERVED,
    MlperfScenario,
    ScenarioResult,
    gathered,
    offline_samples,
    rules_broken,
)
from kaas.errors import KaasError, MissingPackage

SUMMARY = "mlperf_log_summary.txt"
NAMES = {
    MlperfScenario.SINGLE_STREAM: "SingleStream",
    MlperfScenario.MULTI_STREAM: "MultiStream",
    MlperfScenario.SERVER: "Server",
    MlperfScenario.OFFLINE: "Offline",
}
SAMPLES = 1024
"""Numbers of samples that LoadGen chooses from."""
TRIALS = 20
"""Samples before a run of streams: LoadGen makes its queries ahead, twice as many as their latency has room for."""
MOST_QUERIES = 8_000_000
"""The most that it makes, of 85 bytes each. A run that needs more ends early, and is not valid."""


def check_installed() -> None:
    """Check that LoadGen is here.

    Raises:
        MissingPackage
    """
    if find_spec("mlperf_loadgen") is None:
        told = "MLPerf's load generator is not installed: pip install mlcommons-loadgen"
        raise MissingPackage(told, package="mlperf_loadgen", install="mlcommons-loadgen")


def run(
    send: Send, scenario: MlperfScenario, *, rate_per_s: float, bound_s: float, duration_s: float = DURATION_S
) -> ScenarioResult:
    """Have LoadGen run a scenario. The arguments are those of `kaas.bench.mlperf.scenarios.run`, as is the result.

    Ctrl-C ends the process.

    Raises:
        InvalidRequest: an offline query that is too large.
    """
    import mlperf_loadgen as loadgen

    settings, logs = loadgen.TestSettings(), loadgen.LogSettings()
    settings.scenario, settings.mode = getattr(loadgen.TestScenario, NAMES[scenario]), loadgen.TestMode.PerformanceOnly
    settings.min_duration_ms, settings.min_query_count = max(1, round(duration_s * 1e3)), 1
    match scenario:
        case MlperfScenario.SERVER:
            settings.server_target_qps, settings.server_target_latency_ns = rate_per_s, round(bound_s * 1e9)
        case MlperfScenario.OFFLINE:
            offline_samples(rate_per_s, duration_s)  # refuses what is too large
            settings.offline_expected_qps = rate_per_s
        case _:
            least_s = min(_seconds(send, number) for number in range(TRIALS))
            expected_ns = round(max(least_s, 2 * duration_s / MOST_QUERIES) * 1e9)
            settings.single_stream_expected_latency_ns = settings.multi_stream_expected_latency_ns = expected_ns
    service = _TestedService(send, loadgen)
    tested = loadgen.ConstructSUT(service.issue, lambda: None)
    library = loadgen.ConstructQSL(SAMPLES, SAMPLES, lambda _: None, lambda _: None)
    with TemporaryDirectory() as folder, _ended_by_ctrl_c():
        logs.log_output.outdir, logs.log_output.copy_summary_to_stdout = folder, False
        began_s = perf_counter()
        loadgen.StartTestWithLogSettings(tested, library, settings, logs)
        seconds = perf_counter() - began_s
        summary = (Path(folder) / SUMMARY).read_text()
    loadgen.DestroyQSL(library)
    loadgen.DestroySUT(tested)
    # LoadGen says itself if queries came for as long as it was asked for
    missing = (*rules_broken(scenario, service.samples, duration_s, service.errors), *_unsatisfied(summary))
    rate_per_s, latency_s = service.answered * service.samples / seconds, _latency_s(summary, scenario)
    driver = f"LoadGen {version('mlcommons-loadgen')}"
    figures = (service.answered, seconds, rate_per_s, latency_s, service.errors)
    return ScenarioResult(scenario, *figures, missing, driver=driver, observed_s=_observed_s(summary))


class _TestedService:
    """The service under test as LoadGen sees it: it takes queries, and tells the end of each.

    Fields:
        samples: of a query. answered: queries that ended with a result. errors: the others.
    """

    def __init__(self, send: Send, loadgen: Any) -> None:
        self._send, self._loadgen, self._lock, self._sent = send, loadgen, Lock(), 0
        self.samples = self.answered = self.errors = 0

    def issue(self, samples: Sequence[Any]) -> None:
        """Send a query."""
        number, self.samples = self._sent, len(samples)
        self._sent += self.samples
        try:
            future = gathered(self._send, number, self.samples) if self.samples > 1 else self._send(number)
        except KaasError as error:  # a refusal is an end like others
            future = Future()
            future.set_exception(error)
        future.add_done_callback(partial(self._ended, [sample.id for sample in samples]))

    def _ended(self, names: Sequence[int], future: Future[Any]) -> None:
        failed = future.cancelled() or future.exception() is not None
        with self._lock:
            self.errors += failed
            self.answered += not failed
        self._loadgen.QuerySamplesComplete([self._loadgen.QuerySampleResponse(name, 0, 0) for name in names])


@contextmanager
def _ended_by_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C end the process: LoadGen waits without a look at signals, and cannot be left by an exception."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # another thread's business, or a shell's that ignores Ctrl-C
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _seconds(send: Send, number: int) -> float:
    began_s = perf_counter()
    send(number).result()
    return perf_counter() - began_s


def _latency_s(summary: str, scenario: MlperfScenario) -> float | None:
    """Return the latency that counts in a summary: streams have an estimate by early stopping."""
    if scenario.percentile is None:
        return None
    percentile = scenario.percentile * 100
    title = rf"{percentile:.2f} percentile latency \(ns\)\s*"
    if scenario is not MlperfScenario.SERVER:
        title = rf"Early stopping {percentile:.1f}th percentile estimate"
    found = re.search(rf"{title}:\s*(\d+)", summary)
    return int(found[1]) / 1e9 if found else None


def _observed_s(summary: str) -> dict[str, float]:
    """Return the percentiles of a summary that are no estimates, by name."""
    found = re.findall(r"(\d+)\.00 percentile latency \(ns\)\s*:\s*(\d+)", summary)
    return {f"p{percent}": int(ns) / 1e9 for percent, ns in found if f"p{percent}" in OBSERVED}


def _unsatisfied(summary: str) -> list[str]:
    """Return what LoadGen says that a valid run would have."""
    return [f"LoadGen: {rule.lower()} is not satisfied" for rule in re.findall(r"(\w[\w ]*) satisfied\s*: NO", summary)]

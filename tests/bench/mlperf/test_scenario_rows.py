"""The line of a scenario has the latency that counts, or the percentiles that its queries suffice for."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from kaas.bench.mlperf.scenarios import MlperfScenario, ScenarioResult, run
from kaas.bench.rows import scenario_row
from kaas.bench.service import LoadedService
from kaas.cli.bench.tables import show_scenario

STREAM, SINGLE = MlperfScenario.MULTI_STREAM, MlperfScenario.SINGLE_STREAM
OBSERVED = {"p50": 0.002, "p90": 0.003}


def call() -> Future[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return done


def line(found: ScenarioResult, capsys: pytest.CaptureFixture[str]) -> str:
    service = LoadedService({"": SimpleNamespace(call=call)}, list, (), {}, ())
    options: dict[str, Any] = {"rate_per_s": 1.0, "bound_s": 1.0, "duration_s": 1.0}
    show_scenario(scenario_row(service, {}, found.scenario, **options, run=lambda *_, **__: found))
    return capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize(
    ("scenario", "queries", "latency_s", "told"),
    [
        (STREAM, 1000, 0.004, "1000 queries, 40 samples/s, p99 4 ms"),
        (STREAM, 50, None, "50 queries, 40 samples/s, p50 2 ms, p90 3 ms"),
        (STREAM, 9, None, "9 queries, 40 samples/s, p50 2 ms"),
        (MlperfScenario.SERVER, 1, None, "1 query, 40 samples/s"),
        (SINGLE, 20, None, "20 queries, 40 samples/s, p50 2 ms"),
        (MlperfScenario.OFFLINE, 1, None, "1 query, 40 samples/s"),
    ],
)
def test_a_line_of_few_queries(
    scenario: MlperfScenario, queries: int, latency_s: float | None, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ScenarioResult(scenario, queries, 1.0, 40.0, latency_s, 0, ("short",), observed_s=OBSERVED)
    assert line(found, capsys) == f"MLPerf {scenario.value} by KaaS: {told}: not valid"


def test_a_run_has_the_percentiles_of_its_queries() -> None:
    found = run(lambda _: call(), STREAM, rate_per_s=1.0, bound_s=1.0, duration_s=0.01)
    assert 0 < found.observed_s["p50"] <= found.observed_s["p90"]

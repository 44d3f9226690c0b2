"""MLPerf's LoadGen drives the scenarios where it is installed, and its figures are those of our own driver."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from kaas.bench.mlperf import loadgen, scenarios
from kaas.bench.mlperf.scenarios import MlperfScenario
from kaas.errors import InvalidRequest, QueueFull
from tests.timeouts import TIMEOUT_S

pytest.importorskip("mlperf_loadgen")

SERVICE_S = 2e-3


@pytest.fixture
def service() -> Iterator[ThreadPoolExecutor]:
    """One that answers eight samples at a time."""
    with ThreadPoolExecutor(8) as threads:
        yield threads


def answered(_: int) -> Future[Any]:
    done: Future[Any] = Future()
    done.set_result(None)
    return done


@pytest.mark.parametrize("scenario", MlperfScenario)
def test_every_scenario_counts_its_queries_and_names_the_rules_that_it_breaks(
    scenario: MlperfScenario, service: ThreadPoolExecutor
) -> None:
    sent: list[int] = []

    def send(number: int) -> Future[Any]:
        sent.append(number)
        return service.submit(int)

    found = loadgen.run(send, scenario, rate_per_s=400.0, bound_s=1.0, duration_s=0.2)
    trials = loadgen.TRIALS if scenario in (MlperfScenario.SINGLE_STREAM, MlperfScenario.MULTI_STREAM) else 0
    assert len(sent) - trials == found.queries * (len(sent) if scenario is MlperfScenario.OFFLINE else scenario.samples)
    assert found.rate_per_s > 0
    assert found.driver.startswith("LoadGen ")
    assert (found.errors, found.valid) == (0, False)
    assert found.missing[0].startswith("a run takes 600 s or more, not 0.")


@pytest.mark.full
@pytest.mark.parametrize("scenario", [MlperfScenario.SINGLE_STREAM, MlperfScenario.MULTI_STREAM, MlperfScenario.SERVER])
def test_both_drivers_find_the_same_of_a_service(scenario: MlperfScenario, service: ThreadPoolExecutor) -> None:
    def send(_: int) -> Future[Any]:
        return service.submit(Event().wait, SERVICE_S)

    asked: dict[str, Any] = {"rate_per_s": 200.0, "bound_s": 1.0, "duration_s": 4.0}
    theirs, ours = (run(send, scenario, **asked) for run in (loadgen.run, scenarios.run))
    assert theirs.latency_s is not None
    assert ours.latency_s is not None
    assert ours.rate_per_s == pytest.approx(theirs.rate_per_s, rel=0.3)
    assert min(theirs.latency_s, ours.latency_s) >= SERVICE_S


def test_a_query_without_a_result_is_an_error(service: ThreadPoolExecutor) -> None:
    def send(number: int) -> Future[Any]:
        if number % 5 == 1:
            raise QueueFull("the queue is full")
        return service.submit(int, "" if number % 5 == 2 else "1")

    found = loadgen.run(send, MlperfScenario.SERVER, rate_per_s=400.0, bound_s=1.0, duration_s=0.2)
    assert found.errors > 1
    assert f"{found.errors} queries have no result" in found.missing


INTERRUPTED = """
import os, signal
from concurrent.futures import Future
from kaas.bench.mlperf import loadgen
from kaas.bench.mlperf.scenarios import MlperfScenario
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it
def send(number):
    if number == 9:
        os.kill(os.getpid(), signal.SIGINT)
    return Future()
loadgen.run(send, MlperfScenario.SERVER, rate_per_s=2000.0, bound_s=1.0, duration_s=60.0)
"""


@pytest.mark.processes
def test_ctrl_c_ends_the_program_while_queries_have_no_end() -> None:
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], check=False, timeout=TIMEOUT_S)
    assert ended.returncode == -signal.SIGINT


def test_an_offline_query_that_is_too_large() -> None:
    with pytest.raises(InvalidRequest, match="1000000 samples at most"):
        loadgen.run(answered, MlperfScenario.OFFLINE, rate_per_s=1e6, bound_s=1.0, duration_s=600.0)

"""The figures by which policies are compared, on scenarios calculated by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.scheduling.comparing.figures import PolicyFigures, RunObserver, measure
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulator import simulate
from tests.scheduling.simulation.test_invariants import scenarios


def figures(policy: str = "fcfs", **told: Any) -> PolicyFigures:
    return measure(read({"policy": {"name": policy}, **told}))


def requests(*told: tuple[float, str]) -> list[dict[str, Any]]:
    return [{"at_s": at_s, "function": function} for at_s, function in told]


def function(client: str = "default", **more: Any) -> dict[str, Any]:
    return {"memory_mb": 1, "run_s": 1, "client": client, **more}


def test_latencies_by_request_function_and_client() -> None:
    """A ends at 1 and 2, B at 3 and 4: means 1.5 and 3.5."""
    functions = {"A": function("a"), "B": function("b")}
    found = figures(functions=functions, requests=requests((0, "A"), (0, "A"), (0, "B"), (0, "B")))
    assert found.mean_latency_s == 2.5
    assert [found.p50_latency_s, found.p99_latency_s] == pytest.approx([2, 4], rel=1e-3)
    assert found.latency_sd == pytest.approx(1.25**0.5)
    assert (found.function_variance, found.client_variance) == (1, 1)
    assert found.utilisation == 1


def test_rejected_requests_are_a_part_of_all_and_have_no_latency() -> None:
    """The second and the third request wait for the first, and miss their deadlines; the fourth does not."""
    told = [*({"at_s": 0, "function": "A", "deadline_s": 1.5} for _ in range(3)), {"at_s": 5, "function": "A"}]
    found = figures(functions={"A": function()}, requests=told)
    assert (found.rejected_ratio, found.mean_latency_s) == (0.5, 1)


def test_jain_is_of_what_clients_get_while_they_wait_over_what_they_are_entitled_to() -> None:
    """Client a waits until 1, and b until 3. From 0 to 1 each is entitled to a half, then b to all: 0.5 and 2.5 s.

    Of the requests that waited, a got one second and b two: 2 and 0.8 times as much.
    """
    functions = {"A": function("a"), "B": function("b")}
    found = figures(functions=functions, requests=requests((0, "A"), (0, "A"), (0, "B"), (0, "B")))
    assert found.waiting_jain == pytest.approx(2.8**2 / (2 * (2**2 + 0.8**2)))


def test_clients_whose_requests_never_wait_do_not_count_for_waiting_jain() -> None:
    functions = {"A": function("a"), "B": function("b", run_s=0.1)}
    found = figures(devices=[{}, {}], functions=functions, requests=requests((0, "A"), (0, "B"), (5, "B")))
    assert found.waiting_jain == 1


def test_misses_false_misses_and_copies() -> None:
    """The first A is loaded on device 0; the second, while that is busy, on device 1, though device 0 has it.

    Loads count from the end of the request that loaded: device 0 has A from 1 to 5, and device 1 from 1.5 to 5.
    """
    found = figures(devices=[{}, {}], functions={"A": function()}, requests=requests((0, "A"), (0.5, "A"), (4, "A")))
    assert found.miss_ratio == pytest.approx(2 / 3)
    assert found.false_miss_ratio == 0.5
    assert found.duplicates == pytest.approx((4 + 3.5) / 5)
    assert found.cold_ratio == 0


def test_copies_are_those_of_the_function_that_is_called_most() -> None:
    told = {"A": function(memory_mb=16000), "B": function(memory_mb=16000)}
    found = figures(functions=told, requests=requests((0, "A"), (1, "B"), (2, "B")))
    assert found.duplicates == pytest.approx(1 / 3)  # B from 2 to 3


def test_workers_that_start_for_a_function_are_cold_starts() -> None:
    told = {"A": function(cold_s=1, client="a"), "B": function(cold_s=1, client="b")}
    found = figures("exclusive", functions=told, requests=requests((0, "A"), (0, "B"), (9, "B")))
    assert found.cold_ratio == found.miss_ratio == pytest.approx(2 / 3)


def test_nothing_happens_without_requests() -> None:
    found = figures()
    assert (found.mean_latency_s, found.duplicates, found.utilisation, found.waiting_jain) == (0, 0, 0, 1)


def test_a_request_that_runs_again_after_a_failure_counts_from_its_arrival() -> None:
    """The device fails at 1, when A runs and B waits: A runs from 1 to 3, B to 5."""
    told: dict[str, Any] = {
        "devices": [{"memory_mb": 4}],
        "functions": {"A": function("a", run_s=2), "B": function("b", run_s=2)},
        "requests": requests((0, "A"), (0, "B")),
        "failures": [{"at_s": 1, "device": 0}],
    }
    found = figures(**told)
    assert found.mean_latency_s == 4
    assert found.client_variance == 1


@pytest.mark.parametrize("policy", ["fcfs", "exclusive", "mqfq_sticky", "adaptive"])
@given(st.data())
def test_figures_of_any_scenario_agree_with_its_summary(policy: str, data: st.DataObject) -> None:
    scenario = read(data.draw(scenarios(policy)))
    observer = RunObserver(scenario.weights())
    result = simulate(scenario, observe=observer)
    found = observer.figures(result.summary, sum(device.slots for device in scenario.devices))
    assert observer.latency.mean == pytest.approx(result.summary.mean_latency_s)
    assert observer.latency.count == len(scenario.requests) - result.summary.rejected
    assert all(0 <= ratio <= 1 for ratio in (found.miss_ratio, found.false_miss_ratio, found.cold_ratio))
    assert 0 <= found.duplicates <= len(scenario.devices)
    assert 0 < found.waiting_jain <= 1 + 1e-9

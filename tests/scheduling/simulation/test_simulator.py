"""The simulator: scenarios small enough to calculate by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
from typer.testing import CliRunner

from kaas.cli.main import app
from kaas.errors import PolicyError
from kaas.scheduling.events import PhysicalDevice
from kaas.scheduling.policies import POLICIES
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from kaas.scheduling.simulation.scenario_file import parse, read
from kaas.scheduling.simulation.simulated import jain
from kaas.scheduling.simulation.simulator import simulate
from tests.scheduling.simulation.simulations import Told, places, requests, run

ROOT = Path(__file__).parents[3]


def test_the_first_loads_and_the_second_hits() -> None:
    result = run(functions={"A": {"load_s": 2, "run_s": 1}}, requests=requests((0.5, "A"), (0.5, "A")))
    assert places(result) == [(0, 0, 0.5, "load"), (1, 0, 3.5, "hit")]
    assert result.summary.device_busy_s == (4.0,)
    assert result.summary.mean_latency_s == 3.5
    assert (result.summary.p50_latency_s, result.summary.p99_latency_s) == (3.0, 4.0)
    assert (result.summary.hits, result.summary.loads, result.summary.colds) == (1, 1, 0)


def test_decimal_times_do_not_drift() -> None:
    """0.1 + 0.2 is 0.3: the completion there comes before the arrival."""
    functions = {"A": {"run_s": 0.2}, "B": {"run_s": 0.1}, "C": {}}
    result = run(functions=functions, requests=requests((0.1, "A"), (0.3, "B"), (0.4, "C")))
    assert places(result) == [(0, 0, 0.1, "load"), (1, 0, 0.3, "load"), (2, 0, 0.4, "load")]
    assert result.summary.mean_latency_s == pytest.approx(0.1)


def test_arrivals_are_ordered_by_time_and_then_as_in_the_scenario() -> None:
    result = run(functions={"A": {"run_s": 1}}, requests=requests((2, "A"), (0, "A"), (0, "A")))
    assert [each.request for each in result.dispatches] == [1, 2, 0]


def test_completions_precede_arrivals_and_are_ordered_by_device() -> None:
    """Both devices end at 1, first the lower one; what arrives then finds both free, and takes the one freed last."""
    result = run(devices=[{}, {}], functions={"A": {"run_s": 1}}, requests=requests((0, "A"), (0, "A"), (1, "A")))
    assert sorted(each.device for each in result.dispatches[:2]) == [0, 1]
    assert result.dispatches[2].device == 1


def test_run_times_of_requests_and_speeds_of_devices() -> None:
    told: list[Told] = [{"function": "A", "run_s": 3}, {"function": "A"}, {"function": "A", "run_s": 0}]
    result = run(devices=[{"speed": 2}], functions={"A": {"load_s": 1, "run_s": 1}}, requests=told)
    assert places(result) == [(0, 0, 0.0, "load"), (1, 0, 2.5, "hit"), (2, 0, 3.0, "hit")]
    assert result.summary.per_client["default"].charged_s == 3.0


def test_a_busy_device_is_free_at_its_time_and_no_client_is_charged() -> None:
    devices = [{"busy_until_s": 5, "cached": ["A"], "slots": 2}]
    result = run(devices=devices, functions={"A": {"run_s": 1}}, requests=requests((0, "A"), (0, "A")))
    assert places(result) == [(0, 0, 5.0, "hit"), (1, 0, 5.0, "hit")]
    assert result.summary.device_busy_s == (2.0,)


# --- deadlines


def test_a_deadline_in_the_queue() -> None:
    told: list[Told] = [{"function": "A"}, {"function": "A", "deadline_s": 1.5}, {"function": "A", "at_s": 1}]
    result = run(functions={"A": {"run_s": 2}}, requests=told)
    assert places(result) == [(0, 0, 0.0, "load"), (2, 0, 2.0, "hit")]
    assert [(each.request, each.at_s, each.reason) for each in result.rejected] == [(1, 1.5, "deadline")]


def test_a_request_past_its_deadline_keeps_its_slot_while_it_runs() -> None:
    told: list[Told] = [{"function": "A", "deadline_s": 1}, {"function": "A"}]
    result = run(functions={"A": {"run_s": 2}}, requests=told)
    assert places(result) == [(0, 0, 0.0, "load"), (1, 0, 2.0, "hit")]
    assert [(each.request, each.at_s, each.reason) for each in result.rejected] == [(0, 1.0, "deadline")]
    assert result.summary.mean_latency_s == 4.0
    assert result.summary.per_client["default"].charged_s == 4.0


def test_a_request_that_ends_at_its_deadline_succeeds() -> None:
    result = run(functions={"A": {"run_s": 2}}, requests=[{"function": "A", "deadline_s": 2}])
    assert not result.rejected


def test_a_request_waiting_for_room_is_rejected_at_its_deadline() -> None:
    functions = {"A": {"memory_mb": 8, "run_s": 3}, "B": {"memory_mb": 8, "run_s": 1}}
    told: list[Told] = [
        {"function": "A"},
        {"function": "B", "deadline_s": 1},
        {"function": "A", "at_s": 2},
    ]
    result = run(devices=[{"memory_mb": 8, "slots": 2}], functions=functions, requests=told)
    assert places(result) == [(0, 0, 0.0, "load"), (2, 0, 2.0, "hit")]
    assert [(each.request, each.at_s) for each in result.rejected] == [(1, 1.0)]


# --- figures


def test_nothing_to_do() -> None:
    summary = run(clients={"c": {}}).summary
    assert (summary.mean_latency_s, summary.p50_latency_s, summary.jain, summary.device_busy_s) == (0.0, 0.0, 1.0, (0,))
    assert summary.per_client["c"].requests == 0


def test_jain_is_of_charges_by_weight_of_clients_with_requests() -> None:
    functions = {"A": {"client": "a", "run_s": 2}, "B": {"client": "b", "run_s": 1}}
    told: Told = {"functions": functions, "requests": requests((0, "A"), (0, "B"))}
    assert run(**told).summary.jain == pytest.approx(9 / 10)
    assert run(**told, clients={"a": {"weight": 2}, "c": {}}).summary.jain == pytest.approx(1.0)
    assert list(run(**told, clients={"c": {}}).summary.per_client) == ["c", "a", "b"]
    assert jain([1, 0, 0, 0]) == 0.25


def test_quantiles_are_by_nearest_rank() -> None:
    told = [{"function": "A", "at_s": 1000 * index, "run_s": index + 1} for index in range(100)]
    summary = run(functions={"A": {}}, requests=told).summary
    assert (summary.p50_latency_s, summary.p99_latency_s) == (50.0, 99.0)


def test_a_policy_that_takes_a_seed_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Seeded(FirstComeFirstServed):
        seen: ClassVar[list[int]] = []

        def __init__(self, devices: Sequence[PhysicalDevice], *, seed: int = 1) -> None:
            super().__init__(devices)
            self.seen.append(seed)

    monkeypatch.setitem(POLICIES, "seeded", Seeded)
    run(policy={"name": "seeded"}, seed=5)
    run(policy={"name": "seeded", "seed": 9}, seed=5)
    assert Seeded.seen == [5, 9]


# --- the command


def test_the_scenario_of_the_documentation_runs() -> None:
    text = (ROOT / "docs" / "simulator.md").read_text()
    scenario = parse(text.partition("```json\n")[2].partition("```")[0])
    assert places(simulate(scenario)) == [(0, 0, 1.0, "hit")]


def test_the_command_prints_json_of_the_documented_shape(tmp_path: Path) -> None:
    path = tmp_path / "scenario.json"
    told: Told = {
        "devices": [{"memory_mb": 8, "cached": ["A"], "busy_until_s": 1.0}],
        "functions": {"A": {"memory_mb": 4, "load_s": 2.0, "run_s": 1.0, "client": "c0"}, "B": {"memory_mb": 8}},
        "requests": [*requests((0, "A"), (0, "B")), {"function": "A", "deadline_s": 0.5}],
    }
    path.write_text(json.dumps(told))
    ended = CliRunner().invoke(app, ["simulate", str(path), "--json"])
    assert ended.exit_code == 0
    plain = {"false_miss": False, "promised": False}
    assert json.loads(ended.stdout) == {
        "dispatches": [
            {"request": 0, "device": 0, "at_s": 1.0, "start": "hit", "evicted": [], **plain},
            {"request": 1, "device": 0, "at_s": 2.0, "start": "load", "evicted": ["A"], **plain},
        ],
        "rejected": [{"request": 2, "at_s": 0.5, "reason": "deadline"}],
        "summary": {
            "mean_latency_s": 2.0,
            "p50_latency_s": 2.0,
            "p99_latency_s": 2.0,
            "hits": 1,
            "loads": 1,
            "fetches": 0,
            "colds": 0,
            "false_misses": 0,
            "evictions": 1,
            "rejected": 1,
            "device_busy_s": [1.0],
            "jain": 0.5,
            "per_client": {
                "c0": {"requests": 2, "mean_latency_s": 2.0, "charged_s": 1.0, "p99_latency_s": 2.0},
                "default": {"requests": 1, "mean_latency_s": 2.0, "charged_s": 0.0, "p99_latency_s": 2.0},
            },
            "per_share": {},
        },
    }
    assert msgspec.json.decode(msgspec.json.encode(run(**told))) == json.loads(ended.stdout)


def test_the_command_prints_tables(tmp_path: Path) -> None:
    path = tmp_path / "scenario.json"
    told: Told = {"functions": {"A": {}}, "requests": [*requests((0, "A"), (1, "A")), {"function": "A"}]}
    path.write_text(json.dumps(told))
    ended = CliRunner().invoke(app, ["simulate", str(path), "--rows", "2"])
    assert ended.exit_code == 0
    assert "dispatches, 2 of 3" in ended.stdout
    assert "p99_latency_s" in ended.stdout


def test_a_policy_that_cannot_be_made_is_one_error() -> None:
    class NoDevices:
        pass

    scenario = read({"devices": [{}], "functions": {"A": {}}, "requests": requests((0, "A"))})
    with pytest.raises(PolicyError, match="takes no arguments"):
        simulate(scenario, NoDevices)  # type: ignore[arg-type]

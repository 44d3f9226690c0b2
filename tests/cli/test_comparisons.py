"""`kaas simulate --policies`: policies side by side, with their spread over seeds, and options swept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kaas.cli.comparisons import swept
from kaas.cli.main import app
from kaas.errors import InvalidConfig, InvalidRequest, InvalidScenario, InvalidTrace

pytestmark = pytest.mark.processes
runner = CliRunner()
SCENARIO = {
    "policy": {"name": "lalbo3", "holder": "first"},
    "devices": [{"memory_mb": 10}, {"memory_mb": 10}],
    "functions": {
        name: {"memory_mb": 6, "load_s": 2, "run_s": 1, "run_cv": 0.5, "client": f"c{name}"} for name in "ABC"
    },
    "requests": [{"function": "ABCA"[number % 4], "at_s": number / 2} for number in range(60)],
}


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(SCENARIO))
    return str(path)


def rows(*arguments: str) -> list[dict[str, Any]]:
    ended = runner.invoke(app, ["simulate", *arguments, "--json"], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    found: list[dict[str, Any]] = json.loads(ended.stdout)
    return found


def test_policies_are_compared_over_seeds(scenario: str) -> None:
    found = rows(scenario, "--policies", "fcfs,lalb", "--seeds", "3")
    assert [row["policy"] for row in found] == ["fcfs", "lalb"]
    mean_s, sd = found[0]["mean_latency_s"]
    assert mean_s > 0 < sd
    assert found[1]["miss_ratio"][0] < found[0]["miss_ratio"][0]
    assert found == rows(scenario, "--policies", "fcfs,lalb", "--seeds", "3")


def test_a_seed_alone_is_the_run_that_simulate_shows(scenario: str) -> None:
    (found,) = rows(scenario, "--seeds", "1")
    ended = runner.invoke(app, ["simulate", scenario, "--json"])
    summary = json.loads(ended.stdout)["summary"]
    assert found["mean_latency_s"] == [summary["mean_latency_s"], 0]
    same = found.keys() & summary.keys() - {"per_client"}
    assert {name: found[name][0] for name in same} == pytest.approx({name: summary[name] for name in same}, rel=1e-3)


def test_each_client_s_latencies_are_told_and_the_worst_mean_is_in_the_table(tmp_path: Path) -> None:
    """The light client waits for the others' 3 s: 3.5 s, and then for none: 0.5 s."""
    path = tmp_path / "light.json"
    functions = {"h": {"run_s": 1, "client": "heavy"}, "l": {"run_s": 0.5, "client": "light"}}
    told = [*[{"function": "h"}] * 3, {"function": "l"}, {"function": "l", "at_s": 10}]
    path.write_text(json.dumps({"functions": functions, "requests": told}))
    (found,) = rows(str(path), "--policies", "fcfs")
    assert found["per_client"]["light"] == {"mean_latency_s": [2.0, 0], "p99_latency_s": [pytest.approx(3.5, 1e-3), 0]}
    assert found["per_client"]["heavy"]["mean_latency_s"] == [2.0, 0]
    assert found["worst_client_s"] == [2.0, 0]
    assert "worst client's mean (s)" in runner.invoke(app, ["simulate", str(path), "--policies", "fcfs"]).stdout
    ended = runner.invoke(app, ["simulate", str(path), "--json"])
    light = json.loads(ended.stdout)["summary"]["per_client"]["light"]
    assert light == {"requests": 2, "mean_latency_s": 2.0, "p99_latency_s": 3.5, "charged_s": 1.0}


def test_policies_with_the_same_figures_are_named(scenario: str) -> None:
    ended = runner.invoke(app, ["simulate", scenario, "--policies", "fcfs,lalb,edf,static"], catch_exceptions=False)
    assert "the same figures: fcfs, edf, static (" in ended.stderr
    assert "the same figures" not in runner.invoke(app, ["simulate", scenario, "--policies", "fcfs,lalb"]).stderr


def test_an_option_is_swept_for_the_policies_that_have_it(scenario: str) -> None:
    found = rows(scenario, "--policies", "fcfs,lalbo3", "--sweep", "limit=0..2")
    assert [(row["policy"], row.get("limit")) for row in found] == [
        ("fcfs", None),
        ("lalbo3", 0),
        ("lalbo3", 1),
        ("lalbo3", 2),
    ]
    assert len(rows(scenario, "--policies", "mqfq_sticky", "--sweep", "order=paper,longest")) == 2


def test_the_table_shows_each_figure_with_its_spread(scenario: str) -> None:
    ended = runner.invoke(app, ["simulate", scenario, "--policies", "fcfs,sjf", "--seeds", "2"])
    assert ended.exit_code == 0
    assert "mean ± standard deviation over 2 seeds" in ended.stdout
    assert "±" in next(line for line in ended.stdout.splitlines() if "sjf" in line)


def test_the_table_and_the_rows_show_how_many_requests_were_rejected(tmp_path: Path) -> None:
    path = tmp_path / "deadlines.json"
    late = {"functions": {"A": {"run_s": 1}}, "requests": [{"function": "A", "deadline_s": 1.5}] * 4}
    path.write_text(json.dumps(late))
    (found,) = rows(str(path), "--seeds", "1")
    assert found["rejected_ratio"] == [0.75, 0]
    ended = runner.invoke(app, ["simulate", str(path), "--seeds", "1"])
    head, row = (line.split() for line in ended.stdout.splitlines() if "rejected" in line or "0.75" in line)
    assert "rejected" in head
    assert "0.75" in row


def test_a_plot_is_a_png(scenario: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for more in ((), ("--sweep", "limit=0,5")):
        file = tmp_path / "out.png"
        rows(scenario, "--policies", "fcfs,lalbo3", "--plot", str(file), *more)
        assert file.read_bytes().startswith(b"\x89PNG")


def test_a_drawn_workload_is_compared_with_other_calls_for_each_seed(tmp_path: Path) -> None:
    path = tmp_path / "drawn.json"
    path.write_text(json.dumps({"workload": {"synthetic": {"functions": 5, "rate": 2, "minutes": 1}}}))
    found = rows(str(path), "--policies", "fcfs,lalb", "--seeds", "2")
    assert all(row["mean_latency_s"][1] > 0 for row in found)
    ended = runner.invoke(app, ["simulate", str(path), "--json"], catch_exceptions=False)
    assert len(json.loads(ended.stdout)["dispatches"]) > 50


def test_a_wrong_line_of_a_trace_is_named_also_from_another_process(tmp_path: Path) -> None:
    path = tmp_path / "azure.json"
    path.write_text(json.dumps({"workload": {"azure2019": str(tmp_path), "minutes": [0, 60]}}))
    (tmp_path / "invocations_per_function_md.anon.d01.csv").write_text("HashOwner\n")
    for more in ([], ["--seeds", "2"]):
        with pytest.raises(InvalidTrace, match=r"d01\.csv, line 1: no column 'HashApp'"):
            runner.invoke(app, ["simulate", str(path), *more], catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policies", "fcfs,fifo"), "fifo"),
        (("--policies", "fcfs,fcfs"), "twice"),
        (("--policies", "fcfs", "--sweep", "limit=0..3"), "--sweep limit: no such option of fcfs"),
        (("--sweep", "limit"), "--sweep is option="),
        (("--sweep", "limit=1,x"), "limit is a whole number"),
        (("--plot", "/no/such/folder/out.png"), "/no/such/folder/out.png: there is no folder /no/such/folder"),
        (("--policy", "fcfs", "--seeds", "2"), "--policies"),
        (("--sweep", "T=1", "--sweep", "alpha=2"), "one option"),
        (("--policies", "fcfs", "--plot", "figures.jpg"), "does not end with .png"),
    ],
)
def test_mistakes_name_the_option(scenario: str, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises((InvalidRequest, InvalidConfig, InvalidScenario), match=message):
        runner.invoke(app, ["simulate", scenario, *arguments], catch_exceptions=False)


def test_sweeps_are_ranges_or_lists() -> None:
    assert swept("limit=3..5") == ("limit", (3, 4, 5))
    assert swept("T=1.5,10") == ("T", (1.5, 10))
    assert swept("order=paper, longest") == ("order", ("paper", "longest"))
    assert swept("fair=true,false") == ("fair", (True, False))
    for wrong in ("limit=5..3", "limit=0..99999", "limit=a..b", "limit=", "=3", "1x=2", "T=1,2,1"):
        with pytest.raises(InvalidRequest):
            swept(wrong)


@pytest.mark.parametrize(("app_name", "said"), [("other", True), ("app", False)])
def test_a_trace_without_run_times_of_its_functions_says_so(tmp_path: Path, app_name: str, said: bool) -> None:
    calls = "HashOwner,HashApp,HashFunction,1\no,app,f,1\no,app,g,2\n"
    (tmp_path / "invocations_per_function_md.anon.d01.csv").write_text(calls)
    runs = f"HashApp,HashFunction,Average\n{app_name},f,5\n"
    (tmp_path / "function_durations_percentiles.anon.d01.csv").write_text(runs)
    (tmp_path / "app_memory_percentiles.anon.d01.csv").write_text("HashApp,AverageAllocatedMb\n")
    path = tmp_path / "azure.json"
    path.write_text(json.dumps({"workload": {"azure2019": str(tmp_path), "minutes": [0, 1]}}))
    ended = runner.invoke(app, ["simulate", str(path)], catch_exceptions=False)
    assert ("0 of 2 functions of the workload have run times" in ended.stderr) is said

"""A run of experiments measures each cell once, goes on where it was stopped, and never takes one cell for another."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from typer.testing import CliRunner

from kaas.bench.windows import Stability
from kaas.cli.main import app
from kaas.errors import DeadlineExceeded, InvalidRecord, InvalidRequest
from kaas.papers import experiments
from kaas.papers.breakdown import TABLE, Breakdown, Properties, Warmth
from kaas.papers.cells import Cell, Found, Side, callers
from kaas.papers.experiments import FIGURES, SINGLES, _server_of, bars, cells_of, is_of, missing, run
from kaas.papers.results import Hardware, Results
from kaas.papers.small.testbed import SMALL
from kaas.papers.testbed import Testbed
from kaas.papers.workloads import WORKLOADS, Workload


def found(
    rate_per_s: float, p90_s: float = 1.0, state: Stability = Stability.STABLE, offered_per_s: float = 0.0
) -> Found:
    return Found(rate_per_s, state, 100, (0.5,) * 90 + (p90_s,) * 11, 5.0, offered_per_s)


class StandReplicas(NamedTuple):
    policy: str
    kind: str
    workload: str
    replicas: int

    def first(self, count: int) -> StandReplicas:
        assert count <= self.replicas
        return self._replace(replicas=count)


@dataclass
class StandServer:
    policy: str

    @contextmanager
    def ktasks(self, workload: Workload, replicas: int) -> Iterator[StandReplicas]:
        yield StandReplicas(self.policy, "kTask", workload.name, replicas)

    @contextmanager
    def etasks(self, workload: Workload, replicas: int) -> Iterator[StandReplicas]:
        yield StandReplicas(self.policy, "eTask", workload.name, replicas)


class Stand:
    """Measurements that a test answers for: the rate of each is the number of its replicas."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.policies: list[str] = []
        self.cells: list[Cell] = []
        self.peaks: list[float | None] = []
        self.stops_at: Cell | None = None
        self.silent_at: Cell | None = None
        monkeypatch.setattr(experiments, "serve", self.serve)
        monkeypatch.setattr(experiments, "measured", self.measured)
        monkeypatch.setattr(experiments, "breakdowns", self.breakdowns)
        monkeypatch.setattr(experiments, "properties", self.properties)

    @contextmanager
    def serve(self, folder: Path, policy: str, *_: Any) -> Iterator[StandServer]:
        assert folder.is_dir()
        self.policies.append(policy)
        yield StandServer(policy)

    def breakdowns(self, _: StandServer) -> list[Breakdown]:
        kinds = [*(("kTask", start) for start in Warmth), ("eTask", Warmth.COLD), ("eTask", Warmth.WARM)]
        return [Breakdown(task, start, 1, {"Kernel Run": 0.5, "Overheads": 0.25}) for task, start in kinds]

    def properties(self, _: StandServer) -> list[Properties]:
        return [Properties(workload, 1.3e9, 0.092, 0.132) for workload in TABLE]

    def measured(self, cell: Cell, replicas: StandReplicas, _: Testbed, peak_per_s: float | None, *__: float) -> Found:
        kind = "eTask" if cell.side.is_etask else "kTask"
        assert replicas == StandReplicas(cell.side.policy, kind, cell.workload, cell.replicas)
        if cell == self.stops_at:
            raise KeyboardInterrupt
        if cell == self.silent_at:
            raise DeadlineExceeded("no result within 5 s")
        self.cells.append(cell)
        self.peaks.append(peak_per_s)
        return found(cell.replicas, offered_per_s=1.0 if cell.online else 0.0)


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    return Stand(monkeypatch)


def nothing(*_: Any) -> None:
    """Show no progress."""


@pytest.mark.parametrize("figure", ["10", "11", "12", "13"])
def test_a_figure_has_kTasks_and_eTasks_with_more_replicas_than_devices(figure: str) -> None:  # noqa: N802
    cells = cells_of([figure])
    for side in (Side.KTASK, Side.ETASK_EXCLUSIVE):
        assert any(cell.side is side and cell.replicas > SMALL.devices for cell in cells)
    assert len(set(cells)) == len(cells)


def test_all_cells_are_measured_once_and_an_online_cell_knows_its_peak(stand: Stand, tmp_path: Path) -> None:
    cells = cells_of(FIGURES)
    results = Results(tmp_path / "results")
    run(list(FIGURES), results, SMALL, nothing, nothing)
    assert sorted(stand.cells, key=repr) == sorted(cells, key=repr)
    for cell, peak in zip(stand.cells, stand.peaks, strict=True):
        assert not cell.online or peak == cell.replicas
    # one server for single requests, two for kTasks and for eTasks that share no process, one for eTasks that take
    # turns, and one for kTasks that share
    assert stand.policies == ["cfs_affinity", *["exclusive"] * 5, "cfs_affinity"]
    assert [each.total_s for each in results.breakdowns] == [0.75] * 5
    assert [each.workload for each in results.properties] == list(TABLE)


@pytest.mark.parametrize("name", SINGLES)
def test_one_replica_finds_all_devices_without_processes(name: str, stand: Stand, tmp_path: Path) -> None:
    """Else an exclusive policy leaves it the device of one other client."""
    run(list(FIGURES), Results(tmp_path / "results"), SMALL, nothing, nothing)
    for side in (Side.KTASK_EXCLUSIVE, Side.ETASK_EXCLUSIVE):
        alone = stand.cells.index(Cell(name, side, 1))
        assert _server_of(stand.cells[alone - 1]) != _server_of(stand.cells[alone])


def test_replicas_that_are_warm_stay_warm(stand: Stand, tmp_path: Path) -> None:
    """No cell follows one with more replicas, whose constants may have driven out its own."""
    run(list(FIGURES), Results(tmp_path / "results"), SMALL, nothing, nothing)
    for (_, _), cells in groupby(stand.cells, key=lambda cell: (cell.side, cell.workload)):
        counts = [cell.replicas for cell in cells]
        assert counts == sorted(counts)


def test_a_run_that_was_stopped_goes_on_with_the_next_cell(stand: Stand, tmp_path: Path) -> None:
    run(["8", "10"], Results(tmp_path / "all"), SMALL, nothing, nothing)
    order, stand.cells = stand.cells, []
    stand.stops_at = order[7]
    with pytest.raises(KeyboardInterrupt):
        run(["8", "10"], Results(tmp_path / "results"), SMALL, nothing, nothing)
    assert stand.cells == order[:7]
    stand.stops_at = None
    results = Results(tmp_path / "results")
    run(["8", "10"], results, SMALL, nothing, nothing)
    assert stand.cells == order
    whole, read = Results(tmp_path / "all"), Results(tmp_path / "results")
    assert results.found == read.found == whole.found
    assert results.breakdowns == read.breakdowns == whole.breakdowns


def test_a_cell_without_a_result_is_left_out_and_measured_by_the_next_run(stand: Stand, tmp_path: Path) -> None:
    told: list[str] = []
    online = Cell("bert", Side.ETASK_EXCLUSIVE, 5, online=True)
    at_its_rate = Cell("bert", Side.KTASK, 5, online=True, peak=Side.ETASK_EXCLUSIVE)
    stand.silent_at = online.offline
    results = Results(tmp_path / "results")
    run(["11"], results, SMALL, told.append, nothing)
    assert {*cells_of(["11"])} - {*results.found} == {online.offline, online, at_its_rate}
    assert f"{online.offline.title}: no figure, no result within 5 s" in told
    assert f"{online.title}: no figure, since the rate is a share of that of {online.offline.title}" in told
    assert missing(["11"], results) == 3
    stand.silent_at = None
    run(["11"], results, SMALL, nothing, nothing)
    assert missing(["11"], results) == 0


@pytest.mark.processes  # git, for the commit
def test_the_command_names_a_cell_without_a_figure(stand: Stand, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    stand.silent_at = Cell("bert", Side.KTASK, 16, online=True)
    arguments = ["papers", "kaas", "--figure", "11", "--folder", str(tmp_path)]
    outcome = CliRunner().invoke(app, arguments)
    assert (outcome.exit_code, outcome.exception.__class__) == (1, SystemExit)
    assert f"{stand.silent_at.title}: no figure, no result within 5 s" in outcome.stdout
    assert "left to measure: 1. The same command goes on with them" in outcome.stdout


def test_single_requests_of_which_a_killed_run_kept_some_are_measured_once(stand: Stand, tmp_path: Path) -> None:
    stand_in: Any = None
    Results(tmp_path / "results").add(stand.breakdowns(stand_in)[0], stand.properties(stand_in)[0])
    run(["8", "table1"], Results(tmp_path / "results"), SMALL, nothing, nothing)
    results = Results(tmp_path / "results")
    assert results.breakdowns == stand.breakdowns(stand_in)
    assert results.properties == stand.properties(stand_in)


def test_nothing_starts_where_all_is_measured(stand: Stand, tmp_path: Path) -> None:
    results = Results(tmp_path / "results")
    run(list(FIGURES), results, SMALL, nothing, nothing)
    stand.policies.clear()
    run(list(FIGURES), Results(tmp_path / "results"), SMALL, nothing, nothing)
    assert stand.policies == []


def test_a_folder_has_one_run_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    outcome = CliRunner().invoke(app, ["papers", "kaas", "--figure", "8", "--folder", str(tmp_path)])
    os.close(other)
    assert isinstance(outcome.exception, InvalidRequest)
    assert "another run measures into" in str(outcome.exception)


@pytest.mark.processes  # git, for the commit
def test_a_file_that_holds_no_results_is_named(tmp_path: Path) -> None:
    cell = (Cell("bert", Side.KTASK, 4), found(8.0))
    right = msgspec.json.encode(cell).decode()
    for line in (
        '{"type": "Hardware"}',
        right.replace("bert", "tetris"),
        right.replace("stable", "splendid"),
        right.replace(":8.0", ":-8.0"),
        right.replace(":8.0", ":0"),
        right.replace("[0.5,", "["),
        right.replace('"replicas":4', '"replicas":0'),
        right + "\n" + right,
        '{"type": "Breakdown", "task": "kTask", "start": "cold", "requests": 1, "stages_s": {}}',
        '{"type": "Breakdown", "task": "kTask", "start": "cold", "requests": 1, "stages_s": {"Rest": 1}}',
        '{"type": "Breakdown", "task": "kTask", "start": "cold", "requests": 1, "stages_s": {"Overheads": -1}}',
        '{"type": "Properties", "workload": "bert", "constant_bytes": 1, "gpu_s": -1, "cpu_s": 1}',
        "\n".join(['{"type": "Properties", "workload": "bert", "constant_bytes": 1, "gpu_s": 1, "cpu_s": 1}'] * 2),
        '{"type": "Hardware", "processor": "a\\n# b", "processors": 1, "versions": {}, "date": "2026-11-01", '
        '"commit": "", "load": 0}',
        '{"type": "Hardware", "x": ' + "[" * 5000 + "}",
        right.replace("stable", "\udcff"),
        right.replace('"online":false', '"online":true'),
        msgspec.json.encode(Hardware.here("full")).decode(),
        msgspec.json.encode(Hardware.here()).decode().replace('"commit":"', '"commit":"a | b'),
    ):
        (tmp_path / "results").write_bytes(line.encode(errors="surrogateescape") + b"\n")
        with pytest.raises(InvalidRecord, match=r"results, line .: .*`--figure all --fresh` sets it aside"):
            Results(tmp_path / "results")


def test_a_run_that_was_killed_while_it_wrote_loses_that_line_only(tmp_path: Path) -> None:
    one, other = (Cell("bert", Side.KTASK, count) for count in (4, 16))
    Results(tmp_path / "results").add((one, found(8.0)), (other, found(8.0)))
    whole = (tmp_path / "results").read_bytes()
    for cut in (whole[:-1], whole[:-40]):
        (tmp_path / "results").write_bytes(cut)
        results = Results(tmp_path / "results")
        assert list(results.found) == [one]
        results.add((other, found(8.0)))
        assert (tmp_path / "results").read_bytes() == whole


@pytest.mark.usefixtures("stand")
def test_the_command_shows_the_table_of_its_figure_beside_the_paper(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    for figure, titles in (
        ("table1", ["Table 1: the workloads"]),
        ("8", ["The paper's claims, beside the measurements", "Figure 8: "]),
        ("10", ["The paper's claims, beside the measurements", "Bars", "Figure 10: "]),
        ("11", ["The paper's claims, beside the measurements", "Figure 11: "]),
    ):
        (tmp_path / figure).mkdir()
        run(list(FIGURES), Results(tmp_path / figure / "kaas-small.jsonl"), SMALL, nothing, nothing)
        outcome = CliRunner().invoke(app, ["papers", "kaas", "--figure", figure, "--folder", str(tmp_path / figure)])
        assert outcome.exit_code == 0, outcome.output
        heads = [each for each in outcome.stdout.splitlines() if each.startswith(("The paper", "Bars", "Table", "Fig"))]
        assert len(heads) == len(titles)
        assert all(head.startswith(title) for head, title in zip(heads, titles, strict=True))
        assert "--report FILE writes these tables" in outcome.stdout


@pytest.mark.processes  # git, for the commit
@pytest.mark.parametrize("unfinished", [b"", b"a damaged line\n"])
def test_a_fresh_run_keeps_the_results_of_all_earlier_runs(stand: Stand, tmp_path: Path, unfinished: bytes) -> None:
    pytest.importorskip("ray")
    old, more = tmp_path / "kaas-small.old", tmp_path / "kaas-small.old2"
    old.write_bytes(b"of the first run\n")
    (tmp_path / "kaas-small.jsonl").write_bytes(unfinished)  # of a second one, which was interrupted
    stand.stops_at = cells_of(["10"])[0]
    outcome = CliRunner().invoke(app, ["papers", "kaas", "--fresh", "--folder", str(tmp_path)])
    assert outcome.exit_code != 0
    assert old.read_bytes() == b"of the first run\n"
    assert (more.read_bytes() if more.exists() else b"") == unfinished
    assert outcome.stderr.splitlines()[0] == f"earlier results: {old}{f', {more}' if unfinished else ''}"


@pytest.mark.processes  # git, for the commit
@pytest.mark.usefixtures("stand")
def test_a_fresh_figure_leaves_a_copy_of_all_results_and_says_which_others_go(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    file, asked = tmp_path / "kaas-small.jsonl", cells_of(["10"])
    others = [cell for cell in cells_of(["13"]) if cell.offline in asked and cell not in asked]
    run(["10", "13"], Results(file), SMALL, nothing, nothing)
    before = file.read_bytes()
    outcome = CliRunner().invoke(app, ["papers", "kaas", "--fresh", "--figure", "10", "--folder", str(tmp_path)])
    assert outcome.exit_code == 0, outcome.output
    assert f"{len(others)} results of other figures go too" in outcome.stderr
    assert file.with_suffix(".old").read_bytes() == before
    assert {*Results(file).found} == {*cells_of(["10", "13"])} - {*others}


@pytest.mark.parametrize("page", ["kaas-full.jsonl", "kaas-small.old", "kaas-small.jsonl", "link"])
def test_a_page_replaces_no_results(stand: Stand, tmp_path: Path, page: str) -> None:
    pytest.importorskip("ray")
    for name in ("kaas-full.jsonl", "kaas-small.old"):
        (tmp_path / name).write_bytes(b"results\n")
    (tmp_path / "link").hardlink_to(tmp_path / "kaas-full.jsonl")
    command = ["papers", "kaas", "--figure", "10", "--folder", str(tmp_path), "--report", str(tmp_path / page)]
    outcome = CliRunner().invoke(app, command)
    assert outcome.exit_code != 0
    assert "the page needs another file" in str(outcome.exception or outcome.output)
    assert (tmp_path / "kaas-full.jsonl").read_bytes() == (tmp_path / "kaas-small.old").read_bytes() == b"results\n"
    assert stand.cells == []


def test_damaged_results_of_another_scale_are_named_before_the_run(stand: Stand, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "kaas-full.jsonl").write_bytes(b"damaged\n")
    command = ["papers", "kaas", "--figure", "10", "--folder", str(tmp_path), "--report", str(tmp_path / "page.md")]
    outcome = CliRunner().invoke(app, command)
    assert "with --scale full" in str(outcome.exception or outcome.output)
    assert stand.cells == []


@pytest.mark.processes  # git, for the commit
def test_a_figure_that_is_measured_again_leaves_the_others(stand: Stand, tmp_path: Path) -> None:
    run(["8", "10", "12"], Results(tmp_path / "results"), SMALL, nothing, nothing)
    results = Results(tmp_path / "results")
    results.measuring_on(Hardware.here())
    before = len(results.found)
    results.forget(lambda kept: is_of(kept, ["8", "10"]))
    again = Results(tmp_path / "results")
    assert 0 < len(again.found) == before - len(cells_of(["10"]))
    assert again.breakdowns == []
    stand.cells.clear()
    run(["8", "10", "12"], results, SMALL, nothing, nothing)
    assert {*stand.cells} == {*cells_of(["10"])}
    assert len(Results(tmp_path / "results").measured_on) == 1  # it comes with the first result


def test_a_page_is_not_written_over_the_results(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    arguments = ["papers", "kaas", "--figure", "8", "--folder", str(tmp_path), "--report"]
    outcome = CliRunner().invoke(app, [*arguments, str(tmp_path / "kaas-small.jsonl")])
    assert isinstance(outcome.exception, InvalidRequest)
    outcome = CliRunner().invoke(app, [*arguments, str(tmp_path / "nowhere" / "page.md")])
    assert isinstance(outcome.exception, InvalidRequest)
    assert f"there is no folder {tmp_path / 'nowhere'}" in str(outcome.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes  # git, for the commit
def test_a_file_knows_the_machines_that_measured(tmp_path: Path) -> None:
    here = Hardware.here()
    Results(tmp_path / "results").add(here)
    assert Results(tmp_path / "results").measured_on == [here]
    assert here.processors >= 1
    assert {"python", "kaas-gpu", "ray"} <= here.versions.keys()


def test_no_such_figure_names_those_that_there_are() -> None:
    with pytest.raises(InvalidRequest, match="no figure '9': there are table1, 8, 10, 11, 12, 13 and all"):
        cells_of(["9"])


def test_the_ratios_are_those_of_their_cells(tmp_path: Path) -> None:
    results = Results(tmp_path / "results")
    assert bars(results, SMALL) == {}
    results.add((Cell("resnet50", Side.KTASK, 4), found(240.0)))
    results.add((Cell("resnet50", Side.KTASK, 16), found(200.0)))
    results.add((Cell("resnet50", Side.KTASK, 32), found(120.0)))
    results.add((Cell("resnet50", Side.ETASK_EXCLUSIVE, 16), found(4.0)))
    results.add((Cell("resnet50", Side.KTASK, 4, online=True), found(160.0, p90_s=0.5)))
    results.add((Cell("resnet50", Side.KTASK, 16, online=True), found(160.0, p90_s=0.75)))
    peak = SMALL.devices / SMALL.kernels_s(WORKLOADS["resnet50"])
    assert bars(results, SMALL) == {
        "ktask_over_etask_16": (50.0, ">=", 20.0),
        "ktask_32_over_4": (0.5, ">=", 0.9),
        "efficiency_16": (pytest.approx(200.0 / peak), ">=", 0.9),
        "p90_16_over_4": (1.5, "<=", 1.5),
    }
    results.add((Cell("resnet50", Side.KTASK, 16, online=True), found(160.0, state=Stability.UNSTABLE)))
    assert bars(results, SMALL)["p90_16_over_4"][0] == "unstable"


def test_callers_keep_devices_and_steps_busy_and_leave_no_replica_idle() -> None:
    for workload in WORKLOADS.values():
        assert callers(workload, SMALL, 100) == 100
        in_steps = SMALL.devices / workload.gpu_s * workload.cpu_s  # Little's law, at the kernels' own rate
        assert callers(workload, SMALL, 1) >= SMALL.devices + in_steps

"""The page and the plots show what was measured, beside what the paper says."""

from __future__ import annotations

from pathlib import Path

import pytest

from kaas.bench.windows import Stability
from kaas.papers.breakdown import Breakdown, Properties, Warmth
from kaas.papers.cells import Cell, Found, Side
from kaas.papers.experiments import FIGURES, cells_of
from kaas.papers.page import page
from kaas.papers.results import Hardware, Results
from kaas.papers.small.testbed import SMALL


def found(cell: Cell, state: Stability = Stability.STABLE) -> Found:
    """Return what a kTask gets at any number of replicas, and an eTask where it starts processes."""
    starts = cell.side is not Side.KTASK and cell.replicas > SMALL.devices
    rate_per_s, latency_s = (2.0, 8.0) if starts else (100.0, 0.05)
    cdf_s = tuple(latency_s * max(percent, 1) / 50 for percent in range(101))
    return Found(rate_per_s, state, 100, cdf_s, 5.0, 0.8 * rate_per_s)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    made = Results(tmp_path / "results")
    made.add(
        Hardware("a processor", 2, {"python": "3.11"}, "2026-11-01", "abc1234", 0.5),
        Properties("bert", 1.3e9, 0.093, 0.135),
        Breakdown("kTask", Warmth.COLD, 1, {"Kernel Run": 0.002, "Overheads": 0.004}),
        Breakdown("kTask", Warmth.NEW_CLIENT, 5, {"Kernel Run": 0.002, "Overheads": 0.002}),
        Breakdown("kTask", Warmth.WARM, 250, {"Kernel Run": 0.002}),
        Breakdown("eTask", Warmth.COLD, 5, {"Worker Start": 0.5, "Function": 0.5}),
        Breakdown("eTask", Warmth.WARM, 250, {"Function": 0.01}),
        *((cell, found(cell)) for cell in cells_of(FIGURES)),
    )
    return made


def line(text: str, start: str) -> list[str]:
    (one,) = (row for row in text.splitlines() if row.startswith(f"| {start}"))
    return [cell.strip() for cell in one.strip("|").split("|")]


def test_the_page_lays_the_ratios_of_a_workload_beside_the_papers(results: Results) -> None:
    text = page(results, SMALL)
    for workload, rate, latency in (("jacobi", "50", "16"), ("bert", "53", "12.6")):
        assert line(text, f"throughput of kTasks over eTasks, {workload}")[1:3] == [rate, f"{workload} 50"]
        assert line(text, f"median latency of eTasks over kTasks, {workload}")[1:3] == [latency, f"{workload} 160"]
    first = line(text, "first request over a warm one")[2]
    assert first == "eTask, cold request 100, kTask, cold request 3, kTask, a new client's request 2"


def test_the_page_has_a_row_for_each_setting(results: Results) -> None:
    text = page(results, SMALL)
    assert line(text, "bert | 1300")[1:7] == ["1300", "1300", "6", "6.1", "92", "93"]
    rates = ["100 (0.80), n=100", "2 (0.02), n=100", "2 (0.02), n=100", "2 (0.02), n=100"]
    assert line(text, "resnet50 | 16 | 100")[2:] == rates
    assert line(text, "resnet50 | 32 | 50")[2:] == ["50 / 90 at 80/s, n=100", "-"]
    assert line(text, "Worker Start")[1:] == ["-", "-", "-", "500", "-"]
    assert "2026-11-01, KaaS at abc1234, load 0.5 at the beginning: 2 processors, a processor" in text


def test_a_figure_of_windows_that_did_not_agree_is_marked(results: Results) -> None:
    cell = Cell("jacobi", Side.ETASK_EXCLUSIVE, 16)
    results.add((cell, found(cell, Stability.UNSETTLED)))
    assert line(page(results, SMALL), "throughput of kTasks over eTasks, jacobi")[2] == "jacobi ~50"


def test_a_queue_that_grew_has_no_latency_on_the_page(results: Results) -> None:
    cell = Cell("jacobi", Side.ETASK_EXCLUSIVE, 16, online=True)
    results.add((cell, found(cell, Stability.UNSTABLE)))
    text = page(results, SMALL)
    assert line(text, "median latency of eTasks over kTasks, jacobi")[2] == "jacobi unstable"
    assert line(text, "jacobi | 16 | 50")[2:] == ["50 / 90 at 80/s, n=100", "unstable"]


def test_the_page_has_what_a_gpu_did(results: Results, tmp_path: Path) -> None:
    full = Results(tmp_path / "full", "full")
    full.add(
        Hardware("a processor", 16, {"python": "3.12"}, "2026-11-02", "abc1235", 0.5, "full"),
        Breakdown("kTask", Warmth.WARM, 250, {"Kernel Run": 0.001, "Overheads": 0.024}),
        Breakdown("eTask", Warmth.WARM, 250, {"Function": 0.001, "Overheads": 0.049}),
    )
    text = page(results, SMALL, full)
    assert "at full scale" in text
    assert "A warm eTask takes 2 times a warm kTask." in text
    assert text.startswith(page(results, SMALL))


def test_a_page_without_results_says_only_where_it_comes_from(tmp_path: Path) -> None:
    text = page(Results(tmp_path / "none"), SMALL)
    assert [row for row in text.splitlines() if row.startswith("#")] == ["# Evaluation", "## The machine"]


@pytest.mark.full
def test_a_plot_for_each_figure_over_replicas(results: Results, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from kaas.papers.plots import draw

    files = draw(results, tmp_path)
    assert [file.name for file in files] == ["figure10.png", "figure11.png", "figure12.png", "figure13.png"]
    before = files[0].read_bytes()
    assert before.startswith(b"\x89PNG")
    results.add((Cell("resnet50", Side.KTASK, 16), found(Cell("resnet50", Side.ETASK_EXCLUSIVE, 16))))
    draw(results, tmp_path)
    assert files[0].read_bytes() != before


def test_the_page_of_the_documentation_is_that_of_the_kept_results() -> None:
    """`make papers` writes both."""
    root = Path(__file__).parents[2]
    folder = root / "benchmarks" / "results" / "papers"
    kept, of_gpus = (Results(folder / f"kaas-{scale}.jsonl", scale) for scale in ("small", "full"))
    assert (root / "docs" / "evaluation.md").read_text() == page(kept, SMALL, of_gpus)

"""The page of a measurement has its figures, and when and where they were measured."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from kaas.bench.report import page, plots, write_plots

ROW = {
    "load": "concurrency <2>",
    "state": "stable",
    "rate_per_s": 123.4,
    "requests": 250,
    "p50_ms": 15.5,
    "stages_ms": {"queue": 1.25, "outside": 0.5},
    "errors": {},
    "cdf_ms": [1.0, 2.0],
    "clients": {"ann": 100, "<bob>": 150},
    "jain": 0.96,
}


def test_a_page_says_what_was_measured_when_and_where() -> None:
    made = page("kaas bench task.json", [ROW], "2026-11-27, 2 processors")
    for text in ("2026-11-27, 2 processors", "123.4", "stable", "1.25", "Jain&#x27;s index 0.960"):
        assert text in made
    assert "&#x27;&lt;bob&gt;&#x27; 150" in made
    assert "<2>" not in made
    assert "<bob>" not in made


def test_a_load_without_a_number_has_no_plot() -> None:
    unstable = {**ROW, "state": "unstable", "rate_per_s": None, "p50_ms": None, "cdf_ms": []}
    assert plots([unstable]) == {}
    assert plots([ROW]).keys() == {"latencies", "rates"}


def test_a_run_without_figures_leaves_no_plots_of_an_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "mine.png").touch()
    write_plots([ROW], tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {"latencies.png", "rates.png", "mine.png"}
    write_plots([{**ROW, "state": "silent", "rate_per_s": None, "p50_ms": None, "cdf_ms": []}], tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {"mine.png"}

"""The benchmarks' trends: figures that moved by more than noise are told, others are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import trends


def result(value: float | str, comparison: str = "<=", **fields: Any) -> dict[str, Any]:
    return {
        "benchmark": "launch",
        "measured": "2026-01-02",
        "commit": "0123abc",
        "processor": "Abacus 9",
        "processors": 2,
        "load_average": 0.5,
        "bars": {"replay": [value, comparison, 1.5]},
        **fields,
    }


def told(file: Path, *values: float | str, **fields: Any) -> list[str]:
    """The sentences about the last of these runs."""
    return [trends.add(result(value, **fields), file) for value in values][-1]


def test_a_figure_within_its_noise_has_not_moved(tmp_path: Path) -> None:
    assert told(tmp_path / "launch.jsonl", 1.0, 1.1, 0.9, 1.05, 0.95, 1.15) == []


def test_a_figure_beyond_its_noise_has_moved(tmp_path: Path) -> None:
    file = tmp_path / "launch.jsonl"
    assert told(file, 1.0, 1.01, 0.99, 1.0, 1.3) == ["launch.replay: 1.3, 1 in the last 4 runs: worse"]
    assert len(file.read_text().splitlines()) == 5


def test_the_comparison_says_which_way_is_better(tmp_path: Path) -> None:
    assert told(tmp_path / "a.jsonl", 1.0, 1.0, 1.0, 0.5)[0].endswith(": better")
    assert told(tmp_path / "b.jsonl", 1.0, 1.0, 1.0, 0.5, comparison=">=")[0].endswith(": worse")


def test_runs_of_another_machine_and_words_are_not_compared(tmp_path: Path) -> None:
    file = tmp_path / "launch.jsonl"
    told(file, 1.0, 1.0, 1.0, processor="Other 1")
    assert told(file, 9.0) == []
    assert told(file, "unstable", 9.0, 9.0, 9.0) == []
    assert told(file, "unstable") == []


def test_only_the_last_ten_runs_count(tmp_path: Path) -> None:
    assert told(tmp_path / "launch.jsonl", *[5.0] * 10, *[1.0] * 10, 1.0) == []

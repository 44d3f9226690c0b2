"""Tables of the command line keep every figure whole, in a terminal of any width and in a pipe."""

from __future__ import annotations

import re

import pytest
from rich.console import Console
from rich.table import Table

from kaas.cli import observe
from kaas.cli.observe import print_whole

FIGURES = [f"{number}.{number}" for number in range(1001, 1013)]


def table() -> Table:
    made = Table("load", *(f"figure {each}" for each in FIGURES), "state", title="loads")
    made.add_row("rate 100/s", *FIGURES, "unsettled, last 3 of 30 windows")
    return made


@pytest.mark.parametrize("width", [20, 40, 80, 300])
def test_a_terminal_gets_whole_figures_within_its_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.setattr(observe, "console", Console(width=width, force_terminal=True))
    print_whole(table())
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= max(width, 30)  # the first column and one more take so much
    assert re.findall(r"\d{4}\.\d{4}(?= )", " ".join(each for each in lines if each.startswith("│"))) == FIGURES
    assert all(each in " ".join(lines) for each in ("unsettled,", "windows"))


def test_a_pipe_gets_a_row_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_whole(table())
    (row,) = (each for each in capsys.readouterr().out.splitlines() if each.startswith("│"))
    assert [each.strip() for each in row.strip("│").split("│")][1:-1] == FIGURES

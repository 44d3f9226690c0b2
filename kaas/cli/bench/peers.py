"""`kaas bench peers`: KaaS beside the systems that a user could take instead."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from kaas.cache_folders import cache_root
from kaas.cli.observe import print_whole

if TYPE_CHECKING:
    from kaas.peers.experiments import Report, Rows
    from kaas.peers.systems import PeerFailed, PeerSystem

console = Console(emoji=False)
SPANS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (0.0, "ns"))


def peers(
    only: Annotated[
        str, typer.Option(help="overhead, coldstart, tenancy, replay, interpreters, several as overhead,replay, or all")
    ] = "all",
    folder: Annotated[
        Path | None, typer.Option(file_okay=False, help="of the models that coldstart compiles; kept for the next run")
    ] = None,
    quick: Annotated[bool, typer.Option(help="a few requests of each, to see that all sides run")] = False,
    json: Annotated[bool, typer.Option("--json", help="one line, for programs")] = False,
) -> None:
    """Measure KaaS beside its peers in one run, each in turn. A peer that is not installed is left out, and named.

    A peer that fails is left out, too, with its reason, and the exit status is then 1. An experiment without a peer is
    left out, and changes no status. Ctrl-C ends the run with what there is.
    """
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # Ray reads it when it is imported
    import msgspec

    from kaas.errors import InvalidRequest
    from kaas.optional_ray import check_ray
    from kaas.peers.experiments import EXPERIMENTS, QUICK, Effort, bars, run

    names = tuple(EXPERIMENTS) if only == "all" else tuple(each.strip() for each in only.split(","))
    for name in names:
        if name not in EXPERIMENTS:
            raise InvalidRequest(f"--only takes {', '.join(EXPERIMENTS)}, not {name!r}")
    if {"overhead", "tenancy"} & {*names}:
        check_ray()
    place = folder or cache_root() / "peers"
    place.mkdir(parents=True, exist_ok=True)

    def progress(name: str, rows: Rows) -> None:
        if not json:
            print_whole(_table(name, rows))

    def began(name: str, sides: Sequence[PeerSystem]) -> None:
        print(f"{name}: {', '.join(each.title for each in sides)} ...", file=sys.stderr)

    def failed(name: str, error: PeerFailed) -> None:
        print(f"{name}: {error.peer.title} failed, and is left out: {error.reason}", file=sys.stderr)

    report = run(names, QUICK if quick else Effort(), place, began, progress, failed)
    if report.interrupted:
        print("Ctrl-C ended the run", file=sys.stderr)
    found = bars(report.rows)
    if json:
        detail = {
            "rows": report.rows,
            "versions": report.versions,
            "not_installed": report.absent,
            "failed": report.failed,
            "left_out": report.left_out,
            "interrupted": report.interrupted,
        }
        print(msgspec.json.encode({"benchmark": "peers", "bars": found, "detail": detail}).decode())
    else:
        _tell(report, found)
        if quick:
            print("--quick: each figure is of a few requests, and shows that all sides run, not how they compare")
    if report.failed:
        raise typer.Exit(1)


def _tell(report: Report, found: Mapping[str, tuple[float, str, float]]) -> None:
    """Print the bars of a run, its losses, and what is missing."""
    from kaas.peers.experiments import in_words
    from kaas.peers.losses import losses

    for bar, measured in found.items():
        print(in_words(bar, *measured))
    for loss in losses(report.rows):
        case = f", {loss.case}" if loss.case else ""
        print(f"{loss.ours} is {loss.times:.3g} times {loss.word} than {loss.peer}: {_label(loss.figure)}{case}")
    print(", ".join(f"{peer} {version}" for peer, version in report.versions.items()))
    if report.absent:
        installing = "; requirements/peers.txt has most of them"
        console.print(f"not installed: {', '.join(report.absent)}{installing}", highlight=False)
    for name, reasons in report.failed.items():
        for peer, reason in reasons.items():
            print(f"{name}: {peer} failed: {reason}")
    if report.left_out:
        console.print(f"left out, since no peer of KaaS runs here: {', '.join(report.left_out)}", highlight=False)


def _table(title: str, rows: Rows) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    columns = list(dict.fromkeys(figure for each in rows.values() for figure in each))
    for column in columns:
        table.add_column(_label(column), justify="right")
    for side, figures in rows.items():
        table.add_row(side, *(shown(column, figures[column]) if column in figures else "-" for column in columns))
    return table


def _label(figure: str) -> str:
    """Return the name of a figure for people."""
    return (figure if figure.endswith("per_s") else figure.removesuffix("_s")).replace("_", " ")


def shown(figure: str, value: float) -> str:
    """Return a figure for people; one whose name ends with `_s`, but not a rate, with its unit."""
    if not figure.endswith("_s") or figure.endswith("per_s"):
        return f"{value:.4g}"
    scale, unit = next(span for span in SPANS if value >= span[0])
    return f"{value / (scale or 1e-9):.3g} {unit}"

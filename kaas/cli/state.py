"""`kaas state`: whether what a server keeps for its clients is whole, and a copy of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from kaas.ktask.draw import printable

app = typer.Typer(no_args_is_help=True, help=__doc__)
console = Console(soft_wrap=True, emoji=False, highlight=False)

State = Annotated[Path, typer.Argument(exists=True, file_okay=False, help="the server's state folder")]


@app.command()
def check(folder: State) -> None:
    """Look through a state folder; nothing is changed. Exit status 1: something is wrong.

    A server sets aside what is damaged when it starts, and serves the rest."""
    from kaas.server.state.state_check import check as checked

    found = checked(folder)
    for finding in found.findings:
        console.print(f"[red]{escape(printable(finding.place))}[/]: {escape(printable(finding.what))}")
    counts = f"{found.entries} entries, {found.uploads} uploads of {found.nbytes} bytes, {found.requests} charges"
    console.print(f"{escape(str(folder))}: {counts}; set aside earlier: {found.aside}")
    if found.findings:
        raise typer.Exit(1)


@app.command()
def backup(
    folder: State,
    to: Annotated[Path, typer.Argument(help="a folder that is made: state: in a configuration may name it")],
) -> None:
    """Copy a state folder as it is at one moment, while its server runs or not."""
    from kaas.server.state.backup import back_up

    uploads = back_up(folder, to)
    console.print(f"{escape(str(to))} has the state of {escape(str(folder))}, with {uploads} uploads")

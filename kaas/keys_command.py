"""`kaas keys`: who may speak to a server from afar."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

app = typer.Typer(no_args_is_help=True, help=__doc__)
console = Console(soft_wrap=True, emoji=False)

FOLDER = Path("keys")


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="of the client")],
    folder: Annotated[
        Path, typer.Option(file_okay=False, help="of the server's keys, made if it is not there")
    ] = FOLDER,
    to: Annotated[Path | None, typer.Option(dir_okay=False, help="the client's own file; else NAME.toml")] = None,
) -> None:
    """Let a new client in: the server's folder gets its public key, and a file for the client its secret one."""
    from kaas.remote.keys import new_client

    secret_file = to or Path(f"{name}.toml")
    own = new_client(folder, name, secret_file)
    console.print(f"{escape(str(secret_file))} is for {escape(name)} and nobody else")
    console.print(f"the server's public key, which it has in it: {own.server_key}", highlight=False, markup=False)

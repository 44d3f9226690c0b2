"""`kaas serve`: a server for remote clients, in the foreground."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from kaas.errors import InvalidConfig
from kaas.ktask.draw import printable
from kaas.optional_ray import check_ray

SERVER_CONFIG = Path("kaas.yaml")
"""The name of a server's configuration in docs/serve.md."""

READY = "kaas serves at"
"""The beginning of the line that a server prints once it can be reached; the endpoint follows."""


def serve(
    config: Annotated[Path | None, typer.Option(dir_okay=False, help="YAML, as docs/serve.md describes it")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="no keys: every program of this machine may use it")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="check the configuration, and serve nothing")] = False,
) -> None:
    """Serve remote clients until SIGTERM or Ctrl-C; then answer the open requests, and end."""
    from kaas.code.providers import BUILD
    from kaas.pool.loop import PoolLoop
    from kaas.server.config.serve_check import (
        check_all,
        check_host,
        check_names,
        check_sizes,
        isolation_of,
    )
    from kaas.server.config.serve_config import Settings, read
    from kaas.server.config.serve_memory import log_bound, machine_bytes, memory_bound
    from kaas.server.server_log import configure

    if config is None and not insecure and SERVER_CONFIG.is_file():
        # never by default: others may have put the file there, and it names code that the server runs
        message = (
            f"kaas serve takes no {SERVER_CONFIG} by itself: --config {SERVER_CONFIG} takes the one that lies here"
        )
        raise InvalidConfig(message, field="config")
    if config is not None:
        sys.path.append(str(config.absolute().parent))  # last: the configuration's own steps and policies are there

    def checked() -> Settings:
        found = read(config, insecure=insecure)
        check_sizes(found)
        check_names(found)
        return found

    settings = checked()
    if check:
        asyncio.run(check_all(settings))
        print("the configuration can be served")
        print(memory_bound(settings).sentence(machine_bytes()))
        if settings.keys is not None:
            print(isolation_of(settings))
        return
    check_host(settings.listen.host)
    configure(settings.log)
    log_bound(settings)
    if not settings.code.build:
        os.environ[BUILD] = "0"  # for all processes that this one starts
    if settings.ray:
        check_ray()
        from kaas.server.running.ray_server import serve as run
    else:
        from kaas.server.running.process_server import serve as run
    if insecure:
        warning = "[bold red]INSECURE[/]: without keys every program on this machine may use it, with any code"
        Console(stderr=True, soft_wrap=True, emoji=False).print(warning)
    with asyncio.Runner(loop_factory=PoolLoop) as runner:
        ready = partial(print, READY, flush=True)
        runner.run(run(settings, ready, checked))
    sys.stdout.flush()
    os._exit(0)  # without waiting for threads


app = typer.Typer(no_args_is_help=True, help="Check and copy the state folder of a server.")
console = Console(soft_wrap=True, emoji=False, highlight=False)

StateFolder = Annotated[Path, typer.Argument(exists=True, file_okay=False, help="the server's state folder")]


@app.command()
def check(folder: StateFolder) -> None:
    """Check a state folder, and change nothing. Exit status 1: the folder is damaged.

    A server sets damaged entries aside when it starts, and serves the rest.
    """
    from kaas.server.state.state_check import check as checked

    found = checked(folder)
    for finding in found.findings:
        console.print(f"[red]{escape(printable(finding.place))}[/]: {escape(printable(finding.what))}")
    counts = f"{found.entries} entries, {found.uploads} uploads of {found.nbytes} bytes, {found.requests} charges"
    console.print(f"{escape(str(folder))}: {counts}; set aside earlier: {found.set_aside}")
    if found.findings:
        raise typer.Exit(1)


@app.command()
def backup(
    folder: StateFolder,
    to: Annotated[Path, typer.Argument(help="a new folder; state: in a configuration may name it")],
) -> None:
    """Copy a state folder as it is at one moment. Its server may run meanwhile."""
    from kaas.server.state.backup import back_up

    uploads = back_up(folder, to)
    console.print(f"{escape(str(to))} has the state of {escape(str(folder))}, with {uploads} uploads")

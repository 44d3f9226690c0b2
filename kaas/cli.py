"""The `kaas` command: thin wrappers that print what the library returns."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from kaas import (
    __version__,
    code_command,
    compile_command,
    file_commands,
    keys_command,
    observe_commands,
    serve_command,
)
from kaas.errors import KaasError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
console = Console(emoji=False)

OnRay = Annotated[bool, typer.Option("--ray/--no-ray", help="a pool on Ray, or one of plain processes")]

for command in (file_commands.inspect, file_commands.check, file_commands.run):
    app.command()(command)
app.command("compile")(compile_command.compile_model)
app.command()(serve_command.serve)
app.command()(observe_commands.status)
app.command()(observe_commands.stats)
app.command()(observe_commands.trace)
app.command()(observe_commands.usage)
app.add_typer(keys_command.app, name="keys")
app.add_typer(code_command.app, name="code")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"kaas {__version__}")
        raise typer.Exit


@app.callback()
def kaas(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="show it and exit")
    ] = False,
) -> None:
    """Graphs of precompiled GPU kernels as serverless functions: pools, servers, compiled models."""


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=0.5, help="for which the clients compete")] = 8.0,
    vertices: Annotated[int, typer.Option(min=32, help="of each client's graph")] = 256,
    ray: OnRay = True,
) -> None:
    """Three clients of weights 1, 1 and 2 share four devices, one loses its executor; checked against NumPy."""
    from kaas.demo import Size, run

    if not run(Size(seconds, vertices), console, ray=ray):
        raise typer.Exit(1)


ScenarioFile = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="as docs/simulator.md describes it")]


@app.command()
def simulate(
    scenario_file: ScenarioFile,
    json: Annotated[bool, typer.Option("--json", help="everything, for programs")] = False,
    rows: Annotated[int, typer.Option(min=0, help="dispatches to show")] = 20,
) -> None:
    """Run a scheduling policy in virtual time."""
    import msgspec

    from kaas.pool.simulation.reading import parse
    from kaas.pool.simulation.tables import tables
    from kaas.pool.simulator import simulate as simulated

    result = simulated(parse(scenario_file.read_bytes()))
    if json:
        print(msgspec.json.encode(result).decode())
        return
    for table in tables(result, rows):
        console.print(table)


@app.command()
def replay(
    record: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="what kaas.init(record=...) wrote")],
    policy: Annotated[str | None, typer.Option(help="instead of the one that was recorded")] = None,
) -> None:
    """Tell a fresh policy the events of a pool, and compare its decisions with the pool's."""
    from kaas.pool import recording

    told = recording.replay(record, policy)
    counts = f"{told.lives} lives, {told.events} events, {told.decisions} decisions"
    if told.difference is None:
        console.print(f"[green]identical[/]: {counts}")
        return
    found = told.difference
    console.print(f"[red]different[/] at line {found.line}, after {counts}")
    for name, said in (("event", found.event), ("expected", found.expected), ("got", found.got)):
        console.print(f"{name}: {escape(str(said))}", soft_wrap=True)
    raise typer.Exit(1)


def main() -> None:
    """The command's entry: an error of KaaS, or of a file that was named, is one line and exit status 1."""
    try:
        app()
    except OSError as error:
        if error.filename is None:
            raise
        Console(stderr=True, soft_wrap=True, emoji=False).print(escape(f"{error.filename}: {error.strerror}"))
        sys.exit(1)
    except KaasError as error:
        original = getattr(error, "cause", error)  # what Ray raises is a class made of its own error and ours
        Console(stderr=True, soft_wrap=True, emoji=False).print(
            f"[red]{type(original).__name__}[/]: {escape(error.message)}"
        )
        sys.exit(1)


if __name__ == "__main__":
    main()

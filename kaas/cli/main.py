"""The `kaas` command: thin wrappers that print the results of the library."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from kaas import __version__
from kaas.cli import bench, code, compiling, files, keys, observe, papers, policies, serve
from kaas.errors import KaasError
from kaas.ktask.draw import printable

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
console = Console(emoji=False)

OnRay = Annotated[bool, typer.Option("--ray/--no-ray", help="a pool on Ray, or one of plain processes")]

for command in (files.inspect, files.check, files.run):
    app.command()(command)
app.command("compile")(compiling.compile_model)
app.command()(serve.serve)
app.command()(observe.status)
app.command()(observe.stats)
app.command()(policies.simulate)
app.command()(policies.replay)
app.command()(observe.trace)
app.command()(observe.usage)
app.command()(observe.pardon)
app.add_typer(bench.app, name="bench")
app.add_typer(keys.app, name="keys")
app.add_typer(code.app, name="code")
app.add_typer(papers.app, name="papers")
app.add_typer(serve.app, name="state", help="Check and copy the state folder of a server.")


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
    seconds: Annotated[float, typer.Option(min=0.5, help="duration of the competition")] = 8.0,
    vertices: Annotated[int, typer.Option(min=32, help="size of each client's graph")] = 256,
    ray: OnRay = True,
) -> None:
    """Let three clients of weights 1, 1 and 2 share four devices, kill one executor, and check results with NumPy."""
    from kaas.cli.demo import Size, run

    if not run(Size(seconds, vertices), console, ray=ray):
        raise typer.Exit(1)


def main() -> None:
    """Run the command. An error of KaaS, or of a file argument, is printed as one line; the exit status is then 1."""
    try:
        app()
    except KaasError as error:  # first: some KaasErrors are OSErrors too
        original = getattr(error, "cause", error)  # Ray raises a class that derives from its own error and from ours
        shown = "\n".join(map(printable, error.message.splitlines()))  # the message may quote a file
        Console(stderr=True, soft_wrap=True, emoji=False).print(f"[red]{type(original).__name__}[/]: {escape(shown)}")
        sys.exit(1)
    except OSError as error:
        if error.filename is None:
            raise
        Console(stderr=True, soft_wrap=True, emoji=False).print(escape(f"{error.filename}: {error.strerror}"))
        sys.exit(1)

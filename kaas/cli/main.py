"""The `kaas` command: thin wrappers that print the results of the library."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from kaas import __version__
from kaas.errors import KaasError
from kaas.ktask.draw import printable

COMMANDS = {
    "inspect": "files:inspect",
    "check": "files:check",
    "run": "files:run",
    "compile": "compiling:compile_model",
    "serve": "serve:serve",
    "status": "observe:status",
    "stats": "observe:stats",
    "simulate": "policies:simulate",
    "replay": "policies:replay",
    "explain": "explain:explain",
    "trace": "observe:trace",
    "usage": "observe:usage",
    "pardon": "observe:pardon",
    "demo": "demo:demo",
    "bench": "bench.command:app",
    "profile": "bench.profile:profile",
    "keys": "keys:app",
    "code": "code:app",
    "papers": "papers:app",
    "state": "serve:app",
}
"""The commands and groups of commands, in the folder of this module. Each is imported when it is asked for: all of them
take a second."""


class CommandsOnDemand(TyperGroup):
    """The group of all commands."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the names in order."""
        return [*COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None if there is none of this name."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            module, _, name = COMMANDS[cmd_name].partition(":")
            self.commands[cmd_name] = _command(getattr(import_module(f"kaas.cli.{module}"), name), cmd_name)
        return super().get_command(ctx, cmd_name)


def _command(found: Callable[..., None] | typer.Typer, name: str) -> Any:
    if isinstance(found, typer.Typer):
        group = typer.main.get_group(found)
        group.name = name
        return group
    alone = typer.Typer(add_completion=False)
    alone.command(name)(found)
    return typer.main.get_command(alone)


app = typer.Typer(cls=CommandsOnDemand, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


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
        Console(stderr=True, soft_wrap=True, emoji=False).print(
            escape(printable(f"{error.filename}: {error.strerror}"))
        )
        sys.exit(1)

"""`kaas trace` and `kaas usage`: what a pool does, and what clients of a server have used."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kaas.errors import InvalidRequest
from kaas.remote.usage import Usage

console = Console()


class By(Enum):
    """What usage is summed up by."""

    CLIENT = "client"
    FUNCTION = "function"


def trace(
    seconds: Annotated[float, typer.Option(min=0.001, help="for which requests are taken down")] = 10.0,
    out: Annotated[Path, typer.Option("--out", "-o", dir_okay=False, help="where the trace goes")] = Path("trace.json"),
    address: Annotated[str, typer.Option(help="of the Ray cluster")] = "auto",
    name: Annotated[str, typer.Option(help="of the pool, or of the server's")] = "kaas",
    ray: Annotated[bool, typer.Option("--ray/--no-ray", help="a pool on Ray, or one without, as of a server")] = True,
) -> None:
    """Take down what the requests of a running pool do, for https://ui.perfetto.dev or chrome://tracing."""
    from kaas.api import attach
    from kaas.pool.tracing import chrome
    from kaas.session import current_session

    attach(name, address=address, ray=ray)
    told = current_session().trace(seconds)
    out.write_bytes(chrome(told))
    console.print(f"{out}: {seconds:g} s of pool {name}", markup=False, highlight=False, soft_wrap=True)


def usage(
    folder: Annotated[
        Path | None, typer.Argument(exists=True, file_okay=False, help="the server's state, instead of asking it")
    ] = None,
    by: Annotated[By, typer.Option(help="what is summed up")] = By.CLIENT,
    json: Annotated[bool, typer.Option("--json", help="everything, for programs")] = False,
    server: Annotated[str | None, typer.Option(help="address of a server, as tcp://host:port")] = None,
    keys: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="of the client that asks")] = None,
) -> None:
    """Show what clients have used: of a server that runs, for administrators that of all, or of its state folder."""
    import msgspec

    from kaas.remote.usage_file import read_usage

    if folder is not None and server is None:
        found = read_usage(folder)
    elif folder is not None or server is None:
        raise InvalidRequest("kaas usage takes the server's state folder or --server, one of both")
    else:
        from kaas import Client

        with Client(server, keys=keys) as client:
            found = msgspec.convert(client.usage(), Usage)
    if json:
        print(msgspec.json.encode(found).decode())
        return
    console.print(_table(found, by))


def _table(found: Usage, by: By) -> Table:
    counts = ("requests", "ended well", "device s", "bytes in", "bytes out", "bytes copied")
    held = ("held, byte s",) if by is By.CLIENT else ()
    table = Table(by.value, *counts, *held, title=f"usage by {by.value}")
    for flow in found.by(by.value):
        name = flow.client if by is By.CLIENT else flow.function
        moved = (flow.bytes_in, flow.bytes_out, flow.bytes_copied)
        row = [str(flow.requests), str(flow.outcomes.get("succeeded", 0)), f"{flow.device_s:.6f}", *map(str, moved)]
        kept = [f"{found.byte_s(flow.client):.0f}"] if by is By.CLIENT else []
        table.add_row(escape(name), *row, *kept)
    return table

"""`kaas status`, `stats`, `trace`, `usage` and `pardon`: reports of a pool, and the usage of a server's clients."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Column, Table

from kaas.cli.files import writable
from kaas.cli.serve import SERVER_CONFIG
from kaas.errors import InvalidRequest, MissingPackage, NotInitialized
from kaas.ktask.draw import printable
from kaas.wire.status.tables import Shown

if TYPE_CHECKING:
    from kaas.server.usage.usage import Usage

console = Console(emoji=False)


EitherPool = Annotated[
    bool | None,
    typer.Option("--ray/--no-ray", help="a pool on Ray, or a pool without; by default the pool that runs here"),
]


class GroupBy(Enum):
    """The key of sums of usage."""

    CLIENT = "client"
    FUNCTION = "function"


PoolNamed = Annotated[str, typer.Option(help="of the pool, or of the server's")]
RayAddress = Annotated[str, typer.Option(help="of the Ray cluster that the pool runs on")]
ANY_RAY = "auto"
"""The address that stands for the Ray that runs on this machine."""


def status(address: RayAddress = ANY_RAY, name: PoolNamed = "kaas", ray: EitherPool = None) -> None:
    """Show a running pool: its devices, executors and queue."""
    from kaas.api.program import status as pool_status
    from kaas.wire.status.status import status_tables

    attach_either(name, address, ray)
    _show(status_tables(pool_status()))


def stats(
    json: Annotated[bool, typer.Option("--json", help="everything, for programs")] = False,
    reset: Annotated[bool, typer.Option("--reset", help="begin new statistics, for all readers")] = False,
    address: RayAddress = ANY_RAY,
    name: PoolNamed = "kaas",
    ray: EitherPool = None,
) -> None:
    """Show the time of each stage of a running pool's requests, and the use of its caches."""
    import msgspec

    from kaas.api.program import stats as pool_stats
    from kaas.wire.status.stats import stats_tables

    attach_either(name, address, ray)
    found = pool_stats(reset)
    if json:
        print(msgspec.json.encode(found).decode())
        return
    _show(stats_tables(found))


def _show(tables: Iterable[Shown]) -> None:
    for shown in tables:
        print_whole(shown.rich())
        styles = [None] * len(shown.notes) + ["red"] * len(shown.troubles)
        for line, style in zip(shown.below, styles, strict=True):
            console.print(line, markup=False, highlight=False, soft_wrap=True, style=style)


def plain(text: str) -> str:
    """Return a text of a file or a client as it can be printed: without control characters, not read as markup."""
    return escape(printable(text))


def print_whole(table: Table) -> None:
    """Print a table without a cut in a figure.

    In a terminal that is too narrow, a cell goes on in its next line, between words. Columns for which there is still
    no room follow as a table below, with the first column again. A file or a pipe gets the full width.
    """
    if not console.is_terminal:
        Console(width=max(console.width, _span(table).maximum), emoji=False).print(table)
        return
    first, *left = range(len(table.columns))
    while True:
        taken = max(1, len(left))
        while taken > 1 and _span(_part(table, [first, *left[:taken]])).minimum > console.width:
            taken -= 1
        part = _part(table, [first, *left[:taken]])
        _widen(part, console.width)
        Console(width=max(console.width, _span(part).maximum), emoji=False).print(part)
        left = left[taken:]
        if not left:
            return


def _span(table: Table) -> Measurement:
    """Return the width of a table: at least, so that no word is cut, and at most."""
    return console.measure(table, options=console.options.update(max_width=sys.maxsize))


def _part(table: Table, places: Sequence[int]) -> Table:
    """Return some columns of a table as a table."""
    columns = [table.columns[place] for place in places]
    heads = (Column(each.header, justify=each.justify) for each in columns)
    part = Table(*heads, title=table.title, title_justify=table.title_justify, caption=table.caption)
    for cells in zip(*(each.cells for each in columns), strict=True):
        part.add_row(*cells)
    return part


def _widen(table: Table, width: int) -> None:
    """Give each column the width of its longest word, and share the rest, first among the columns that need little."""
    spans = [_span(_part(table, [place])) for place in range(len(table.columns))]
    rest, edges = max(0, width - _span(table).minimum), 4  # lines and blanks on both sides of a cell
    by_need = sorted(range(len(spans)), key=lambda place: spans[place].span)
    for before, place in enumerate(by_need):
        more = min(spans[place].span, rest // (len(by_need) - before))
        table.columns[place].width = spans[place].minimum - edges + more
        rest -= more


def trace(
    seconds: Annotated[float, typer.Option(min=0.001, help="duration of the record")] = 10.0,
    out: Annotated[
        Path, typer.Option("--out", "-o", dir_okay=False, callback=writable, help="file of the trace")
    ] = Path("trace.json"),
    address: RayAddress = ANY_RAY,
    name: PoolNamed = "kaas",
    ray: EitherPool = None,
) -> None:
    """Record the requests of a running pool, for https://ui.perfetto.dev or chrome://tracing."""
    from kaas.api.attached import current_session
    from kaas.pool.observing.tracing import chrome

    attach_either(name, address, ray)
    with out.open("wb") as file:  # first: the file may not be writable
        file.write(chrome(current_session().trace(seconds)))
    console.print(f"{out}: {seconds:g} s of pool {name}", markup=False, highlight=False, soft_wrap=True)


def attach_either(name: str, address: str, ray: bool | None) -> None:
    """Attach to a running pool; print the address of its Ray on stderr.

    ray: None attaches to a pool without Ray if a pool of this name runs on this machine and no address of a Ray is
    given, else to a pool on Ray.

    Raises:
        InvalidRequest: an address, and a pool without Ray.
        NotInitialized: no such pool runs.
    """
    from kaas.api.program import attach
    from kaas.pool.on_processes.names import PoolName, running_names

    if address != ANY_RAY:
        if ray is False:
            raise InvalidRequest("--address is that of a Ray cluster: it does not go with --no-ray")
        ray = True
    on_ray = PoolName(name).running(wait=False) is None if ray is None else ray
    try:
        attach(name, address=address, ray=on_ray)
    except (MissingPackage, NotInitialized) as error:
        if ray:
            raise
        why = error.message
        if ray is None:
            no_ray = isinstance(error, MissingPackage)
            why = "Ray is not installed (pip install ray)" if no_ray else why
            why = f"no pool {name!r} runs on this machine without Ray, and {why}"
        there = "; ".join(f"--name {printable(quote(running))}" for running in running_names())
        raise NotInitialized(f"{why}. Without Ray run here: {there}" if there else why) from error
    if on_ray:
        from kaas.api.ray_session import ray_address

        line = f"pool {name} on the Ray at {ray_address()}"
        Console(stderr=True).print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)


def usage(
    folder: Annotated[
        Path | None,
        typer.Argument(exists=True, file_okay=False, help="the server's state folder, instead of the server"),
    ] = None,
    by: Annotated[GroupBy, typer.Option(help="sum up by client or by function")] = GroupBy.CLIENT,
    json: Annotated[bool, typer.Option("--json", help="everything, for programs")] = False,
    server: Annotated[str | None, typer.Option(help="address of a server, as tcp://host:port")] = None,
    keys: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="of the client that asks")] = None,
    config: Annotated[Path, typer.Option(dir_okay=False, help="the server's, which names its state")] = SERVER_CONFIG,
) -> None:
    """Show the usage of a server's clients: from its state folder on this machine, or from the server itself.

    A server shows the usage of all clients to administrators only.
    """
    import msgspec

    from kaas.server.usage.usage_file import read_usage

    if server is not None:
        if folder is not None:
            raise InvalidRequest("kaas usage takes the server's state folder or --server, not both")
        from kaas import Client
        from kaas.server.usage.usage import Usage

        with Client(server, keys=keys) as client:
            found = msgspec.convert(client.usage(), Usage)
    else:
        found = read_usage(folder or _state(config))
    if json:
        print(msgspec.json.encode(found).decode())
        return
    print_whole(_table(found, by))


def pardon(
    function: Annotated[str, typer.Argument(help="its key, as kaas status shows it, or that of its kTask")],
    address: RayAddress = ANY_RAY,
    name: Annotated[str, typer.Option(help="of the pool")] = "kaas",
    ray: EitherPool = None,
    server: Annotated[str | None, typer.Option(help="address of a server, as tcp://host:port")] = None,
    keys: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="of an administrator")] = None,
) -> None:
    """Let a function in quarantine run again, in a pool of this machine or cluster, or at a server."""
    if server is not None:
        from kaas import Client

        with Client(server, keys=keys) as client:
            pardoned = client.pardon(function)
    else:
        from kaas.api.attached import current_session

        attach_either(name, address, ray)
        pardoned = current_session().pardon(function)
    if not pardoned:
        raise InvalidRequest(f"no function {function!r} is in quarantine: kaas status shows those that are")
    console.print(f"{plain(function)} is run again", highlight=False, soft_wrap=True)


def _state(config: Path) -> Path:
    """Return the state folder of a server's configuration.

    Raises:
        InvalidRequest: there is no configuration, or it names no folder. InvalidConfig: it is malformed.
    """
    from kaas.server.config.serve_config import read_file

    if not config.exists():
        raise InvalidRequest(
            f"kaas usage takes the server's state folder, its configuration (there is no {config} here), or --server"
        )
    state = read_file(config).state
    if state is None:
        raise InvalidRequest(f"the server of {config} keeps no state: ask it with --server while it runs")
    return Path(state)


def _table(found: Usage, by: GroupBy) -> Table:
    counts = ("requests", "ended well", "device s", "SM s", "bytes in", "bytes out", "bytes copied")
    held = ("held, byte s",) if by is GroupBy.CLIENT else ()
    table = Table(by.value, *counts, *held, title=f"usage by {by.value}")
    for flow in found.by(by.value):
        name = flow.client if by is GroupBy.CLIENT else flow.function
        moved = (flow.bytes_in, flow.bytes_out, flow.bytes_copied)
        times = f"{flow.device_s:.6f}", f"{flow.sm_s:.6f}"
        row = [str(flow.requests), str(flow.outcomes.get("succeeded", 0)), *times, *map(str, moved)]
        kept = [f"{found.byte_s(flow.client):.0f}"] if by is GroupBy.CLIENT else []
        table.add_row(plain(name), *row, *kept)
    return table

"""`kaas bench`: the rate and the latencies of a kTask or a model, in a pool or at a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from kaas.bench.windows import Stability
from kaas.cli.files import GivenFile, load_file, pairs_of, scalar_value
from kaas.cli.observe import print_whole
from kaas.errors import InvalidRequest
from kaas.ktask.graph import KTask
from kaas.models.model import CompiledModel

if TYPE_CHECKING:
    from kaas.bench.load import Completion, Load
    from kaas.bench.measure import Measurement

Loop = tuple[str, bool, Callable[["Load"], Iterator["Completion | None"]]]

DRAIN_S = 30.0
"""Longest wait for the replies that are missing at the end of a measurement."""


class Arrivals(Enum):
    """The arrivals of an open loop."""

    POISSON = "poisson"
    CONSTANT = "constant"


def bench(
    file: GivenFile,
    concurrency: Annotated[
        str | None, typer.Option(help="closed loops with so many requests outstanding, as 1,4,16; by default 1")
    ] = None,
    rate: Annotated[str | None, typer.Option(help="open loops of so many requests a second, as 100,1000")] = None,
    arrivals: Annotated[Arrivals, typer.Option(help="of an open loop")] = Arrivals.POISSON,
    scalars: Annotated[list[str] | None, typer.Option("--scalar", help="name=value")] = None,
    server: Annotated[str | None, typer.Option(help="address of a server, as tcp://host:port")] = None,
    keys: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="of the client, for --server")] = None,
    name: Annotated[str, typer.Option(help="of the pool")] = "kaas",
    ray: Annotated[
        bool, typer.Option("--ray/--no-ray", help="the running pool on Ray, or one of plain processes")
    ] = False,
    window: Annotated[float, typer.Option(min=0.01, help="seconds of a window")] = 1.0,
    limit: Annotated[float, typer.Option(min=0.01, help="most seconds of a measurement")] = 30.0,
    json: Annotated[bool, typer.Option("--json", help="one line, for programs")] = False,
) -> None:
    """Measure a kTask or a model with inputs made from its description; stop once three windows agree.

    Without a server and a running pool, a pool of plain processes runs for the time of the measurement. Ctrl-C shows
    the windows that there are.
    """
    import msgspec

    from kaas.bench.load import Load
    from kaas.bench.measure import measure

    loaded = load_file(file)
    inputs, loops = _inputs(loaded, scalars), _loops(concurrency, rate, arrivals)
    rows: list[tuple[str, Measurement, int]] = []
    with _function(loaded, server, keys, name, ray) as function:
        function.call(**inputs).result()  # the first request of a function compiles, and shows mistakes
        for title, open_loop, begin in loops:
            load = Load(lambda _: function.call(**inputs))
            found = measure(load, begin(load), open_loop=open_loop, window_s=window, limit_s=limit)
            rows.append((title, found, load.lost(DRAIN_S)))
            if found.interrupted:
                break
    if json:
        print(msgspec.json.encode([{"load": title, **figures(found, lost)} for title, found, lost in rows]).decode())
    else:
        _show(rows)
    if any((found.errors or lost) and not found.latencies.count for _, found, lost in rows):
        raise typer.Exit(1)


def figures(found: Measurement, lost: int) -> dict[str, Any]:
    """Return a measurement as it is printed; times in ms. Where the queue grew, rate and latencies are None.

    lost: the number of requests that were under way at the end and got no result.
    """
    latencies = found.latencies
    steady = found.stability is not Stability.UNSTABLE
    times = {"mean": latencies.mean, "sd": latencies.sd, **latencies.percentiles}
    return {
        "state": found.stability.value,
        "rate_per_s": found.rate_per_s,
        "requests": latencies.count,
        **{f"{time}_ms": value * 1e3 if steady else None for time, value in times.items()},
        "late_ms": found.late_s * 1e3,
        "errors": found.errors,
        "lost": lost,
        "seconds": sum(each.seconds for each in found.windows),
    }


@contextmanager
def _function(
    loaded: KTask | CompiledModel, server: str | None, keys: Path | None, name: str, ray: bool
) -> Iterator[Any]:
    """Give the registered function: of a server's client, or of a pool."""
    if server is not None:
        from kaas.client.client import Client

        with Client(server, keys=keys) as client:
            yield client.register(loaded)
        return
    from kaas.api import program
    from kaas.api.function import register

    if ray:
        program.attach(name)
    opened = not ray and program.init(ray=False, name=name)
    try:
        yield register(loaded) if isinstance(loaded, KTask) else loaded.register()
    finally:
        if opened:
            program.shutdown()


def _inputs(loaded: KTask | CompiledModel, scalars: Sequence[str] | None) -> dict[str, Any]:
    """Return inputs for the smallest variant of a model, or for a kTask with its scalars."""
    from kaas.bench.payloads import payload

    if isinstance(loaded, CompiledModel):
        if scalars:
            raise InvalidRequest(f"model {loaded.name!r} has no scalars")
        return {**payload(loaded.variants[0].inputs)}
    given = pairs_of(scalars, "--scalar")
    return {**payload(loaded.inputs), **{name: scalar_value(loaded, name, text) for name, text in given.items()}}


def _loops(concurrency: str | None, rate: str | None, arrivals: Arrivals) -> list[Loop]:
    """Return the title of each measurement, whether its queue may grow, and a function that begins its loop."""
    from kaas.bench.arrivals import constant, poisson
    from kaas.bench.load import Load

    series = {Arrivals.POISSON: poisson, Arrivals.CONSTANT: constant}[arrivals]
    counts = _numbers(concurrency or (None if rate else "1"), "--concurrency", int)
    closed = [(f"concurrency {count}", False, partial(Load.closed, outstanding=count)) for count in counts]
    rates = _numbers(rate, "--rate", float)
    return [*closed, *((f"rate {each:g}/s", True, partial(Load.opened, arrivals=series(each))) for each in rates)]


def _numbers(text: str | None, option: str, kind: Callable[[str], Any]) -> list[Any]:
    """Return the numbers of an option, as in "1,4,16".

    Raises:
        InvalidRequest
    """
    try:
        found = [kind(part) for part in text.split(",")] if text else []
    except ValueError as error:
        numbers = "whole numbers" if kind is int else "numbers"
        raise InvalidRequest(f"{option} takes {numbers}, as 1,4,16, not {text!r}") from error
    if any(not 0 < number < 1e9 for number in found):
        raise InvalidRequest(f"{option} takes positive numbers, not {text!r}")
    return found


def _show(rows: list[tuple[str, Measurement, int]]) -> None:
    printed: list[tuple[str, Mapping[str, Any]]] = [(title, figures(found, lost)) for title, found, lost in rows]
    columns = (
        "rate_per_s",
        "mean_ms",
        "sd_ms",
        *(key for key in printed[0][1] if key.startswith("p")),
        "requests",
        "lost",
    )
    table = Table("load", *columns, "state", "errors")
    for title, row in printed:
        numbers = ("-" if (cell := row[key]) is None else str(cell) if type(cell) is int else f"{cell:.4g}"
                   for key in columns)  # fmt: skip
        errors = ", ".join(f"{count} {kind}" for kind, count in row["errors"].items())
        table.add_row(title, *numbers, row["state"], errors)
    print_whole(table)

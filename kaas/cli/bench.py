"""`kaas bench`: the rate and the latencies of a kTask or a model, in a pool or at a server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from kaas.bench.windows import Stability
from kaas.cli.files import GivenFile, load_file, pairs_of, scalar_value
from kaas.errors import InvalidRequest
from kaas.ktask.graph import KTask
from kaas.models.model import CompiledModel

if TYPE_CHECKING:
    from kaas.bench.measure import Measurement

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

    from kaas.bench import arrivals as series
    from kaas.bench.load import Load
    from kaas.bench.measure import measure
    from kaas.bench.payloads import payload

    loaded = load_file(file)
    inputs: dict[str, Any]
    if isinstance(loaded, CompiledModel):
        inputs = dict(payload(loaded.variants[0].inputs))
        if scalars:
            raise InvalidRequest(f"model {loaded.name!r} has no scalars")
    else:
        inputs = dict(payload(loaded.inputs))
        given = pairs_of(scalars, "--scalar")
        inputs |= {each: scalar_value(loaded, each, text) for each, text in given.items()}
    outstanding = _numbers(concurrency or (None if rate else "1"), "--concurrency", int)
    rates = _numbers(rate, "--rate", float)
    make = {Arrivals.POISSON: series.poisson, Arrivals.CONSTANT: series.constant}[arrivals]
    rows: list[tuple[str, Measurement]] = []
    with _function(loaded, server, keys, name, ray) as function:
        function.call(**inputs).result()  # the first request of a function compiles, and shows mistakes
        for title, count, per_s in [
            *((f"concurrency {count}", count, 0.0) for count in outstanding),
            *((f"rate {per_s:g}/s", 0, per_s) for per_s in rates),
        ]:
            load = Load(lambda _: function.call(**inputs))
            loop = load.closed(count) if count else load.opened(make(per_s))
            found = measure(load, loop, open_loop=not count, window_s=window, limit_s=limit)
            for _ in load.drain(DRAIN_S):
                pass
            rows.append((title, found))
            if found.interrupted:
                break
    if json:
        print(msgspec.json.encode([{"load": title, **figures(found)} for title, found in rows]).decode())
    else:
        _show(rows)
    if any(found.latencies.count == 0 for _, found in rows):
        raise typer.Exit(1)


def figures(found: Measurement) -> dict[str, Any]:
    """Return a measurement as it is printed; times in ms. Where the queue grew, rate and latencies are None."""
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


def _show(rows: list[tuple[str, Measurement]]) -> None:
    printed: list[tuple[str, Mapping[str, Any]]] = [(title, figures(found)) for title, found in rows]
    columns = ("rate_per_s", "mean_ms", "sd_ms", *(key for key in printed[0][1] if key.startswith("p")), "requests")
    table = Table("load", *columns, "state", "errors")
    for title, row in printed:
        numbers = ("-" if row[key] is None else f"{row[key]:.4g}" for key in columns)
        errors = ", ".join(f"{count} {kind}" for kind, count in row["errors"].items())
        table.add_row(title, *numbers, row["state"], errors)
    console = Console(emoji=False)
    needed = console.measure(table, options=console.options.update(max_width=sys.maxsize)).maximum
    Console(width=max(console.width, needed), emoji=False).print(table)  # a truncated figure is wrong

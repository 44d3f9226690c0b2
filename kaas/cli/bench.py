"""`kaas bench`: the rate and the latencies of a kTask or a model, in a pool or at a server."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from enum import Enum
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperGroup

from kaas.bench import shares
from kaas.bench.windows import MeasurementWindow, Stability
from kaas.cli.files import GivenFile, load_file, pairs_of, scalar_value
from kaas.cli.observe import print_whole
from kaas.cli.peers import peers
from kaas.config import ClientSettings, Config
from kaas.errors import InvalidRequest
from kaas.ktask.graph import KTask
from kaas.models.model import CompiledModel

if TYPE_CHECKING:
    from kaas.bench.load import Completion, Load
    from kaas.bench.measure import Measurement
    from kaas.bench.stages import StageTotals

Loop = tuple[str, bool, Callable[["Load"], Iterator["Completion | None"]]]

NONE = "-"
DRAIN_S = 30.0
"""Longest wait for the replies that are missing at the end of a measurement."""


class Arrivals(Enum):
    """The arrivals of an open loop."""

    POISSON = "poisson"
    CONSTANT = "constant"


class FileFirst(TyperGroup):
    """The group of `kaas bench`: arguments that name no command are those of `kaas bench file`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the group."""
        return super().parse_args(ctx, args if args and args[0] in self.commands else ["file", *args])


app = typer.Typer(cls=FileFirst, help=__doc__)
app.command()(peers)


@app.command(epilog="`kaas bench peers` measures KaaS beside other systems: `kaas bench peers --help`.")
def file(
    file: GivenFile,
    concurrency: Annotated[
        str | None, typer.Option(help="closed loops with so many requests outstanding, as 1,4,16; by default 1")
    ] = None,
    rate: Annotated[str | None, typer.Option(help="open loops of so many requests a second, as 100,1000")] = None,
    arrivals: Annotated[Arrivals, typer.Option(help="of an open loop")] = Arrivals.POISSON,
    scalars: Annotated[list[str] | None, typer.Option("--scalar", help="name=value")] = None,
    server: Annotated[str | None, typer.Option(help="address of a server, as tcp://host:port")] = None,
    keys: Annotated[
        list[Path] | None,
        typer.Option(exists=True, dir_okay=False, help="of the client, for --server; several for several clients"),
    ] = None,
    client: Annotated[list[str] | None, typer.Option(help="of a pool: name, or name=weight; several compete")] = None,
    policy: Annotated[str | None, typer.Option(help="of the pool that runs for the measurement")] = None,
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
    from kaas.bench.stages import StageTotals

    loaded, weights = load_file(file), shares.parse(client)
    if server is not None and weights:
        raise InvalidRequest("--client names clients of a pool; clients of a server have --keys")
    inputs, loops = _inputs(loaded, scalars), _loops(concurrency, rate, arrivals)
    rows: list[dict[str, Any]] = []
    with _functions(loaded, server, keys, name, ray, weights, policy) as (functions, stats):
        for function in functions.values():
            function.call(**inputs).result()  # the first request of a function compiles, and shows mistakes
        calls = [function.call for function in functions.values()]
        for title, open_loop, begin in loops:
            answered = Counter[int]()
            load = Load(lambda number: calls[number % len(calls)](**inputs), partial(_count, answered, len(calls)))
            before, own_s, began_s = StageTotals.of(stats()), process_time(), perf_counter()
            told = partial(_tell, title)
            found = measure(load, begin(load), open_loop=open_loop, window_s=window, limit_s=limit, progress=told)
            own_cores = (process_time() - own_s) / (perf_counter() - began_s)
            lost = load.lost(DRAIN_S)
            stages = None if load.outstanding else StageTotals.of(stats()).since(before)
            rows.append({"load": title, **figures(found, lost, stages), "own_cores": own_cores})
            if len(functions) > 1:
                counts = {each: answered[number] for number, each in enumerate(functions)}
                fairness = shares.jain(counts, {each: weights.get(each, 1.0) for each in functions})
                rows[-1] |= {"clients": counts, "jain": fairness}
            if found.interrupted:
                break
    if json:
        print(msgspec.json.encode(rows).decode())
    else:
        _show(rows)
    if any((row["errors"] or row["lost"]) and not row["requests"] for row in rows):
        raise typer.Exit(1)


def _tell(title: str, window: MeasurementWindow) -> None:
    """Show a window that has ended; only the results go to stdout."""
    rate, latency = f"{window.rate_per_s:.4g} requests/s", f"{window.latency_s * 1e3:.3g} ms"
    print(f"{title}: {rate}, {latency}, {window.queued} under way", file=sys.stderr)


def _count(answered: Counter[int], clients: int, number: int, _: Any) -> None:
    answered[number % clients] += 1


def figures(found: Measurement, lost: int, stages: StageTotals | None) -> dict[str, Any]:
    """Return a measurement as it is printed; times in ms. Where the queue grew, rate and latencies are None.

    lost: the number of requests that were under way at the end and got no result. stages: of the pool or server; None
    if it no longer answers.
    """
    latencies = found.latencies
    steady = found.stability is not Stability.UNSTABLE
    times = {"mean": latencies.mean, "sd": latencies.sd, **latencies.percentiles}
    return {
        "state": found.stability.value,
        "rate_per_s": found.rate_per_s,
        "requests": latencies.count,
        **{f"{time}_ms": value * 1e3 if steady else None for time, value in times.items()},
        "stages_ms": {stage: s * 1e3 for stage, s in stages.means_s(found.mean_s).items()} if stages else {},
        "hits": stages.hits if stages else 0,
        "misses": stages.misses if stages else 0,
        "late_ms": found.late_s * 1e3,
        "errors": found.errors,
        "lost": lost,
        "last_result_s": found.last_result_s,
        "seconds": sum(each.seconds for each in found.windows),
    }


@contextmanager
def _functions(
    loaded: KTask | CompiledModel,
    server: str | None,
    keys: Sequence[Path] | None,
    name: str,
    ray: bool,
    weights: Mapping[str, float],
    policy: str | None,
) -> Iterator[tuple[dict[str, Any], Callable[[], Any]]]:
    """Give the registered function of each client, of a server or of a pool, and what reads the figures there."""
    if server is not None:
        from kaas.client.client import Client

        paths: list[Path | None] = [*keys] if keys else [None]
        with ExitStack() as closing:
            clients = {str(path or ""): closing.enter_context(Client(server, keys=path)) for path in paths}
            yield (
                {each: client.register(loaded) for each, client in clients.items()},
                lambda: [client.stats() for client in clients.values()],
            )
        return
    from kaas.api import program
    from kaas.api.function import register

    if ray:
        program.attach(name)
    settings = {each: ClientSettings(weight=weight) for each, weight in weights.items()}
    config = Config(policy=policy or "fcfs", clients=settings) if policy or settings else None  # None: as it runs
    opened = not ray and program.init(ray=False, name=name, config=config)
    try:
        function: Any = register(loaded) if isinstance(loaded, KTask) else loaded.register()
        each_own = {each: function.options(client=each) for each in weights}
        yield each_own or {"": function}, lambda: [program.stats()]
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


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    quantiles = [key for key in rows[0] if key.startswith("p") and key.endswith("_ms")]
    table = Table("load", "requests/s", "mean ± sd ms", *(key.replace("_", " ") for key in quantiles), "state")
    for row in rows:
        spread = NONE if row["mean_ms"] is None else f"{row['mean_ms']:.3g} ± {row['sd_ms']:.3g}"
        times = (NONE if row[key] is None else f"{row[key]:.4g}" for key in quantiles)
        rate = NONE if row["rate_per_s"] is None else f"{row['rate_per_s']:.4g}"
        table.add_row(row["load"], rate, spread, *times, row["state"])
    print_whole(table)
    stages = list(dict.fromkeys(stage for row in rows for stage in row["stages_ms"]))
    if stages:
        split = Table("mean ms", *stages, "hits", "misses", "own cores")
        for row in rows:
            means = (f"{row['stages_ms'][stage]:.3g}" if stage in row["stages_ms"] else NONE for stage in stages)
            split.add_row(row["load"], *means, str(row["hits"]), str(row["misses"]), f"{row['own_cores']:.2f}")
        print_whole(split)
    for row in rows:
        if "clients" in row:
            got = ", ".join(f"{each} {count}" for each, count in row["clients"].items())
            print(f"{row['load']}: requests of {got}; Jain's index {row['jain']:.3f}")
        failed = [f"{count} {kind}" for kind, count in row["errors"].items()]
        failed += [f"{row['lost']} lost, the last result after {row['last_result_s']:.3g} s"] if row["lost"] else []
        if failed:
            print(f"{row['load']}: {', '.join(failed)}")

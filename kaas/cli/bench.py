"""`kaas bench`: the rate and the latencies of a kTask or a model, in a pool or at a server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

from kaas.bench import shares
from kaas.bench.interrupt import interruptible
from kaas.bench.loops import Arrivals, loops
from kaas.bench.mlperf import loadgen, scenarios
from kaas.bench.mlperf.scenarios import MlperfScenario
from kaas.cli.files import load_file, no_device, pairs_of, scalar_value
from kaas.cli.observe import print_whole
from kaas.cli.peers import peers
from kaas.errors import InvalidRequest, NotInitialized
from kaas.import_target import find_target, modules_here
from kaas.ktask.draw import printable
from kaas.ktask.graph import KTask
from kaas.models.model import CompiledModel

if TYPE_CHECKING:
    from kaas.bench.service import LoadedService

NONE = "-"
STATES = {
    "unsettled": "its windows did not agree; a longer --limit or --window helps. Dashes: most requests had no end yet",
    "unstable": "the queue grew as fast as requests came; a steady rate and latency do not exist",
    "silent": "the service gave no more results",
}
"""What the states of a load mean, apart from *stable*."""


class FileFirst(TyperGroup):
    """The group of `kaas bench`: arguments that name no command are those of `kaas bench file`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the group."""
        return super().parse_args(ctx, args if args and args[0] in self.commands else ["file", *args])


app = typer.Typer(cls=FileFirst, help=__doc__)
app.command()(peers)


@app.command(epilog="`kaas bench peers` measures KaaS beside other systems: `kaas bench peers --help`.")
def file(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="a kTask (KTask.to_json), a model (.kaas), module:function that makes one (in a pool it may register "
            "a kaas.Function), or a function's name at --server",
        ),
    ],
    concurrency: Annotated[
        str | None, typer.Option(help="closed loops with so many requests outstanding, as 1,4,16; by default 1")
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(help="open loops, requests a second, as 100,1000; 10:1000 doubles until a queue grows"),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            callback=no_device,
            help="an open loop with arrivals of a file: a line's first seconds",
        ),
    ] = None,
    scenario: Annotated[
        MlperfScenario | None,
        typer.Option(help="of MLPerf: ends after --duration seconds, and names broken rules"),
    ] = None,
    bound: Annotated[
        float | None,
        typer.Option(min=0.001, help="ms; of the 99th percentile in the scenario server, by default 100"),
    ] = None,
    duration: Annotated[
        float | None, typer.Option(min=0.01, help="seconds of a scenario; MLPerf asks for 600, the default")
    ] = None,
    by_loadgen: Annotated[
        bool, typer.Option("--loadgen", help="MLPerf's own generator drives the scenario; Ctrl-C then gives no figures")
    ] = False,
    given: Annotated[
        Path | None,
        typer.Option("--inputs", exists=True, dir_okay=False, callback=no_device, help="arrays by name, .npz or .json"),
    ] = None,
    arrivals: Annotated[Arrivals, typer.Option(help="of an open loop")] = Arrivals.POISSON,
    scalars: Annotated[list[str] | None, typer.Option("--scalar", help="name=value")] = None,
    server: Annotated[str | None, typer.Option(help="address of a server, as tcp://host:port")] = None,
    endpoint: Annotated[
        str | None,
        typer.Option("--inference-protocol", help="URL of an Open Inference Protocol server; FILE is a model there"),
    ] = None,
    keys: Annotated[
        list[Path] | None,
        typer.Option(exists=True, dir_okay=False, help="of the client, for --server; several for several clients"),
    ] = None,
    client: Annotated[list[str] | None, typer.Option(help="of a pool: name, or name=weight; several compete")] = None,
    policy: Annotated[str | None, typer.Option(help="of the pool that runs for the measurement")] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", "--pool", help="of a pool that runs; by default 'kaas' with --ray, else a pool for this alone"
        ),
    ] = None,
    ray: Annotated[
        bool, typer.Option("--ray/--no-ray", help="the running pool on Ray, or one of plain processes")
    ] = False,
    window: Annotated[float, typer.Option(min=0.01, help="seconds of a window")] = 1.0,
    limit: Annotated[float, typer.Option(min=0.01, help="most seconds of a measurement")] = 30.0,
    plots: Annotated[Path | None, typer.Option(file_okay=False, help="a folder for PNGs; needs matplotlib")] = None,
    html: Annotated[
        Path | None, typer.Option(dir_okay=False, help="a page with tables and plots; needs matplotlib")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="one line, for programs")] = False,
) -> None:
    """Measure a kTask or a model with inputs made from its description; stop once three windows agree.

    Without a server and the name of a running pool, a pool of plain processes runs for the time of the measurement.
    Ctrl-C shows the windows that there are.
    """
    import msgspec

    from kaas.bench import report
    from kaas.bench.rows import rows, scenario_row
    from kaas.papers.results import Hardware

    loaded, weights = _loaded(target, endpoint or server), shares.parse(client)
    _refuse_mixed(endpoint, server, keys, weights, policy, name, ray=ray)
    measured = loops(concurrency, rate, trace, arrivals)
    if scenario is not None and (concurrency or trace):
        raise InvalidRequest("a --scenario has loops of its own: leave out --concurrency and --trace")
    of_scenarios = {"--loadgen": by_loadgen, "--bound": bound, "--duration": duration}
    for option, value in of_scenarios.items():
        if value and scenario is None:
            raise InvalidRequest(f"{option} is of a --scenario, and has no meaning without")
    if by_loadgen:
        loadgen.check_installed()
    if plots is not None or html is not None:
        report.check_matplotlib()
    with _opened(target, loaded, endpoint, server, keys, name, weights, policy, ray=ray) as service:
        inputs = _inputs(service, scalars, given)
        clients = len(service.functions)
        uneven = [loop for loop in measured if not loop.opened and loop.callers % clients]
        if uneven and scenario is None:
            raise InvalidRequest(
                f"{uneven[0].title}: {clients} clients need a multiple of {clients} callers, each the same"
            )
        if scenario is not None:
            asked = {"rate_per_s": _one_rate(scenario, rate), "bound_s": (bound or 100.0) / 1e3}
            asked["duration_s"] = duration or scenarios.DURATION_S
            found = [scenario_row(service, inputs, scenario, **asked, run=loadgen.run if by_loadgen else scenarios.run)]
        else:
            with interruptible() as interrupt:
                found = list(rows(service, inputs, measured, window, limit, interrupt))
            titles = [row["load"] for row in found]
            left = [loop.title for loop in measured if loop.title not in titles and not loop.rising]
            if left:
                print(f"not measured: {', '.join(left)}", file=sys.stderr)
    if json:
        print(msgspec.json.encode(found).decode())
    elif scenario is not None:
        _show_scenario(found[0])
    else:
        _show(found)
    if plots is not None:
        report.write_plots(found, plots)
    if html is not None:
        here = Hardware.here()
        about = f"{here.date}, {here.processors} processors, {here.processor}, KaaS {here.versions['kaas-gpu']}"
        html.write_text(report.page(f"kaas bench {target}", found, about))
    if any(row.get("lost") or row["state"] == "silent" or _errors(row) > row["requests"] for row in found):
        raise typer.Exit(1)


def _refuse_mixed(
    endpoint: str | None,
    server: str | None,
    keys: Sequence[Path] | None,
    weights: Mapping[str, float],
    policy: str | None,
    name: str | None,
    *,
    ray: bool,
) -> None:
    """Refuse options of another service than the one that is measured: they would have no effect.

    Raises:
        InvalidRequest
    """
    outside = "--server" if server is not None else "--inference-protocol" if endpoint is not None else ""
    of_pools = {"--client": weights, "--policy": policy, "--name": name, "--ray": ray}
    if server is not None and endpoint is not None:
        raise InvalidRequest("--server and --inference-protocol are two services: give one")
    if keys and server is None:
        raise InvalidRequest("--keys needs --server")
    if keys and len({path.resolve() for path in keys}) < len(keys):
        raise InvalidRequest("--keys: a file is given twice")
    for option, value in of_pools.items():
        if outside and value:
            raise InvalidRequest(f"{option} is of a pool, and has no meaning with {outside}")


def _one_rate(scenario: MlperfScenario, rate: str | None) -> float:
    """Return the rate of a scenario that needs one, and 1 for the others.

    Raises:
        InvalidRequest
    """
    if scenario not in (MlperfScenario.SERVER, MlperfScenario.OFFLINE):
        return 1.0
    try:
        found = float(rate or "")
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise InvalidRequest(f"the scenario {scenario.value} needs one --rate, as --rate 100")
    return found


def _loaded(target: str, server: str | None) -> KTask | CompiledModel | Callable[[], Any] | str:
    """Return the kTask or model of a file, a Python function, or the name of a function or a model at a server.

    Raises:
        InvalidRequest, InvalidConfig
    """
    if Path(target).is_file():
        return load_file(Path(target))
    if ":" in target and (server is None or _is_python(target)):
        with modules_here():
            found: Callable[[], Any] = find_target("FILE", target)
        return found
    if server is None or Path(target).suffix in (".json", ".kaas"):
        others = "" if server else "; a Python function is module:function, a function's name needs --server"
        raise InvalidRequest(f"there is no file {target!r}{others}")
    return target


def _made(target: str, loaded: KTask | CompiledModel | Callable[[], Any], *kinds: type) -> Any:
    """Return what a Python function makes, of one of these kinds; else the kTask or the model.

    Raises:
        InvalidRequest
    """
    if isinstance(loaded, KTask | CompiledModel):
        return loaded
    with modules_here():
        made = loaded()
    if not isinstance(made, (KTask, CompiledModel, *kinds)):
        others = "".join(f" or a kaas.{kind.__name__}" for kind in kinds)
        raise InvalidRequest(f"{target} returns a kTask or a CompiledModel{others}, not a {type(made).__name__}")
    return made


def _is_python(target: str) -> bool:
    """Return True if a target names a module that is there, as a function's name at a server hardly does."""
    module = target.partition(":")[0]
    with modules_here():
        try:
            return all(map(str.isidentifier, module.split("."))) and find_spec(module) is not None
        except ImportError:  # of the package that it would be in
            return False


def _opened(
    target: str,
    loaded: KTask | CompiledModel | Callable[[], Any] | str,
    endpoint: str | None,
    server: str | None,
    keys: Sequence[Path] | None,
    name: str | None,
    weights: Mapping[str, float],
    policy: str | None,
    *,
    ray: bool,
) -> AbstractContextManager[LoadedService]:
    from kaas.api.function import Function
    from kaas.bench.inference.protocol import at_endpoint
    from kaas.bench.service import at_server, in_pool
    from kaas.pool.on_processes.names import PoolName, running_names

    if endpoint is not None:
        if not isinstance(loaded, str):
            raise InvalidRequest("--inference-protocol takes the name of a model there, not a file")
        return at_endpoint(endpoint, loaded)
    if server is not None:
        try:
            return at_server(loaded if isinstance(loaded, str) else _made(target, loaded), server, keys)
        except NotInitialized as error:
            message = f"{target} registers in a pool; at a server a client registers, client.register(..., name='mine')"
            raise InvalidRequest(f"{message}, and kaas bench mine --server ... measures it") from error
    assert not isinstance(loaded, str), "a name needs a server"
    if name is not None and not ray and PoolName(name).running(wait=False) is None:
        there = "".join(f"; {printable(each)} runs" for each in running_names())
        raise NotInitialized(f"no pool {name!r} runs on this machine without Ray{there}")
    own = "kaas" if ray else f"bench-{token_hex(4)}"
    return in_pool(partial(_made, target, loaded, Function), name or own, weights, policy, ray=ray)


def _inputs(service: LoadedService, scalars: Sequence[str] | None, given: Path | None) -> dict[str, Any]:
    """Return inputs made of the service's description, with its scalars; some may come from a file."""
    from kaas.bench.payloads import from_file, payload

    named = pairs_of(scalars, "--scalar", tuple(service.scalars))
    return {
        **payload(service.inputs),
        **(from_file(given, service.inputs) if given else {}),
        **{name: scalar_value(service, name, text) for name, text in named.items()},
    }


def _errors(row: Mapping[str, Any]) -> int:
    """Return the number of failed requests; a scenario has only their number."""
    return row["errors"] if isinstance(row["errors"], int) else sum(row["errors"].values())


def _share(row: Mapping[str, Any]) -> str:
    return f"{row['utilisation']:.0%}" if "utilisation" in row else NONE


def _show_scenario(row: Mapping[str, Any]) -> None:
    latency = next((f", {key[:-3]} {value:.4g} ms" for key, value in row.items() if key.endswith("_ms")), "")
    rate = f"{row['requests']} queries, {row['rate_per_s']:.4g} samples/s"
    print(f"{row['load']} by {row['driver']}: {rate}{latency}: {row['state']}")
    for reason in row["missing"]:
        print(f"  {reason}")


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    quantiles = [key for key in rows[0] if key.startswith("p") and key.endswith("_ms")]
    table = Table(
        "load", "requests", "requests/s", "mean ± sd ms", *(key.replace("_", " ") for key in quantiles), "state"
    )
    for row in rows:
        spread = NONE if row["mean_ms"] is None else f"{row['mean_ms']:.3g} ± {row['sd_ms']:.3g}"
        times = (NONE if row[key] is None else f"{row[key]:.4g}" for key in quantiles)
        rate = NONE if row["rate_per_s"] is None else f"{row['rate_per_s']:.4g}"
        table.add_row(escape(row["load"]), str(row["requests"]), rate, spread, *times, row["state"])
    print_whole(table)
    stages = list(dict.fromkeys(stage for row in rows for stage in row["stages_ms"]))
    if stages:
        split = Table("mean ms, whole load", *stages, "hits", "misses", "cold", "devices busy")
        for row in rows:
            means = (f"{row['stages_ms'][stage]:.3g}" if stage in row["stages_ms"] else NONE for stage in stages)
            counts = (str(row[figure]) for figure in ("hits", "misses", "cold"))
            split.add_row(escape(row["load"]), *means, *counts, _share(row))
        print_whole(split)
    for row in rows:
        if "clients" in row:
            got = ", ".join(f"{each!r} {count}" for each, count in row["clients"].items())
            print(f"{row['load']}: requests of {got}; Jain's index {row['jain']:.3f}")
        failed = [f"{count} {kind}" for kind, count in row["errors"].items()]
        failed += [f"{row['lost']} lost"] if row["lost"] else []
        failed += [f"{row['waiting']} under way at Ctrl-C"] if row["waiting"] else []
        failed += [f"the last result after {row['last_result_s']:.3g} s"] if failed else []
        if failed:
            print(f"{row['load']}: {', '.join(failed)}")
    for state in dict.fromkeys(row["state"] for row in rows if row["state"] in STATES):
        print(f"{state}: {STATES[state]}")

"""`kaas bench`: the rate and the latencies of a kTask or a model, in a pool or at a server."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from kaas.bench import shares
from kaas.bench.interrupt import interruptible
from kaas.bench.loops import Arrivals, loops
from kaas.bench.mlperf import loadgen, scenarios
from kaas.bench.mlperf.scenarios import MlperfScenario
from kaas.cli.bench.peers import peers
from kaas.cli.bench.tables import show, show_scenario, to_stdout
from kaas.cli.bench.target import loaded_from, opened
from kaas.cli.files import no_device, pairs_of, scalar_value, writable
from kaas.cli.policies import find_policy
from kaas.errors import InvalidRequest, MissingScalar
from kaas.ktask.draw import printable

if TYPE_CHECKING:
    from kaas.bench.service import LoadedService


MOST_S = 1e6
"""The longest time that an option takes: more than a week."""


def _no_nan(value: float | None) -> float | None:
    """Refuse `nan`, which is within any bounds. A callback of options."""
    if value is not None and math.isnan(value):
        raise typer.BadParameter(f"{value} is no time")
    return value


def _time(least: float, help: str, unit_s: float = 1.0) -> Any:  # noqa: A002 - as typer's
    """Return an option that takes a time, of `least` to MOST_S seconds. unit_s: seconds of its unit."""
    return typer.Option(min=least, max=MOST_S / unit_s, callback=_no_nan, help=help)


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
        _time(0.001, "ms; of the 99th percentile in the scenario server, by default 100", 1e-3),
    ] = None,
    duration: Annotated[float | None, _time(0.01, "seconds of a scenario; MLPerf asks for 600, the default")] = None,
    by_loadgen: Annotated[
        bool, typer.Option("--loadgen", help="MLPerf's own generator drives the scenario; Ctrl-C then gives no figures")
    ] = False,
    given: Annotated[
        Path | None,
        typer.Option("--inputs", exists=True, dir_okay=False, callback=no_device, help="arrays by name, .npz or .json"),
    ] = None,
    arrivals: Annotated[Arrivals | None, typer.Option(help="of a --rate, by default poisson")] = None,
    seed: Annotated[
        int | None, typer.Option(help="of random arrivals, by default 0: the same seed gives the same ones")
    ] = None,
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
    policy: Annotated[
        str | None, typer.Option(help="of the pool that runs for the measurement: a name, or module:Class")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", "--pool", help="of a pool that runs; by default 'kaas' with --ray, else a pool for this alone"
        ),
    ] = None,
    ray: Annotated[
        bool, typer.Option("--ray/--no-ray", help="the running pool on Ray, or one of plain processes")
    ] = False,
    window: Annotated[float | None, _time(0.01, "seconds of a window, by default 1")] = None,
    limit: Annotated[float | None, _time(0.01, "most seconds of a measurement, by default 30, or ten windows")] = None,
    plots: Annotated[Path | None, typer.Option(file_okay=False, help="a folder for PNGs; needs matplotlib")] = None,
    html: Annotated[
        Path | None,
        typer.Option(dir_okay=False, callback=writable, help="a page with tables and plots; needs matplotlib"),
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

    loaded, weights = loaded_from(target, endpoint or server), shares.parse(client)
    _refuse_mixed(endpoint, server, keys, weights, policy, name, ray=ray)
    chosen = None if policy is None else find_policy(policy)
    of_loops = {"--concurrency": concurrency, "--trace": trace, "--window": window, "--limit": limit}
    of_rates = {"--arrivals": arrivals, "--seed": seed}
    if scenario is None:
        _refuse({"--loadgen": by_loadgen or None, "--bound": bound, "--duration": duration}, "a --scenario")
        _refuse({} if rate else of_rates, "a --rate")
        if seed is not None and arrivals is Arrivals.CONSTANT:
            raise InvalidRequest("--seed is of random arrivals, which those of --arrivals constant are not")
    else:
        _refuse_beside(scenario, rate, bound, {**of_loops, **of_rates, "--plots": plots})
    window_s = window or 1.0
    limit_s = limit or max(30.0, 10 * window_s)
    measured = loops(concurrency, rate, trace, arrivals or Arrivals.POISSON, seed or 0, limit_s)
    if by_loadgen:
        loadgen.check_installed()
    if plots is not None or html is not None:
        report.check_matplotlib()
    if plots is not None:
        _make_folder(plots)
    if html is not None:
        read = [Path(target), trace, given, *(keys or ()), _source_of(target), _source_of(policy)]
        _refuse_to_replace(html, read, [plots / f"{name}.png" for name in report.PLOTS] if plots else [])
    at_service = opened(target, loaded, endpoint, server, keys, name, weights, chosen, ray=ray)
    with ExitStack() as written, at_service as service:
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
                found = list(rows(service, inputs, measured, window_s, limit_s, interrupt))
            titles = [row["load"] for row in found]
            left = [loop.title for loop in measured if loop.title not in titles and not loop.rising]
            if left:
                print(f"not measured: {', '.join(left)}", file=sys.stderr)
        if html is not None:  # each is written, though another one cannot be
            written.callback(_write_page, html, target, found)
        if plots is not None:
            written.callback(report.write_plots, found, plots)
        with to_stdout():  # before the pool ends: its process may hang
            if json:
                print(msgspec.json.encode(found).decode())
            elif scenario is not None:
                show_scenario(found[0])
            else:
                show(found)
    if any(map(_failed, found)):
        raise typer.Exit(1)


def _write_page(html: Path, target: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the page, with the day and the machine of the measurement."""
    from kaas.bench import report
    from kaas.output_files import write_whole
    from kaas.papers.results import Hardware

    here = Hardware.here()
    about = f"{here.date}, {here.processors} processors, {here.processor}, load {here.load:g} before"
    about += "".join(f", {each} devices" for each in rows[0].get("kinds", ()))
    about += f", KaaS {here.versions['kaas-gpu']} {here.commit}".rstrip()
    page = report.page(f"kaas bench {printable(target)}", rows, about)
    write_whole(html, page.encode(errors="backslashreplace"))


def _make_folder(plots: Path) -> None:
    """Make the folder of the plots, if it is missing.

    Raises:
        InvalidRequest
    """
    try:
        plots.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(f"--plots {plots}: this folder cannot be made: {error.strerror}") from error


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


def _refuse(options: Mapping[str, object], needed: str) -> None:
    """Refuse options that were given without what they belong to.

    Raises:
        InvalidRequest
    """
    for option, value in options.items():
        if value is not None:
            raise InvalidRequest(f"{option} is of {needed}, and has no meaning without")


def _source_of(text: str | None) -> Path | None:
    """Return the file of the module of module:name, which is imported already; None of other texts."""
    module, colon, _ = (text or "").partition(":")
    found = getattr(sys.modules.get(module), "__file__", None) if colon else None
    return None if found is None else Path(found)


def _refuse_to_replace(html: Path, read: Sequence[Path | None], drawn: Sequence[Path]) -> None:
    """Refuse a page that has the name of an input, or of a plot of the same run.

    Raises:
        InvalidRequest
    """
    if html.resolve() in {each.resolve() for each in read if each is not None}:
        raise InvalidRequest(f"--html {html}: this file is an input, and would be overwritten")
    if html.resolve() in {each.resolve() for each in drawn}:
        raise InvalidRequest(f"--html {html}: --plots has a plot of this name")


def _refuse_beside(
    scenario: MlperfScenario, rate: str | None, bound: float | None, of_loops: Mapping[str, object]
) -> None:
    """Refuse options that have no effect on a scenario. of_loops: those of other loads, and of their plots.

    Raises:
        InvalidRequest
    """
    for option, value in of_loops.items():
        if value is not None:
            raise InvalidRequest(f"a --scenario has loops of its own, and one line of figures: leave out {option}")
    if rate and scenario in (MlperfScenario.SINGLE_STREAM, MlperfScenario.MULTI_STREAM):
        raise InvalidRequest(f"--scenario {scenario.value} sends a query when the last has ended: leave out --rate")
    if bound is not None and scenario is not MlperfScenario.SERVER:
        raise InvalidRequest(f"--scenario {scenario.value} has no bound, as the scenario server: leave out --bound")


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


def _inputs(service: LoadedService, scalars: Sequence[str] | None, given: Path | None) -> dict[str, Any]:
    """Return inputs made of the service's description, with its scalars; some may come from a file."""
    from kaas.bench.payloads import from_file, payload

    named = pairs_of(scalars, "--scalar", tuple(service.scalars))
    if service.stepped and given is None:
        print("a step at the server makes the inputs: what the step takes comes from --inputs", file=sys.stderr)
    values = {name: scalar_value(service, name, text) for name, text in named.items()}
    if missing := [name for name in service.scalars if name not in values]:
        raise MissingScalar(f"scalar {missing[0]!r} has no value: --scalar {missing[0]}=...", scalar=missing[0])
    return {
        **payload(service.inputs),
        **(from_file(given, None if service.stepped else service.inputs) if given else {}),
        **values,
    }


def _failed(row: Mapping[str, Any]) -> bool:
    """Return True if a load lost requests, or more of them failed than not; of a scenario no query may fail."""
    if row.get("lost") or row["state"] == "silent":
        return True
    return row["errors"] > 0 if isinstance(row["errors"], int) else sum(row["errors"].values()) > row["requests"]

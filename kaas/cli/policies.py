"""`kaas simulate` and `kaas replay`: a policy's decisions in virtual time, or on the recorded events of a pool."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from kaas.cli.files import no_device, unlike, writable
from kaas.cli.observe import plain
from kaas.errors import InvalidRequest
from kaas.import_target import modules_here
from kaas.output_files import write_whole
from kaas.scheduling.simulation.simulated import Simulated, Summary

if TYPE_CHECKING:
    from kaas.scheduling.decisions import PolicyFactory
    from kaas.scheduling.recording import Difference
    from kaas.scheduling.simulation.scenario import Scenario

console = Console(emoji=False)

ScenarioFile = Annotated[
    Path, typer.Argument(exists=True, dir_okay=False, callback=no_device, help="as docs/simulator.md describes it")
]
RecordFile = Annotated[
    Path, typer.Argument(exists=True, dir_okay=False, callback=no_device, help="what kaas.init(record=...) wrote")
]
PolicyName = Annotated[str | None, typer.Option(help="a name, or module:Class, instead of the file's policy")]
Json = Annotated[bool, typer.Option("--json", help="everything, for programs")]
RowCount = Annotated[int, typer.Option(min=0, help="dispatches to show")]


def simulate(
    scenario_file: ScenarioFile,
    policy: PolicyName = None,
    json: Json = False,
    rows: RowCount = 20,
    policies: Annotated[
        str | None, typer.Option(help="several, separated by commas: their figures, with the spread over seeds")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="runs of each, from the scenario's seed on")] = None,
    sweep: Annotated[
        list[str] | None, typer.Option(help="an option and its values, as limit=0..45 or order=paper,longest")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(dir_okay=False, callback=writable, help="a PNG of the figures; needs matplotlib")
    ] = None,
    summary: Annotated[
        bool, typer.Option("--summary", help="keep and show no dispatches, for any number of requests")
    ] = False,
) -> None:
    """Run a scheduling policy in virtual time, or compare several."""
    from kaas.scheduling.simulation.scenario_file import read_file

    unlike(plot, scenario_file)
    scenario = read_file(scenario_file)
    if policies is None and seeds is None and sweep is None and plot is None:
        _simulate(scenario, None if policy is None else find_policy(policy), json, rows, summary=summary)
        return
    if policy is not None:
        raise InvalidRequest("--policy is for one run; --policies has the policies to compare")
    from kaas.cli.comparisons import compare

    if sweep is not None and len(sweep) > 1:
        raise InvalidRequest("--sweep is of one option: give it once")
    compare(scenario, policies, seeds or 1, sweep[0] if sweep else None, plot, json=json)


def replay(
    record: RecordFile,
    policy: PolicyName = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="simulate the recorded requests on so many devices, and compare nothing")
    ] = None,
    scenario: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False, callback=writable, help="write the recorded requests there, as a scenario, and run nothing"
        ),
    ] = None,
    json: Json = False,
    rows: RowCount = 20,
) -> None:
    """Give a new policy the recorded events of a pool, and compare its decisions with the recorded ones."""
    from kaas.scheduling import recording
    from kaas.scheduling.simulation.scenario import PolicyChoice

    unlike(scenario, record)
    if devices is not None or scenario is not None:
        recorded = recording.recorded(record)
        found = None if policy is None else find_policy(policy)
        if scenario is not None and callable(found):
            raise InvalidRequest(f"a scenario cannot name {policy}: kaas simulate --policy takes it, with any scenario")
        if recorded.policy is None and found is None:
            raise recording.own_policy(record, 0, recorded.own)
        named = PolicyChoice(found) if isinstance(found, str) else None
        made = recorded.scenario(devices or len(recorded.devices), named)
        if recorded.left_out:
            note = f"{recorded.left_out} recorded requests never ran to an end, and are left out"
            Console(stderr=True, emoji=False).print(note)
        if scenario is not None:
            write_whole(scenario, made.as_json())
        else:
            _simulate(made, found and recording.as_recorded(found, recorded.own, recorded.options), json, rows)
        return
    replayed = recording.replay(record, None if policy is None else find_policy(policy))
    epochs = f"{replayed.epochs} epoch{'s'[: replayed.epochs != 1]}"
    counts = f"{epochs}, {replayed.events} events, {replayed.decisions} decisions"
    if replayed.difference is None:
        console.print(f"[green]identical[/]: {counts}")
        return
    fail_different(replayed.difference, f", after {counts}")


def fail_different(found: Difference, where: str = "") -> NoReturn:
    """Print the first difference of a replay, and exit with status 1."""
    console.print(f"[red]different[/] at line {found.line}{where}")
    expected = "the policy raised" if found.expected is None else found.expected
    for name, value in (("event", found.event), ("expected", expected), ("got", found.error or found.got)):
        console.print(f"{name}: {plain(str(value))}", soft_wrap=True)
    raise typer.Exit(1)


def find_policy(policy: str) -> str | PolicyFactory:
    """Return the policy of an option; the search of modules includes the current folder."""
    from kaas.scheduling.policy_choice import choose_policy

    with modules_here():
        return choose_policy("policy", policy)


def _simulate(
    scenario: Scenario, found: str | PolicyFactory | None, json: bool, rows: int, *, summary: bool = False
) -> None:
    import msgspec

    from kaas.cli.comparisons import arrivals
    from kaas.scheduling.simulation.scenario import PolicyChoice
    from kaas.scheduling.simulation.simulator import simulate as simulated
    from kaas.scheduling.workloads.workload import open_workload

    if isinstance(found, str):
        scenario, found = replace(scenario, policy=PolicyChoice(found)), None
    scenario, requests = open_workload(scenario)
    if requests is not None and not any(each.run_s for each in scenario.functions.values()):
        note = f"0 of {len(scenario.functions)} functions of the workload have run times: all run for 0 s"
        Console(stderr=True, emoji=False).print(note, highlight=False, soft_wrap=True)
    with arrivals() as arrived:
        result = simulated(scenario, found, requests=requests, dispatches=not summary, progress=arrived)
    if json:
        print(msgspec.json.encode(result).decode())
        return
    for table in tables(result, rows):
        console.print(table)


def tables(result: Simulated, rows: int) -> Iterator[Table]:
    """Yield the summary, then the first dispatches and the first rejections. rows: limit of each."""
    yield _figures(result.summary)
    yield _clients(result.summary)
    if result.summary.per_share:
        yield _shares(result.summary)
    if result.dispatches[:rows]:
        table = Table(
            "request", "device", "at (s)", "start", "evicted", title=_title("dispatches", result.dispatches, rows)
        )
        for each in result.dispatches[:rows]:
            evicted = plain(", ".join(each.evicted))
            table.add_row(str(each.request), str(each.device), f"{each.at_s:.6g}", each.start, evicted)
        yield table
    if result.rejected[:rows]:
        table = Table("request", "at (s)", "reason", title=_title("rejected", result.rejected, rows))
        for refused in result.rejected[:rows]:
            table.add_row(str(refused.request), f"{refused.at_s:.6g}", plain(refused.reason))
        yield table


def _figures(summary: Summary) -> Table:
    table = Table("figure", "value", title="summary")
    for name in ("mean_latency_s", "p50_latency_s", "p99_latency_s", "jain"):
        table.add_row(name, f"{getattr(summary, name):.6g}")
    for name in ("hits", "loads", "fetches", "colds", "false_misses", "evictions", "rejected"):
        table.add_row(name, str(getattr(summary, name)))
    table.add_row("device_busy_s", ", ".join(f"{busy_s:.6g}" for busy_s in summary.device_busy_s))
    return table


def _clients(summary: Summary) -> Table:
    table = Table("client", "requests", "mean latency (s)", "p99 (s)", "charged (s)")
    for name, client in summary.per_client.items():
        figures = (client.mean_latency_s, client.p99_latency_s, client.charged_s)
        table.add_row(plain(name), str(client.requests), *(f"{figure:.6g}" for figure in figures))
    return table


def _shares(summary: Summary) -> Table:
    table = Table("share", "device s", "SM s", "windows missed")
    for name, share in summary.per_share.items():
        table.add_row(plain(name), f"{share.device_s:.6g}", f"{share.sm_s:.6g}", str(share.missed))
    return table


def _title(name: str, entries: tuple[object, ...], rows: int) -> str:
    return name if len(entries) <= rows else f"{name}, {rows} of {len(entries)}"

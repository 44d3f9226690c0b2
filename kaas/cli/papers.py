"""`kaas papers`: the experiments of the papers."""

from __future__ import annotations

import os
import signal
import sys
from enum import Enum
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kaas.cli.files import writable
from kaas.cli.observe import print_whole

if TYPE_CHECKING:
    from kaas.papers.cells import Cell
    from kaas.papers.page import ResultTable
    from kaas.papers.results import ResultLine, Results
    from kaas.papers.testbed import Testbed


class TestbedScale(Enum):
    """A testbed by its name."""

    SMALL = "small"
    FULL = "full"


app = typer.Typer(no_args_is_help=True, help=__doc__)
console = Console(emoji=False)


@app.callback()
def papers() -> None:
    """Run the experiments of the papers on this machine, and lay the figures beside the published ones."""


@app.command()
def kaas(
    figure: Annotated[str, typer.Option(help="table1, 8, 10, 11, 12, 13, several as 10,12, or all")] = "all",
    scale: Annotated[
        TestbedScale, typer.Option(help="small: software devices with modelled time; full: real models on NVIDIA GPUs")
    ] = TestbedScale.SMALL,
    folder: Annotated[
        Path, typer.Option(file_okay=False, help="of the results; a run that was stopped goes on")
    ] = Path("papers"),
    report: Annotated[
        Path | None, typer.Option(dir_okay=False, callback=writable, help="a page of all that the folder has, Markdown")
    ] = None,
    plots: Annotated[bool, typer.Option(help="draw the figures into the folder; needs matplotlib")] = False,
    fresh: Annotated[bool, typer.Option(help="measure the figures again, though the folder has them")] = False,
    json: Annotated[bool, typer.Option("--json", help="one line, for programs")] = False,
) -> None:
    """Kernel as a Service: throughput and latency of kTasks and eTasks, with more tenants than devices.

    Clients over ZeroMQ, and a server on Ray. At the small scale it has four software devices with the times of Table 1,
    scaled down: the time of kernels, copies and steps is modelled; all else is real. At full scale models, matrices and
    constants of Table 1's sizes run on the GPUs of this machine.
    """
    from kaas.bench.report import check_matplotlib
    from kaas.errors import InvalidRequest
    from kaas.optional_ray import check_ray
    from kaas.output_files import write_whole
    from kaas.papers.experiments import FIGURES, bars, cells_of, is_of, missing, run
    from kaas.papers.page import page, result_tables
    from kaas.papers.plots import draw
    from kaas.papers.results import Hardware, Results, has_results, set_aside

    check_ray()
    if plots:
        check_matplotlib()
    figures = list(FIGURES) if figure == "all" else [each.strip() for each in figure.split(",")]
    cells = cells_of(figures)
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))  # which ends the server, too
    testbed = _testbed(scale)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"kaas-{testbed.scale}.jsonl"
    try:
        flock(os.open(folder, os.O_RDONLY), LOCK_EX | LOCK_NB)  # until the end of this process
    except BlockingIOError as error:
        raise InvalidRequest(f"another run measures into {folder}") from error
    if report is not None and has_results(report, folder):
        raise InvalidRequest(f"{report} has results: the page needs another file")
    other = TestbedScale.FULL if scale is TestbedScale.SMALL else TestbedScale.SMALL
    # read before hours of measuring, and not after
    others = None if report is None else Results(folder / f"kaas-{other.value}.jsonl", other.value)
    if fresh and (earlier := set_aside(file, copied=set(figures) != set(FIGURES))):
        print(f"earlier results: {', '.join(map(str, earlier))}", file=sys.stderr)
    results = Results(file, testbed.scale)
    if fresh:
        stale = sum(cell.offline in cells and cell not in cells for cell in results.found)
        results.forget(lambda kept: is_of(kept, figures))
        if stale:
            print(f"{stale} results of other figures go too: their rates are shares of these", file=sys.stderr)

    def tell(text: str) -> None:
        if not json:
            console.print(text, highlight=False, soft_wrap=True)

    try:
        if left := missing(figures, results):
            results.measuring_on(Hardware.here(testbed.scale))
            tell(f"to measure into {file}: {left}; a stopped run goes on with the same command")
        else:
            tell(f"{file} has all of it already; --fresh measures it again")
        run(figures, results, testbed, tell, lambda kept: tell(_line(kept)))
    finally:
        if report is not None and others is not None:
            write_whole(report, page(results, testbed, others).encode())
            tell(f"the page is {report}")
        if left := missing(figures, results):
            tell(f"left to measure: {left}. The same command goes on with them")
    if plots:
        drawn = draw(results, folder)
        tell(f"plots: {', '.join(map(str, drawn)) or 'none, Table 1 and Figure 8 are tables'}")
    if json:
        rows = [{"cell": cell.title, **_figures(cell, results, testbed)} for cell in cells]
        found: dict[str, Any] = {"benchmark": "papers kaas", "bars": bars(results, testbed), "detail": rows}
        found |= {"table1": results.properties} if "table1" in figures else {}
        found |= {"figure8": results.breakdowns} if "8" in figures else {}
        print(msgspec.json.encode(found).decode())
    else:
        for table in result_tables(results, testbed, figures):
            _show(table)
        if report is None:
            tell("--report FILE writes these tables with their explanations, and all others of the folder")
    if left:
        raise typer.Exit(1)


Zipf = Annotated[float | None, typer.Option(help="exponent of the functions' popularity, if not the paper's")]
GpuMb = Annotated[float | None, typer.Option(help="memory of a GPU, if not the paper's")]
OverheadS = Annotated[float, typer.Option(help="seconds of a request on its device, besides its load and run")]
Seeds = Annotated[int, typer.Option(min=1, help="runs of each setting")]
Plot = Annotated[
    Path | None, typer.Option(dir_okay=False, callback=writable, help="a PNG of the figures; needs matplotlib")
]
OneLine = Annotated[bool, typer.Option("--json", help="one line, for programs")]


@app.command()
def lalb(
    zipf: Zipf = None,
    gpu_mb: GpuMb = None,
    overhead_s: OverheadS = 0.0,
    seeds: Seeds = 10,
    plot: Plot = None,
    json: OneLine = False,
) -> None:
    """Locality-aware load balancing, in virtual time: LB, LALB and LALBO3 on 12 GPUs."""
    _scheduling("lalb", zipf, gpu_mb, overhead_s, seeds, plot, "working_set", json=json)


@app.command()
def mqfq(
    zipf: Zipf = None,
    gpu_mb: GpuMb = None,
    overhead_s: OverheadS = 0.0,
    seeds: Seeds = 10,
    plot: Plot = None,
    json: OneLine = False,
) -> None:
    """MQFQ-Sticky, in virtual time: FCFS, Batch and MQFQ-Sticky on one GPU and two."""
    _scheduling("mqfq", zipf, gpu_mb, overhead_s, seeds, plot, "D", json=json)


@app.command()
def hybrid(
    zipf: Zipf = None,
    gpu_mb: GpuMb = None,
    overhead_s: OverheadS = 0.0,
    seeds: Seeds = 10,
    plot: Plot = None,
    json: OneLine = False,
) -> None:
    """MQFQ-Sticky's functions on a CPU, GPUs, or both, in virtual time."""
    _scheduling("hybrid", zipf, gpu_mb, overhead_s, seeds, plot, None, json=json)


@app.command()
def fast(gpu_mb: GpuMb = None, seeds: Seeds = 3, plot: Plot = None, json: OneLine = False) -> None:
    """FaST-GShare, in virtual time: throughput over shares, pods beside each other, and a promise of latency."""
    _scheduling("fast", None, gpu_mb, 0.0, seeds, plot, "pods", json=json)


def _scheduling(
    name: str,
    zipf: float | None,
    gpu_mb: float | None,
    overhead_s: float,
    seeds: int,
    plot: Path | None,
    along: str | None,
    *,
    json: bool,
) -> None:
    """Run a scheduling paper's experiment, and lay the figures beside the published ones."""
    from kaas.cli.comparisons import check_plot, progress, show
    from kaas.papers.scheduling.paper import Assumptions, measure_cells
    from kaas.papers.scheduling.papers import SCHEDULING_PAPERS
    from kaas.papers.scheduling.plots import draw_rows

    check_plot(plot)
    paper = SCHEDULING_PAPERS[name]
    assumed = Assumptions(
        paper.assumed.zipf if zipf is None else zipf, paper.assumed.gpu_mb if gpu_mb is None else gpu_mb, overhead_s
    )
    cells = paper.cells(assumed)
    with progress(name, len(cells) * seeds) as done:
        rows = measure_cells(cells, seeds, done)
    told = [each.as_json() for each in rows.rows]
    published = list(paper.published(rows))
    if plot is not None:
        draw_rows([row for row in told if "limit" not in row], plot, along=along)
    if json:
        found = {"paper": name, "seeds": seeds, "assumed": assumed, "rows": told, "published": published}
        print(msgspec.json.encode(found).decode())
        return
    show(told, seeds, f"{paper.title}: ")
    table = Table("", "paper", "here")
    for each in published:
        table.add_row(escape(each.what), each.published, each.here)
    print_whole(table)
    for note in paper.notes:
        console.print(f"- {escape(note)}", highlight=False)


def _testbed(scale: TestbedScale) -> Testbed:
    if scale is TestbedScale.FULL:
        from kaas.papers.full.testbed import full_testbed

        return full_testbed()
    from kaas.papers.small.testbed import SMALL

    return SMALL


def _show(found: ResultTable) -> None:
    """Print a table of results; the long texts of the column REASONS are for the page only."""
    from kaas.papers.page import REASONS

    shown = [place for place, name in enumerate(found.head) if name != REASONS]
    table = Table(*(escape(found.head[place]) for place in shown), title=found.title, title_justify="left")
    for row in found.rows:
        table.add_row(*(escape(row[place]) for place in shown))
    print_whole(table)


def _line(kept: ResultLine) -> str:
    from kaas.papers.breakdown import Breakdown, Properties

    match kept:
        case cell, found:
            return f"{cell.title}: {found.rate_per_s:.4g} requests/s, {found.state.value}"
        case Breakdown():
            return f"micro-benchmark, {kept.task}, {kept.start.value}: {kept.total_s * 1e3:.3g} ms"
        case Properties():
            return f"{kept.workload}: {kept.constant_bytes / 1e6:.4g} MB, {kept.gpu_s * 1e3:.3g} ms on the device"
        case _:
            return str(kept)


def _figures(cell: Cell, results: Results, testbed: Testbed) -> dict[str, Any]:
    from kaas.papers.experiments import efficiency

    found = results.found.get(cell)
    if found is None:
        return {"state": "no figure"}
    return {
        "state": found.state.value,
        "rate_per_s": found.rate_per_s,
        "efficiency": efficiency(cell, results, testbed),
        "p50_ms": found.p50_s * 1e3,
        "p90_ms": found.p90_s * 1e3,
        "requests": found.requests,
        "offered_per_s": found.offered_per_s,
    }

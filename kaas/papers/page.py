"""The page of the results, Markdown: our figures beside the published ones, and why they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

from kaas.papers.breakdown import OVERHEADS, PARTS, Warmth
from kaas.papers.cells import Cell, Found, Side
from kaas.papers.claims import NONE, claim_rows, marked
from kaas.papers.experiments import FIGURES, bars, cells_of, efficiency, is_met
from kaas.papers.workloads import WORKLOADS

if TYPE_CHECKING:
    from kaas.papers.breakdown import Breakdown
    from kaas.papers.results import Results
    from kaas.papers.testbed import Testbed

HEAD = """# Evaluation

The experiments of *Kernel-as-a-Service: A Serverless Interface to GPUs* (N. Pemberton, A. Zabreyko, Z. Ding, R. Katz,
J. Gonzalez, 2022, arXiv:2212.08146) on this project, as `kaas papers kaas --report` measures them and writes this page.
Clients send requests over ZeroMQ to `kaas serve` on Ray; a request runs through a step on a processor, a device, and
another step (the paper's Figure 9). Every result is checked.

- A **kTask** is a graph of kernels: any device runs anyone's. An **eTask** is a Python function with a device and a
  process to itself: a device that changes its client ends one process and starts another.
- A **replica** is a client with a function and constants of its own. Offline: callers send as fast as they get results;
  online: requests arrive at random, at 80 % of the offline rate.
- **CFS-Affinity**: the client that has had least time is next, on a device that has its constants. **Exclusive**: a
  device belongs to one client at a time. A waiting client takes the device of the largest group, so with more clients
  than devices nearly each request starts a process, also where its client has more requests waiting.
- That eTasks have a device's memory to themselves is the paper's setting, and the reason for most of what follows. With
  `etask_workers` processes of several clients stay on a device and take turns there (docs/etasks.md): one cell has it.
"""
PERCENTS = (10, 50, 90, 99)
"""Of the distributions of Figure 11."""
REASONS = "why they differ"
"""The column of long texts."""


class ResultTable(NamedTuple):
    """A table of the page. text: explains the table, in Markdown; "" if nothing is to be explained."""

    title: str
    text: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def page(results: Results, testbed: Testbed, other: Results | None = None) -> str:
    """Return the page of what has been measured; a figure without results is left out.

    other: the results of another scale, of which the page has Figure 8.
    """
    parts = [HEAD, *_hardware(results, testbed)]
    tables = [*result_tables(results, testbed, list(FIGURES)), *(_other_scale(other) if other else ())]
    for table in tables:
        parts += [f"## {table.title}\n", *[f"{table.text}\n"] * bool(table.text), *_table(table), ""]
    return "\n".join(parts)


def _other_scale(other: Results) -> Iterator[ResultTable]:
    """Yield Figure 8 of another scale."""
    warm = {each.task: each.total_s for each in other.breakdowns if each.start is Warmth.WARM}
    for table in _figure8(other):
        machines = "; ".join(dict.fromkeys(f"{each.date}, {each.processors} processors" for each in other.measured_on))
        ratio = f" A warm eTask takes {warm['eTask'] / warm['kTask']:.3g} times a warm kTask." if len(warm) > 1 else ""
        text = (
            f"Measured on a GPU ({machines}): kernels, copies and bytes are real, with the sizes of the paper. It is "
            f"all that has been measured there so far.{ratio} The overheads are those of 4 MB to the server and 4 MB "
            "back, by the server and a client on one machine."
        )
        yield table._replace(title=f"{table.title}, at {other.measured_on[0].scale} scale", text=text)


def result_tables(results: Results, testbed: Testbed, figures: Sequence[str]) -> Iterator[ResultTable]:
    """Yield the tables of some figures, and what the paper claims of them, beside the measurements.

    A figure without results is left out.
    """
    part, cells = copy(results), {*cells_of(figures)}
    part.found = {cell: found for cell, found in results.found.items() if cell in cells}
    part.breakdowns = results.breakdowns if "8" in figures else []
    yield from _claims(part, testbed)
    yield from _bars(part, testbed)
    yield from _table1(part, testbed) if "table1" in figures else ()
    yield from _figure8(part)
    yield from _offline(part, testbed, figures)
    yield from _online(part) if "13" in figures else ()
    yield from _figure11(part) if "11" in figures else ()


def _hardware(results: Results, testbed: Testbed) -> Iterator[str]:
    yield "## The machine\n"
    if not results.measured_on:
        yield "- The file of the results does not name the machine."
    for each in results.measured_on:
        versions = ", ".join(f"{name} {version}" for name, version in sorted(each.versions.items()))
        when = f"{each.date}, KaaS at {each.commit or 'an unknown commit'}, load {each.load:g} at the beginning"
        yield f"- {when}: {each.processors} processors, {each.processor}; {versions}"
    yield testbed.description()
    yield (
        "A *-* is not measured, or has no figure: of a cell in whose time too few requests ended (the run says so), or "
        "a percentile that too few requests stand behind.\n"
    )


def _table(table: ResultTable) -> Iterator[str]:
    yield f"| {' | '.join(table.head)} |"
    yield f"|{' --- |' * len(table.head)}"
    for row in table.rows:
        yield f"| {' | '.join(row)} |"


def _claims(results: Results, testbed: Testbed) -> Iterator[ResultTable]:
    rows = list(claim_rows(results, testbed))
    if rows:
        text = (
            "A figure behind *~* is of windows that did not agree within 10 %, and is of all of them, an offline rate "
            "from each device's first result to the last one; *n* is the number of requests. Devices that do not end "
            "together may give one result each more or fewer in this time. With so few requests, and starts that "
            "take longer on a slow or busy machine, a ratio to eTasks is right to an order of magnitude only; and a "
            "few seconds are the beginning of an online load, whose queues may still be short. A figure without *~* is "
            "of the last windows, which agree: those before them do not count. Where each process is any client's, or "
            "has its own device, the devices have loaded each replica's constants before a cell begins."
        )
        title = "The paper's claims, beside the measurements"
        yield ResultTable(title, text, ("", "paper", "here", REASONS), rows)


def _bars(results: Results, testbed: Testbed) -> Iterator[ResultTable]:
    found = bars(results, testbed)
    if not found:
        return
    text = (
        "Ratios of resnet50 that this project sets itself, with their limits; those of the other workloads stand "
        "above, and not all are within these limits. `p90_16_over_4` compares two draws of random arrivals, each at "
        "80 % of its own peak: repeated, it varies by a third, and it says little where the throughput is poor. Its "
        "windows from the beginning, before they agree, do not count; with them, or with one slot for each device, as "
        "the paper's executor has, it is larger, and in some runs beyond its limit."
    )
    rows = []
    for name, (value, comparison, limit) in found.items():
        shown = value if isinstance(value, str) else f"{value:.3g}"
        missed = "" if is_met((value, comparison, limit)) else "missed"
        rows.append((f"`{name}`", f"{comparison} {limit:g}", shown, missed))
    yield ResultTable("Bars", text, ("ratio", "limit", "measured", ""), rows)


def _table1(results: Results, testbed: Testbed) -> Iterator[ResultTable]:
    if not results.properties:
        return
    text = (
        "By the server's own figures of a client's requests, with the scale taken out; dynamic memory is that of the "
        "kTask's other buffers."
        + " Times are modelled after the paper's: they show that the model holds."
        * testbed.modelled
    )
    rows = []
    for found in results.properties:
        paper = WORKLOADS[found.workload]
        rows.append((
            found.workload,
            f"{paper.constant_bytes / 1e6:.4g}", f"{found.constant_bytes / 1e6:.4g}",
            f"{paper.dynamic_bytes / 1e6:.4g}", f"{testbed.shrink * testbed.dynamic_bytes(paper) / 1e6:.2g}",
            f"{paper.gpu_s * 1e3:.3g}", f"{found.gpu_s * 1e3:.3g}",
            f"{paper.cpu_s * 1e3:.3g}", f"{found.cpu_s * 1e3:.3g}",
        ))  # fmt: skip
    columns = ("constants MB", "dynamic MB", "GPU ms", "CPU ms")
    pairs = [f"{name}, {where}" for name in columns for where in ("paper", "here")]
    yield ResultTable("Table 1: the workloads", text, ("workload", *pairs), rows)


def _figure8(results: Results) -> Iterator[ResultTable]:
    if not results.breakdowns:
        return
    text = (
        "Cold: the server has seen no request of the benchmark; an eTask's process starts. A new client's: another "
        "client has called the kernels, and its own constants are new. Kernel Init: libraries loaded and graphs "
        "instantiated. Overheads: the rest of what the client waits for, the network included. The start of an eTask's "
        "process and its function are one stage each."
    )
    names = dict.fromkeys((*PARTS.values(), OVERHEADS))
    head = [f"{each.task}, {each.start.value}, n={each.requests}" for each in results.breakdowns]
    rows = [(name, *(_milliseconds(each, name) for each in results.breakdowns)) for name in names]
    rows.append(("all", *(f"{each.total_s * 1e3:.3g}" for each in results.breakdowns)))
    yield ResultTable("Figure 8: a request of the micro-benchmark by stage, ms", text, ("stage", *head), rows)


def _milliseconds(each: Breakdown, name: str) -> str:
    seconds = each.stages_s.get(name, 0.0)
    return f"{seconds * 1e3:.3g}" if seconds else NONE


def _offline(results: Results, testbed: Testbed, figures: Sequence[str]) -> Iterator[ResultTable]:
    def shown(cell: Cell, found: Found) -> str:
        share = efficiency(cell, results, testbed)
        of_kernels = "" if share is None else f" ({share:.2f})"
        return marked(f"{found.rate_per_s:.3g}{of_kernels}, n={found.requests}", found)

    for figure, memory in (("10", "low-memory"), ("12", "high-memory")):
        title = f"Figure {figure}: throughput of {memory} workloads, requests/s"
        text = "In brackets: over the rate of the devices with the kernels alone."
        yield from _by_replicas(title, text, FIGURES[figure], results, shown) if figure in figures else ()


def _online(results: Results) -> Iterator[ResultTable]:
    title = "Figure 13: latency of online workloads, ms: median / 90th percentile"
    text = "Random arrivals at 80 % of the offline rate of the same cell. *Unstable*: the queue grew."
    yield from _by_replicas(title, text, FIGURES["13"], results, lambda _, found: _quantiles(found))


def _quantiles(found: Found) -> str:
    latencies = " / ".join(_milliseconds_at(found, percent) for percent in (50, 90))
    return marked(f"{latencies} at {found.offered_per_s:.3g}/s, n={found.requests}", found)


def _milliseconds_at(found: Found, percent: int) -> str:
    """Return a percentile; NONE if only the slowest request is above it."""
    return f"{found.cdf_s[percent] * 1e3:.0f}" if found.tells(percent) else NONE


def _by_replicas(
    title: str, text: str, cells: Sequence[Cell], results: Results, shown: Callable[[Cell, Found], str]
) -> Iterator[ResultTable]:
    """Yield a table with a row for each setting and a column for each side, if one of the cells has a result."""
    if results.found.keys().isdisjoint(cells):
        return
    sides = list(dict.fromkeys(cell.side for cell in cells))
    settings = dict.fromkeys((cell.workload, cell.replicas) for cell in cells)
    of = {(cell.workload, cell.replicas, cell.side): cell for cell in cells if cell in results.found}
    rows = []
    for workload, replicas in sorted(settings, key=lambda setting: (list(WORKLOADS).index(setting[0]), setting[1])):
        found = [of.get((workload, replicas, side)) for side in sides]
        texts = [NONE if cell is None else shown(cell, results.found[cell]) for cell in found]
        rows.append((workload, str(replicas), *texts))
    yield ResultTable(title, text, ("workload", "replicas", *(side.value for side in sides)), rows)


def _figure11(results: Results) -> Iterator[ResultTable]:
    if not any(cell.online for cell in results.found.keys() & {*FIGURES["11"]}):
        return
    rows = []
    for cell in FIGURES["11"]:
        found = results.found.get(cell)
        rate = NONE if found is None else f"{found.offered_per_s:.3g}"
        rate += " (that of eTasks)" if cell.peak is Side.ETASK_EXCLUSIVE else ""
        quantiles = [NONE if found is None else marked(_milliseconds_at(found, each), found) for each in PERCENTS]
        rows.append((cell.side.value, str(cell.replicas), rate, str(found.requests if found else NONE), *quantiles))
    head = ("", "replicas", "requests/s", "n", *(f"{percent} %" for percent in PERCENTS))
    yield ResultTable("Figure 11: the distribution of BERT's latencies, ms", "", head, rows)

"""The page of the results, Markdown: our figures beside the published ones, and why they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from kaas.papers.breakdown import OVERHEADS, PARTS
from kaas.papers.cells import Cell, Found, Side, steady
from kaas.papers.experiments import FIGURES, MOST_REPLICAS, efficiency
from kaas.papers.workloads import WORKLOADS

if TYPE_CHECKING:
    from kaas.papers.breakdown import Breakdown
    from kaas.papers.results import Results
    from kaas.papers.workloads import Scale

NONE = "-"
HEAD = """# Evaluation

The experiments of the paper *Kernel as a Service* on KaaS, as `kaas papers kaas` measures them: clients send requests
over ZeroMQ to `kaas serve` on Ray; a request runs through a step, a device, and another step (Figure 9). Each client
has a function and constants of its own. An eTask is written with NumPy and cuda.core, with the kernels of the kTask;
each client's runs in a process of its own. Every result is checked. `kaas papers kaas --report docs/evaluation.md`
writes this page; no figure on it is written by hand.
"""
UNSTABLE = "unstable"
PERCENTS = (10, 50, 90, 99)
"""Of the distributions of Figure 11."""


def page(results: Results, scale: Scale) -> str:
    """Return the page of what has been measured; a figure without results is left out."""
    parts = [
        HEAD,
        *_hardware(results, scale),
        *_claims(results),
        *_table1(results),
        *_figure8(results),
        *_offline(results, scale),
        *_online(results),
        *_figure11(results),
    ]
    return "\n".join(parts)


def _hardware(results: Results, scale: Scale) -> Iterator[str]:
    yield "## The machine\n"
    for each in results.measured_on:
        versions = ", ".join(f"{name} {version}" for name, version in sorted(each.versions.items()))
        yield f"- {each.processors} processors, {each.processor}; {versions}"
    yield (
        f"- {scale.devices} software devices with modelled time. Bytes, and rates of copies, are those of the paper's "
        f"machine (V100 with {scale.device_bytes / 1e9:g} GB each, {scale.copy_bytes_per_s / 1e9:g} GB/s) divided by "
        f"{scale.shrink:g}; times of kernels, copies and steps are Table 1's times {scale.slow:g}. All else is real: "
        "processes and their starts, messages, scheduling, caches.\n"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


# --- the claims


def _claims(results: Results) -> Iterator[str]:
    rows = [row for row in _claim_rows(results) if row is not None]
    if rows:
        yield "## The paper's claims, beside the measurements\n"
        yield from _table(("", "paper", "here", "why they differ"), rows)


def _claim_rows(results: Results) -> Iterator[tuple[str, str, str, str] | None]:
    ratios = {
        name: _rates(results, Cell(name, Side.KTASK, 16), Cell(name, Side.ETASK_EXCLUSIVE, 16)) for name in WORKLOADS
    }
    yield _row(
        "throughput of kTasks over eTasks, 16 replicas on 4 devices (abstract: the most)",
        "50",
        ratios,
        "the ratio is about the start of a process over the time of a request, and is larger for shorter requests",
    )
    online = {
        name: _latencies(
            results, Cell(name, Side.ETASK_EXCLUSIVE, 16, online=True), Cell(name, Side.KTASK, 16, online=True)
        )
        for name in WORKLOADS
    }
    yield _row(
        "median latency of eTasks over kTasks, each at 80 % of its own peak, 16 replicas (abstract: the most)",
        "16",
        online,
        "a queue of eTasks waits for starts; the paper's ratio is one workload's",
    )
    many = {
        name: _rates(results, Cell(name, Side.KTASK, MOST_REPLICAS), Cell(name, Side.KTASK, 4)) for name in WORKLOADS
    }
    yield _row(
        "throughput of kTasks, 32 replicas over 4 (§5.3.1)",
        "resnet50: no significant slowdown; cGEMM: slower from about 20 replicas on, as constants exceed memory",
        many,
        "at 32 replicas cGEMM's constants are as large as the memory of all devices",
    )
    exclusive = {
        name: _rates(results, Cell(name, Side.ETASK_EXCLUSIVE, 16), Cell(name, Side.ETASK_EXCLUSIVE, 4))
        for name in WORKLOADS
    }
    yield _row("throughput of eTasks, 16 replicas over 4 (§5.3.1)", "drops dramatically", exclusive, "")
    tails = {
        name: _tails(results, Cell(name, Side.KTASK, 16, online=True), Cell(name, Side.KTASK, 4, online=True))
        for name in WORKLOADS
    }
    yield _row(
        "90th percentile of kTasks, 16 replicas over 4 (Figure 13)",
        "no noticeable change",
        tails,
        "cGEMM: a device holds the constants of 8 replicas; a request that finds these devices busy loads 2 GB on "
        "another one, which takes four times its kernels' time (`kaas simulate`: none the longer if loads are free)",
    )
    totals = {(each.task, each.cold): each.total_s for each in results.breakdowns}
    if totals:
        cold = {kind: f"{totals[kind, True] / totals[kind, False]:.3g}" for kind in ("eTask", "kTask")}
        yield (
            "first request over a warm one, micro-benchmark (§5.2)",
            "eTask 46; kTask: only the constants are loaded",
            ", ".join(f"{kind} {ratio}" for kind, ratio in cold.items()),
            "the start of a process is real, a warm request is modelled after a V100",
        )


def _row(what: str, paper: str, ratios: dict[str, str | None], why: str) -> tuple[str, str, str, str] | None:
    known = [f"{name} {ratio}" for name, ratio in ratios.items() if ratio is not None]
    return (what, paper, ", ".join(known), why) if known else None


def _rates(results: Results, one: Cell, other: Cell) -> str | None:
    over, under = results.found.get(one), results.found.get(other)
    return f"{over.rate_per_s / under.rate_per_s:.3g}" if over and under and under.rate_per_s else None


def _latencies(results: Results, one: Cell, other: Cell) -> str | None:
    over, under = results.found.get(one), results.found.get(other)
    if not over or not under:
        return None
    return f"{over.p50_s / under.p50_s:.3g}" if steady(over) and steady(under) else UNSTABLE


def _tails(results: Results, one: Cell, other: Cell) -> str | None:
    over, under = results.found.get(one), results.found.get(other)
    if not over or not under:
        return None
    return f"{over.p90_s / under.p90_s:.3g}" if steady(over) and steady(under) else UNSTABLE


# --- the figures


def _table1(results: Results) -> Iterator[str]:
    if not results.properties:
        return
    yield "## Table 1: the workloads\n"
    yield "By the server's own figures of a client's requests, with the scale taken out.\n"
    rows = []
    for found in results.properties:
        paper = WORKLOADS[found.workload]
        rows.append((
            found.workload,
            f"{paper.constant_bytes / 1e6:.4g}", f"{found.constant_bytes / 1e6:.4g}",
            f"{paper.gpu_s * 1e3:.3g}", f"{found.gpu_s * 1e3:.3g}",
            f"{paper.cpu_s * 1e3:.3g}", f"{found.cpu_s * 1e3:.3g}",
        ))  # fmt: skip
    pairs = [f"{name}, {where}" for name in ("constants MB", "GPU ms", "CPU ms") for where in ("paper", "here")]
    yield from _table(("workload", *pairs), rows)


def _figure8(results: Results) -> Iterator[str]:
    if not results.breakdowns:
        return
    yield "## Figure 8: a request of the micro-benchmark by stage, ms\n"
    yield (
        "Kernel Init: libraries loaded and graphs instantiated. Overheads: the rest of what the client waits for, the "
        "network included. The start of an eTask's process and its function are one stage each.\n"
    )
    names = dict.fromkeys((*PARTS.values(), OVERHEADS))
    head = [f"{each.task}, {'cold' if each.cold else 'warm'}" for each in results.breakdowns]
    rows = [[name, *(_milliseconds(each, name) for each in results.breakdowns)] for name in names]
    rows.append(["all", *(f"{each.total_s * 1e3:.3g}" for each in results.breakdowns)])
    yield from _table(("stage", *head), rows)


def _milliseconds(each: Breakdown, name: str) -> str:
    seconds = each.stages_s.get(name, 0.0)
    return f"{seconds * 1e3:.3g}" if seconds else NONE


def _offline(results: Results, scale: Scale) -> Iterator[str]:
    for figure, title in (("10", "low-memory"), ("12", "high-memory")):
        cells = [cell for cell in FIGURES[figure] if cell in results.found and not cell.online]
        if not cells:
            continue
        yield f"## Figure {figure}: throughput of {title} workloads, requests/s\n"
        yield "In brackets: over the rate of the devices with the kernels alone.\n"

        def shown(cell: Cell, found: Found) -> str:
            return f"{found.rate_per_s:.3g} ({efficiency(cell, found, scale):.2f})"

        yield from _by_replicas(cells, results, shown)


def _online(results: Results) -> Iterator[str]:
    cells = [cell for cell in FIGURES["13"] if cell in results.found and cell.online]
    if not cells:
        return
    yield "## Figure 13: latency of online workloads, ms: median / 90th percentile\n"
    yield "Random arrivals at 80 % of the offline rate of the same cell. *Unstable*: the queue grew.\n"
    yield from _by_replicas(cells, results, lambda _, found: _quantiles(found))


def _quantiles(found: Found) -> str:
    return f"{found.p50_s * 1e3:.0f} / {found.p90_s * 1e3:.0f}" if steady(found) else UNSTABLE


def _by_replicas(cells: Sequence[Cell], results: Results, shown: Callable[[Cell, Found], str]) -> Iterator[str]:
    sides = list(dict.fromkeys(cell.side for cell in cells))
    settings = dict.fromkeys((cell.workload, cell.replicas) for cell in cells)
    of = {(cell.workload, cell.replicas, cell.side): cell for cell in cells}
    rows = []
    for workload, replicas in sorted(settings, key=lambda setting: (list(WORKLOADS).index(setting[0]), setting[1])):
        found = [of.get((workload, replicas, side)) for side in sides]
        texts = [NONE if cell is None else shown(cell, results.found[cell]) for cell in found]
        rows.append((workload, str(replicas), *texts))
    yield from _table(("workload", "replicas", *(side.value for side in sides)), rows)


def _figure11(results: Results) -> Iterator[str]:
    cells = [cell for cell in FIGURES["11"] if cell in results.found and cell.online]
    if not cells:
        return
    yield "## Figure 11: the distribution of BERT's latencies, ms\n"
    rows = []
    for cell in cells:
        found = results.found[cell]
        rate = f"{found.offered_per_s:.3g}" + (" (that of eTasks)" if cell.peak is Side.ETASK_EXCLUSIVE else "")
        quantiles = [
            f"{found.cdf_s[percent] * 1e3:.0f}" if steady(found) and found.cdf_s else UNSTABLE for percent in PERCENTS
        ]
        rows.append((cell.side.value, str(cell.replicas), rate, *quantiles))
    yield from _table(("", "replicas", "requests/s", *(f"{percent} %" for percent in PERCENTS)), rows)

"""The page of the results, Markdown: our figures beside the published ones, and why they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from kaas.bench.windows import Stability
from kaas.papers.breakdown import OVERHEADS, PARTS, Warmth
from kaas.papers.cells import Cell, Found, Side
from kaas.papers.experiments import FIGURES, bars, efficiency
from kaas.papers.workloads import WORKLOADS, ktask

if TYPE_CHECKING:
    from kaas.papers.breakdown import Breakdown
    from kaas.papers.results import Results
    from kaas.papers.workloads import Scale, Workload

NONE = "-"
HEAD = """# Evaluation

The experiments of the paper *Kernel as a Service* on KaaS, as `kaas papers kaas` measures them: clients send requests
over ZeroMQ to `kaas serve` on Ray; a request runs through a step, a device, and another step (Figure 9). Each client
has a function and constants of its own. An eTask is written with NumPy and cuda.core, with the kernels of the kTask;
each client's runs in a process of its own. Every result is checked. `kaas papers kaas --report docs/evaluation.md`
writes this page; no figure of KaaS on it is written by hand.

What is modelled, and what is not:

- Kernels, copies between host and device, and steps take the times of Table 1, and no processor: a step sleeps. Kernels
  touch 256 elements of each buffer.
- Starts of processes are real, and share this machine's processors with all else. On a busy machine they take longer,
  which makes eTasks slower and kTasks hardly.
- Constants are arrays in the host's memory, divided by the scale. A kTask's come from the server's store; an eTask
  fills its own when its process starts, which costs less than a model's file.
- A device runs two kTasks of a pool at a time where their memory allows (`slots`), the paper's executor one.
- An online load draws the client of each arrival at random; over a cell's time it is exactly 80 % of the peak.
"""
UNSTABLE = "unstable"
UNSETTLED_MARK = (
    "A figure behind *~* is of windows that did not agree within 10 %, and is of all of them; *n* is the number of "
    "requests. With so few requests, and starts of processes that depend on the machine's speed and load, ratios to "
    "eTasks are of an order of magnitude: on a machine of half the speed they are about twice as large.\n"
)
PAPER_START_S = 0.4
"""The time that a cold eTask of the micro-benchmark takes to load (§5.2)."""
PERCENTS = (10, 50, 90, 99)
"""Of the distributions of Figure 11."""


def page(results: Results, scale: Scale) -> str:
    """Return the page of what has been measured; a figure without results is left out."""
    parts = [
        HEAD,
        *_hardware(results, scale),
        *_claims(results, scale),
        *_bars(results, scale),
        *_table1(results, scale),
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
        when = f"{each.date}, KaaS at {each.commit or 'an unknown commit'}, load {each.load:g} at the beginning"
        yield f"- {when}: {each.processors} processors, {each.processor}; {versions}"
    yield (
        f"- {scale.devices} software devices with modelled time. Bytes, and rates of copies, are those of the paper's "
        f"machine (V100 with {scale.device_bytes / 1e9:g} GB each, {scale.copy_bytes_per_s / 1e9:g} GB/s) divided by "
        f"{scale.shrink:g}; times of kernels, copies and steps are Table 1's times {scale.slow:g}. All else is real: "
        "processes and their starts, messages, scheduling, caches. Figures 8 and 10 to 13 are at this scale; it is "
        "taken out of Table 1. A *-* is not measured, or a percentile that too few requests stand behind.\n"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


# --- the claims


def _claims(results: Results, scale: Scale) -> Iterator[str]:
    rows = [row for row in _claim_rows(results, scale) if row is not None]
    if rows:
        yield "## The paper's claims, beside the measurements\n"
        yield UNSETTLED_MARK
        yield from _table(("", "paper", "here", "why they differ"), rows)


def _claim_rows(results: Results, scale: Scale) -> Iterator[tuple[str, str, str, str] | None]:
    ktask, etask = Side.KTASK, Side.ETASK_EXCLUSIVE
    names = [name for name in WORKLOADS if name != "micro"]

    def rates(these: Sequence[str], over: tuple[Side, int], under: tuple[Side, int]) -> dict[str, str | None]:
        return {name: _ratio(results, Cell(name, *over), Cell(name, *under), "rate_per_s") for name in these}

    def latencies(
        these: Sequence[str], over: tuple[Side, int], under: tuple[Side, int], figure: str
    ) -> dict[str, str | None]:
        pairs = {name: (Cell(name, *over, online=True), Cell(name, *under, online=True)) for name in these}
        return {name: _ratio(results, *pair, figure) for name, pair in pairs.items()}

    starts = _start(results, scale)
    for name, rate, latency, where in (
        ("jacobi", "50", "16", "introduction: a linear solver, four times as many clients as devices"),
        ("bert", "53", "12.6", "introduction: deep-learning inference, 1.5 times the memory; here 1/3 of the memory"),
    ):
        yield _row(
            f"throughput of kTasks over eTasks, {name}, 16 replicas on 4 devices ({where})",
            rate,
            rates([name], (ktask, 16), (etask, 16)),
            starts,
        )
        yield _row(
            f"median latency of eTasks over kTasks, {name}, each at 80 % of its own peak, 16 replicas (as above)",
            latency,
            latencies([name], (etask, 16), (ktask, 16), "p50_s"),
            starts,
        )
    others = [name for name in names if name not in ("jacobi", "bert")]
    yield _row(
        "throughput of kTasks over eTasks, 16 replicas, other workloads",
        "no number (Figures 10 and 12)",
        rates(others, (ktask, 16), (etask, 16)),
        "the shorter the request, the more a start costs",
    )
    yield _row(
        "median latency of eTasks over kTasks, 16 replicas, other workloads",
        "no number (Figure 13)",
        latencies(others, (etask, 16), (ktask, 16), "p50_s"),
        "",
    )
    yield _row(
        "throughput of kTasks over eTasks, 4 replicas (§5.3.1)",
        "both perform well",
        rates(names, (ktask, 4), (etask, 4)),
        "resnet50: an eTask launches 90 kernels one by one, on few processors; a kTask is one CUDA graph",
    )
    yield _row(
        "throughput of kTasks, 32 replicas over 4 (§5.3.1)",
        "no significant slowdown but of cGEMM",
        rates(names, (ktask, 32), (ktask, 4)),
        "at 32 replicas cGEMM's constants are as large as the memory of all devices",
    )
    yield _row(
        "throughput of kTasks, cGEMM, 24 replicas over 4 (§5.3.1)",
        "slower from about 20 replicas on",
        rates(["cgemm"], (ktask, 24), (ktask, 4)),
        "24 replicas' constants fit four devices, 6 on each, if they are evenly spread",
    )
    yield _row(
        "throughput of kTasks with 32 replicas over eTasks with 16, cGEMM (§5.3.1)",
        "significantly higher",
        rates(["cgemm"], (ktask, 32), (etask, 16)),
        "",
    )
    yield _row(
        "throughput of eTasks, 16 replicas over 4 (§5.3.1)",
        "drops dramatically",
        rates(names, (etask, 16), (etask, 4)),
        "",
    )
    yield _row(
        "throughput of a single client, kTasks over eTasks (§5.3.1)",
        "resnet50: somewhat below 1",
        rates(names, (ktask, 1), (etask, 1)),
        "here both run the same kernels, with the same modelled times; a kTask's launches are one CUDA graph, and a "
        "single client's kTasks run on all four devices",
    )
    yield _row(
        "90th percentile of kTasks, 16 replicas over 4 (§5.3.2)",
        "no significant impact",
        latencies(names, (ktask, 16), (ktask, 4), "p90_s"),
        "cGEMM, BERT: a device holds the constants of some replicas; requests that find it busy load them on another "
        "one, for cGEMM in four times its kernels' time (`kaas simulate`: no longer if loads are free)",
    )
    yield _row(
        "90th percentile of eTasks over kTasks, 16 replicas (§5.3.2)",
        "very poor tail of eTasks",
        latencies(names, (etask, 16), (ktask, 16), "p90_s"),
        "",
    )
    yield _row(
        "90th percentile of eTasks with 16 replicas over kTasks with 32, cGEMM (§5.3.2)",
        "kTasks far below",
        latencies(["cgemm"], (etask, 16), (ktask, 32), "p90_s"),
        "each at 80 % of its own peak",
    )
    total_s = {(each.task, each.start): each.total_s for each in results.breakdowns}
    warm = {kind: total_s.get((kind, Warmth.WARM)) for kind in ("eTask", "kTask")}
    cold = {
        f"{kind}, {start.value} request": f"{total_s[kind, start] / warm_s:.3g}"
        for kind, warm_s in warm.items()
        for start in Warmth
        if warm_s and (kind, start) in total_s and start is not Warmth.WARM
    }
    if warm["eTask"] and warm["kTask"]:
        yield _row(
            "warm request of an eTask over a kTask's, micro-benchmark (§5.2)",
            "similar",
            {"": f"{warm['eTask'] / warm['kTask']:.3g}"},
            "",
        )
    yield _row(
        "first request over a warm one, micro-benchmark (§5.2)",
        "eTask 46; kTask: the constants, and the link of the libraries",
        dict(cold),
        "the start of a process is real, a warm request is modelled after a V100; a cold kTask compiles its PTX here, "
        "the paper links libraries that are compiled",
    )


def _start(results: Results, scale: Scale) -> str:
    """Return how long the start of an eTask took here, beside the paper's."""
    cold_s = [each.total_s for each in results.breakdowns if (each.task, each.start) == ("eTask", Warmth.COLD)]
    known = f"here {cold_s[0] * 1e3:.0f} ms" if cold_s else "here unknown"
    return (
        f"an eTask's request is about the start of a process: {known}, in the paper {PAPER_START_S * 1e3:.0f} ms, "
        f"or {PAPER_START_S * scale.slow * 1e3:.0f} ms at this scale"
    )


def _row(what: str, paper: str, ratios: Mapping[str, str | None], why: str) -> tuple[str, str, str, str] | None:
    known = [f"{name} {ratio}".strip() for name, ratio in ratios.items() if ratio is not None]
    return (what, paper, ", ".join(known), why) if known else None


def _ratio(results: Results, one: Cell, other: Cell, figure: str) -> str | None:
    """Return the ratio of a figure of two cells; None if one is missing."""
    over, under = results.found.get(one), results.found.get(other)
    if over is None or under is None:
        return None
    if figure != "rate_per_s" and not (over.steady and under.steady):
        return UNSTABLE
    return _mark(f"{getattr(over, figure) / getattr(under, figure):.3g}", over, under)


def _mark(text: str, *cells: Found) -> str:
    """Mark a figure of cells whose windows did not agree."""
    return f"~{text}" if any(each.state is not Stability.STABLE for each in cells) else text


def _bars(results: Results, scale: Scale) -> Iterator[str]:
    found = bars(results, scale)
    if not found:
        return
    yield "## Bars\n"
    yield "Ratios of resnet50 that this project sets itself, with their limits.\n"
    rows = []
    for name, (value, comparison, limit) in found.items():
        met = isinstance(value, float) and (value >= limit if comparison == ">=" else value <= limit)
        shown = value if isinstance(value, str) else f"{value:.3g}"
        rows.append((f"`{name}`", f"{comparison} {limit:g}", shown, "" if met else "missed"))
    yield from _table(("ratio", "limit", "measured", ""), rows)


# --- the figures


def _table1(results: Results, scale: Scale) -> Iterator[str]:
    if not results.properties:
        return
    yield "## Table 1: the workloads\n"
    yield (
        "By the server's own figures of a client's requests, with the scale taken out; dynamic memory is that of the "
        "kTask's other buffers. Times are modelled after the paper's: they show that the model holds.\n"
    )
    rows = []
    for found in results.properties:
        paper = WORKLOADS[found.workload]
        rows.append((
            found.workload,
            f"{paper.constant_bytes / 1e6:.4g}", f"{found.constant_bytes / 1e6:.4g}",
            f"{paper.dynamic_bytes / 1e6:.4g}", f"{_dynamic(paper, scale) / 1e6:.2g}",
            f"{paper.gpu_s * 1e3:.3g}", f"{found.gpu_s * 1e3:.3g}",
            f"{paper.cpu_s * 1e3:.3g}", f"{found.cpu_s * 1e3:.3g}",
        ))  # fmt: skip
    columns = ("constants MB", "dynamic MB", "GPU ms", "CPU ms")
    pairs = [f"{name}, {where}" for name in columns for where in ("paper", "here")]
    yield from _table(("workload", *pairs), rows)


def _dynamic(workload: Workload, scale: Scale) -> int:
    return (
        sum(buffer.nbytes for buffer in ktask(workload, scale).buffers if not buffer.name.startswith("w"))
        * scale.shrink
    )


def _figure8(results: Results) -> Iterator[str]:
    if not results.breakdowns:
        return
    yield "## Figure 8: a request of the micro-benchmark by stage, ms\n"
    yield (
        "Cold: the server has seen no request of the benchmark; an eTask's process starts. A new client's: another "
        "client has called the kernels, and its own constants are new. Kernel Init: libraries loaded and graphs "
        "instantiated. Overheads: the rest of what the client waits for, the network included. The start of an eTask's "
        "process and its function are one stage each.\n"
    )
    names = dict.fromkeys((*PARTS.values(), OVERHEADS))
    head = [f"{each.task}, {each.start.value}, n={each.requests}" for each in results.breakdowns]
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
            text = f"{found.rate_per_s:.3g} ({efficiency(cell, found, scale):.2f}), n={found.requests}"
            return _mark(text, found)

        yield from _by_replicas(cells, results, shown)


def _online(results: Results) -> Iterator[str]:
    cells = [cell for cell in FIGURES["13"] if cell in results.found and cell.online]
    if not cells:
        return
    yield "## Figure 13: latency of online workloads, ms: median / 90th percentile\n"
    yield "Random arrivals at 80 % of the offline rate of the same cell. *Unstable*: the queue grew.\n"
    yield from _by_replicas(cells, results, lambda _, found: _quantiles(found))


def _quantiles(found: Found) -> str:
    if not found.steady:
        return UNSTABLE
    p90 = f"{found.p90_s * 1e3:.0f}" if _stands(found, 90) else NONE
    text = f"{found.p50_s * 1e3:.0f} / {p90} at {found.offered_per_s:.3g}/s, n={found.requests}"
    return _mark(text, found)


def _stands(found: Found, percent: int) -> bool:
    """Return True if more than the slowest request is above a percentile."""
    return found.requests * (100 - percent) > 100


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
            UNSTABLE
            if not found.steady
            else _mark(f"{found.cdf_s[percent] * 1e3:.0f}", found)
            if _stands(found, percent)
            else NONE
            for percent in PERCENTS
        ]
        rows.append((cell.side.value, str(cell.replicas), rate, str(found.requests), *quantiles))
    yield from _table(("", "replicas", "requests/s", "n", *(f"{percent} %" for percent in PERCENTS)), rows)

"""The paper's claims, and the ratios of our figures that stand beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kaas.bench.windows import Stability
from kaas.papers.breakdown import TABLE, Warmth
from kaas.papers.cells import CROWDED, SHARED, Cell, Found, Side
from kaas.papers.workloads import WORKLOADS

if TYPE_CHECKING:
    from kaas.papers.results import Results
    from kaas.papers.testbed import Testbed

NONE, UNSTABLE = "-", "unstable"
PAPER_START_S = 0.4
"""The time that a cold eTask of the micro-benchmark takes to load (§5.2)."""
WHY_FIRST = (
    "the start of a process is real, a warm request is modelled after a V100; here a cold kTask compiles its PTX, and "
    "each client's first one makes its graph"
)
K, E = Side.KTASK, Side.ETASK_EXCLUSIVE

Setting = tuple[Side, int]
"""A side, and its replicas."""
ClaimRow = tuple[str, str, str, str]
"""The ratio in words, the paper's, ours, and the reason for a difference."""


class Claim(NamedTuple):
    """A ratio of a figure in two settings. figure: of `Found`; rates are of offline cells, latencies of online ones."""

    what: str
    paper: str
    figure: str
    over: Setting
    under: Setting
    workloads: tuple[str, ...] = TABLE
    why: str | Callable[[Results, Testbed, Claim], str] = ""
    of: str = ""
    """The workload that the reason is of; "": all."""


def _total_s(results: Results, task: str, start: Warmth) -> float | None:
    found = [each.total_s for each in results.breakdowns if (each.task, each.start) == (task, start)]
    return found[0] if found else None


def _start(results: Results, testbed: Testbed, _: Claim) -> str:
    """Return how long the start of an eTask takes, here and in the paper."""
    here_s = _total_s(results, "eTask", Warmth.COLD)
    known = f"{here_s * 1e3:.0f} ms" if here_s else "an unknown time"
    paper_ms = PAPER_START_S * 1e3
    return (
        "offline nearly each of an eTask's requests starts a process, and most of the online ones, some of which find "
        f"that of an earlier request: that takes {known} here if one starts alone, and longer "
        f"with as many starts at a time as devices, which share the processors; in the paper {paper_ms:.0f} ms, or "
        f"{paper_ms * testbed.slow:.0f} ms at this scale"
    )


def _throughput(results: Results, testbed: Testbed, claim: Claim) -> str:
    """Return also the ratio that follows from the paper's start, and the start that follows from its ratio."""
    gpu_s = WORKLOADS[claim.workloads[0]].gpu_s
    needed_s = (float(claim.paper) - 1) * gpu_s
    return (
        f"{_start(results, testbed, claim)}. With the paper's start in each request and nothing else the "
        f"ratio is {1 + PAPER_START_S / gpu_s:.2g}; the published one needs a start of {needed_s:.2g} s in each, "
        f"or {needed_s * testbed.slow:.2g} s at this scale"
    )


def _memory(_: Results, testbed: Testbed, claim: Claim) -> str:
    """Return how many replicas' constants the devices have room for, and what comes of more."""
    workload, given = WORKLOADS[claim.workloads[0]], testbed.device()
    constant_bytes = sum(each.nbytes for each in testbed.constants(workload, 1.0).values())
    each = (given["memory_bytes"] - testbed.dynamic_bytes(workload)) // constant_bytes
    return (
        f"a fall at once, and not by degrees: each of {testbed.devices} devices has room for the constants of {each} "
        f"replicas, so that {testbed.devices * each} fit. With more, whose clients come in turns, the constants that "
        "were used longest ago are those that are needed next, and nearly each request loads its own"
    )


def _own_peaks(results: Results, _: Testbed, claim: Claim) -> str:
    """Return how far apart the loads of two settings are, each of which is at a share of its own peak."""
    over, under = (results.found.get(Cell(claim.workloads[0], *each)) for each in (claim.over, claim.under))
    if over is None or under is None:
        return ""
    times = under.rate_per_s / over.rate_per_s
    return (
        f"each at 80 % of its own peak: with {claim.under[1]} replicas that is {times:.2g} times as high, and more wait"
    )


RATE, BEST, MEDIAN, TAIL = "rate_per_s", "p10_s", "p50_s", "p90_s"
PERCENT = {BEST: 10, MEDIAN: 50, TAIL: 90}
SOLVER = "introduction: a linear solver, four times as many clients as devices"
INFERENCE = "introduction: deep-learning inference, 1.5 times the memory; here a third of it"
OWN_PEAKS = "16 replicas, each at 80 % of its own peak"
OF_THESE = "as above; the paper says latency, and neither of which requests nor at which load"
THROUGHPUT = "throughput of kTasks over eTasks"
MEDIANS = "median latency of eTasks over kTasks"
OTHERS = ("resnet50", "cgemm")
CLAIMS = (
    Claim(
        f"{THROUGHPUT}, jacobi, 16 replicas ({SOLVER})",
        "50",
        RATE,
        (K, 16),
        (E, 16),
        ("jacobi",),
        _throughput,
    ),
    Claim(f"{MEDIANS}, jacobi, {OWN_PEAKS} ({OF_THESE})", "16", MEDIAN, (E, 16), (K, 16), ("jacobi",), _start),
    Claim(f"{THROUGHPUT}, bert, 16 replicas ({INFERENCE})", "53", RATE, (K, 16), (E, 16), ("bert",), _throughput),
    Claim(f"{MEDIANS}, bert, {OWN_PEAKS} ({OF_THESE})", "12.6", MEDIAN, (E, 16), (K, 16), ("bert",), _start),
    Claim(
        f"{THROUGHPUT}, 16 replicas, other workloads",
        "no number (Figures 10 and 12)",
        RATE,
        (K, 16),
        (E, 16),
        OTHERS,
        "the shorter the request, the more a start costs; and starts on several devices share the processors: with "
        "fewer or slower ones the ratio is larger",
    ),
    Claim(f"{MEDIANS}, 16 replicas, other workloads", "no number (Figure 13)", MEDIAN, (E, 16), (K, 16), OTHERS),
    Claim(
        f"{THROUGHPUT} of which {SHARED} processes stay on a device (`etask_workers`), 16 replicas",
        "not in the paper",
        RATE,
        (K, 16),
        (Side.ETASK_SHARED, 16),
        ("resnet50",),
        f"all replicas' processes have a place, {SHARED} on each device, and none starts anew: so eTasks do well for "
        "as many clients as places. With one client more nearly each request starts a process again",
    ),
    Claim(
        f"{THROUGHPUT}, 4 replicas (§5.3.1)",
        "both perform well",
        RATE,
        (K, 4),
        (E, 4),
        why="a device runs two kTasks at a time, and one eTask; an eTask launches 90 kernels one by one, on few "
        "processors; a kTask is one CUDA graph",
        of="resnet50",
    ),
    Claim(
        "throughput of kTasks, 32 replicas over 4 (§5.3.1)",
        "no significant slowdown but of cGEMM",
        RATE,
        (K, 32),
        (K, 4),
        why="at 32 replicas cGEMM's constants are as large as the memory of all devices",
        of="cgemm",
    ),
    Claim(
        "throughput of kTasks, 24 replicas over 4 (§5.3.1)",
        "slower from about 20 replicas on",
        RATE,
        (K, 24),
        (K, 4),
        ("cgemm",),
        "24 replicas' constants fit four devices, if they are evenly spread",
    ),
    Claim(
        "throughput of kTasks, 30 replicas over 4 (§5.3.1, Figure 12)",
        "a gradual decline from about 20 replicas on",
        RATE,
        (K, 30),
        (K, 4),
        ("cgemm",),
        _memory,
    ),
    Claim(
        "throughput of kTasks with 32 replicas over eTasks with 16 (§5.3.1)",
        "significantly higher",
        RATE,
        (K, 32),
        (E, 16),
        ("cgemm",),
    ),
    Claim("throughput of eTasks, 16 replicas over 4 (§5.3.1)", "drops dramatically", RATE, (E, 16), (E, 4)),
    Claim(
        "throughput of a single client, kTasks over eTasks (§5.3.1)",
        "resnet50: somewhat below 1",
        RATE,
        (K, 1),
        (E, 1),
        why="here both run the same kernels, with the same modelled times, on all four devices; a kTask's launches are "
        "one CUDA graph, and a device runs two kTasks at a time",
    ),
    Claim(
        "90th percentile of kTasks, 16 replicas over 4 (§5.3.2)",
        "no significant impact",
        TAIL,
        (K, 16),
        (K, 4),
        why="cGEMM, BERT: a device holds the constants of some replicas; requests that find it busy load them on "
        "another one, for cGEMM in four times its kernels' time (`kaas simulate`: no longer if loads are free)",
    ),
    Claim(
        "90th percentile of eTasks over kTasks, 16 replicas (§5.3.2)",
        "very poor tail of eTasks",
        TAIL,
        (E, 16),
        (K, 16),
        why="each at 80 % of its own peak: eTasks' is many times lower, so that few of their requests wait for others",
    ),
    Claim(
        "90th percentile of eTasks with 16 replicas over kTasks with 32 (§5.3.2)",
        "kTasks far below",
        TAIL,
        (E, 16),
        (K, 32),
        ("cgemm",),
        "each at 80 % of its own peak; a kTask that waits for its constants waits for others' loads, too",
    ),
    Claim(
        "median latency of eTasks over kTasks, 4 replicas (§5.3.2, Figure 11)",
        "similar",
        MEDIAN,
        (E, 4),
        (K, 4),
        ("bert", "cgemm"),
        "BERT: a device runs two kTasks at a time, and one eTask, so that more eTasks wait. cGEMM: a kTask that finds "
        "its device busy loads its constants on another one; an eTask's client has a device to itself",
    ),
    Claim(
        f"90th percentile of eTasks, {CROWDED} replicas over 4 (§5.3.2, Figure 11)",
        "suffers significantly",
        TAIL,
        (E, CROWDED),
        (E, 4),
        ("bert",),
        _own_peaks,
    ),
    Claim(
        "10th percentile of eTasks, 16 replicas over 4 (§5.3.2, Figure 11)",
        "suffers too: nearly each request is a cold start",
        BEST,
        (E, 16),
        (E, 4),
        ("bert",),
        "some of the random arrivals find the process of an earlier request of the same client, and are fast",
    ),
    Claim(
        "median latency of kTasks, 16 replicas over 4 (§5.3.2, Figure 11)",
        "no noticeable difference",
        MEDIAN,
        (K, 16),
        (K, 4),
        ("bert",),
    ),
)


def claim_rows(results: Results, testbed: Testbed) -> Iterator[ClaimRow]:
    """Yield the claims of which a ratio has been measured. The reasons are those of the modelled testbed."""
    for claim in CLAIMS:
        ratios = {name: _ratio(results, claim, name) for name in claim.workloads}
        known = [f"{name} {ratio}" for name, ratio in ratios.items() if ratio is not None]
        if known:
            why = claim.why if isinstance(claim.why, str) else claim.why(results, testbed, claim)
            explains = testbed.modelled and (not claim.of or ratios[claim.of] is not None)
            yield claim.what, claim.paper, ", ".join(known), why if explains else ""
    yield from _single_requests(results, modelled=testbed.modelled)


def marked(text: str, *cells: Found) -> str:
    """Return a figure of cells: with a mark if their windows did not agree, UNSTABLE if a queue grew."""
    states = {each.state for each in cells}
    if Stability.UNSTABLE in states:
        return UNSTABLE
    return f"~{text}" if Stability.UNSETTLED in states and text != NONE else text


def _ratio(results: Results, claim: Claim, workload: str) -> str | None:
    """Return the ratio of a claim; None if a cell is missing."""
    online = claim.figure != RATE
    over, under = (results.found.get(Cell(workload, *each, online=online)) for each in (claim.over, claim.under))
    if over is None or under is None:
        return None
    percent = PERCENT.get(claim.figure)
    if percent is not None and not (over.tells(percent) and under.tells(percent)):
        return NONE
    return marked(f"{getattr(over, claim.figure) / getattr(under, claim.figure):.3g}", over, under)


def _single_requests(results: Results, *, modelled: bool) -> Iterator[ClaimRow]:
    warm = {kind: _total_s(results, kind, Warmth.WARM) for kind in ("eTask", "kTask")}
    if warm["eTask"] and warm["kTask"]:
        ratio = f"{warm['eTask'] / warm['kTask']:.3g}"
        yield "warm request of an eTask over a kTask's, micro-benchmark (§5.2)", "similar", ratio, ""
    first = [
        f"{kind}, {start.value} request {first_s / warm_s:.3g}"
        for kind, warm_s in warm.items()
        for start in (Warmth.COLD, Warmth.NEW_CLIENT)
        if warm_s and (first_s := _total_s(results, kind, start))
    ]
    if first:
        yield (
            "first request over a warm one, micro-benchmark (§5.2)",
            "eTask 46; kTask: the load of its constants",
            ", ".join(first),
            WHY_FIRST if modelled else "",
        )

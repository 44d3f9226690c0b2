"""The MQFQ-Sticky paper's experiment of medium load: 24 functions, two calls a second, one V100 or two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from kaas.papers.scheduling.functions import MQFQ_FUNCTIONS, zipf
from kaas.papers.scheduling.paper import (
    Assumptions,
    PaperCell,
    PaperRows,
    PublishedFigure,
    SchedulingPaper,
    open_loop,
)
from kaas.scheduling.simulation.draws import Draws
from kaas.scheduling.simulation.scenario import PolicyChoice, Scenario, ScenarioDevice, ScenarioFunction

MOVED_OFF = "fcfs, moved off"
FUNCTIONS, UNTIL_S, RATE = 24, 600.0, 2.0
UTILISATION = 0.7
EXPONENT = 1.515
"""The Zipf exponent with which RATE calls a second of FUNCTIONS functions, the shortest called most, use UTILISATION of
a device: the paper prints the three numbers, and not the mix."""
FUNCTION_MB = 1500
"""The paper names the memory of one function, fft."""
POOL = 32
"""Containers that stay warm in host memory, by the public code's default."""
LINK_MB_S = 12_000
"""From host to device: PCIe 3.0 with 16 lanes."""
GAP_CV = 2.0
INTERFERENCE = 0.2
"""The paper's Figure 9b: a run beside five others takes up to twice as long."""
POLICIES = {
    "fcfs": None,
    MOVED_OFF: "kaas.papers.scheduling.moved_off:FcfsMovedOff",
    "batch": None,
    "mqfq_sticky": None,
}
"""Names, and module:Class of the policy that has none."""
CONCURRENCY = (1, 2, 3)
DEVICES = (1, 2)


def times() -> list[tuple[float, float, float]]:
    """Return the times of the 24 functions, the shortest first: those of the paper's table in turn."""
    return sorted(MQFQ_FUNCTIONS[number % len(MQFQ_FUNCTIONS)] for number in range(FUNCTIONS))


def functions(assumed: Assumptions) -> dict[str, ScenarioFunction]:
    """Return the functions, the shortest first. A cold start brings a function to the host, a load to the device."""
    load_s = FUNCTION_MB / LINK_MB_S
    made = {}
    for number, (warm_s, processor_s, cold_s) in enumerate(times()):
        run_s = {"gpu": warm_s + assumed.overhead_s, "software": processor_s + assumed.overhead_s}
        made[f"f{number}"] = ScenarioFunction(FUNCTION_MB, load_s, run_s, fetch_s=max(0.0, cold_s - warm_s - load_s))
    return made


def gpu(assumed: Assumptions, slots: int) -> ScenarioDevice:
    """Return a GPU that runs so many requests at a time, with the pool in its host's memory."""
    return ScenarioDevice(assumed.gpu_mb, slots=slots, interference=INTERFERENCE, host_mb=POOL * FUNCTION_MB)


def scenario(policy: str, devices: int, concurrency: int, assumed: Assumptions, seed: int) -> Scenario:
    """Return the experiment on so many devices, with so many requests on each at a time."""
    options = {"D": concurrency} if policy == "mqfq_sticky" else {}
    made = functions(assumed)
    popularity = dict(zip(made, zipf(FUNCTIONS, assumed.zipf), strict=True))
    return Scenario(
        policy=PolicyChoice("fcfs" if POLICIES[policy] else policy, options),
        seed=seed,
        devices=(gpu(assumed, concurrency),) * devices,
        functions=made,
        requests=open_loop(Draws(seed, "mqfq"), popularity, RATE, GAP_CV, UNTIL_S),
        profiles=False,
    )


def cells(assumed: Assumptions) -> Sequence[PaperCell]:
    """Return the cells of Figures 5 and 6."""
    return [
        PaperCell(
            {"policy": policy, "working_set": FUNCTIONS, "devices": devices, "D": concurrency},
            partial(scenario, policy, devices, concurrency, assumed),
            module,
        )
        for devices in DEVICES
        for concurrency in CONCURRENCY
        for policy, module in POLICIES.items()
    ]


def published(rows: PaperRows) -> Iterator[PublishedFigure]:
    """Yield the paper's figures of the medium load, beside those of the rows."""

    def mean(policy: str, figure: str = "mean_latency_s", devices: int = 1, concurrency: int = 1) -> float:
        return rows.mean(figure, policy=policy, working_set=FUNCTIONS, devices=devices, D=concurrency)

    yield PublishedFigure("mean latency, mqfq_sticky, D = 1", "11.8 s", f"{mean('mqfq_sticky'):.3g} s")
    here = f"{mean(MOVED_OFF):.3g} s; memory left on the device: {mean('fcfs'):.3g} s"
    yield PublishedFigure("mean latency, fcfs with memory moved off, D = 1", "51.8 s", here)
    ratio = mean("mqfq_sticky") / mean(MOVED_OFF)
    here = f"{ratio:.3g}; over fcfs: {mean('mqfq_sticky') / mean('fcfs'):.3g}"
    yield PublishedFigure("mean latency, mqfq_sticky over fcfs with memory moved off, D = 1", "0.228", here)
    batch = mean("batch") / mean("mqfq_sticky")
    yield PublishedFigure("mean latency, batch over mqfq_sticky, D = 1", "above 1, by Figure 5a", f"{batch:.3g}")
    two = mean("mqfq_sticky", concurrency=2)
    yield PublishedFigure("mean latency, mqfq_sticky, D = 2", "8.9 s", f"{two:.3g} s")
    best = min(CONCURRENCY, key=lambda concurrency: mean("mqfq_sticky", concurrency=concurrency))
    yield PublishedFigure("the D of the least mean latency, mqfq_sticky", "2", str(best))
    variance = mean("mqfq_sticky", "function_variance") / mean(MOVED_OFF, "function_variance")
    what = "variance of functions' mean latencies, mqfq_sticky over fcfs with memory moved off, D = 1"
    yield PublishedFigure(what, "a third", f"{variance:.3g}")
    for policy, printed in (
        ("mqfq_sticky", "2 to 8 %"),
        (MOVED_OFF, "50 % with a pool of 4; the same with the largest"),
    ):
        here = f"{100 * mean(policy, 'cold_ratio'):.3g} %"
        yield PublishedFigure(f"cold starts, {policy}, D = 1", printed, here)
    gain = mean("mqfq_sticky") / mean("mqfq_sticky", devices=2)
    yield PublishedFigure("mean latency on one device over two, mqfq_sticky, D = 1", "2.3", f"{gain:.3g}")


MQFQ = SchedulingPaper(
    "mqfq",
    "MQFQ-Sticky: fair queueing for serverless GPU functions",
    Assumptions(zipf=EXPONENT, gpu_mb=16384),
    cells,
    published,
    (
        "The paper samples its functions and their calls from Azure's trace, and prints neither the mix nor the times "
        "between calls. Here the nine functions of its table occur in turn, the shortest are called most, and the Zipf "
        "exponent is the one with which two calls a second use 70 % of a device, both as printed. Times between the "
        "calls of a function are lognormal with a coefficient of variation of 2.",
        "A function has 1,500 MB, as the paper's fft. The first call costs a cold start: the table's cold time less "
        "the warm one. After it the function stays in a pool of 32 in host memory, the default of the paper's code, "
        "which is room for all, and a load takes 1,500 MB at 12 GB/s. The paper does not print the pool of this "
        "figure.",
        "*fcfs, moved off* is the paper's FCFS: a function's memory leaves the device after each request. `fcfs` is "
        "this project's, which leaves it there.",
        "A run beside n others takes 1 + 0.2 n times as long: the paper has twice the time beside five.",
        "The latencies hang on how near the load is to a device's capacity, so ratios say more than seconds. A second "
        "request at a time, or a second device, takes this mix far from it, hence gains above the paper's.",
        "Not reproduced: a variance between functions below that of fcfs at D = 1. In a backlog fcfs lets "
        "all functions wait about equally long; mqfq_sticky is faster for nearly all of them, most of all for short "
        "ones, so their means differ more. With D = 2 or on two devices the variance is the smaller one, too.",
        "The nine traces of the paper's Table 3 have mixes of their own, and cannot be made again.",
    ),
)

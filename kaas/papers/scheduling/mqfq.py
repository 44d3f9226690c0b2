"""The MQFQ-Sticky paper's experiment of medium load: 24 functions, two calls a second, one V100 or two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from kaas.papers.scheduling.functions import LEAST_LOAD_S, MQFQ_FUNCTIONS, zipf
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

FUNCTIONS, UNTIL_S, RATE = 24, 600.0, 2.0
UTILISATION = 0.7
EXPONENT = 1.515
"""The Zipf exponent with which RATE calls a second of FUNCTIONS functions, the shortest called most, use UTILISATION of
a device: the paper prints the three numbers, and not the mix."""
FUNCTION_MB = 1500
"""The paper names the memory of one function, fft."""
GAP_CV = 2.0
INTERFERENCE = 0.2
"""The paper's Figure 9b: a run beside five others takes up to twice as long."""
POLICIES = ("fcfs", "batch", "mqfq_sticky")
CONCURRENCY = (1, 2, 3)
DEVICES = (1, 2)


def functions(kinds: Sequence[tuple[float, float, float]] = MQFQ_FUNCTIONS) -> list[tuple[float, float, float]]:
    """Return the times of the 24 functions, the shortest first: the kinds of the paper's table in turn."""
    return sorted(kinds[number % len(kinds)] for number in range(FUNCTIONS))


def scenario(policy: str, devices: int, concurrency: int, assumed: Assumptions, seed: int) -> Scenario:
    """Return the experiment on so many devices, with so many requests on each at a time."""
    made = {
        f"f{number}": ScenarioFunction(FUNCTION_MB, max(LEAST_LOAD_S, cold_s - warm_s), warm_s + assumed.overhead_s)
        for number, (warm_s, _, cold_s) in enumerate(functions())
    }
    popularity = dict(zip(made, zipf(FUNCTIONS, assumed.zipf), strict=True))
    options = {"D": concurrency} if policy == "mqfq_sticky" else {}
    return Scenario(
        policy=PolicyChoice(policy, options),
        seed=seed,
        devices=(ScenarioDevice(assumed.gpu_mb, slots=concurrency, interference=INTERFERENCE),) * devices,
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
        )
        for devices in DEVICES
        for concurrency in CONCURRENCY
        for policy in POLICIES
    ]


def published(rows: PaperRows) -> Iterator[PublishedFigure]:
    """Yield the paper's figures of the medium load, beside those of the rows."""

    def mean(policy: str, figure: str = "mean_latency_s", devices: int = 1, concurrency: int = 1) -> float:
        return rows.mean(figure, policy=policy, working_set=FUNCTIONS, devices=devices, D=concurrency)

    yield PublishedFigure("mean latency, mqfq_sticky, D = 1", "11.8 s", f"{mean('mqfq_sticky'):.3g} s")
    yield PublishedFigure("mean latency, fcfs, D = 1", "51.8 s", f"{mean('fcfs'):.3g} s")
    ratio = mean("mqfq_sticky") / mean("fcfs")
    yield PublishedFigure("mean latency, mqfq_sticky over fcfs, D = 1", "0.23", f"{ratio:.3g}")
    batch = mean("batch") / mean("mqfq_sticky")
    yield PublishedFigure("mean latency, batch over mqfq_sticky, D = 1", "above 1, by Figure 5a", f"{batch:.3g}")
    two = mean("mqfq_sticky", concurrency=2)
    yield PublishedFigure("mean latency, mqfq_sticky, D = 2", "8.9 s", f"{two:.3g} s")
    best = min(CONCURRENCY, key=lambda concurrency: mean("mqfq_sticky", concurrency=concurrency))
    yield PublishedFigure("the D of the least mean latency, mqfq_sticky", "2", str(best))
    variance = mean("mqfq_sticky", "function_variance") / mean("fcfs", "function_variance")
    yield PublishedFigure(
        "variance of functions' mean latencies, mqfq_sticky over fcfs, D = 1", "a third", f"{variance:.3g}"
    )
    for policy, printed in (("mqfq_sticky", "2 to 8 %"), ("fcfs", "50 %, with a pool of 4")):
        here = f"{100 * mean(policy, 'miss_ratio'):.3g} %"
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
        "A function has 1,500 MB, as the paper's fft. Memory that left the device costs a cold start: its table's cold "
        "time less the warm one. So the pool of warm functions is what fits the device, ten of them. The paper has a "
        "pool of containers in host memory besides, of a size that it does not print for this figure.",
        "The paper's FCFS also moves a function's memory off the device after each request, and back before the next. "
        "`fcfs` leaves it there, so it is faster than the paper's, and the ratio to it nearer to 1.",
        "A run beside n others takes 1 + 0.2 n times as long: the paper has twice the time beside five.",
        "The nine traces of the paper's Table 3 have mixes of their own, and cannot be made again.",
    ),
)

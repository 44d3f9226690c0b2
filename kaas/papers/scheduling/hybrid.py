"""The MQFQ-Sticky paper's hybrid experiment: functions that run on a processor too, on a CPU, GPUs or both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from kaas.papers.scheduling.functions import zipf
from kaas.papers.scheduling.mqfq import EXPONENT, FUNCTIONS, GAP_CV, UNTIL_S, functions, gpu
from kaas.papers.scheduling.paper import (
    Assumptions,
    PaperCell,
    PaperRows,
    PublishedFigure,
    SchedulingPaper,
    open_loop,
)
from kaas.scheduling.simulation.draws import Draws
from kaas.scheduling.simulation.scenario import PolicyChoice, Scenario, ScenarioDevice

RATE = 1.943
"""Calls a second: the paper's mean latency with one GPU is that of this trace of its Table 3."""
CORES = 48
CPU_MB = 250_000.0
POLICIES = ("fcfs", "lalb", "lalbo3", "adaptive")
CASES = {"CPU": (1, 0), "1 GPU": (0, 1), "2 GPUs": (0, 2), "CPU + 1 GPU": (1, 1)}
"""Processors and GPUs."""
PRINTED = {"CPU": 2.03, "1 GPU": 3.43, "2 GPUs": 1.08, "CPU + 1 GPU": 1.00}
"""Table 4: seconds of mean latency."""
SLOTS = 2


def scenario(policy: str, case: str, assumed: Assumptions, seed: int) -> Scenario:
    """Return the experiment on a case's devices. A processor runs a request on each core, all of them warm."""
    processors, gpus = CASES[case]
    made = functions(assumed)
    processor = ScenarioDevice(CPU_MB, tuple(made), kind="software", slots=CORES)
    popularity = dict(zip(made, zipf(FUNCTIONS, assumed.zipf), strict=True))
    return Scenario(
        policy=PolicyChoice(policy),
        seed=seed,
        devices=(processor,) * processors + (gpu(assumed, SLOTS),) * gpus,
        functions=made,
        requests=open_loop(Draws(seed, "mqfq"), popularity, RATE, GAP_CV, UNTIL_S),
    )


def cells(assumed: Assumptions) -> Sequence[PaperCell]:
    """Return the cells of Table 4, for each policy."""
    return [
        PaperCell(
            {"policy": policy, "working_set": FUNCTIONS, "devices": case}, partial(scenario, policy, case, assumed)
        )
        for case in CASES
        for policy in POLICIES
    ]


def published(rows: PaperRows) -> Iterator[PublishedFigure]:
    """Yield the paper's Table 4, beside the rows of each policy."""
    for case, printed_s in PRINTED.items():
        here = ", ".join(
            f"{policy} {rows.mean('mean_latency_s', policy=policy, working_set=FUNCTIONS, devices=case):.3g}"
            for policy in POLICIES
        )
        yield PublishedFigure(f"mean latency, {case}, s", f"{printed_s:.2f}", here)


HYBRID = SchedulingPaper(
    "hybrid",
    "MQFQ-Sticky, hybrid execution: each function has a variant for processors",
    Assumptions(zipf=EXPONENT, gpu_mb=16384),
    cells,
    published,
    (
        "The functions are those of `kaas papers mqfq`; the rate is that of the trace whose mean latency the paper "
        "prints for one GPU, 1.943 calls a second. Policies are told the times, as the paper profiles them.",
        "The paper's mean of 2.03 s on a CPU alone cannot be reproduced: it needs a mix nearly without the functions "
        "that take longer than 5.5 s on a CPU by its own Table 1, six of nine, and the mix is not printed.",
        "The paper sends the functions with the higher speed-up, above 3, to the GPU, always. Here the policies that "
        "compare finish times decide for each request; fcfs stands for those that do not.",
        "Where devices differ, lalb, lalbo3 and adaptive send a request to the device where it ends first, also to one "
        "that is busy, or that has to load its memory.",
        "A processor runs 48 requests at a time, each in the time that the paper's table has for all of it, with the "
        "memory of all functions there from the start.",
    ),
)

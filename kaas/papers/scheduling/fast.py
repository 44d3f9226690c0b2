"""FaST-GShare's experiments: shares of a device in space and time, and a promise of latency, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import log

from kaas.papers.scheduling.paper import Assumptions, Label, PaperCell, PaperRows, PublishedFigure, SchedulingPaper
from kaas.scheduling.sharing.packing import DevicePacking
from kaas.scheduling.sharing.rectangles import DeviceExtent
from kaas.scheduling.simulation.draws import Draws
from kaas.scheduling.simulation.scenario import (
    PolicyChoice,
    Scenario,
    ScenarioDevice,
    ScenarioFunction,
    ScenarioRequest,
    ScenarioShare,
)

MODELS = {"ResNet": (71.37, 0.24), "RNNT": (12.51, 0.28), "GNMT": (28.85, 0.63)}
"""Requests a second of one pod that has all SMs (section 5.3), and the part of the SMs that a run fills."""
EIGHT_PODS = {"ResNet": 296.8, "RNNT": 43.24, "GNMT": 43.79}
"""Requests a second of eight pods with 12 % of the SMs each (section 5.3)."""
SMS = (0.06, 0.12, 0.24, 0.5, 0.6, 0.8, 1.0)
QUOTAS = (0.2, 0.4, 0.6, 0.8, 1.0)
"""The points of Figure 8."""
PODS = {1.0: (1, 8), 0.12: (1, 2, 4, 8), 0.24: (1, 2, 4)}
"""Of Figure 10, for each part of the SMs: with 1, pods race for the whole device."""
INSTANCES = [(0.12, 0.4)] * 4 + [(0.24, 0.4)] * 2 + [(0.5, 0.6)] * 2
"""Figure 11: four of ResNet, two of RNNT, two of BERT: SMs and time."""
SLO_S = 0.069
"""Of ResNet, Figure 12."""
DEVICES = 4
UNTIL_S = 10.0
V100 = DeviceExtent(80, 2)
PROMISED: dict[str, Label] = {
    "experiment": "Figure 12",
    "model": "ResNet",
    "pods": "auto",
    "sms": "auto",
    "quota": "auto",
}
"""The labels of Figure 12's cell."""


def saturated(model: str, pods: int, share: ScenarioShare | None, assumed: Assumptions, seed: int) -> Scenario:
    """Return pods of a model, each with more requests than it can run. Those that do not end in time count for none.

    share: of each pod; None: pods race, one runs at a time.
    """
    rate_per_s, fills = MODELS[model]
    names = [f"{model} {number}" for number in range(pods)]
    function = {"run_s": 1 / rate_per_s, "fills": fills, "share": share}
    return Scenario(
        policy=PolicyChoice("fcfs"),
        seed=seed,
        devices=(device(assumed, slots=1 if share is None else 16),),
        functions={name: ScenarioFunction(client=name, **function) for name in names},  # type: ignore[arg-type]
        requests=tuple(ScenarioRequest(name, deadline_s=UNTIL_S) for _ in range(offered(model)) for name in names),
    )


def device(assumed: Assumptions, slots: int = 16) -> ScenarioDevice:
    """Return a V100."""
    return ScenarioDevice(assumed.gpu_mb, slots=slots, sms=V100.sms, sm_step=V100.step)


def offered(model: str) -> int:
    """Return the requests of a pod: a fifth more than it can run on all SMs."""
    return int(1.2 * MODELS[model][0] * UNTIL_S)


def rates() -> Iterator[float]:
    """Yield the requests a second of each second of Figure 12: a ramp, a burst to three times as many, and the fall."""
    yield from (10 + 140 * second / 60 for second in range(60))
    yield from [450.0] * 20
    yield from [150.0] * 20
    yield from (150 - 140 * second / 60 for second in range(60))


def gap_s(draws: Draws, rate_per_s: float) -> float:
    """Return the time to the next request of a Poisson process."""
    return -log(1 - draws.uniform()) / rate_per_s


def promised(assumed: Assumptions, seed: int) -> Scenario:
    """Return Figure 12: a promise of latency on four devices, while the load changes as in `rates`."""
    rate_per_s, fills = MODELS["ResNet"]
    draws, requests = Draws(seed, "fast"), list[ScenarioRequest]()
    for second, rate in enumerate(rates()):
        at_s = second + gap_s(draws, rate)
        while at_s < second + 1:
            requests.append(ScenarioRequest("ResNet", at_s))
            at_s += gap_s(draws, rate)
    return Scenario(
        policy=PolicyChoice("adaptive"),
        seed=seed,
        devices=(device(assumed),) * DEVICES,
        functions={"ResNet": ScenarioFunction(run_s=1 / rate_per_s, fills=fills, slo_s=SLO_S)},
        requests=tuple(requests),
    )


def labels_of(figure: int, model: str, pods: int, sms: float, quota: float) -> dict[str, Label]:
    """Return the labels of a cell."""
    return {"experiment": f"Figure {figure}", "model": model, "pods": pods, "sms": f"{sms:g}", "quota": f"{quota:g}"}


def cells(assumed: Assumptions) -> Sequence[PaperCell]:
    """Return the cells of Figures 8, 10 and 12."""

    def cell(figure: int, model: str, pods: int, sms: float, quota: float, share: ScenarioShare | None) -> PaperCell:
        labels = labels_of(figure, model, pods, sms, quota)
        return PaperCell(labels, partial(saturated, model, pods, share, assumed))

    points = [(sms, 1.0) for sms in SMS] + [(0.24, quota) for quota in QUOTAS[:-1]]
    of_figure_8 = [cell(8, "ResNet", 1, sms, quota, ScenarioShare(sms, (0.0, quota))) for sms, quota in points]
    of_figure_10 = [
        cell(10, model, pods, sms, 1.0, None if sms == 1 else ScenarioShare(sms, (0.0, 1.0)))
        for model in MODELS
        for sms, counts in PODS.items()
        for pods in counts
    ]
    return [*of_figure_8, *of_figure_10, PaperCell(PROMISED, partial(promised, assumed))]


def published(rows: PaperRows) -> Iterator[PublishedFigure]:
    """Yield the paper's figures of its section 5, as far as the text prints them."""

    def rate(figure: int, model: str, pods: int, sms: float, quota: float = 1.0) -> float:
        part = 1 - rows.mean("rejected_ratio", **labels_of(figure, model, pods, sms, quota))
        return part * pods * offered(model) / UNTIL_S

    over_sms = ", ".join(f"{sms:.0%} {rate(8, 'ResNet', 1, sms):.3g}" for sms in SMS)
    yield PublishedFigure("Figure 8, ResNet, requests/s over the SMs", "no more beyond 24 %", over_sms)
    over_time = ", ".join(f"{quota:.0%} {rate(8, 'ResNet', 1, 0.24, quota):.3g}" for quota in QUOTAS)
    yield PublishedFigure("Figure 8, ResNet, requests/s over the time, with 24 % of the SMs", "proportional", over_time)
    for model, printed in EIGHT_PODS.items():
        racing = rate(10, model, 1, 1.0)
        yield PublishedFigure(f"Figure 10, {model}, one pod, requests/s", f"{MODELS[model][0]:g}", f"{racing:.4g}")
        shared = rate(10, model, 8, 0.12)
        here = f"{shared:.4g} ({shared / racing - 1:.2f} times more)"
        times = printed / MODELS[model][0] - 1
        what = f"Figure 10, {model}, eight pods with 12 % of the SMs, requests/s"
        yield PublishedFigure(what, f"{printed:g} ({times:.2f} times more)", here)
    packing = DevicePacking(dict.fromkeys(range(len(INSTANCES)), V100))
    packing.place_all(dict(enumerate(INSTANCES)))
    yield PublishedFigure("Figure 11, devices of eight instances, instead of four", "1", str(packing.used()))
    p99_s = rows.mean("p99_latency_s", **PROMISED)
    yield PublishedFigure("Figure 12, p99 with a promise of 69 ms", "at most 69 ms", f"{p99_s * 1e3:.3g} ms")


FAST = SchedulingPaper(
    "fast",
    "FaST-GShare, shares of devices in space and time",
    Assumptions(zipf=0.0, gpu_mb=16384),
    cells,
    published,
    (
        "A run takes the time that one pod's throughput on all SMs says (section 5.3). It fills a part of the SMs, and "
        "takes longer on fewer: 24 % for ResNet, where Figure 8 is flat from; for RNNT and GNMT the part that follows "
        "from their eight pods, so these two rows say that shares hold, and predict nothing.",
        "Pods are functions with a share, or without one, which race, in one executor: no process starts for one.",
        "Figure 12's load is drawn, not printed: here it rises from 10 to 150 requests a second in a minute, jumps to "
        "450 for 20 s, and falls. The function measures itself first; the p99 is over all its requests.",
        "Figure 9, a neighbour that takes more than its part, is measured live (`python -m benchmarks.shares`, "
        "isolation_p99), and Figure 13, memory with model sharing, too (`python -m benchmarks.holder`). SM occupancy "
        "has no counterpart in virtual time.",
    ),
)

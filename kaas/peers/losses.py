"""The figures of a run in which a peer is ahead of KaaS, and the reasons that were found."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import product
from typing import NamedTuple

NOTEWORTHY = 1.05
"""A peer that is ahead by less is not listed: a run's noise is as large."""
REASONS = {
    ("overhead", "Ray compiled graph"): (
        "a compiled graph's caller writes to its actor's memory itself; a call of KaaS passes the pool's process, "
        "whose policy chooses a device for each request, and runs a kernel"
    ),
    ("overhead", "Ray actor"): "`kaas.invoke` returns a reference of Ray's object store: two calls of actors",
    ("overhead", "Ray actor, bytes"): (
        "bytes cost Ray less than an array; a call of KaaS passes the pool's process, whose policy chooses a device "
        "for each request, and runs a kernel. `kaas.invoke` returns a reference of Ray's object store, too"
    ),
    ("coldstart", "ONNX Runtime"): (
        "KaaS imports CUDA's bindings, and opens a device; a pool starts two processes more. The first answer reads "
        "the kernels' compiled code, copies the weights to the device, and runs PTX on a CPU, where ONNX Runtime has "
        "code for this CPU"
    ),
    ("coldstart", "PyTorch"): (
        "KaaS reads the kernels' compiled code, copies the weights to the device, and runs PTX on a CPU, where PyTorch "
        "has code for this CPU"
    ),
    ("tenancy", "Serve, multiplexed"): (
        "under `adaptive` models that are asked for seldom leave first, and wait for their load each time; with Serve "
        "the model that was used longest ago leaves"
    ),
    ("tenancy", "Serve, multiplexed, mapped files"): "a mapped model is not loaded: a request reads one page of it",
    ("replay", "IREE"): "KaaS reads JSON and lays out a device's memory for 1,001 buffers; IREE maps a compiled module",
}
"""By experiment and peer."""


NOT_COMPARED = ("save_s",)
"""IREE's saving compiles; KaaS' kernels are compiled before."""


class Loss(NamedTuple):
    """A figure of a peer that is ahead of one side of KaaS. times: by how much."""

    experiment: str
    case: str
    figure: str
    ours: str
    peer: str
    times: float
    reason: str

    @property
    def word(self) -> str:
        """How our side is, in a comparison."""
        if self.figure == "jain":
            return "less fair"
        return "slower" if self.figure.endswith("_s") else "larger"


def losses(rows: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Iterator[Loss]:
    """Yield the figures in which a side of KaaS is behind a peer, by experiment.

    Args:
        rows: figures by experiment and side. Of seconds, bytes and rates; fewer seconds and bytes are better.
    """
    for experiment, sides in rows.items():
        cases: dict[str, dict[str, Mapping[str, float]]] = defaultdict(dict)
        for side, figures in sides.items():
            model, _, rest = side.partition(", ") if experiment == "coldstart" else ("", "", side)
            named, _, state = rest.rpartition(", ") if model else (rest, "", "")
            cases[", ".join(filter(None, (model, state)))][named] = figures
        for case, found in cases.items():
            ours = {side: figures for side, figures in found.items() if side.lower().startswith("kaas")}
            theirs = {peer: figures for peer, figures in found.items() if peer not in ours}
            for (side, own), (peer, other) in product(ours.items(), theirs.items()):
                yield from _behind(experiment, case, (side, own), (peer, other))


def _behind(
    experiment: str, case: str, ours: tuple[str, Mapping[str, float]], theirs: tuple[str, Mapping[str, float]]
) -> Iterator[Loss]:
    (side, own), (peer, other) = ours, theirs
    for figure in [figure for figure in other if figure in own and figure not in NOT_COMPARED]:
        over, under = (other, own) if more_is_better(figure) else (own, other)
        times = over[figure] / under[figure]
        if times > NOTEWORTHY:
            yield Loss(experiment, case, figure, side, peer, times, REASONS.get((experiment, peer), ""))


def more_is_better(figure: str) -> bool:
    """Return True for rates and for Jain's index."""
    return figure.endswith("per_s") or figure == "jain"

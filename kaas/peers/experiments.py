"""The experiments by name, their bars, and the report of a run."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kaas.peers.systems import PeerFailed, PeerSystem, present

Rows = Mapping[str, Mapping[str, float]]
"""Figures by side; seconds end with `_s`."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The length of a run: rounds and requests of each experiment."""

    calls: int = 400
    requests: int = 1000
    starts: int = 3
    tenants: int = 1000
    replays: int = 50
    interpreted: int = 5
    models: tuple[str, ...] = ("mlp", "resnet50")


QUICK = Effort(calls=50, requests=100, starts=3, tenants=150, replays=30, interpreted=3, models=("mlp",))
"""At least three turns, or runs, of each side: the median is then not that of a single slow one."""
BAR_SIDES = {
    "call_over_actor": ("a call by kaas.call", "one of a Ray actor, with the same array"),
    "multiplex_rate_over_serve": ("KaaS with many models", "Serve, multiplexed"),
    "ready_over_onnxruntime": ("KaaS at a warm start", "ONNX Runtime"),
    "replay_over_iree": ("a replay by KaaS", "one by IREE"),
    "triton_over_interpreter": ("Triton's kernel on the software GPU", "the kernel in Triton's interpreter"),
}
"""By bar: our side, and the peer's."""


def overhead(peers: tuple[PeerSystem, ...], effort: Effort, _: Path) -> Rows:
    """4 KB in, 4 KB out."""
    from kaas.peers.overhead import measure

    return measure(peers, effort.calls, effort.requests)


def coldstart(peers: tuple[PeerSystem, ...], effort: Effort, folder: Path) -> Rows:
    """A new process with a model."""
    from kaas.peers.coldstart import measure

    return measure(peers, effort.models, effort.starts, folder)


def tenancy(peers: tuple[PeerSystem, ...], effort: Effort, _: Path) -> Rows:
    """64 models of 16 MB, room for 16."""
    from kaas.peers.tenancy import measure

    return measure(peers, effort.tenants)


def replay(peers: tuple[PeerSystem, ...], effort: Effort, _: Path) -> Rows:
    """1,000 kernels as data."""
    from kaas.peers.replay import measure

    return measure(peers, effort.replays)


def interpreters(peers: tuple[PeerSystem, ...], effort: Effort, folder: Path) -> Rows:
    """Sources of Triton and numba-cuda."""
    from kaas.peers.interpreters import measure

    return measure(peers, effort.interpreted, str(folder / "interpreted.npy"))


EXPERIMENTS: dict[str, tuple[Callable[[tuple[PeerSystem, ...], Effort, Path], Rows], tuple[PeerSystem, ...]]] = {
    "overhead": (overhead, (PeerSystem.ACTOR, PeerSystem.COMPILED, PeerSystem.SERVE)),
    "coldstart": (coldstart, (PeerSystem.ONNXRUNTIME, PeerSystem.TORCH, PeerSystem.AOTINDUCTOR)),
    "tenancy": (tenancy, (PeerSystem.SERVE,)),
    "replay": (replay, (PeerSystem.IREE,)),
    "interpreters": (interpreters, (PeerSystem.TRITON, PeerSystem.NUMBA)),
}
"""By name: the experiment, and the peers of KaaS in it."""


@dataclass(slots=True)
class Report:
    """The result of a run.

    Fields:
        rows: by experiment. absent: peers that are not installed, each once. failed: by experiment, the reasons of
            the peers that failed there. left_out: experiments without a peer. versions: of the peers that are
            installed. interrupted: Ctrl-C ended the run.
    """

    rows: dict[str, Rows] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    failed: dict[str, dict[str, str]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False


def run(
    names: tuple[str, ...],
    effort: Effort,
    folder: Path,
    began: Callable[[str, Sequence[PeerSystem]], None],
    progress: Callable[[str, Rows], None],
    failed: Callable[[str, PeerFailed], None],
) -> Report:
    """Measure KaaS beside the peers that are installed; Ctrl-C ends the run with what there is.

    An experiment in which a peer fails begins again without this peer, so that the other sides have all their turns.

    began: called before each experiment with its sides. progress: called after it. failed: called for each peer that
    failed.
    """
    report = Report(versions={"Python": platform.python_version(), PeerSystem.KAAS.title: PeerSystem.KAAS.version})
    for name in names:
        measure, peers = EXPERIMENTS[name]
        candidates = list(peers)
        while name not in report.rows:
            try:
                here = present(candidates)
                titles = [peer.title for peer in candidates if peer not in here]
                report.absent += [title for title in titles if title not in report.absent]
                if not here:
                    report.left_out.append(name)
                    break
                report.versions |= {peer.title: peer.version for peer in here}
                sides = (PeerSystem.KAAS, *here)
                began(name, sides)
                report.rows[name] = measure(sides, effort, folder)
            except KeyboardInterrupt:
                report.interrupted = True
                return report
            except PeerFailed as error:
                report.failed.setdefault(name, {})[error.peer.title] = error.reason
                candidates.remove(error.peer)
                failed(name, error)
            else:
                progress(name, report.rows[name])
    return report


def bars(rows: Mapping[str, Rows]) -> dict[str, tuple[float, str, float]]:
    """Return the bars that a run has figures for: the measured value, the comparison, and the limit."""
    found: dict[str, tuple[float, str, float]] = {}

    def ratio(bar: str, experiment: str, ours: str, theirs: str, figure: str, comparison: str, limit: float) -> None:
        sides = rows.get(experiment, {})
        if ours in sides and theirs in sides:
            found[bar] = (sides[ours][figure] / sides[theirs][figure], comparison, limit)

    ratio("call_over_actor", "overhead", "kaas.call", "Ray actor", "call_s", "<=", 0.35)
    ratio("multiplex_rate_over_serve", "tenancy", "KaaS", "Serve, multiplexed", "rate_per_s", ">=", 3)
    model = "resnet50" if any(side.startswith("resnet50") for side in rows.get("coldstart", ())) else "mlp"
    ours, theirs = f"{model}, KaaS, in the process, warm", f"{model}, ONNX Runtime, warm"
    ratio("ready_over_onnxruntime", "coldstart", ours, theirs, "ready_s", "<=", 1.5)
    ratio("replay_over_iree", "replay", "KaaS", "IREE", "kernel_s", "<=", 1.0)
    interpreted = rows.get("interpreters", {}).get(PeerSystem.TRITON.title)
    if interpreted:
        found["triton_over_interpreter"] = (interpreted["ours_s"] / interpreted["theirs_s"], "<=", 0.05)
    return found


def in_words(bar: str, value: float, comparison: str, limit: float) -> str:
    """Return a bar of `bars` as a sentence: which side is faster, how many times, and what the bar asks."""
    ours, theirs = BAR_SIDES[bar]
    faster, asked = (value, limit) if comparison == ">=" else (1 / value, 1 / limit)
    told = f"{faster:.3g} times faster" if faster >= 1 else f"{1 / faster:.3g} times slower"
    least = f"{asked:.3g} times faster or more" if asked > 1 else f"{1 / asked:.3g} times slower at most"
    if asked == 1:
        least = "no slower"
    return f"{ours} is {told} than {theirs}; the bar is {least}: {'met' if faster >= asked else 'missed'}"

"""The plots of docs/policies.md, from the stored results of `python -m benchmarks adaptive`.

    python -m benchmarks.policy_plots

For each policy a row of eight workloads: the mean latency at three loads, over the least of all policies there. The
policy's own line is dark, those of the others are light.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "adaptive.json"
FOLDER = ROOT / "docs" / "plots"
CELL = re.compile(r"(\w+) at ([\d.]+), means")
COLOURS = 24
Means = Mapping[tuple[str, float], Mapping[str, float]]
"""Seconds of the mean latency, by workload and load, and then by policy."""


def means(results: Path = RESULTS) -> Means:
    """Return the mean latencies that a file of results has."""
    detail = json.loads(results.read_text())["detail"]
    found = ((CELL.fullmatch(name), value) for name, value in detail.items())
    return {(cell[1], float(cell[2])): value for cell, value in found if cell is not None}


def over_least(policy: str, cells: Means) -> dict[str, list[tuple[float, float]]]:
    """Return by workload the loads, each with the policy's mean latency over the least one of all policies."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for (workload, load), by_policy in sorted(cells.items(), key=lambda cell: cell[0][1]):
        lines.setdefault(workload, []).append((load, by_policy[policy] / min(by_policy.values())))
    return lines


def draw(policy: str, cells: Means, path: Path) -> None:
    """Write the row of a policy to a PNG."""
    import matplotlib
    from PIL import Image

    matplotlib.use("agg")
    from matplotlib import pyplot

    matplotlib.rcParams["font.size"] = 8
    workloads = list(dict.fromkeys(workload for workload, _ in cells))
    figure, axes = pyplot.subplots(1, len(workloads), figsize=(11, 1.9), sharey=True, layout="constrained")
    others = [name for name in next(iter(cells.values())) if name != policy]
    for axis, workload in zip(axes, workloads, strict=True):
        for name in (*others, policy):
            style = {"color": "#0b5cad", "linewidth": 2.0} if name == policy else {"color": "#c4c4c4", "linewidth": 0.8}
            axis.plot(*zip(*over_least(name, cells)[workload], strict=True), **style)
        axis.set_title(workload, fontsize=8)
        axis.set_yscale("log")
        axis.minorticks_off()
        axis.set_xticks(sorted({load for _, load in cells}))
    axes[0].set_ylabel("mean latency / least")
    figure.supxlabel("load", fontsize=8)
    drawn = BytesIO()
    figure.savefig(drawn, dpi=110)
    Image.open(drawn).convert("RGB").quantize(COLOURS).save(path, optimize=True)
    pyplot.close(figure)


def main() -> None:
    """Draw the row of each policy."""
    cells = means()
    FOLDER.mkdir(exist_ok=True)
    for policy in next(iter(cells.values())):
        draw(policy, cells, FOLDER / f"{policy}.png")


if __name__ == "__main__":
    main()

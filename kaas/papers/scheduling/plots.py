"""Plots of policies' figures with their spread, PNG, by matplotlib (extra `bench`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kaas.bench.report import check_matplotlib

PANELS = {
    "mean_latency_s": "mean latency, s",
    "p99_latency_s": "99th percentile of latency, s",
    "miss_ratio": "misses",
    "function_variance": "variance of functions' means, s²",
}


def draw_rows(rows: Sequence[Mapping[str, Any]], file: Path, *, along: str | None = None) -> None:
    """Draw the figures of policies: lines along a numeric label of the rows, or a bar for each row.

    Args:
        rows: labels, among them `policy`, and figures as (mean, standard deviation).
        file: of the PNG.
        along: the label on the horizontal axis; rows without it are level lines.

    Raises:
        MissingPackage: no matplotlib.
    """
    check_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(PANELS), 3.2), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        axes.set_title(title, fontsize="medium")
        if along is None:
            means, spreads = zip(*(row[name] for row in rows), strict=True)
            axes.bar([str(row["policy"]) for row in rows], means, yerr=spreads, capsize=3)
            axes.tick_params("x", rotation=45)
        else:
            _lines(axes, rows, name, along)
        axes.set_ylim(bottom=0)
    figure.savefig(file, format="png", dpi=120)


def _lines(axes: Any, rows: Sequence[Mapping[str, Any]], name: str, along: str) -> None:
    axes.set_xlabel(along)
    for policy in dict.fromkeys(row["policy"] for row in rows):
        own = [row for row in rows if row["policy"] == policy]
        points = [(row[along], *row[name]) for row in own if along in row]
        if points:
            places, means, spreads = zip(*points, strict=True)
            axes.errorbar(places, means, yerr=spreads, capsize=2, marker=".", label=policy)
        for row in own:
            if along not in row:
                axes.axhline(row[name][0], linestyle=":", label=policy)
    axes.legend(fontsize="small")

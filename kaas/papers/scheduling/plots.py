"""Plots of policies' figures with their spread, PNG, by matplotlib (extra `bench`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kaas.bench.report import check_matplotlib

PANELS = {
    "mean_latency_s": "mean latency, s",
    "p99_latency_s": "99th percentile of latency, s",
    "rejected_ratio": "rejected requests",
    "miss_ratio": "misses",
    "function_variance": "variance of functions' means, s²",
}
WIDE_SPAN = 10
"""An axis is logarithmic if the largest value is more than this many times the least."""


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
    figure_of(rows, along).savefig(file, format="png", dpi=120)


def figure_of(rows: Sequence[Mapping[str, Any]], along: str | None = None) -> Any:
    """Return the matplotlib Figure that `draw_rows` saves. A figure that is 0 in all rows has no panel."""
    from matplotlib.figure import Figure

    names = _names(rows, along)
    height = 3.2 if along is not None else 0.8 + 0.28 * len(rows)
    shown = {name: title for name, title in PANELS.items() if any(row[name][0] for row in rows)} or PANELS
    figure = Figure(figsize=(4 * len(shown), height), layout="constrained")
    panels = figure.subplots(1, len(shown), sharey=along is None, squeeze=False)[0]
    for axes, (figure_name, title) in zip(panels, shown.items(), strict=True):
        axes.set_title(title, fontsize="medium")
        if along is None:
            _bars(axes, rows, names, figure_name)
        else:
            _lines(axes, rows, names, figure_name, along)
    if along is None:
        panels[0].invert_yaxis()  # shared: the first row is on top
    else:
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize="small")
    return figure


def _names(rows: Sequence[Mapping[str, Any]], along: str | None) -> list[str]:
    """Return a name for each row: its policy, and its labels that are not the same in all rows, but for `along`."""
    labels = dict.fromkeys(name for row in rows for name, value in row.items() if not isinstance(value, list | tuple))
    told = [name for name in labels if name != along and len({str(row.get(name)) for row in rows}) > 1]
    return [
        ", ".join([row["policy"], *(f"{name}={row[name]}" for name in told if name != "policy" and name in row)])
        for row in rows
    ]


def _colours(names: Iterable[str]) -> dict[str, Any]:
    from matplotlib import colormaps

    distinct = list(dict.fromkeys(names))
    if len(distinct) <= colormaps["tab10"].N:
        return {name: colormaps["tab10"](place) for place, name in enumerate(distinct)}
    return {name: colormaps["turbo"](place / len(distinct)) for place, name in enumerate(distinct)}


def _bars(axes: Any, rows: Sequence[Mapping[str, Any]], names: Sequence[str], figure_name: str) -> None:
    """Draw a bar for each row, with its name on its left and its value on its right."""
    colours = _colours(row["policy"] for row in rows)
    means, spreads = zip(*(row[figure_name] for row in rows), strict=True)
    own_colours = [colours[row["policy"]] for row in rows]
    bars = axes.barh(range(len(rows)), means, xerr=spreads, capsize=2, color=own_colours, log=_wide(means))
    axes.bar_label(bars, [f"{mean:.4g}" for mean in means], padding=3, fontsize="small")
    axes.set_yticks(range(len(rows)), names)
    axes.margins(x=0.35)
    axes.set_xlim(left=min(means) / 2 if _wide(means) else 0)


def _lines(axes: Any, rows: Sequence[Mapping[str, Any]], names: Sequence[str], figure_name: str, along: str) -> None:
    """Draw a line for each name, and a level line for each row without the label of the axis."""
    axes.set_xlabel(along)
    axes.locator_params("x", integer=all(isinstance(row.get(along, 0), int) for row in rows))
    for name, colour in _colours(names).items():
        own = [row for row, named in zip(rows, names, strict=True) if named == name]
        points = sorted((row[along], *row[figure_name]) for row in own if along in row)
        if points:
            places, means, spreads = zip(*points, strict=True)
            axes.errorbar(places, means, yerr=spreads, capsize=2, marker=".", color=colour, label=name)
        for row in own:
            if along not in row:
                axes.axhline(row[figure_name][0], linestyle=":", color=colour, label=name)
    if _wide([row[figure_name][0] for row in rows]):
        axes.set_yscale("log", nonpositive="clip")
    else:
        axes.set_ylim(bottom=0)


def _wide(means: Sequence[float]) -> bool:
    """Return whether the values are spread so widely that the least would not be seen on a linear axis."""
    return min(means) > 0 and max(means) > WIDE_SPAN * min(means)

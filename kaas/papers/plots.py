"""The figures as the paper draws them, PNG, by matplotlib (extra `bench`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kaas.bench.report import check_matplotlib
from kaas.output_files import write_whole
from kaas.papers.cells import Cell, Found, Side
from kaas.papers.experiments import FIGURES

if TYPE_CHECKING:
    from kaas.papers.results import Results

FORMATS = {Side.KTASK: "o-", Side.KTASK_EXCLUSIVE: "s--", Side.ETASK_EXCLUSIVE: "^:", Side.ETASK_SHARED: "v:"}


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw the figures that have results into a folder, and return their files.

    Raises:
        MissingPackage: no matplotlib.
    """
    check_matplotlib()
    from matplotlib.figure import Figure

    made: list[Path] = []
    for name, axis, draw_cells in (
        ("10", "requests/s", _throughput),
        ("11", "share of requests", _distributions),
        ("12", "requests/s", _throughput),
        ("13", "latency, ms", _latency),
    ):
        cells = [cell for cell in FIGURES[name] if cell in results.found]
        panels = list(dict.fromkeys(_panel(name, cell) for cell in cells))
        if not panels:
            continue
        figure = Figure(figsize=(4 * len(panels), 3.2), layout="constrained")
        for panel, axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
            axes.set_title(panel)
            axes.set_ylabel(axis)
            draw_cells(axes, {cell: results.found[cell] for cell in cells if _panel(name, cell) == panel})
            axes.set_ylim(bottom=0)
            axes.legend(fontsize="small")
        made.append(folder / f"figure{name}.png")
        drawn = BytesIO()
        figure.savefig(drawn, format="png", dpi=150)
        write_whole(made[-1], drawn.getvalue())
    return made


def _panel(figure: str, cell: Cell) -> str:
    return f"{cell.workload}, {cell.replicas} replicas" if figure == "11" else cell.workload


def _throughput(axes: Any, cells: dict[Cell, Found]) -> None:
    axes.set_xlabel("replicas")
    for side, points in _by_side(cells, lambda found: found.rate_per_s):
        axes.plot(*zip(*points, strict=True), FORMATS[side], label=side.value)


def _latency(axes: Any, cells: dict[Cell, Found]) -> None:
    """Draw medians, with the 90th percentiles as upper ends of bars, if enough requests stand behind these.

    Cells without a steady state have no latency.
    """
    axes.set_xlabel("replicas")
    stable = {cell: found for cell, found in cells.items() if found.steady}
    tails = dict(_by_side(stable, lambda found: (found.p90_s if found.tells(90) else found.p50_s) * 1e3))
    for side, points in _by_side(stable, lambda found: found.p50_s * 1e3):
        replicas, medians = zip(*points, strict=True)
        above = [high - median for (_, high), median in zip(tails[side], medians, strict=True)]
        below = [0.0] * len(above)
        axes.errorbar(replicas, medians, yerr=[below, above], fmt=FORMATS[side], capsize=3, label=side.value)


def _distributions(axes: Any, cells: dict[Cell, Found]) -> None:
    axes.set_xlabel("latency, ms")
    for cell, found in cells.items():
        if found.steady and found.cdf_s:
            label = f"{cell.side.value}, {found.offered_per_s:.3g}/s"
            told = [percent for percent in range(len(found.cdf_s)) if found.tells(percent)]
            axes.plot([found.cdf_s[each] * 1e3 for each in told], [each / 100 for each in told], label=label)


def _by_side(
    cells: dict[Cell, Found], value: Callable[[Found], float]
) -> Iterator[tuple[Side, list[tuple[int, float]]]]:
    for side in FORMATS:
        points = sorted((cell.replicas, value(found)) for cell, found in cells.items() if cell.side is side)
        if points:
            yield side, points

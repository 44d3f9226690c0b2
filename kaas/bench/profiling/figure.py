"""Figure 8 of FaST-GShare for one's own functions: throughput over SMs, with a line for each part of the time."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from kaas.bench.report import check_matplotlib
from kaas.output_files import write_whole
from kaas.share import ProfilePoint


def draw_points(profiles: Sequence[tuple[str, Sequence[ProfilePoint]]], file: Path) -> None:
    """Draw the throughput of functions into a PNG, side by side.

    Args:
        profiles: the title of each, and its points.
        file: of the PNG.

    Raises:
        MissingPackage: matplotlib is not installed. InvalidRequest, OSError: the file cannot be written.
    """
    check_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure((5 * len(profiles), 4), layout="constrained")
    for axes, (title, points) in zip(figure.subplots(1, len(profiles), squeeze=False)[0], profiles, strict=True):
        for quota in sorted({each.quota for each in points}, reverse=True):
            line = sorted((each.sms, each.rate_per_s) for each in points if each.quota == quota)
            axes.plot(*zip(*line, strict=True), "o-", label=f"{quota:.0%} of the time")
        axes.set(xlabel="part of the SMs", ylabel="requests a second", title=title.replace("$", r"\$"))
        axes.set_ylim(bottom=0)
        axes.legend()
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    write_whole(file, drawn.getvalue())

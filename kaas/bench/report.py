"""A report of rows for people: PNG plots, and an HTML page that has them and the tables in one file."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

from kaas.bench import shares
from kaas.errors import MissingPackage
from kaas.output_files import write_whole

ReportRow = Mapping[str, Any]

STYLE = """body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse } th, td { padding: .2rem .8rem; border-bottom: 1px solid #8884; text-align: right }
th:first-child, td:first-child { text-align: left } img { max-width: 100% }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd } img { filter: invert(.9) } }"""
COLUMNS = ("load", "state", "rate_per_s", "requests", "mean_ms", "sd_ms", "p50_ms", "p90_ms", "p95_ms", "p99_ms")
COUNTS = ("load", "p99.9_ms", "errors", "lost", "hits", "misses", "cold", "utilisation", "own_cores")

PLOTS = ("latencies", "rates")
"""The names of all plots."""


def check_matplotlib() -> None:
    """Check that plots can be drawn.

    Raises:
        MissingPackage: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        told = "plots need matplotlib: pip install matplotlib"
        raise MissingPackage(told, package="matplotlib", install="matplotlib") from error


def plots(rows: Sequence[ReportRow]) -> dict[str, bytes]:
    """Return PNGs by name: the distribution of the latencies of each load, and the latency over the rate.

    Raises:
        MissingPackage: matplotlib is not installed.
    """
    check_matplotlib()
    from matplotlib.figure import Figure

    def drawn(figure: Any) -> bytes:
        file = BytesIO()
        figure.savefig(file, format="png", dpi=120)
        return file.getvalue()

    latencies, rates = (Figure((8, 4.5), layout="constrained") for _ in range(2))
    axes = latencies.subplots()
    for row in rows:
        if row.get("cdf_ms"):
            axes.step(row["cdf_ms"], range(len(row["cdf_ms"])), where="post", label=row["load"].replace("$", r"\$"))
    axes.set(xlabel="latency, ms", ylabel="requests, %", xscale="log")
    if axes.lines:
        axes.legend()
    over = rates.subplots()
    steady = [row for row in rows if row.get("rate_per_s") and row.get("p50_ms")]
    for figure in ("p50_ms", "p99_ms"):
        points = [(row["rate_per_s"], row[figure]) for row in steady if row.get(figure)]
        over.plot(*zip(*points, strict=True) if points else ((), ()), "o", label=figure[:-3])
    over.set(xlabel="requests a second", ylabel="latency, ms", yscale="log")
    over.legend()
    figures = zip(PLOTS, (latencies, rates), (axes.lines, steady), strict=True)
    return {name: drawn(figure) for name, figure, shown in figures if shown}


def write_plots(rows: Sequence[ReportRow], folder: Path) -> None:
    """Write the plots into a folder, which is made if it is missing. Those that an earlier run left there are removed.

    Raises:
        MissingPackage
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn = plots(rows)
    for name in PLOTS:
        if name in drawn:
            write_whole(folder / f"{name}.png", drawn[name])
        else:  # rows without figures have no plot
            (folder / f"{name}.png").unlink(missing_ok=True)


def page(title: str, rows: Sequence[ReportRow], about: str = "") -> str:
    """Return the page: a table of the loads, one of their stages, and the plots.

    Args:
        title: of the page.
        rows: of the loads.
        about: the machine and the day, say; a line under the title.

    Raises:
        MissingPackage
    """
    stages = list(dict.fromkeys(stage for row in rows for stage in row.get("stages_ms", ())))
    parts = [_table(COLUMNS, [[row.get(column) for column in COLUMNS] for row in rows])]
    columns = [column for column in COUNTS if any(column in row for row in rows)]
    parts.append(_table(columns, [[row.get(column) for column in columns] for row in rows]))
    for row in rows:
        parts += [f"<p>{escape(row['load'])}: {escape(each)}</p>" for each in (*row.get("missing", ()), *_clients(row))]
    if stages:
        split = [[row["load"], *(row.get("stages_ms", {}).get(stage) for stage in stages)] for row in rows]
        parts += ["<h2>Stages, mean ms</h2>", _table(("load", *stages), split)]
    for name, data in plots(rows).items():
        parts.append(f'<p><img alt="{name}" src="data:image/png;base64,{b64encode(data).decode()}"></p>')
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
        f"<h1>{escape(title)}</h1><p>{escape(about)}</p>{''.join(parts)}</html>\n"
    )


def _clients(row: ReportRow) -> Iterator[str]:
    if "clients" in row:
        requests = ", ".join(f"{client!r} {count}" for client, count in row["clients"].items())
        yield f"answered while requests were sent: {requests}; {shares.judged(row['jain'])}"


def _table(columns: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(column.replace('_', ' '))}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(_shown(value))}</td>' for value in line)}</tr>" for line in lines)
    return f"<table><tr>{head}</tr>{body}</table>"


def _shown(value: Any) -> str:
    return "-" if value is None or value == {} else f"{value:.4g}" if isinstance(value, float) else str(value)

"""What came of a scenario, for people: tables of its figures, its clients and its first dispatches."""

from __future__ import annotations

from collections.abc import Iterator

from rich.markup import escape
from rich.table import Table

from kaas.scheduling.simulation.results import Simulated, Summary


def tables(result: Simulated, rows: int) -> Iterator[Table]:
    """The summary, then up to so many dispatches and as many rejections."""
    yield _figures(result.summary, len(result.rejected))
    yield _clients(result.summary)
    if result.dispatches[:rows]:
        told = Table(
            "request", "device", "at (s)", "start", "evicted", title=_title("dispatches", result.dispatches, rows)
        )
        for each in result.dispatches[:rows]:
            evicted = escape(", ".join(each.evicted))
            told.add_row(str(each.request), str(each.device), f"{each.at_s:.6g}", each.start, evicted)
        yield told
    if result.rejected[:rows]:
        told = Table("request", "at (s)", "reason", title=_title("rejected", result.rejected, rows))
        for refused in result.rejected[:rows]:
            told.add_row(str(refused.request), f"{refused.at_s:.6g}", escape(refused.reason))
        yield told


def _figures(summary: Summary, rejected: int) -> Table:
    table = Table("figure", "value", title="summary")
    for name in ("mean_latency_s", "p50_latency_s", "p99_latency_s", "jain"):
        table.add_row(name, f"{getattr(summary, name):.6g}")
    for name in ("hits", "loads", "colds", "evictions"):
        table.add_row(name, str(getattr(summary, name)))
    table.add_row("rejected", str(rejected))
    table.add_row("device_busy_s", ", ".join(f"{busy_s:.6g}" for busy_s in summary.device_busy_s))
    return table


def _clients(summary: Summary) -> Table:
    table = Table("client", "requests", "mean latency (s)", "charged (s)")
    for name, client in summary.per_client.items():
        table.add_row(escape(name), str(client.requests), f"{client.mean_latency_s:.6g}", f"{client.charged_s:.6g}")
    return table


def _title(name: str, entries: tuple[object, ...], rows: int) -> str:
    return name if len(entries) <= rows else f"{name}, {rows} of {len(entries)}"

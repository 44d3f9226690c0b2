"""A pool's status and statistics for people: as tables of text for a terminal, and of HTML for a notebook."""

from __future__ import annotations

import html
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kaas.ktask.draw import printable

if TYPE_CHECKING:
    from kaas.wire.status.stats import KernelStats, OutcomeStats, StageStats, Stats, TierStats
    from kaas.wire.status.status import Status

WIDEST = 10_000
"""Columns of text: a table is as wide as its cells, since a figure that lacks digits is wrong."""
STAGES = {"queue": "queue", "copy_in": "copy in", "kernels": "kernels", "copy_out": "copy out", "request": "all"}
"""The stages whose median is shown, and what their columns are called."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A table. notes: what stands below it, a line each. troubles: likewise, what a person should look at."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()

    def rich(self) -> Table:
        """Names in it may be any client's: whatever they are, a terminal obeys none of it."""
        table = Table(*map(_cell, self.columns), title=_cell(self.title))
        for row in self.rows:
            table.add_row(*map(_cell, row))
        return table

    @property
    def below(self) -> tuple[str, ...]:
        """Notes and troubles, as a terminal may have them."""
        return tuple(map(printable, (*self.notes, *self.troubles)))

    def html(self) -> str:
        head = "".join(f"<th>{html.escape(column)}</th>" for column in self.columns)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in (*self.notes, *self.troubles))
        caption = f"<caption>{html.escape(self.title)}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"


def _cell(text: str) -> str:
    return escape(printable(text))


def as_text(tables: Iterable[Shown]) -> str:
    """For `print`."""
    text = StringIO()
    console = Console(file=text, width=WIDEST, color_system=None, emoji=False)
    for table in tables:
        console.print(table.rich(), *map(escape, table.below), sep="\n")
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def as_html(tables: Iterable[Shown]) -> str:
    """For a notebook."""
    return "".join(table.html() for table in tables)


# --- status

NODE_SHOWN = 8
"""Digits of a node's name on Ray, which tell nodes of a cluster apart."""


def status_tables(status: Status) -> list[Shown]:
    """The pool's devices, and below them what else is known."""
    columns = ("device", "kind", "state", "worker", "busy slots", "pins", "node", "pid", "name", "memory")
    rows = []
    for device in status.devices:
        info = device.info
        worker = "" if device.worker is None else str(device.worker)
        slots = f"{len(device.running)} of {info.slots}" if info else ""
        pins = ", ".join(f"{count} {state}" for state, count in Counter(pin.state for pin in device.pins).items())
        memory = f"{info.memory_bytes >> 20} MiB" if info else ""
        process = (info.node[:NODE_SHOWN], str(info.pid), info.device_name) if info else ("", "", "")
        rows.append((str(device.index), device.kind, device.state, worker, slots, pins, *process, memory))
    return [Shown(f"pool {status.pool}", columns, rows, (_counts(status),), tuple(_troubles(status)))]


def _counts(status: Status) -> str:
    return (
        f"policy {status.config.policy}, running {status.running}, queued {status.queued}, "
        f"waiting for inputs {status.waiting}, functions: {', '.join(status.functions) or 'none'}"
    )


def _troubles(status: Status) -> Iterator[str]:
    if status.abandoned:
        limit = status.config.run_limit_s
        until = "until their kernels end" + ("" if limit is None else f", at most for {limit} s (run_limit_s)")
        yield f"{status.abandoned} of those that run were cancelled or late; they have their slots {until}"
    for device in status.devices:
        if device.reason:
            yield f"device {device.index} is {device.state}: {_first_line(device.reason)}"
        for pin in device.pins:
            if pin.state == "lost":
                yield f"lost on device {device.index}: {pin.target}: {_first_line(pin.reason)}"
    for held in status.quarantined:
        whose = f" of {held.client}" if held.client else ""
        yield f"in quarantine after {held.faults} faults: {held.function}{whose}: {_first_line(held.reason)}"
        yield f"  it runs again after: kaas pardon {held.key}"
    if status.broken:
        yield f"broken: {status.broken}"


def _first_line(reason: str) -> str:
    return reason.partition("\n")[0]


# --- statistics


def stats_tables(stats: Stats) -> list[Shown]:
    """Requests by function and client, the caches by device and tier, and profiled kernels if there are any."""
    tables = [_requests(stats.stages, stats.outcomes), _caches(stats.tiers)]
    if stats.kernels:
        tables.append(_kernels(stats.kernels))
    told = f"of {stats.since_s:.1f} s; {stats.policy_events} events took the policy {stats.policy_s * 1e3:.1f} ms"
    last = tables[-1]
    return [*tables[:-1], Shown(last.title, last.columns, last.rows, (told,))]


def _requests(stages: Sequence[StageStats], outcomes: Sequence[OutcomeStats]) -> Shown:
    ended: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        ended[outcome.function, outcome.client][outcome.outcome] += outcome.count
    times: defaultdict[tuple[str, str], dict[str, StageStats]] = defaultdict(dict)
    for stage in stages:
        times[stage.function, stage.client][stage.stage] = stage
    rows = []
    for flow in sorted({*ended, *times}):
        counts = dict(ended[flow])
        well = counts.pop("succeeded", 0)
        others = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        medians = [_milliseconds(times[flow].get(name), "p50_s") for name in STAGES]
        rows.append((*flow, str(well), others, *medians, _milliseconds(times[flow].get("request"), "p99_s")))
    columns = (*(f"{column}, ms" for column in STAGES.values()), "all, p99")
    return Shown("requests: medians of their stages", ("function", "client", "succeeded", "others", *columns), rows)


def _milliseconds(stage: StageStats | None, quantile: str) -> str:
    return "" if stage is None else _digits(getattr(stage, quantile) * 1e3)


def _digits(value: float) -> str:
    """Three digits, or those before the point."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _caches(tiers: Sequence[TierStats]) -> Shown:
    found: defaultdict[tuple[int, str], list[TierStats]] = defaultdict(list)
    for tier in tiers:
        found[tier.device, tier.tier].append(tier)
    rows = []
    for (device, name), parts in sorted(found.items()):
        mebibytes = sum(part.nbytes for part in parts) / (1 << 20)
        counts = ("objects", "compulsory", "capacity", "evictions")
        hits, *others = (str(sum(getattr(part, each) for part in parts)) for each in counts)
        rows.append((str(device), name, hits, f"{mebibytes:.1f}", *others))
    columns = ("device", "tier", "hits", "MiB", "misses, first", "misses, driven out", "evictions")
    return Shown("caches: input objects by where they were found", columns, rows)


def _kernels(kernels: Sequence[KernelStats]) -> Shown:
    rows = [
        (each.function, each.client, str(each.index), each.symbol, str(each.launches), _digits(each.mean_s * 1e3))
        for each in kernels
    ]
    return Shown("kernels, one by one", ("function", "client", "place", "kernel", "launches", "mean, ms"), rows)

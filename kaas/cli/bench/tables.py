"""The results of `kaas bench` as tables and lines of a terminal."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.markup import escape
from rich.table import Table

from kaas.bench import shares
from kaas.cli.observe import print_whole

NONE = "-"
STATES = {
    "unsettled": "its windows did not agree, or were too few; a longer --limit helps, and with it a longer --window",
    "cut off": "--limit ended the trace before its last request; the figures are of those before",
    "unstable": "the queue grew as fast as requests came; a steady rate and latency do not exist",
    "silent": "the service gave no more results, but errors at most",
}
"""The meaning of each state of a load but *stable*, *whole* and *interrupted*."""


@contextmanager
def to_stdout() -> Iterator[None]:
    """Name stdout in the error of what is printed meanwhile, as a full disk gives it."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.EPIPE:  # the command line knows of a reader that has ended
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python writes the rest at its end
            raise OSError(error.errno, error.strerror, "stdout") from error
        raise


def _share(row: Mapping[str, Any]) -> str:
    return f"{row['utilisation']:.0%}" if "utilisation" in row else NONE


def _state(row: Mapping[str, Any]) -> str:
    counted, windows = row["counted_windows"], row["windows"]
    return row["state"] if counted == windows else f"{row['state']}, last {counted} of {windows} windows"


def _shares(row: Mapping[str, Any]) -> str:
    counts, weights = row["clients"], row["weights"]
    total, whole = max(1, sum(counts.values())), sum(weights.values())
    return ", ".join(
        f"{client!r} {count} ({count / total:.0%}, {weights[client] / whole:.0%} due)"
        for client, count in counts.items()
    )


def show_scenario(row: Mapping[str, Any]) -> None:
    """Print the row of one of MLPerf's scenarios, and the rules that it breaks."""
    latencies = "".join(f", {key[:-3]} {value:.4g} ms" for key, value in row.items() if key.startswith("p"))
    queries = "1 query" if row["requests"] == 1 else f"{row['requests']} queries"
    print(f"{row['load']} by {row['driver']}: {queries}, {row['rate_per_s']:.4g} samples/s{latencies}: {row['state']}")
    for reason in row["missing"]:
        print(f"  {reason}")


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows of loops, their stages, and what went wrong."""
    quantiles = [key for key in rows[0] if key.startswith("p") and key.endswith("_ms")]
    table = Table(
        "load", "requests", "requests/s", "mean±sd ms", *(key.replace("_", " ") for key in quantiles), "state"
    )
    for row in rows:
        spread = NONE if row["mean_ms"] is None else f"{row['mean_ms']:.3g}±{row['sd_ms']:.3g}"
        times = (NONE if row[key] is None else f"{row[key]:.4g}" for key in quantiles)
        rate = NONE if row["rate_per_s"] is None else f"{row['rate_per_s']:.4g}"
        table.add_row(escape(row["load"]), str(row["requests"]), rate, spread, *times, _state(row))
    print_whole(table)
    stages = list(dict.fromkeys(stage for row in rows for stage in row["stages_ms"]))
    if stages:
        split = Table("mean ms, whole load", *stages, "hits", "misses", "cold", "devices busy")
        for row in rows:
            means = (f"{row['stages_ms'][stage]:.3g}" if stage in row["stages_ms"] else NONE for stage in stages)
            counts = (str(row[figure]) for figure in ("hits", "misses", "cold"))
            split.add_row(escape(row["load"]), *means, *counts, _share(row))
        print_whole(split)
    for row in rows:
        if "clients" in row:
            print(f"{row['load']}: answered while requests were sent: {_shares(row)}; {shares.judged(row['jain'])}")
        failed = [f"{count} {kind}" for kind, count in row["errors"].items()]
        failed += [f"{row['lost']} lost"] if row["lost"] else []
        failed += [f"{row['waiting']} under way at Ctrl-C"] if row["waiting"] else []
        failed += [f"{row['unsent']} due and not sent"] if row["unsent"] else []
        failed += [f"the last result after {row['last_result_s']:.3g} s"] if failed else []
        if failed:
            print(f"{row['load']}: {', '.join(failed)}")
        if row["state"] == "unstable":
            print(f"{row['load']}: {row['requests']} results in {row['seconds']:.3g} s")
    if any(row["state"] == "unsettled" and row["mean_ms"] is None for row in rows):
        print(f"{NONE}: most requests had no end yet")
    for state in dict.fromkeys(row["state"] for row in rows if row["state"] in STATES):
        print(f"{state}: {STATES[state]}")

"""The command line and the report of every benchmark: a table for people, or one line of JSON for programs."""

from __future__ import annotations

import argparse
import json as json_codec
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Bar = tuple[float | str, str, float]
"""The measured value, or a word why there is none; the comparison with the limit; and the limit."""

_COMPARE: dict[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge}


def arguments(description: str = "", argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line that all benchmarks share, `--json`."""
    return parser(description).parse_args(argv)


def parser(description: str = "") -> argparse.ArgumentParser:
    """Return the shared parser, for a benchmark that adds its own options."""
    made = argparse.ArgumentParser(description=description or None)
    made.add_argument("--json", action="store_true", help="print one line of JSON last instead of a table")
    return made


def positive(text: str) -> int:
    """Return a count on the command line: `type=positive`."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


def met(bar: Bar) -> bool:
    """Return True if the measured value keeps its limit; a word keeps none.

    Raises:
        KeyError: a comparison other than "<=" and ">=".
    """
    measured, comparison, limit = bar
    compare = _COMPARE[comparison]
    return not isinstance(measured, str) and compare(measured, limit)


def report(name: str, bars: Mapping[str, Bar], detail: Mapping[str, Any], json: bool) -> None:
    """Print a benchmark's measurements. Readers judge the bars: the exit status does not depend on them.

    Args:
        name: the benchmark's module name.
        bars: name -> (measured or a word, "<=" or ">=", limit).
        detail: the figures behind the bars, of JSON's types, units in their names.
        json: print one line of JSON last instead of a table.
    """
    if json:
        line = {"benchmark": name, "bars": {bar: list(value) for bar, value in bars.items()}, "detail": dict(detail)}
        print(json_codec.dumps(line), flush=True)
        return
    print_table(name, [(name, bar, value) for bar, value in bars.items()])
    for key, value in detail.items():
        print(f"  {key:<32} {_readable(value)}")


def print_table(title: str, rows: Iterable[tuple[str, str, Bar]]) -> None:
    """Print a table of bars: (benchmark, bar's name, bar)."""
    from rich.console import Console  # imported here: --json works without rich
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("benchmark")
    table.add_column("bar")
    table.add_column("measured", justify="right")
    table.add_column("limit", justify="right")
    table.add_column()
    for benchmark, name, bar in rows:
        verdict = "[green]ok[/]" if met(bar) else "[red]missed[/]"
        measured = bar[0] if isinstance(bar[0], str) else f"{bar[0]:.3g}"
        table.add_row(benchmark, name, measured, f"{bar[1]} {bar[2]:g}", verdict)
    Console().print(table)


def _readable(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)

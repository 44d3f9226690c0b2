"""The trend of each benchmark: a line for each run, and the figures that moved by more than noise.

A figure's noise on a machine is the spread of its last runs there. A bar has moved if it differs from their median by
more than three times that spread (the median absolute deviation, scaled to a standard deviation), and by more than 5 %.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

RUNS = 10
LEAST_RUNS = 3
"""With fewer runs the noise is unknown."""
SPREADS = 3.0
LEAST_SHARE = 0.05
TO_DEVIATION = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""
MACHINE = ("processor", "processors", "device")
"""The fields of a result that name its machine: runs of other machines are not compared."""


def add(result: Mapping[str, Any], file: Path) -> list[str]:
    """Append a run to the benchmark's history. Return a sentence for each bar that moved since the last ten runs.

    Args:
        result: as `benchmarks.page.keep` stores it. file: of the benchmark's history, which may be missing.
    """
    runs = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    here = [run for run in runs if all(run.get(field) == result.get(field) for field in MACHINE)]
    told = [*moved(result, here[-RUNS:])]
    fields = ("measured", "commit", *MACHINE, "load_average")
    line = {field: result[field] for field in fields if field in result}
    line["bars"] = {bar: value for bar, (value, _, _) in result["bars"].items()}
    with file.open("a") as opened:
        opened.write(json.dumps(line) + "\n")
    return told


def moved(result: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each bar that differs from earlier runs by more than their noise."""
    for bar, (now, comparison, _) in result["bars"].items():
        before = [run["bars"][bar] for run in runs if isinstance(run["bars"].get(bar), int | float)]
        if isinstance(now, str) or len(before) < LEAST_RUNS:
            continue
        middle = median(before)
        noise = SPREADS * TO_DEVIATION * median(abs(value - middle) for value in before)
        change = now - middle
        if abs(change) > max(noise, LEAST_SHARE * abs(middle)):
            word = "better" if (change < 0) is (comparison == "<=") else "worse"
            yield f"{result['benchmark']}.{bar}: {now:.3g}, {middle:.3g} in the last {len(before)} runs: {word}"

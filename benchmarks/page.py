"""docs/benchmarks.md, made from the last result of each benchmark: no figure on that page is written by hand.

`make bench` keeps what each benchmark reported in benchmarks/results/NAME.json, with when, of which commit and on which
processor it was measured, and writes the page; `python -m benchmarks.page` only writes it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.report import Bar, met

HERE = Path(__file__).parent
RESULTS = HERE / "results"
MEANINGS = HERE / "meanings.toml"
PAGE = HERE.parent / "docs" / "benchmarks.md"

NOT_MEASURED = "not measured since this table is generated"

HEAD = """# Benchmarks

`make bench` runs every benchmark in a process of its own, keeps its last result in `benchmarks/results/`, and
writes this page from these files; `make bench ARGS=launch` does so for one. No figure here is written by hand.

A bar is a ratio of two times, rates or counts that are taken in the same run, with the limit that the design sets. Most
compare with the least that the same work takes without KaaS: a raw driver call, a copy, a bare Ray actor. So a bar says
little about a machine; but programs that keep the machine busy slow both sides unequally. The load average beside a
result, taken before the run, shows that: above the number of processors, a missed bar may be the machine's.
"""


def keep(result: Mapping[str, Any], where: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Store what a benchmark reports, with where it was measured (`machine`), in place of its last result."""
    kept = {"measured": f"{datetime.now(UTC):%Y-%m-%d}", "commit": _commit(), **where, **result}
    path = folder / f"{result['benchmark']}.json"
    folder.mkdir(exist_ok=True)
    path.write_text(json.dumps(kept, indent=1) + "\n")
    return path


def machine() -> dict[str, Any]:
    """What a result says of where it was measured: the processor, how many, and the load average of the last minute."""
    told = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    processor = told[0] if told else os.uname().machine
    return {"processor": processor, "processors": os.cpu_count(), "load_average": round(os.getloadavg()[0], 1)}


def _lines(path: str) -> Sequence[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:  # no Linux
        return ()


def _commit() -> str:
    """The commit that last changed what is measured, with a + where the files differ from it."""
    code = ("kaas", "libraries", "compilers", ":(glob)benchmarks/**/*.py")
    commit = _git("log", "-1", "--format=%h", "--abbrev=7", "--", *code).stdout.strip()
    return f"{commit or 'unknown'}{'+' if _git('diff', '--quiet', 'HEAD', '--', *code).returncode else ''}"


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=HERE.parent, capture_output=True, text=True, check=False)


def page(results: Mapping[str, Mapping[str, Any]], meanings: Mapping[str, Mapping[str, str]]) -> str:
    """The page.

    Args:
        results: by benchmark, as `keep` stores them.
        meanings: by benchmark and bar, or "*" for all bars of a benchmark that have no line.
    """
    parts = [HEAD]
    for name in sorted({*results, *meanings}):
        result, told = results.get(name), meanings.get(name, {})
        rows = _rows(result, told)
        where = _where(result) if result is not None else f"`{name}` is {NOT_MEASURED}."
        columns = ["what", "limit", "measured", ""] if result is not None else ["what"]
        head = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
        parts.append("\n".join([f"## {name}", "", where, "", *head, *rows, ""]))
    return "\n".join(parts)


def _where(result: Mapping[str, Any]) -> str:
    processors = "1 processor" if result["processors"] == 1 else f"{result['processors']} processors"
    return (
        f"{result['measured']}, commit `{result['commit']}`, {result['processor']}, {processors}, "
        f"load average {result['load_average']:g}."
    )


def _rows(result: Mapping[str, Any] | None, told: Mapping[str, str]) -> Iterator[str]:
    if result is None:
        yield from (f"| {meaning} |" for meaning in told.values())
        return
    for name, (measured, comparison, limit) in result["bars"].items():
        bar: Bar = (measured, comparison, limit)
        meaning = told.get(name) or f"{told.get('*', '')} ({name})".strip()
        shown = measured if isinstance(measured, str) else f"{measured:.3g}"
        sign = "≤" if comparison == "<=" else "≥"
        yield f"| {meaning} | {sign} {limit:g} | {shown} | {'' if met(bar) else 'missed'} |"


def kept(folder: Path = RESULTS) -> dict[str, Any]:
    """The last results, by benchmark."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def current() -> str:
    """The page as the files say."""
    return page(kept(), tomllib.loads(MEANINGS.read_text()))


def main() -> int:
    PAGE.write_text(current())
    return 0


if __name__ == "__main__":
    sys.exit(main())

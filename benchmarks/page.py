"""docs/benchmarks.md, and the tables of docs/security.md, made from the last results: no figure there is typed.

`make bench` keeps each benchmark's report in benchmarks/results/NAME.json, with the date, commit and processor of the
measurement, and writes the page; `make gpu` keeps those of an NVIDIA GPU in gpu-NAME.json; `python -m benchmarks.page`
only writes the page.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import trends
from benchmarks.isolation.tables import tables
from benchmarks.report import Bar, met
from kaas.peers.losses import losses

HERE = Path(__file__).parent
RESULTS = HERE / "results"
MEANINGS = HERE / "meanings.toml"
PAGE = HERE.parent / "docs" / "benchmarks.md"

SECURITY = HERE.parent / "docs" / "security.md"
TABLES_BEGIN, TABLES_END = "<!-- made by `python -m benchmarks.page` -->", "<!-- end of the tables -->"

NOT_MEASURED = "not measured since this table is generated"

HEAD = """# Benchmarks

`make bench` runs every benchmark in its own process, keeps its last result and its history in `benchmarks/results/`,
shows the bars that moved by more than noise since the last ten runs, and writes this page from these files;
`make bench ARGS=launch` does so for one benchmark. No figure here is written by hand.

A bar is a ratio of two times, rates or counts of the same run, with the limit that the design sets. Most bars compare
with the least that the same work takes without KaaS: a raw driver call, a copy, a bare Ray actor. So a bar depends
little on the machine; but other programs on a busy machine slow both sides unequally. The load average of a result,
taken before the run, shows that: above the number of processors, other programs may be the cause of a missed bar.

Names with `gpu-` are the results of `make gpu`, on an NVIDIA GPU.
"""


def keep(result: Mapping[str, Any], where: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Store a benchmark's report, with the machine that it was measured on (`machine`), in place of its last result.

    The history gets a line (`benchmarks.trends`), and figures that moved by more than noise are shown on stderr.
    """
    kept = {"measured": f"{datetime.now(UTC):%Y-%m-%d}", "commit": _commit(), **where, **result}
    path = folder / f"{result['benchmark']}.json"
    folder.mkdir(exist_ok=True)
    path.write_text(json.dumps(kept, indent=1) + "\n")
    for sentence in trends.add(kept, path.with_suffix(".jsonl")):
        print(sentence, file=sys.stderr)
    return path


def machine() -> dict[str, Any]:
    """Return this machine's processor, the number of processors, and the load average of the last minute."""
    models = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    processor = models[0] if models else os.uname().machine
    return {"processor": processor, "processors": os.cpu_count(), "load_average": round(os.getloadavg()[0], 1)}


def _lines(path: str) -> Sequence[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:  # not on Linux
        return ()


def _commit() -> str:
    """Return the last commit of the measured code, with a + if the files differ from it."""
    code = ("kaas", "libraries", "compilers", ":(glob)benchmarks/**/*.py")
    commit = _git("log", "-1", "--format=%h", "--abbrev=7", "--", *code).stdout.strip()
    return f"{commit or 'unknown'}{'+' if _git('diff', '--quiet', 'HEAD', '--', *code).returncode else ''}"


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=HERE.parent, capture_output=True, text=True, check=False)


def page(results: Mapping[str, Mapping[str, Any]], meanings: Mapping[str, Mapping[str, str]]) -> str:
    """Return the page.

    Args:
        results: by benchmark, as `keep` stores them.
        meanings: by benchmark and bar, or "*" for all bars of a benchmark without their own line. A figure of the
            detail with a meaning stands below the bars.
    """
    parts = [HEAD]
    for name in sorted({*results, *meanings}):
        result, lines = results.get(name), meanings.get(name.removeprefix("gpu-"), {})
        rows = [*_rows(result, lines)]
        where = _where(result) if result is not None else f"`{name}` is {NOT_MEASURED}."
        columns = ["what", "limit", "measured", ""] if result is not None else ["what"]
        table = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}", *rows, ""]
        parts.append("\n".join([f"## {name}", "", where, "", *(table if result is None or result["bars"] else ())]))
        stages = [] if result is None else [*_stages(result["detail"])]
        if stages:
            parts.append("\n".join([*stages, ""]))
        if result is not None and name == "peers":
            parts.append("\n".join([*_peers(result["detail"]), ""]))
        if result is not None and not result["bars"] and not stages:
            parts.append(f"It has no bars; its figures are in `benchmarks/results/{name}.json`.\n")
    return "\n".join(parts)


def _where(result: Mapping[str, Any]) -> str:
    device = f"{result['device']}, " if "device" in result else ""
    processors = "1 processor" if result["processors"] == 1 else f"{result['processors']} processors"
    return (
        f"{result['measured']}, commit `{result['commit']}`, {device}{result['processor']}, {processors}, "
        f"load average {result['load_average']:g}."
    )


def _rows(result: Mapping[str, Any] | None, lines: Mapping[str, str]) -> Iterator[str]:
    if result is None:
        yield from (f"| {meaning} |" for meaning in lines.values())
        return
    for name, (measured, comparison, limit) in result["bars"].items():
        bar: Bar = (measured, comparison, limit)
        meaning = lines.get(name) or f"{lines.get('*', '')} ({name})".strip()
        shown = measured if isinstance(measured, str) else f"{measured:.3g}"
        sign = "≤" if comparison == "<=" else "≥"
        yield f"| {meaning} | {sign} {limit:g} | {shown} | {'' if met(bar) else 'missed'} |"
    for name in filter(result["detail"].__contains__, lines):
        yield f"| {lines[name]} | | {result['detail'][name]:.3g} | |"


def _stages(detail: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of the details that are microseconds of a stage: "way: stage, us"."""
    stages = {key: key.removesuffix(", us").split(": ", 1) for key in detail if key.endswith(", us") and ": " in key}
    ways = list(dict.fromkeys(way for way, _ in stages.values()))
    if not ways:
        return
    yield f"| stage, in order; median in μs | {' | '.join(f'`{way}`' for way in ways)} |"
    yield f"|{' --- |' * (len(ways) + 1)}"
    for stage in sorted(dict.fromkeys(stage for _, stage in stages.values()), key="in all".__eq__):
        found = (detail.get(f"{way}: {stage}, us") for way in ways)
        yield f"| {stage} | {' | '.join('' if each is None else f'{each:.1f}' for each in found)} |"


PEER_FIGURES = (
    "Figures that end in `_s` are seconds, those in `_mb` and `_kb` sizes. *overhead*: `call_s` is the median of "
    "single calls, `rate_per_s` has 64 outstanding. *coldstart*: from the start of a process until it is ready "
    "(`ready_s`) and until its first answer has come (`answer_s`), with the files in the page cache (*warm*) or not "
    "(*dropped*). *tenancy*: KaaS runs under `adaptive`, on one device with two slots and room for 16 models; "
    "`rate_per_s` is of all 64, `hot_per_s` of a model that is loaded, `loaded_mb` what misses have copied, `jain` "
    "the fairness between models. *replay*: 1,000 kernels saved, loaded, and the time of one when they are replayed. "
    "*interpreters*: one launch of the same source."
)


def _peers(detail: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table for each experiment beside peers, and one of what KaaS loses."""
    yield PEER_FIGURES
    yield ""
    for experiment, rows in detail["rows"].items():
        figures = list(dict.fromkeys(figure for each in rows.values() for figure in each))
        yield f"| {experiment} | {' | '.join(figures)} |"
        yield f"|{' --- |' * (len(figures) + 1)}"
        for side, each in rows.items():
            yield f"| {side} | {' | '.join(f'{each[figure]:.4g}' if figure in each else '' for figure in figures)} |"
        yield ""
    yield "### Where KaaS loses"
    yield ""
    yield (
        "Peers that are ahead by less than 5 % are not listed. IREE's `save_s` contains its compilation; KaaS' kernels "
        "are compiled before. The bar of a cold start is of `ready_s`; the first answer comes later (`answer_s`). An "
        "interpreter interprets each time, and the software GPU's compilation is not in its time."
    )
    yield ""
    yield "| side | behind | figure | times | why |"
    yield "| --- | --- | --- | --- | --- |"
    grouped: dict[tuple[str, ...], dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for loss in losses(detail["rows"]):
        times = grouped[loss.ours, loss.peer, loss.reason]
        times[loss.figure, loss.experiment].append(loss.times)
    for (ours, peer, reason), behind in grouped.items():
        named = ", ".join(f"{experiment} `{figure}`" for figure, experiment in behind)
        ranges = ", ".join(_range(each) for each in behind.values())
        yield f"| {ours} | {peer} | {named} | {ranges} | {reason} |"
    yield ""
    yield f"{', '.join(f'{peer} {version}' for peer, version in detail['versions'].items())}."


def _range(times: Sequence[float]) -> str:
    """Return the smallest and the largest of the factors of several models."""
    first, last = f"{min(times):.3g}", f"{max(times):.3g}"
    return first if first == last else f"{first} to {last}"


def security() -> str:
    """Return docs/security.md with the tables of the last result."""
    before, begin, rest = SECURITY.read_text().partition(TABLES_BEGIN)
    _, end, after = rest.partition(TABLES_END)
    return f"{before}{begin}\n{tables(kept()['isolation']['detail'])}\n{end}{after}"


def kept(folder: Path = RESULTS) -> dict[str, Any]:
    """Return the last results, by benchmark."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def current() -> str:
    """Return the page of the current files."""
    return page(kept(), tomllib.loads(MEANINGS.read_text()))


def main() -> int:
    PAGE.write_text(current())
    SECURITY.write_text(security())
    return 0


if __name__ == "__main__":
    sys.exit(main())

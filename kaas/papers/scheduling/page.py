"""The page of the scheduling papers, Markdown: our figures beside the published ones, made of measured rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kaas.papers.scheduling.paper import PaperRows, SchedulingPaper, row
from kaas.papers.scheduling.papers import SCHEDULING_PAPERS

HEAD = """# The scheduling papers

The experiments of the LALB, MQFQ-Sticky and FaST-GShare papers in virtual time, as `kaas papers lalb`, `kaas papers
mqfq`, `kaas papers hybrid` and `kaas papers fast` run them; `python -m benchmarks.papers` has measured the figures
and written this page. Each row is the mean over {seeds} seeds, ± the standard deviation. Nothing is tuned to match
the published figures: what the papers leave open is stated, and can be changed by `--zipf`, `--gpu-mb` and
`--overhead-s`.

The KaaS paper's own comparison, CFS-Affinity with kTasks against Exclusive with eTasks, is measured live
([evaluation.md](evaluation.md)). In virtual time its ratio is that of a start to a run, two times that the scenario
states: a figure that says nothing.
"""
FIGURES = {
    "mean_latency_s": "mean latency, s",
    "latency_sd": "its deviation, s",
    "miss_ratio": "misses",
    "false_miss_ratio": "false misses",
    "duplicates": "copies of the hottest",
    "function_variance": "variance of functions' means, s²",
    "rejected_ratio": "not in time",
    "utilisation": "utilisation",
}


def page(measured: Mapping[str, Sequence[Mapping[str, Any]]], seeds: int) -> str:
    """Return the page. measured: the rows of each paper as JSON."""
    parts = [HEAD.format(seeds=seeds)]
    for name, told in measured.items():
        parts += _section(SCHEDULING_PAPERS[name], PaperRows(map(row, told)))
    return "\n".join(parts)


def _section(paper: SchedulingPaper, rows: PaperRows) -> Iterator[str]:
    yield f"## {paper.title}\n"
    yield from _table(("", "paper", "here"), ((each.what, each.published, each.here) for each in paper.published(rows)))
    for note in paper.notes:
        yield f"- {note}"
    yield ""
    labels = list(dict.fromkeys(name for each in rows.rows for name in each.labels))
    yield from _table(
        (*labels, *FIGURES.values()),
        (
            (
                *(str(each.labels.get(name, "")) for name in labels),
                *(f"{each.figures[name][0]:.3g} ± {each.figures[name][1]:.2g}" for name in FIGURES),
            )
            for each in rows.rows
        ),
    )


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for each in rows:
        yield f"| {' | '.join(each)} |"
    yield ""

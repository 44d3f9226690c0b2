"""The scheduling papers' experiments in virtual time, and their page.

    python -m benchmarks.papers [--json] [--seeds N]
    python -m benchmarks.papers --page    # writes docs/scheduling-papers.md of the last results

Bars are ratios of mean latencies: LALB's over LB's with 15 models, LALBO3's over LALB's with 35, and MQFQ-Sticky's over
FCFS's on one device with one request at a time. The published ones are 0.023, 0.149 and 0.228.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import page as results
from benchmarks.report import parser, positive, report
from kaas.papers.scheduling.mqfq import FUNCTIONS
from kaas.papers.scheduling.page import page
from kaas.papers.scheduling.paper import PaperRows, measure_cells
from kaas.papers.scheduling.papers import SCHEDULING_PAPERS

SEEDS = 10
PAGE = Path(__file__).parent.parent / "docs" / "scheduling-papers.md"
PUBLISHED = {"lalb_over_lb": 1 - 0.9774, "lalbo3_over_lalb": (1 - 0.9693) / (1 - 0.7943), "mqfq_over_fcfs": 11.8 / 51.8}


def current() -> str:
    """Return the page of the last results."""
    detail = results.kept()["papers"]["detail"]
    return page({name: detail[name] for name in SCHEDULING_PAPERS}, detail["seeds"])


def bars(measured: dict[str, PaperRows]) -> dict[str, tuple[float, str, float]]:
    """Return the bars of measured rows, by paper."""

    def latency(paper: str, **labels: str | int) -> float:
        return measured[paper].mean("mean_latency_s", **labels)

    def on_one(policy: str) -> float:
        return latency("mqfq", policy=policy, working_set=FUNCTIONS, devices=1, D=1)

    small, large = (
        {policy: latency("lalb", policy=policy, working_set=models) for policy in ("lb", "lalb", "lalbo3")}
        for models in (15, 35)
    )
    return {
        "lalb_over_lb": (small["lalb"] / small["lb"], "<=", 0.1),
        "lalbo3_over_lalb": (large["lalbo3"] / large["lalb"], "<=", 1.05),
        "mqfq_over_fcfs": (on_one("mqfq_sticky") / on_one("fcfs"), "<=", 0.4),
    }


def main() -> None:
    """Run all cells, and report; or write the page."""
    options = parser((__doc__ or "").partition("\n")[0])
    options.add_argument("--seeds", type=positive, default=SEEDS)
    options.add_argument("--page", action="store_true", help="measure nothing")
    chosen = options.parse_args()
    if chosen.page:
        PAGE.write_text(current())
        return
    measured = {
        name: measure_cells(paper.cells(paper.assumed), chosen.seeds) for name, paper in SCHEDULING_PAPERS.items()
    }
    detail: dict[str, Any] = {"seeds": chosen.seeds, "published": PUBLISHED}
    detail |= {name: [each.as_json() for each in rows.rows] for name, rows in measured.items()}
    report("papers", bars(measured), detail, chosen.json)


if __name__ == "__main__":
    main()

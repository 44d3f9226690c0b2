"""A scheduling paper: its workload as cells to run, and what it publishes, beside what the cells give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kaas.errors import InvalidRequest
from kaas.scheduling.comparing.runs import SimulatedRun, Spread, measure_all, spreads
from kaas.scheduling.simulation.draws import Draws
from kaas.scheduling.simulation.scenario import Scenario, ScenarioRequest

Label = str | int
MOST_ZIPF, LARGEST = 10.0, 1e6
"""The limits of assumptions: popularities and times stay numbers."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The assumptions that the papers do not state, or not exactly.

    Fields:
        zipf: exponent of the popularity of functions. gpu_mb: memory of a device. overhead_s: seconds that each request
            occupies its device for, besides its load and its run.
    """

    zipf: float
    gpu_mb: float
    overhead_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            InvalidRequest: one that cannot be.
        """
        for name, most in (("zipf", MOST_ZIPF), ("gpu_mb", LARGEST), ("overhead_s", LARGEST)):
            if not 0 <= getattr(self, name) <= most:
                raise InvalidRequest(f"{name} is a number from 0 to {most:g}, not {getattr(self, name)!r}")


@dataclass(frozen=True, slots=True)
class PaperCell:
    """A setting of a paper's experiment.

    Fields:
        make: returns its scenario for a seed, in any process. policy: module:Class, instead of the scenario's policy.
    """

    labels: Mapping[str, Label]
    make: Callable[[int], Scenario]
    policy: str | None = None


@dataclass(frozen=True, slots=True)
class PaperRow:
    """The figures of a cell, each with its spread over the seeds."""

    labels: Mapping[str, Label]
    figures: Mapping[str, Spread]

    def as_json(self) -> dict[str, Any]:
        """Return labels and figures as one object; `row` reads it."""
        return {**self.labels, **self.figures}


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """A figure of a paper as it prints it, and what the simulator has in its place."""

    what: str
    published: str
    here: str


class PaperRows:
    """The rows of a paper, found by their labels."""

    def __init__(self, rows: Iterable[PaperRow]) -> None:
        self.rows = tuple(rows)

    def mean(self, figure: str, **labels: Label) -> float:
        """Return the mean of a figure over the seeds, in the row with exactly these labels."""
        (row,) = (row for row in self.rows if row.labels == labels)
        return row.figures[figure][0]

    def below(self, figure: str, labels: Mapping[str, Label], other: Mapping[str, Label]) -> str:
        """Return by how much a figure is below another row's, in percent as the papers print it."""
        before = self.mean(figure, **other)
        return f"{100 * (1 - self.mean(figure, **labels) / before):.2f} %" if before else "0 in both"


@dataclass(frozen=True, slots=True)
class SchedulingPaper:
    """A paper with an experiment in virtual time.

    Fields:
        cells: of its experiment under assumptions. published: its figures beside those of the rows. notes: what it
            leaves open and how it is read here, and what cannot be reproduced.
    """

    name: str
    title: str
    assumed: Assumptions
    cells: Callable[[Assumptions], Sequence[PaperCell]]
    published: Callable[[PaperRows], Iterator[PublishedFigure]]
    notes: tuple[str, ...]


def measure_cells(cells: Sequence[PaperCell], seeds: int, done: Callable[[], None] = lambda: None) -> PaperRows:
    """Run each cell with the seeds from 0 on, in parallel, and return its row. done: is called after each run.

    Raises:
        InvalidRequest: a device has no room for a function.
    """
    for scenario in (cell.make(0) for cell in cells):
        largest_mb = max(function.memory_mb for function in scenario.functions.values())
        if (least_mb := min(device.memory_mb for device in scenario.devices)) < largest_mb:
            raise InvalidRequest(f"gpu_mb is {least_mb:g}, but a function of the paper has {largest_mb:g} MB")
    runs = [
        SimulatedRun(partial(cell.make, seed), None if cell.policy is None else {"name": cell.policy})
        for cell in cells
        for seed in range(seeds)
    ]
    measured = measure_all(runs, done)
    return PaperRows(
        PaperRow(cell.labels, spreads(measured[place * seeds : (place + 1) * seeds]))
        for place, cell in enumerate(cells)
    )


def row(told: Mapping[str, Any]) -> PaperRow:
    """Return a row from its JSON."""
    figures = {name: (value[0], value[1]) for name, value in told.items() if isinstance(value, list | tuple)}
    return PaperRow({name: value for name, value in told.items() if name not in figures}, figures)


def open_loop(
    draws: Draws, popularity: Mapping[str, float], rate: float, gap_cv: float, until_s: float
) -> tuple[ScenarioRequest, ...]:
    """Return calls that come whatever becomes of earlier ones: each function's gaps are lognormal.

    Args:
        draws: of the gaps.
        popularity: parts of the calls by function, in any unit.
        rate: calls of all functions in a second.
        gap_cv: coefficient of variation of the gaps.
        until_s: the time of the last call, at most.
    """
    whole = sum(popularity.values())
    calls = []
    for function, part in popularity.items():
        gap_s = whole / (rate * part)
        at_s = -draws.uniform() * gap_s  # the first call may come at once
        while (at_s := at_s + gap_s * draws.lognormal(gap_cv)) < until_s:
            if at_s >= 0:
                calls.append(ScenarioRequest(function, at_s))
    return tuple(sorted(calls, key=lambda call: call.at_s))

"""The figures of the KaaS paper over replicas: their cells, the run of the cells, and the ratios of their results."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kaas.errors import DeadlineExceeded, InvalidRequest
from kaas.papers.breakdown import BREAKDOWNS, TABLE, Breakdown, Properties, breakdowns, properties
from kaas.papers.cells import CROWDED, Cell, Found, Side, measured
from kaas.papers.experiment_server import STOP_S, serve
from kaas.papers.workloads import MOST_REPLICAS, WORKLOADS

if TYPE_CHECKING:
    from kaas.papers.experiment_server import ExperimentServer, Replicas
    from kaas.papers.results import ResultLine, Results
    from kaas.papers.testbed import Testbed

REPLICAS = {
    Side.KTASK: (1, 4, 16, 32),
    Side.KTASK_EXCLUSIVE: (4, 16),
    Side.ETASK_EXCLUSIVE: (4, 16, 32),
}
ONLINE_REPLICAS = {Side.KTASK: (4, 16, 32), Side.ETASK_EXCLUSIVE: (4, 16)}
SINGLES = ("cgemm", "resnet50")
"""Workloads of which the paper's text speaks of single clients."""
FURTHER = [
    *(Cell(name, side, 1) for name in SINGLES for side in (Side.KTASK_EXCLUSIVE, Side.ETASK_EXCLUSIVE)),
    Cell("resnet50", Side.KTASK_EXCLUSIVE, MOST_REPLICAS),
    *(Cell("cgemm", Side.KTASK, count) for count in (24, 30)),
    Cell("resnet50", Side.ETASK_SHARED, 16),
]
"""Single clients, the most clients, and the fall of cGEMM from 20 replicas on, of which the paper's text speaks; and
eTasks whose processes take turns on a device, of which it does not."""

Bar = tuple[float | str, str, float]
"""A measured value, or a word why there is none; the comparison with the limit; and the limit."""


def _offline(*workloads: str) -> list[Cell]:
    found = [Cell(name, side, count) for name in workloads for side, counts in REPLICAS.items() for count in counts]
    return [*found, *(cell for cell in FURTHER if cell.workload in workloads)]


def _online(*workloads: str) -> list[Cell]:
    return [
        Cell(name, side, count, online=True)
        for name in workloads
        for side, counts in ONLINE_REPLICAS.items()
        for count in counts
    ]


SINGLE_POLICY = Side.KTASK.policy
"""Of the server for Table 1 and Figure 8: its executors run already."""
FIGURES: dict[str, list[Cell]] = {
    "table1": [],
    "8": [],
    "10": _offline("resnet50", "jacobi"),
    "11": [
        *(Cell("bert", side, count, online=True) for side in ONLINE_REPLICAS for count in (4, CROWDED, 16)),
        *(Cell("bert", Side.KTASK, count, online=True, peak=Side.ETASK_EXCLUSIVE) for count in (4, CROWDED, 16)),
    ],
    "12": _offline("bert", "cgemm"),
    "13": _online("resnet50", "jacobi", "bert", "cgemm"),
}


def cells_of(figures: Iterable[str]) -> list[Cell]:
    """Return the cells of some figures, each once. An online cell comes after its offline one.

    Raises:
        InvalidRequest: there is no such figure.
    """
    cells = dict[Cell, None]()
    for figure in figures:
        if figure not in FIGURES:
            raise InvalidRequest(f"no figure {figure!r}: there are {', '.join(FIGURES)} and all")
        for cell in FIGURES[figure]:
            if cell.online:
                cells[cell.offline] = None
            cells[cell] = None
    return list(cells)


def run(
    figures: Sequence[str],
    results: Results,
    testbed: Testbed,
    tell: Callable[[str], object],
    progress: Callable[[ResultLine], object],
) -> None:
    """Measure what is not in the results yet. A cell without a figure is left out, and the run goes on.

    Args:
        figures: of the paper.
        results: of earlier runs, and of this one.
        testbed: what to measure on.
        tell: is called with what happens next.
        progress: is called with each result.

    Raises:
        KaasError: the server does not start, or a result is wrong.
    """
    left = sorted(
        (cell for cell in cells_of(figures) if cell not in results.found),
        key=lambda cell: (*_server_of(cell), *_turn(cell)),
    )
    singles = _missing_singles(figures, results)
    with _Servers(testbed, tell) as servers:
        if singles:
            with servers.running(SINGLE_POLICY) as server:
                for single in singles:
                    made = [each for each in single(server) if each not in results]  # a killed run may have kept some
                    results.add(*made)
                    for each in made:
                        progress(each)
        for (_, policy, etask_workers, *_), cells in groupby(left, key=_server_of):
            with servers.running(policy, etask_workers) as server:
                for (side, name), group in groupby(cells, key=lambda cell: (cell.side, cell.workload)):
                    measuring = list(group)
                    registered = server.etasks if side.is_etask else server.ktasks
                    with registered(WORKLOADS[name], max(cell.replicas for cell in measuring)) as replicas:
                        for cell in measuring:
                            if (found := _found(cell, replicas, results, testbed, tell)) is not None:
                                results.add((cell, found))
                                progress((cell, found))


def _found(
    cell: Cell, replicas: Replicas, results: Results, testbed: Testbed, tell: Callable[[str], object]
) -> Found | None:
    """Measure a cell. Return None if it has no figure, and say why."""
    peak = results.found.get(cell.offline)
    if cell.online and peak is None:
        tell(f"{cell.title}: no figure, since the rate is a share of that of {cell.offline.title}")
        return None
    rate_per_s, starts_s = peak.rate_per_s if peak else None, results.process_start_s
    try:
        return measured(cell, replicas.first(cell.replicas), testbed, rate_per_s, *starts_s)
    except DeadlineExceeded as error:
        tell(f"{cell.title}: no figure, {error.message}")
        return None


def _server_of(cell: Cell) -> tuple[bool, str, int, str, int]:
    """Return what cells of one server have in common: their turn, their policy, the processes of eTasks, and the rest.

    Exclusive sides come first, since some kTasks are loaded at a rate that eTasks reached. There one replica gets all
    devices only if no earlier client has left a process, so each server has one workload with a cell of one replica.
    """
    side = cell.side
    number = SINGLES.index(cell.workload) if side.exclusive and cell.workload in SINGLES else 0
    return not side.exclusive, side.policy, side.etask_workers, side.name, number


def _turn(cell: Cell) -> tuple[bool, str, int, bool, bool]:
    """Return the order of a server's cells: more replicas come later, so that those that are warm stay warm."""
    return cell.workload not in SINGLES, cell.workload, cell.replicas, cell.online, cell.peak is not None


def is_of(kept: ResultLine, figures: Sequence[str]) -> bool:
    """Return True if a result is of one of the figures, or at the rate of a cell of theirs."""
    match kept:
        case Breakdown():
            return "8" in figures
        case Properties():
            return "table1" in figures
        case cell, _:
            return not {cell, cell.offline}.isdisjoint(cells_of(figures))
    return False


def missing(figures: Sequence[str], results: Results) -> int:
    """Return the number of experiments of some figures without a result."""
    return len(_missing_singles(figures, results)) + sum(cell not in results.found for cell in cells_of(figures))


def _missing_singles(figures: Sequence[str], results: Results) -> list[Callable[[ExperimentServer], Any]]:
    """Return the measurements without replicas. Figure 8 comes first: no request has run on its server."""
    singles: list[Callable[[ExperimentServer], Any]] = []
    if "8" in figures and len(results.breakdowns) < BREAKDOWNS:
        singles.append(breakdowns)
    if "table1" in figures and len(results.properties) < len(TABLE):
        singles.append(properties)
    return singles


class _Servers:
    """Servers, one after the other: while one ends, the next one starts."""

    def __init__(self, testbed: Testbed, tell: Callable[[str], object]) -> None:
        self._testbed, self._tell = testbed, tell
        self._threads = ThreadPoolExecutor(1)
        self._ends: list[Future[None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the end of all.

        Raises:
            OSError: a server's folder cannot be removed.
        """
        self._threads.shutdown()
        for end in self._ends:
            end.result()

    @contextmanager
    def running(self, policy: str, etask_workers: int = 1) -> Iterator[ExperimentServer]:
        """Run a server. etask_workers: the most processes of eTasks on a device."""
        self._tell(f"a server starts: policy {policy}, {self._testbed.devices} devices")
        with ExitStack() as closing:
            folder = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="kaas-papers-")))
            server = closing.enter_context(serve(folder, policy, self._testbed, MOST_REPLICAS, etask_workers))
            try:
                yield server
            except BaseException:
                self._tell(f"the server ends first, which takes up to {STOP_S:g} s")
                raise
            self._ends.append(self._threads.submit(closing.pop_all().close))


def bars(results: Results, testbed: Testbed) -> dict[str, Bar]:
    """Return the ratios asked for, of the cells that are there."""
    rates = {cell: found.rate_per_s for cell, found in results.found.items() if not cell.online}
    ktask, etask = Side.KTASK, Side.ETASK_EXCLUSIVE
    made: dict[str, Bar] = {}
    few, many, most = (Cell("resnet50", ktask, count) for count in (4, 16, 32))
    exclusive = Cell("resnet50", etask, 16)
    if many in rates and exclusive in rates:
        made["ktask_over_etask_16"] = rates[many] / rates[exclusive], ">=", 20.0
    if most in rates and few in rates:
        made["ktask_32_over_4"] = rates[most] / rates[few], ">=", 0.9
    if many in rates and (share := efficiency(many, results, testbed)) is not None:
        made["efficiency_16"] = share, ">=", 0.9
    online = [results.found.get(Cell("resnet50", ktask, count, online=True)) for count in (16, 4)]
    sixteen, four = online
    if sixteen is not None and four is not None:
        stable = sixteen.steady and four.steady
        made["p90_16_over_4"] = sixteen.p90_s / four.p90_s if stable else "unstable", "<=", 1.5
    return made


def is_met(bar: Bar) -> bool:
    """Return True if a value is within its limit."""
    value, comparison, limit = bar
    return isinstance(value, float) and (value >= limit if comparison == ">=" else value <= limit)


def efficiency(cell: Cell, results: Results, testbed: Testbed) -> float | None:
    """Return a cell's rate over the rate of the devices with the kernels alone; None if their time is not known."""
    measured = [each.gpu_s for each in results.properties if each.workload == cell.workload]
    if not (testbed.modelled or measured):
        return None
    kernels_s = testbed.kernels_s(WORKLOADS[cell.workload], *measured)
    return results.found[cell].rate_per_s * kernels_s / testbed.devices

"""A cell whose requests fail is no result: neither in its time nor among those that end last."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from kaas.bench.arrivals import poisson_of
from kaas.bench.measure import Measurement
from kaas.bench.windows import MeasurementWindow, Stability
from kaas.errors import DeadlineExceeded, WrongAnswer
from kaas.papers import cells
from kaas.papers.cells import ENOUGH, Cell, Found, Side, measured
from kaas.papers.experiment_server import SLOTS, Replicas
from kaas.papers.small.testbed import SMALL
from kaas.papers.workloads import WORKLOADS, Workload

OFFLINE = Cell("jacobi", Side.KTASK, 4)
ONLINE = Cell("jacobi", Side.KTASK, 4, online=True)
PEAK_PER_S = 500.0


@dataclass
class StandReplicas:
    """Replicas that answer at once. wrong_at: the number of a request. silent_every: of so many, one has no answer."""

    workload: Workload = WORKLOADS["jacobi"]
    wrong_at: float = float("inf")
    silent_every: int = 0
    warmed: int = 0
    clients: list[int] = field(default_factory=list)
    checked: int = 0

    def warm(self, least: int, again: int) -> None:
        assert least >= again == SMALL.devices
        assert not self.clients
        self.warmed += 1

    def send(self, number: int) -> Future[Any]:
        answer: Future[Any] = Future()
        if not self.silent_every or len(self.clients) % self.silent_every:
            answer.set_result(number)
        self.clients.append(number)
        return answer

    def check(self, number: int, result: Any) -> None:
        assert number == result
        self.checked += 1
        if self.checked > self.wrong_at:
            raise WrongAnswer("another's")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("SHORTEST_S", "LONGEST_S", "FEW_S"):
        monkeypatch.setattr(cells, bound, 0.05)
    monkeypatch.setattr(cells, "DRAIN_S", 0.1)


def test_each_client_has_its_arrivals_at_random_and_its_own_results() -> None:
    replicas: Any = StandReplicas()
    found = measured(ONLINE, replicas, SMALL, PEAK_PER_S)
    assert set(replicas.clients) == {0, 1, 2, 3}
    assert replicas.clients[:8] != [0, 1, 2, 3, 0, 1, 2, 3]
    assert replicas.checked == len(replicas.clients)
    assert found.offered_per_s == 400


@pytest.mark.parametrize(
    ("workload", "side", "offered_per_s", "windows"),
    [
        ("resnet50", Side.KTASK, 0, (1.2, 4)),
        ("jacobi", Side.KTASK, 0, (1.8, 3)),  # 17 requests a window, in batches of 4
        ("resnet50", Side.ETASK_EXCLUSIVE, 0, (1.8, 4)),  # each request starts a process
        ("resnet50", Side.ETASK_SHARED, 0, (1.2, 4)),  # 16 processes stay on four devices
        ("resnet50", Side.KTASK, 96, (2.5, 7)),
        ("jacobi", Side.KTASK, 7, (1.8, 4)),
    ],
)
def test_windows_that_are_too_few_to_agree_are_short_and_not_made_more(
    monkeypatch: pytest.MonkeyPatch, workload: str, side: Side, offered_per_s: float, windows: tuple[float, int]
) -> None:
    monkeypatch.undo()
    assert cells._windows(Cell(workload, side, 16, online=offered_per_s > 0), SMALL, offered_per_s, 0.5) == windows


def test_an_online_cell_lasts_until_its_90th_percentile_tells_something() -> None:
    for offered_per_s in (0.2, 0.97, 1.5):
        cell = Cell("bert", Side.ETASK_EXCLUSIVE, 16, online=True)
        window_s, windows = cells._windows(cell, SMALL, offered_per_s, 0.8)
        assert offered_per_s * window_s * windows >= 13 - 1e-9


def test_windows_are_longer_where_processes_start_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    slow = [cells._windows(Cell("bert", side, 16), SMALL, 0, 1.2) for side in (Side.ETASK_EXCLUSIVE, Side.KTASK)]
    assert slow == [(3.6, 4), (1.8, 3)]


def test_a_part_of_a_batch_at_the_end_is_no_lower_rate() -> None:
    """Four devices end four requests every second: eight in the first two seconds, and none in the rest."""
    windows = (MeasurementWindow(1.3, 4, 4, 1.0, 4), MeasurementWindow(1.3, 4, 4, 1.0, 4))
    found = Measurement(
        Stability.UNSETTLED, windows, 0.0, (0.0, 2.6), (1.0,) * 8, {}, 0.0, False, results=8, last_result_s=2.0
    )
    assert cells._rate_per_s(Cell("bert", Side.KTASK, 4), found) == 4.0


@pytest.mark.parametrize(("side", "warmed"), [(Side.KTASK, 1), (Side.ETASK_EXCLUSIVE, 0)])
@pytest.mark.parametrize("online", [False, True])
def test_replicas_are_warm_where_they_can_stay_warm(side: Side, online: bool, warmed: int) -> None:
    """Else nearly each request starts a process, the first ones as the others."""
    replicas: Any = StandReplicas()
    measured(Cell("jacobi", side, 16, online), replicas, SMALL, PEAK_PER_S if online else None)
    assert replicas.warmed == warmed


def test_replicas_that_were_warm_are_not_all_called_again() -> None:
    called: list[int] = []

    def call(number: int, **_: Any) -> Future[Any]:
        called.append(number)
        answer: Future[Any] = Future()
        answer.set_result(np.array([number], np.float32))
        return answer

    workload = WORKLOADS["jacobi"]
    replicas = Replicas(workload, {}, tuple(partial(call, number) for number in range(6)), tuple(map(float, range(6))))
    replicas.first(2).warm(4, 1)
    assert called == [0, 1, 0, 1]
    called.clear()
    replicas.warm(5, 1)
    assert called == [2, 3, 4, 5, 0]
    called.clear()
    replicas.warm(5, 2)
    assert called == [0, 1]  # what an earlier load left under way ends before


@pytest.mark.parametrize("cell", [OFFLINE, ONLINE])
def test_a_wrong_result_ends_the_experiment(cell: Cell) -> None:
    with pytest.raises(WrongAnswer, match="have no right result"):
        measured(cell, StandReplicas(wrong_at=20), SMALL, PEAK_PER_S)  # type: ignore[arg-type]


def test_requests_without_a_result_end_the_experiment() -> None:
    with pytest.raises(WrongAnswer, match="have no right result"):
        measured(ONLINE, StandReplicas(silent_every=20), SMALL, PEAK_PER_S)  # type: ignore[arg-type]


def test_a_cell_with_few_results_in_its_time_has_no_figure() -> None:
    with pytest.raises(DeadlineExceeded, match=r"\d results within [\d.]+ s: this machine is too slow, or too busy"):
        measured(OFFLINE, StandReplicas(silent_every=1), SMALL, None)  # type: ignore[arg-type]


def test_the_first_results_of_the_devices_count_for_nothing() -> None:
    """Their processes are there, or their pipeline is empty: neither is what a client gets later."""
    replicas: Any = StandReplicas()
    found = measured(OFFLINE, replicas, SMALL, None)
    assert found.requests <= len(replicas.clients) - SMALL.devices * SLOTS


def test_a_cell_of_which_each_request_starts_a_process_ends_with_enough_results() -> None:
    """On a slow machine it takes as long as it has to; on a quick one no longer."""
    found = measured(Cell("jacobi", Side.ETASK_EXCLUSIVE, 16), StandReplicas(), SMALL, None)  # type: ignore[arg-type]
    assert found.requests == ENOUGH


def test_a_percentile_of_few_requests_tells_nothing() -> None:
    found = Found(1.0, Stability.UNSETTLED, 9, (1.0,) * 101, 1.0)
    assert not found.tells(90)
    assert replace(found, requests=11).tells(90)
    assert [replace(found, requests=n).tells(10) for n in (10, 11)] == [False, True]


def test_cells_that_are_compared_have_the_same_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def drawn(rate_per_s: float, count: int, seed: int) -> Any:
        seeds.append(seed)
        return poisson_of(rate_per_s, count, seed)

    monkeypatch.setattr(cells, "poisson_of", drawn)
    for count in (4, 16):
        measured(Cell("jacobi", Side.KTASK, count, online=True), StandReplicas(), SMALL, PEAK_PER_S)  # type: ignore[arg-type]
    assert seeds == [0, 0]

"""Load generators, against a service that the test answers for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import count
from time import perf_counter
from typing import Any

import pytest

from kaas.bench.load import FAILED_IN_A_ROW, FAILED_PAUSE_S, Completion, Load
from kaas.bench.measure import measure
from kaas.bench.windows import Stability
from kaas.errors import QueueFull
from tests.timeouts import TIMEOUT_S


class Service:
    """A service whose futures the test ends."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []
        self.numbers: list[int] = []
        self.refuses = False

    def send(self, number: int) -> Future[Any]:
        self.numbers.append(number)
        self.futures.append(Future())
        if self.refuses:
            raise QueueFull("too many")
        return self.futures[-1]


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def load(service: Service) -> Load:
    return Load(service.send)


def following(completions: Iterator[Completion | None]) -> Completion:
    return next(completed for completed in completions if completed is not None)


def test_a_caller_of_a_closed_loop_sends_its_next_request_when_one_ends(service: Service, load: Load) -> None:
    completions = load.closed(3)
    assert next(completions) is None
    assert (load.sent, load.outstanding) == (3, 3)
    service.futures[1].set_result("one")
    completed = following(completions)
    assert (completed.number, completed.value, completed.error) == (1, "one", None)
    assert (load.sent, load.outstanding) == (4, 3)
    assert service.numbers == [0, 1, 2, 1]
    assert completed.due_s <= completed.sent_s <= completed.ended_s


def test_an_open_loop_sends_however_few_end(service: Service, load: Load) -> None:
    completions = list(load.opened(iter([0.0] * 100)))
    assert completions == [None] * 100
    assert (load.sent, load.outstanding) == (100, 100)
    assert service.numbers == list(range(100))
    for future in service.futures:
        future.set_result(None)
    assert [completed.number for completed in load.drain(TIMEOUT_S)] == list(range(100))
    assert load.outstanding == 0


def test_a_latency_counts_from_the_time_at_which_a_request_was_due(service: Service, load: Load) -> None:
    """The sender was late by at least the two seconds that the arrivals lie back."""
    list(load.opened(iter([-2.0, -1.0])))
    for future in service.futures:
        future.set_result(None)
    first, second = load.drain(TIMEOUT_S)
    assert first.latency_s >= 2.0
    assert second.latency_s >= 1.0
    assert first.due_s == second.due_s - 1.0
    assert first.sent_s <= second.sent_s


def test_an_open_loop_waits_for_the_next_arrival(service: Service, load: Load) -> None:
    for _ in load.opened(iter([0.0, 0.02])):
        if len(service.futures) == 1 and not service.futures[0].done():
            service.futures[0].set_result(None)
    service.futures[1].set_result(None)
    *_, last = load.drain(TIMEOUT_S)
    assert last.number == 1
    assert last.sent_s >= last.due_s


def test_an_open_loop_can_be_stopped_while_it_is_late(load: Load) -> None:
    completions = load.opened(iter(lambda: -1.0, None))  # each request is overdue, for ever
    assert [next(completions) for _ in range(10)] == [None] * 10
    assert load.sent == 10


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (lambda future: future.set_exception(ValueError("bad")), "ValueError"),
        (lambda future: future.cancel(), "CancelledError"),
    ],
)
def test_an_error_and_a_cancelled_request_are_completions(
    service: Service, load: Load, end: Callable[[Future[Any]], object], error: str
) -> None:
    completions = load.closed(1)
    next(completions)
    end(service.futures[0])
    assert type(following(completions).error).__name__ == error
    assert load.outstanding == 1


def test_single_failures_cost_the_callers_of_a_closed_loop_no_time(
    service: Service, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("kaas.bench.load.sleep", pauses.append)
    completions = load.closed(1)
    next(completions)
    for number in range(40):
        service.futures[number].set_exception(ValueError("bad"))
        assert following(completions).error is not None
        if number % 5 == 4:
            service.futures[number + 1].set_result(None)
            service.futures.pop(number + 1)
            following(completions)
    assert not pauses


def test_a_closed_loop_pauses_once_many_requests_in_a_row_have_failed(
    service: Service, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("kaas.bench.load.sleep", pauses.append)
    service.refuses = True
    completions = load.closed(1)
    for _ in range(FAILED_IN_A_ROW + 2):
        following(completions)
    assert pauses == [FAILED_PAUSE_S] * 3
    service.refuses = False
    following(completions)  # of the last refused request; from here on nothing fails
    service.futures[-1].set_result(None)
    following(completions)
    assert len(pauses) == 4


def test_a_refused_request_is_a_completion_with_its_error(service: Service, load: Load) -> None:
    service.refuses = True
    list(load.opened(iter([0.0])))
    assert (load.sent, load.outstanding) == (1, 0)
    service.refuses = False
    completions = load.closed(0)
    assert next(completions) is None


def test_draining_gives_up_after_its_time(load: Load) -> None:
    list(load.opened(iter([0.0])))
    assert list(load.drain(0.0)) == []
    assert load.outstanding == 1


@pytest.mark.slow
def test_a_service_that_takes_no_more_requests_is_overloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It serves 500 a second, one at a time, and its sender waits where it has 200; 1,000 a second are due. So few
    requests are ever outstanding, and the others that are due wait in the generator."""
    now_s, ends = 100.0, deque[tuple[float, Future[Any]]]()

    def send(_: int) -> Future[Any]:
        nonlocal now_s
        ends.append((max(now_s, ends[-1][0] if ends else 0.0) + 0.002, Future()))
        made = ends[-1][1]
        now_s += 1e-5
        if len(ends) > 200:
            now_s = ends[0][0]
        while ends and ends[0][0] <= now_s:
            ends.popleft()[1].set_result(None)
        return made

    monkeypatch.setattr("kaas.bench.load.perf_counter", lambda: now_s)
    load = Load(send)
    loop = load.opened(number / 1000 for number in count())

    def waiting() -> Iterator[Completion | None]:
        nonlocal now_s
        for completed in loop:
            now_s += 1e-5 if completed else 1e-4  # an empty yield has waited
            yield completed

    found = measure(load, waiting(), open_loop=True, window_s=1.0, limit_s=30.0, clock=lambda: now_s)
    assert found.stability is Stability.UNSTABLE
    assert load.outstanding < 500
    assert found.windows[-1].queued > 1000


def test_a_burst_is_due_as_a_whole() -> None:
    """Its sender waits after the first request; the arrivals have no rate that could be carried on."""
    load = Load(lambda _: Future())
    loop = load.opened(iter([0.0] * 5 + [60.0]))
    next(loop)
    assert (load.sent, load.due(perf_counter())) == (1, 5)
    assert len([*load.unsent(perf_counter())]) == 4
    next(loop)
    assert (load.sent, load.due(perf_counter())) == (2, 5)

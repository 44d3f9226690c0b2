"""Load generators, against a service that the test answers for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from kaas.bench.load import Completion, Load
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


def test_requests_that_get_no_result_are_lost(service: Service, load: Load) -> None:
    next(load.closed(4))
    service.futures[0].set_result("right")
    service.futures[1].set_exception(QueueFull("too many"))
    service.futures[2].cancel()
    assert load.lost(0.01) == 3

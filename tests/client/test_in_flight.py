"""What a client has open: each call is in one place, and its credit is given back once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from kaas.client.in_flight import InFlight
from kaas.client.open_calls import OpenCall, OpenQuestion
from kaas.futures import PendingReply
from kaas.wire import protocol
from tests.patience import PATIENCE_S

LIMITS = protocol.Limits(requests=4, credit_bytes=100, frame_bytes=50)
BUSY = protocol.Failure(1, "QueueFull", "later", retry_s=0.5)


class Nowhere:
    lock = threading.Lock()

    def wait(self, pending: PendingReply, timeout_s: float | None) -> None: ...

    def watch(self, pending: PendingReply) -> None: ...

    def forget(self, pending: PendingReply) -> None: ...

    def call(self, callbacks: Sequence[Callable[[], Any]]) -> None: ...


def call(number: int, nbytes: int = 10) -> OpenCall:
    return OpenCall(Nowhere(), protocol.Invoke(number, "f"), (), nbytes, tuple, "f")


def sent(*numbers: int) -> tuple[InFlight, list[OpenCall]]:
    in_flight, calls = InFlight(), [call(number) for number in numbers]
    in_flight.renewed(LIMITS)
    for each in calls:
        assert in_flight.credit.take(each.nbytes)
        in_flight.open[each.number] = each
    return in_flight, calls


def taken(in_flight: InFlight) -> tuple[int, int]:
    return in_flight.credit.requests, in_flight.credit.nbytes


def test_an_answer_gives_credit_back() -> None:
    in_flight, (first, second) = sent(1, 2)
    assert in_flight.answered(1, None, PATIENCE_S) == (first, None)
    assert in_flight.answered(1, None, PATIENCE_S) == (None, None)
    assert taken(in_flight) == (1, 10)
    assert in_flight.open == {2: second}


def test_what_is_put_off_keeps_its_credit() -> None:
    in_flight, (first,) = sent(1)
    answered, pause_s = in_flight.answered(1, BUSY, PATIENCE_S)
    assert answered is first
    assert pause_s is not None
    assert pause_s >= 0.5
    assert (in_flight.open, in_flight.resting, taken(in_flight)) == ({}, {1: first}, (1, 10))
    assert not in_flight.forget(first), "the server has nothing of it"
    assert (in_flight.resting, taken(in_flight)) == ({}, (0, 0))


def test_nobody_is_patient_for_ever() -> None:
    in_flight, (first,) = sent(1)
    assert in_flight.answered(1, BUSY, patience_s=0.0) == (first, None)
    assert taken(in_flight) == (0, 0)


def test_who_is_cancelled_takes_credit_until_it_is_answered_or_the_connection_is_gone() -> None:
    in_flight, (first, second) = sent(1, 2)
    assert in_flight.forget(first)
    assert in_flight.forget(second)
    assert taken(in_flight) == (2, 20)
    assert in_flight.answered(1, None, PATIENCE_S) == (None, None)
    assert taken(in_flight) == (1, 10)
    assert in_flight.renewed(LIMITS) == ([2], [], [])
    assert taken(in_flight) == (0, 0)


def test_a_connection_takes_questions_along_and_leaves_calls() -> None:
    in_flight, (first,) = sent(1)
    question = in_flight.questions[2] = OpenQuestion(Nowhere(), protocol.Ask(2, "status"), ())
    assert in_flight.lost() == ([question], True)
    assert in_flight.renewed(LIMITS) == ([], [first], [])
    assert in_flight.lost() == ([], True)


def test_where_no_server_is_nothing_stays() -> None:
    in_flight, (first, second, third) = sent(1, 2, 3)
    in_flight.answered(2, BUSY, PATIENCE_S)
    in_flight.forget(third)
    room = PendingReply(Nowhere(), -4)
    in_flight.credit.waiting.append((room, 10))
    assert in_flight.failed() == [first, second, room]
    assert taken(in_flight) == (0, 0)
    assert in_flight.lost() == ([], False)

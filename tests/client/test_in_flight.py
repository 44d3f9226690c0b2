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
    standing, calls = InFlight(), [call(number) for number in numbers]
    standing.renewed(LIMITS)
    for each in calls:
        assert standing.credit.take(each.nbytes)
        standing.open[each.number] = each
    return standing, calls


def taken(standing: InFlight) -> tuple[int, int]:
    return standing.credit.requests, standing.credit.nbytes


def test_an_answer_gives_credit_back() -> None:
    standing, (first, second) = sent(1, 2)
    assert standing.answered(1, None, PATIENCE_S) == (first, None)
    assert standing.answered(1, None, PATIENCE_S) == (None, None)
    assert taken(standing) == (1, 10)
    assert standing.open == {2: second}


def test_what_is_put_off_keeps_its_credit() -> None:
    standing, (first,) = sent(1)
    answered, pause_s = standing.answered(1, BUSY, PATIENCE_S)
    assert answered is first
    assert pause_s is not None
    assert pause_s >= 0.5
    assert (standing.open, standing.resting, taken(standing)) == ({}, {1: first}, (1, 10))
    assert not standing.forget(first), "the server has nothing of it"
    assert (standing.resting, taken(standing)) == ({}, (0, 0))


def test_nobody_is_patient_for_ever() -> None:
    standing, (first,) = sent(1)
    assert standing.answered(1, BUSY, patience_s=0.0) == (first, None)
    assert taken(standing) == (0, 0)


def test_who_is_cancelled_takes_credit_until_it_is_answered_or_the_connection_is_gone() -> None:
    standing, (first, second) = sent(1, 2)
    assert standing.forget(first)
    assert standing.forget(second)
    assert taken(standing) == (2, 20)
    assert standing.answered(1, None, PATIENCE_S) == (None, None)
    assert taken(standing) == (1, 10)
    assert standing.renewed(LIMITS) == ([2], [], [])
    assert taken(standing) == (0, 0)


def test_a_connection_takes_questions_along_and_leaves_calls() -> None:
    standing, (first,) = sent(1)
    question = standing.questions[2] = OpenQuestion(Nowhere(), protocol.Ask(2, "status"), ())
    assert standing.lost() == ([question], True)
    assert standing.renewed(LIMITS) == ([], [first], [])
    assert standing.lost() == ([], True)


def test_where_no_server_is_nothing_stays() -> None:
    standing, (first, second, third) = sent(1, 2, 3)
    standing.answered(2, BUSY, PATIENCE_S)
    standing.forget(third)
    room = PendingReply(Nowhere(), -4)
    standing.credit.waiting.append((room, 10))
    assert standing.failed() == [first, second, room]
    assert taken(standing) == (0, 0)
    assert standing.lost() == ([], False)

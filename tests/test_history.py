"""The checker of `benchmarks.history` finds each kind of violation in a made-up history, and none in a sound one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.history import nemesis
from benchmarks.history.checker import LATE_S, LIMIT_S, violations
from benchmarks.history.events import Answered, AnyEvent, Charged, Fault, Invoked, Program, Rest, Served
from benchmarks.history.linear import NEVER_S, ImpossibleError, State, Step, first_misfit
from benchmarks.history.operations import Operation, advanced, drawn, expected


@dataclass
class Told:
    """A history that is made up, an event a second."""

    events: list[AnyEvent] = field(default_factory=list)
    operations: dict[str, Operation] = field(default_factory=dict)

    @property
    def now_s(self) -> float:
        return float(len(self.events))

    def invoke(self, do: str, *, number: int | None = None, attempt: int = 1, **fields: Any) -> str:
        """Begin an attempt; return the operation's name."""
        deadline_s: float | None = fields.pop("deadline_s", None)
        name = f"ada/0/{len(self.operations) if number is None else number}"
        made = {"value": 7, "w": 1, "object": "x" if do in ("put", "get", "delete", "advance") else "", **fields}
        operation = self.operations.setdefault(name, Operation(name, do, **made))
        self.events.append(Invoked(at_s=self.now_s, operation=operation, attempt=attempt, deadline_s=deadline_s))
        return name

    def answer(
        self, name: str, value: int | None = None, *, attempt: int = 1, outcome: str = "ok", sure: bool = True
    ) -> None:
        self.events.append(
            Answered(at_s=self.now_s, name=name, attempt=attempt, outcome=outcome, sure=sure, value=value)
        )

    def do(self, do: str, result: int | None = None, **fields: Any) -> str:
        """An operation with its answer at once."""
        name = self.invoke(do, **fields)
        self.answer(name, result)
        return name

    def charged(self, **requests: int) -> None:
        counts = {f"{do}-0": number for do, number in requests.items()}
        self.events.append(Charged(at_s=self.now_s, client="ada", asked_s=self.now_s, requests=counts))

    def kill_server(self) -> None:
        self.events.append(Served(at_s=self.now_s, what="killed"))

    def kill_program(self) -> None:
        self.events.append(Program(at_s=self.now_s, client="ada", what="killed"))

    def broken(self) -> set[str]:
        """The promises that do not hold."""
        return {found.promise for found in violations(self.events)}


@pytest.fixture
def told() -> Told:
    return Told()


RESULT = advanced(7, 1)


def test_a_sound_history(told: Told) -> None:
    told.do("put", value=5)
    told.do("get", 5)
    told.do("advance", advanced(5, 1))
    told.do("get", advanced(5, 1))
    told.do("plain", RESULT)
    told.charged(plain=1, advance=1)
    assert told.broken() == set()


def test_an_attempt_without_an_answer(told: Told) -> None:
    told.invoke("plain")
    assert told.broken() == {"one answer"}
    told.kill_program()
    assert told.broken() == set()


def test_an_attempt_with_two_answers(told: Told) -> None:
    name = told.do("plain", RESULT)
    told.answer(name, RESULT)
    assert told.broken() == {"one answer"}


def test_a_repeat_with_another_answer(told: Told) -> None:
    name = told.do("again", RESULT)
    told.invoke("again", number=0, attempt=2)
    told.answer(name, attempt=2, outcome="ExecutorDied")
    assert told.broken() == {"one answer"}
    told.events.insert(2, Served(at_s=1.5, what="killed"))  # then it has run again
    assert told.broken() == set()


def test_an_answer_that_is_kept_does_not_change_after_a_restart(told: Told) -> None:
    told.do("put", value=5)
    name = told.do("advance", advanced(5, 1))
    told.kill_server()
    told.invoke("advance", number=1, attempt=2)
    told.answer(name, attempt=2, outcome="ExecutorDied")
    assert told.broken() == {"one answer"}


@pytest.mark.parametrize("value", [RESULT + 1, -1])
def test_a_wrong_result(told: Told, value: int) -> None:
    told.do("plain", value)
    assert told.broken() == {"results"}


def test_an_error_without_a_cause(told: Told) -> None:
    told.answer(told.invoke("plain"), outcome="UnknownFunction")
    assert told.broken() == {"errors"}


# --- objects


def test_a_value_that_is_lost(told: Told) -> None:
    told.do("put", value=5)
    told.do("put", value=6)
    told.do("get", 5)
    assert told.broken() == {"objects"}


def test_an_object_that_is_lost(told: Told) -> None:
    told.do("put", value=5)
    told.answer(told.invoke("get"), outcome="UnknownObject")
    assert told.broken() == {"objects"}


def test_an_effect_that_comes_twice(told: Told) -> None:
    told.do("put", value=5)
    told.do("advance", advanced(5, 1))
    told.do("get", advanced(advanced(5, 1), 1))
    assert told.broken() == {"objects"}


def test_an_effect_of_a_failed_request(told: Told) -> None:
    told.do("put", value=5)
    told.answer(told.invoke("advance"), outcome="ExecutorDied")
    told.do("get", advanced(5, 1))
    assert told.broken() == {"objects"}


def test_an_unanswered_change_may_come_later_once_or_never(told: Told) -> None:
    told.do("put", value=5)
    told.invoke("put", value=6)
    told.kill_program()
    told.do("get", 5)
    assert told.broken() == set()
    told.do("get", 6)
    assert told.broken() == set()
    told.do("put", value=7)
    told.do("get", 6)
    assert told.broken() == {"objects"}


def test_attempts_of_a_change_are_one(told: Told) -> None:
    told.do("put", value=5)
    name = told.invoke("advance")
    told.answer(name, outcome="Unreachable", sure=False)
    told.invoke("advance", number=1, attempt=2)
    told.answer(name, advanced(5, 1), attempt=2)
    told.do("get", advanced(5, 1))
    assert told.broken() == set()


@given(st.integers(0, 10**9), st.booleans())
def test_a_history_of_one_object_in_order_is_linearizable_and_a_stale_read_is_not(seed: int, stale: bool) -> None:
    """Operations that happen at a moment, and begin before and end after it at random."""
    chance = random.Random(seed)
    state: State = None
    steps = []
    for moment in range(30):
        begins_s, ends_s = moment - 3 * chance.random(), moment + 3 * chance.random()
        if chance.random() < 0.5:
            state = moment
            steps.append(Step("put", begins_s, chance.choice((ends_s, NEVER_S)), writing(moment)))
        else:
            steps.append(Step("get", begins_s, ends_s, reading(state)))
    if stale:
        steps += [Step("put", 100, 101, writing(1000)), Step("get", 102, 103, reading(29))]
        steps = [step for step in steps if step.ends_s != NEVER_S]
    misfit = first_misfit(steps)
    assert (misfit is not None) is stale


def reading(value: State) -> Callable[[State], State]:
    def after(state: State) -> State:
        if state != value:
            raise ImpossibleError
        return state

    return after


def writing(value: State) -> Callable[[State], State]:
    return lambda _: value


# --- charges


def test_a_result_without_a_charge(told: Told) -> None:
    told.do("plain", RESULT)
    told.charged()
    assert told.broken() == {"charges"}


def test_a_charge_that_comes_twice(told: Told) -> None:
    told.do("plain", RESULT)
    told.charged(plain=2)
    assert told.broken() == {"charges"}


def test_a_charge_that_is_lost_by_a_restart(told: Told) -> None:
    told.do("plain", RESULT)
    told.charged(plain=1)
    told.kill_server()
    told.charged()
    assert told.broken() == {"charges"}


def test_a_repeat_is_charged_only_if_its_answer_is_not_kept(told: Told) -> None:
    name = told.do("again", RESULT)
    told.invoke("again", number=0, attempt=2)
    told.answer(name, RESULT, attempt=2)
    told.charged(again=2)
    assert told.broken() == {"charges"}
    told.events.insert(2, Served(at_s=1.5, what="killed"))
    assert told.broken() == set()


# --- time


def test_an_answer_long_after_its_deadline(told: Told) -> None:
    name = told.invoke("timed", way="deadline", within_s=0.5, deadline_s=0.5)
    late_s = 2 * LATE_S
    told.events.append(Answered(at_s=late_s, name=name, attempt=1, outcome="DeadlineExceeded"))
    assert told.broken() == {"deadlines"}
    told.events.append(Fault(at_s=0.5, what="stop a program", whom="ada", for_s=late_s))
    assert told.broken() == set()


def test_no_answer_in_a_rest(told: Told) -> None:
    told.events.append(Program(at_s=0.0, client="ada", what="ready"))
    name = told.invoke("plain")
    told.events.append(Rest(at_s=10.0, until_s=10.0 + 2 * LIMIT_S))
    told.events.append(Answered(at_s=11.0, name=name, attempt=1, outcome="ok", sure=True, value=RESULT))
    assert told.broken() == set()
    told.events[-1] = Answered(at_s=11.0 + 3 * LIMIT_S, name=name, attempt=1, outcome="ok", sure=True, value=RESULT)
    assert told.broken() == {"liveness"}


def test_a_program_or_a_server_that_ends_by_itself(told: Told) -> None:
    told.events.append(Program(at_s=0.0, client="ada", what="ended", status=0))
    assert told.broken() == set()
    told.events.append(Program(at_s=1.0, client="ada", what="ended", status=1))
    assert told.broken() == {"processes"}
    told.events[-1] = Served(at_s=1.0, what="did not start", words="no room")
    assert told.broken() == {"processes"}
    told.events.append(Fault(at_s=0.5, what="kill an executor"))
    assert told.broken() == set()


def test_a_server_does_not_start_while_its_disk_is_full_and_the_reserve_used_up(told: Told) -> None:
    told.events.append(Fault(at_s=0.5, what="fill the disk", for_s=2.0))
    told.events.append(Served(at_s=1.0, what="did not start", words="the disk is full"))
    assert told.broken() == {"processes"}
    words = "the disk is full: there is no reserve for charges"
    told.events[-1] = Served(at_s=1.0, what="did not start", words=words)
    assert told.broken() == set()
    told.events += [Served(at_s=3.0, what="killed"), Served(at_s=4.0, what="did not start", words=words)]
    assert told.broken() == {"processes"}, "there is room again"


def test_a_server_does_not_start_if_another_program_takes_the_room_of_its_reserve(told: Told) -> None:
    words = "the disk is full: charges and deletions go on in the reserve, uploads do not"
    told.events.append(Fault(at_s=0.5, what="fill the disk", for_s=9.0))
    told.events += [Served(at_s=1.0, what="ready"), Served(at_s=2.0, what="killed")]
    told.events.append(Served(at_s=4.0, what="did not start", words=words))
    assert told.broken() == {"processes"}, "its reserve is enough for its start"
    told.events.append(Fault(at_s=3.0, what="fill the disk", for_s=1.0))
    assert told.broken() == set()


# --- the seed


def test_operations_and_faults_follow_from_the_seed() -> None:
    assert drawn(1, "ada", 0, 5) == drawn(1, "ada", 0, 5) != drawn(2, "ada", 0, 5)
    plans = [list(nemesis.plan(seed, 300.0)) for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]
    assert {fault.what for fault in plans[0]} == nemesis.LONGEST_S.keys()


def test_no_fault_reaches_into_a_rest() -> None:
    faults = list(nemesis.plan(3, 400.0))
    for begins_s in nemesis.rests(400.0):
        for fault in faults:
            assert fault.at_s + fault.for_s <= begins_s or fault.at_s >= begins_s + nemesis.REST_S


def test_a_result_is_what_the_kernel_makes() -> None:
    operation = next(
        drawn(1, "ada", 0, number) for number in itertools.count() if drawn(1, "ada", 0, number).do == "plain"
    )
    assert expected(operation) == (3 * operation.value + operation.w) % 2**32

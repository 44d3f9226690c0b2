"""What earlier lives of a pool have left in an executor: their calls return, their runs can be waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from kaas.pool.lives import WRITTEN_AT_ONCE, Lives

PATIENCE_S = 30


class Call:
    """A call in a thread of its own."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._result: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._result.append(function(*args)), daemon=True)
        self._thread.start()

    @property
    def pending(self) -> bool:
        return self._thread.is_alive()

    def result(self) -> Any:
        self._thread.join(PATIENCE_S)
        return self._result[0]


def test_calls_of_earlier_lives_return() -> None:
    lives = Lives()
    watch, written = Call(lives.wait, 0), Call(lives.written, 0)
    assert watch.pending
    assert written.pending
    assert lives.begin() == (1, {})
    assert watch.result() is None
    assert written.result() is None
    late = Call(lives.wait, 0)
    assert late.result() is None
    assert Call(lives.wait, 1).pending


def test_runs_of_earlier_lives_are_waited_for() -> None:
    lives = Lives()
    with lives.running(0, b"first") as first, lives.running(1, b"second"):
        life, running = lives.begin()
        assert running == {0: b"first", 1: b"second"}
        ends = [Call(lives.orphan, life, slot) for slot in (0, 1)]
        assert all(end.pending for end in ends)
        first.result = "made"
    assert [end.result() for end in ends] == ["made", None]
    with lives.running(0, b"third"):
        assert lives.orphan(life, 0) is None  # which ran before has ended
        assert lives.begin() == (2, {0: b"third"})


def test_who_waits_for_a_run_returns_when_its_own_life_ends() -> None:
    lives = Lives()
    with lives.running(0, b"first"):
        life, _ = lives.begin()
        end = Call(lives.orphan, life, 0)
        assert end.pending
        later, running = lives.begin()
        assert end.result() is None
        assert running == {0: b"first"}
        again = Call(lives.orphan, later, 0)
        assert again.pending
    assert again.result() is None


def test_outputs_that_nobody_collects_hold_up_nobody_in_the_next_life() -> None:
    lives = Lives()
    for number in range(WRITTEN_AT_ONCE):
        lives.write(b"%d" % number, number)
    held_up = Call(lives.write, b"more", "dropped")
    assert held_up.pending
    life, _ = lives.begin()
    held_up.result()
    lives.write(b"new", "array")
    assert lives.written(life) == (b"new", "array")


def test_outputs_come_in_order_and_make_room() -> None:
    lives = Lives()
    for number in range(WRITTEN_AT_ONCE):
        lives.write(b"%d" % number, number)
    held_up = Call(lives.write, b"last", "last")
    assert [lives.written(0) for _ in range(WRITTEN_AT_ONCE + 1)] == [
        *((b"%d" % number, number) for number in range(WRITTEN_AT_ONCE)),
        (b"last", "last"),
    ]
    held_up.result()

"""What an executor's process has from one life of its pool to the next: runs go on, all that waits for a pool ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from kaas.wire import specs
from kaas.wire.connections.connection import Connection, ConnectionLost
from kaas.wire.messages import FromPeer, RequestObjects, RunInvocation
from kaas.worker.epochs import WRITTEN_AT_ONCE, Epoch, Epochs, RunningInvocation
from tests.patience import PATIENCE_S

INVOCATION = specs.encode(specs.Invocation("f", "alice", None, 0, True, {}, [], [], None))


class FakeLine:
    def __init__(self) -> None:
        self.sent: list[FromPeer] = []
        self.closed = False

    def send(self, header: FromPeer, frames: Sequence[Any] = ()) -> None:  # noqa: ARG002 - as a Line's
        if self.closed:
            raise ConnectionLost("this connection is closed")
        self.sent.append(header)

    def close(self) -> None:
        self.closed = True


class Call:
    """A call in a thread of its own."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._result: list[Any] = []
        self._thread = threading.Thread(target=self._run, args=(function, *args), daemon=True)
        self._thread.start()

    def _run(self, function: Callable[..., Any], *args: Any) -> None:
        try:
            self._result.append(function(*args))
        except Exception as error:  # noqa: BLE001 - it is the result
            self._result.append(error)

    @property
    def pending(self) -> bool:
        return self._thread.is_alive()

    def result(self) -> Any:
        self._thread.join(PATIENCE_S)
        return self._result[0]


def new_life(name: str) -> Epoch:
    return Epoch(name, cast(Connection, FakeLine()))


def run_in(life: Epoch, slot: int) -> RunningInvocation:
    return RunningInvocation(life, RunInvocation(7, slot), [INVOCATION])


def started(lives: Epochs, life: Epoch, slot: int) -> RunningInvocation:
    run = run_in(life, slot)
    assert lives.started(run)
    return run


def test_a_later_life_is_waited_for() -> None:
    lives = Epochs()
    early = Call(lives.wait, "first")
    lives.begin(new_life("first"))
    watch = Call(lives.wait, "first")
    assert early.pending
    assert watch.pending
    lives.begin(new_life("second"))
    assert early.result() is watch.result() is None
    assert Call(lives.wait, "first").result() is None
    assert Call(lives.wait, "second").pending


def test_runs_go_on_and_are_adopted() -> None:
    lives, first, second = Epochs(), new_life("first"), new_life("second")
    assert lives.begin(first) == {}
    runs = [started(lives, first, slot) for slot in range(3)]
    assert lives.ended(runs[2]) is None
    assert lives.begin(second) == {0: runs[0], 1: runs[1]}
    assert first.over
    assert lives.ended(runs[0]) is second
    new = started(lives, second, 0)
    third = new_life("third")
    assert lives.begin(third) == {0: new, 1: runs[1]}
    assert lives.ended(runs[1]) is lives.ended(new) is third
    assert runs[0].invocation.client == "alice"


def test_what_an_earlier_life_asked_for_last_does_not_begin() -> None:
    lives, first, second = Epochs(), new_life("first"), new_life("second")
    lives.begin(first)
    asked = run_in(first, 0)
    assert lives.begin(second) == {}
    assert not lives.started(asked)
    new = started(lives, second, 0)
    assert lives.begin(new_life("third")) == {0: new}


def test_what_is_said_of_a_life_that_is_over_means_nothing() -> None:
    life = new_life("first")
    life.send(RequestObjects(1))
    life.close()
    life.send(RequestObjects(2))
    assert cast(FakeLine, life.connection).sent == [RequestObjects(1)]


def test_supplies_are_asked_for_and_end_with_their_life() -> None:
    life = new_life("first")
    asked = Call(life.requested.ask, 5)
    failed = Call(life.requested.ask, 6)
    left = Call(life.requested.ask, 7)
    life.requested.bring(4, ["what nobody wants"])
    sent = cast(FakeLine, life.connection).sent
    while asked.pending:  # it asks in its own time
        life.requested.bring(5, ["a", "b"])
    while failed.pending:
        life.requested.bring(6, ValueError("gone"))
    assert asked.result() == ["a", "b"]
    assert str(failed.result()) == "gone"
    assert left.pending
    life.close()
    assert isinstance(left.result(), ConnectionError)
    assert sorted(need.number for need in sent if isinstance(need, RequestObjects)) == [5, 6, 7]
    assert isinstance(Call(life.requested.ask, 8).result(), ConnectionLost)


def test_deferred_results_are_collected_once() -> None:
    deferred_results = new_life("first").deferred_results
    first, second = deferred_results.pack(["a", "b"]), deferred_results.pack(["c"])
    assert deferred_results.collect(second) == ["c"]
    assert deferred_results.collect(first) == ["a", "b"]
    with pytest.raises(KeyError):
        deferred_results.collect(first)


def test_outputs_that_are_written_back_make_room_for_others() -> None:
    deferred_results = new_life("first").deferred_results
    numbers = [deferred_results.pack_written(f"output {count}") for count in range(WRITTEN_AT_ONCE)]
    held_up = Call(deferred_results.pack_written, "one more")
    assert deferred_results.collect(deferred_results.pack(["a run's"])) == ["a run's"]
    assert held_up.pending
    assert numbers[0] is not None
    assert deferred_results.collect(numbers[0]) == ["output 0"]
    assert deferred_results.collect(held_up.result()) == ["one more"]


def test_outputs_that_nobody_collects_hold_up_nobody_in_the_next_life() -> None:
    life = new_life("first")
    for count in range(WRITTEN_AT_ONCE):
        life.deferred_results.pack_written(count)
    held_up = Call(life.deferred_results.pack_written, "dropped")
    assert held_up.pending
    life.close()
    assert held_up.result() is None

"""An executor's process over the epochs of its pool: runs go on, and waits for the pool end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from kaas.wire import specs
from kaas.wire.connections.connection import Connection, ConnectionLost
from kaas.wire.messages import FromPeer, RequestObjects, RunInvocation
from kaas.worker.epochs import WRITTEN_AT_ONCE, Epoch, Epochs, RunningInvocation
from tests.timeouts import TIMEOUT_S

INVOCATION = specs.encode(specs.Invocation("f", "alice", None, 0, True, {}, [], [], None))


class FakeConnection:
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
        self._thread.join(TIMEOUT_S)
        return self._result[0]


def new_epoch(name: str) -> Epoch:
    return Epoch(name, cast(Connection, FakeConnection()))


def run_in(epoch: Epoch, slot: int) -> RunningInvocation:
    return RunningInvocation(epoch, RunInvocation(7, slot), [INVOCATION])


def started(epochs: Epochs, epoch: Epoch, slot: int) -> RunningInvocation:
    run = run_in(epoch, slot)
    assert epochs.started(run)
    return run


def test_a_wait_ends_with_a_later_epoch() -> None:
    epochs = Epochs()
    early = Call(epochs.wait, "first")
    epochs.begin(new_epoch("first"))
    watch = Call(epochs.wait, "first")
    assert early.pending
    assert watch.pending
    epochs.begin(new_epoch("second"))
    assert early.result() is watch.result() is None
    assert Call(epochs.wait, "first").result() is None
    assert Call(epochs.wait, "second").pending


def test_runs_continue_and_are_adopted() -> None:
    epochs, first, second = Epochs(), new_epoch("first"), new_epoch("second")
    assert epochs.begin(first) == {}
    runs = [started(epochs, first, slot) for slot in range(3)]
    assert epochs.ended(runs[2]) is None
    assert epochs.begin(second) == {0: runs[0], 1: runs[1]}
    assert first.over
    assert epochs.ended(runs[0]) is second
    new = started(epochs, second, 0)
    third = new_epoch("third")
    assert epochs.begin(third) == {0: new, 1: runs[1]}
    assert epochs.ended(runs[1]) is epochs.ended(new) is third
    assert runs[0].invocation.client == "alice"


def test_the_last_request_of_an_earlier_epoch_does_not_begin() -> None:
    epochs, first, second = Epochs(), new_epoch("first"), new_epoch("second")
    epochs.begin(first)
    asked = run_in(first, 0)
    assert epochs.begin(second) == {}
    assert not epochs.started(asked)
    new = started(epochs, second, 0)
    assert epochs.begin(new_epoch("third")) == {0: new}


def test_messages_of_an_ended_epoch_are_not_sent() -> None:
    epoch = new_epoch("first")
    epoch.send(RequestObjects(1))
    epoch.close()
    epoch.send(RequestObjects(2))
    assert cast(FakeConnection, epoch.connection).sent == [RequestObjects(1)]


def test_objects_are_requested_and_the_waits_end_with_their_epoch() -> None:
    epoch = new_epoch("first")
    asked = Call(epoch.requested.ask, 5)
    failed = Call(epoch.requested.ask, 6)
    left = Call(epoch.requested.ask, 7)
    epoch.requested.bring(4, ["not requested"])
    sent = cast(FakeConnection, epoch.connection).sent
    while asked.pending:  # the thread requests in its own time
        epoch.requested.bring(5, ["a", "b"])
    while failed.pending:
        epoch.requested.bring(6, ValueError("gone"))
    assert asked.result() == ["a", "b"]
    assert str(failed.result()) == "gone"
    assert left.pending
    epoch.close()
    assert isinstance(left.result(), ConnectionError)
    assert sorted(need.number for need in sent if isinstance(need, RequestObjects)) == [5, 6, 7]
    assert isinstance(Call(epoch.requested.ask, 8).result(), ConnectionLost)


def test_deferred_results_are_collected_once() -> None:
    deferred_results = new_epoch("first").deferred_results
    first, second = deferred_results.pack(["a", "b"]), deferred_results.pack(["c"])
    assert deferred_results.collect(second) == ["c"]
    assert deferred_results.collect(first) == ["a", "b"]
    with pytest.raises(KeyError):
        deferred_results.collect(first)


def test_outputs_that_are_written_back_make_room_for_others() -> None:
    deferred_results = new_epoch("first").deferred_results
    numbers = [deferred_results.pack_written(f"output {count}") for count in range(WRITTEN_AT_ONCE)]
    held_up = Call(deferred_results.pack_written, "one more")
    assert deferred_results.collect(deferred_results.pack(["a run's"])) == ["a run's"]
    assert held_up.pending
    assert numbers[0] is not None
    assert deferred_results.collect(numbers[0]) == ["output 0"]
    assert deferred_results.collect(held_up.result()) == ["one more"]


def test_uncollected_outputs_delay_no_output_of_the_next_epoch() -> None:
    epoch = new_epoch("first")
    for count in range(WRITTEN_AT_ONCE):
        epoch.deferred_results.pack_written(count)
    held_up = Call(epoch.deferred_results.pack_written, "dropped")
    assert held_up.pending
    epoch.close()
    assert held_up.result() is None

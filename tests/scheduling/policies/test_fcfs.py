"""First come, first served: these events, these decisions."""

from __future__ import annotations

import pytest

from kaas.errors import PolicyError
from kaas.scheduling.decisions import Decision, Dispatch, Reject, StartWorker
from kaas.scheduling.events import (
    Event,
    InputsReady,
    Outcome,
    PhysicalDevice,
    RequestArrived,
    RequestCancelled,
    RequestDone,
    Residency,
    Tick,
    WorkerGone,
    WorkerKind,
    WorkerReady,
)
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from kaas.scheduling.policies.reclaiming import FAILED_STARTS

EXECUTOR = WorkerKind.EXECUTOR
GIB = 1 << 30


def arrived(request: int, *, ready: bool = True) -> RequestArrived:
    return RequestArrived(0.0, request, "alice", "f", ready=ready)


def up(worker: int, device: int | None = None, slots: int = 1) -> WorkerReady:
    return WorkerReady(0.0, worker, EXECUTOR, worker if device is None else device, slots, GIB)


def done(request: int, worker: int, outcome: Outcome = Outcome.SUCCEEDED, slot: int = 0) -> RequestDone:
    return RequestDone(0.0, request, worker, slot, outcome, 0.001)


def start(worker: int, device: int | None = None) -> StartWorker:
    return StartWorker(worker, EXECUTOR, worker if device is None else device)


def decisions(*events: Event, devices: int = 1) -> list[list[Decision]]:
    policy = FirstComeFirstServed([PhysicalDevice(i, "software", GIB) for i in range(devices)])
    return [policy.handle(event) for event in events]


TICK = Tick(0.0)

TABLE: dict[str, tuple[int, list[Event], list[list[Decision]]]] = {
    "one worker on each device": (2, [TICK, TICK], [[start(0), start(1)], []]),
    "a request waits for a worker": (1, [TICK, arrived(0), up(0)], [[start(0)], [], [Dispatch(0, 0, 0)]]),
    "a free worker is used at once": (1, [TICK, up(0), arrived(0)], [[start(0)], [], [Dispatch(0, 0, 0)]]),
    "in order of arrival": (
        1,
        [TICK, arrived(0), arrived(1), arrived(2), up(0), done(0, 0), done(1, 0, Outcome.FAILED)],
        [[start(0)], [], [], [], [Dispatch(0, 0, 0)], [Dispatch(1, 0, 0)], [Dispatch(2, 0, 0)]],
    ),
    "two devices, one queue": (
        2,
        [TICK, up(0), up(1), arrived(0), arrived(1), arrived(2), done(1, 0)],
        [[start(0), start(1)], [], [], [Dispatch(0, 1, 0)], [Dispatch(1, 0, 0)], [], [Dispatch(2, 0, 0)]],
    ),
    "the worker freed last is taken first": (
        2,
        [TICK, up(0), up(1), arrived(0), done(0, 1), arrived(1)],
        [[start(0), start(1)], [], [], [Dispatch(0, 1, 0)], [], [Dispatch(1, 1, 0)]],
    ),
    "every slot of a worker": (
        1,
        [TICK, up(0, slots=2), arrived(0), arrived(1), arrived(2)],
        [[start(0)], [], [Dispatch(0, 0, 0)], [Dispatch(1, 0, 1)], []],
    ),
    "devices before slots": (
        2,
        [TICK, up(0, slots=2), up(1, slots=2), *(arrived(request) for request in range(4))],
        [
            [start(0), start(1)],
            [],
            [],
            [Dispatch(0, 1, 0)],
            [Dispatch(1, 0, 0)],
            [Dispatch(2, 1, 1)],
            [Dispatch(3, 0, 1)],
        ],
    ),
    "the least busy worker before the slot freed last": (
        2,
        [
            TICK,
            *(arrived(request) for request in range(4)),
            up(0, slots=2),
            up(1, slots=2),
            done(0, 0),
            done(2, 1),
            done(3, 1, slot=1),
            arrived(4),
            arrived(5),
            arrived(6),
        ],
        [
            [start(0), start(1)],
            *([[]] * 4),
            [Dispatch(0, 0, 0), Dispatch(1, 0, 1)],
            [Dispatch(2, 1, 0), Dispatch(3, 1, 1)],
            *([[]] * 3),
            [Dispatch(4, 1, 1)],
            [Dispatch(5, 1, 0)],
            [Dispatch(6, 0, 0)],
        ],
    ),
    "slots of a dead worker count no more": (
        2,
        [
            TICK,
            up(0, slots=2),
            up(1, slots=2),
            arrived(0),
            WorkerGone(0.0, 1, "killed"),
            arrived(0),
            up(2, device=1, slots=2),
            arrived(1),
        ],
        [
            [start(0), start(1)],
            [],
            [],
            [Dispatch(0, 1, 0)],
            [start(2, 1)],
            [Dispatch(0, 0, 0)],
            [],
            [Dispatch(1, 2, 0)],
        ],
    ),
    "inputs that are not ready block nobody": (
        1,
        [TICK, up(0), arrived(0, ready=False), arrived(1), InputsReady(0.0, 0), done(1, 0)],
        [[start(0)], [], [], [Dispatch(1, 0, 0)], [], [Dispatch(0, 0, 0)]],
    ),
    "an older request goes first once its inputs are ready": (
        1,
        [TICK, arrived(0, ready=False), arrived(1), InputsReady(0.0, 0), up(0)],
        [[start(0)], [], [], [], [Dispatch(0, 0, 0)]],
    ),
    "a cancelled request is skipped": (
        1,
        [
            TICK,
            arrived(0),
            arrived(1, ready=False),
            arrived(2),
            RequestCancelled(0.0, 0),
            RequestCancelled(0.0, 1),
            up(0),
        ],
        [[start(0)], [], [], [], [], [], [Dispatch(2, 0, 0)]],
    ),
    "a cancelled running request keeps its slot": (
        1,
        [TICK, up(0), arrived(0), arrived(1), RequestCancelled(0.0, 0), done(0, 0, Outcome.ABANDONED)],
        [[start(0)], [], [Dispatch(0, 0, 0)], [], [], [Dispatch(1, 0, 0)]],
    ),
    "a dead worker is replaced and what it ran arrives again": (
        1,
        [TICK, up(0), arrived(0), arrived(1), WorkerGone(0.0, 0, "killed"), arrived(0), up(1, device=0)],
        [[start(0)], [], [Dispatch(0, 0, 0)], [], [start(1, 0)], [], [Dispatch(0, 1, 0)]],
    ),
    "an idle worker that dies gets nothing": (
        2,
        [TICK, up(0), up(1), WorkerGone(0.0, 1, "killed"), arrived(0)],
        [[start(0), start(1)], [], [], [start(2, 1)], [Dispatch(0, 0, 0)]],
    ),
    "caches are not looked at": (1, [TICK, up(0), Residency(0.0, 0, (b"a",), ())], [[start(0)], [], []]),
}


@pytest.mark.parametrize("name", TABLE)
def test_decisions(name: str) -> None:
    devices, events, expected = TABLE[name]
    assert decisions(*events, devices=devices) == expected


def test_device_that_never_starts_is_given_up() -> None:
    failures: list[Event] = [WorkerGone(0.0, worker, "no driver") for worker in range(FAILED_STARTS)]
    *_, last = decisions(TICK, arrived(0), arrived(1, ready=False), *failures)
    reason = "no device of the pool starts: no driver"
    assert last == [Reject(0, reason), Reject(1, reason)]
    *_, later = decisions(TICK, *failures, arrived(7))
    assert later == [Reject(7, reason)]


def test_start_that_succeeds_forgives_earlier_ones() -> None:
    gone = [WorkerGone(0.0, worker, "slow") for worker in range(FAILED_STARTS + 2)]
    events: list[Event] = [TICK, gone[0], gone[1], up(2, device=0), gone[2], gone[3], gone[4]]
    assert [len(decided) for decided in decisions(*events)] == [1, 1, 1, 0, 1, 1, 1]


@pytest.mark.parametrize(
    "event",
    [InputsReady(0.0, 9), RequestCancelled(0.0, 9), done(9, 0), up(9), WorkerGone(0.0, 9, "?"), arrived(0)],
    ids=lambda event: type(event).__name__,
)
def test_unknown_ids_raise(event: Event) -> None:
    with pytest.raises(PolicyError):
        decisions(TICK, arrived(0), event)

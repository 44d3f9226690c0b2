"""The checks of policies: allowed and refused decisions; first-come-first-served breaks no rule."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.errors import PolicyError
from kaas.scheduling.checks import STORY_LENGTH, CheckedPolicy
from kaas.scheduling.decisions import (
    Decision,
    Dispatch,
    Evict,
    Reject,
    StartWorker,
    StopWorker,
    WakeAt,
)
from kaas.scheduling.events import (
    ClientKnown,
    Event,
    InputsReady,
    Outcome,
    PhysicalDevice,
    RequestArrived,
    RequestCancelled,
    RequestDone,
    Tick,
    WorkerGone,
    WorkerKind,
    WorkerReady,
)
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from kaas.scheduling.policies.orders import PriorityOrder
from kaas.scheduling.policies.scheduler import Scheduler

DEVICES = [PhysicalDevice(0, "software", None), PhysicalDevice(1, "gpu", 1 << 30)]
EXECUTOR = WorkerKind.EXECUTOR
STEP_LIMIT = 2000


@dataclass
class Scripted:
    """A policy whose decisions are given in advance."""

    answers: Sequence[list[Decision]]
    work_conserving: bool = False
    heard: list[Event] = field(default_factory=list)

    def handle(self, event: Event) -> list[Decision]:
        self.heard.append(event)
        return self.answers[len(self.heard) - 1] if len(self.heard) <= len(self.answers) else []


START: list[Decision] = [StartWorker(0, EXECUTOR, 0)]
UP = WorkerReady(0.0, 0, EXECUTOR, 0, 1, 1)
TICK = Tick(0.0)
NEW = RequestArrived(0.0, 5, "c", "f")
LATE = RequestArrived(0.0, 5, "c", "f", ready=False)

WRONG_DECISIONS: dict[str, tuple[list[Event], list[list[Decision]]]] = {
    "which is not queued": ([TICK, UP], [START, [Dispatch(5, 0, 0)]]),
    "not queued and ready": ([TICK, UP, LATE], [START, [], [Dispatch(5, 0, 0)]]),
    "which is not free": ([TICK, NEW], [START, [Dispatch(5, 0, 0)]]),
    "(0, 1), which is not free": ([TICK, UP, NEW], [START, [], [Dispatch(5, 0, 1)]]),
    "(0, 0), whose worker stops": ([TICK, UP, NEW], [START, [StopWorker(0)], [Dispatch(5, 0, 0)]]),
    "rejected request 5": ([TICK], [[Reject(5, "no")]]),
    "started worker 0 twice": ([TICK, TICK], [START, [StartWorker(0, EXECUTOR, 1)]]),
    "unknown device 7": ([TICK], [[StartWorker(0, EXECUTOR, 7)]]),
    "more than 1 executor workers on device 0": ([TICK], [[*START, StartWorker(1, EXECUTOR, 0)]]),
    "stopped worker 3": ([TICK], [[StopWorker(3)]]),
    "stopped worker 0": ([TICK], [[*START, StopWorker(0), StopWorker(0)]]),
    "cache of unknown worker 0": ([TICK], [[*START, Evict(0, (b"a",))]]),
    "woken in the past": ([TICK], [[WakeAt(0.0)]]),
    "woken never": ([TICK], [[WakeAt(float("inf"))]]),
    "cannot be checked: TypeError": ([TICK], [[WakeAt("soon")]]),  # type: ignore[arg-type]
    "'start', which is no decision": ([TICK], [["start"]]),  # type: ignore[list-item]
    "named keys that are no bytes": ([TICK, UP], [START, [Evict(0, ("a",))]]),  # type: ignore[arg-type]
    "returned None from handle": ([TICK], [None]),  # type: ignore[list-item]
    "victims that are no keys: None": ([TICK, UP, NEW], [START, [], [Dispatch(5, 0, 0, None)]]),  # type: ignore[arg-type]
    "Dispatch.slot = 0.0, which is no int": ([TICK, UP, NEW], [START, [], [Dispatch(5, 0, 0.0)]]),  # type: ignore[arg-type]
    "Dispatch.slot = False, which is no int": ([TICK, UP, NEW], [START, [], [Dispatch(5, 0, False)]]),
    "Dispatch.request = np.int64(5)": ([TICK, UP, NEW], [START, [], [Dispatch(np.int64(5), 0, 0)]]),  # type: ignore[arg-type]
    "Reject.request = 5.0": ([TICK, NEW], [START, [Reject(5.0, "no")]]),  # type: ignore[arg-type]
    "StopWorker.worker = False": ([TICK], [[*START, StopWorker(False)]]),
    "StartWorker.device = 0.0": ([TICK], [[StartWorker(0, EXECUTOR, 0.0)]]),  # type: ignore[arg-type]
    "Evict.order = True": ([TICK, UP], [START, [Evict(0, (b"a",), True)]]),
}


def run(policy: Scripted, events: Sequence[Event]) -> None:
    checked = CheckedPolicy(policy, DEVICES, name="scripted")
    for event in events:
        checked.handle(event)


@pytest.mark.parametrize("broken", WRONG_DECISIONS)
def test_wrong_decisions_are_stopped(broken: str) -> None:
    events, answers = WRONG_DECISIONS[broken]
    with pytest.raises(PolicyError) as caught:
        run(Scripted(answers), events)
    assert broken in caught.value.message
    assert caught.value.policy == "scripted"
    assert str(events[0]) in caught.value.story


def test_busy_slot_is_not_given_twice() -> None:
    other = RequestArrived(0.0, 6, "c", "f")
    answers: list[list[Decision]] = [START, [], [Dispatch(5, 0, 0)], [], [Dispatch(6, 0, 0)]]
    with pytest.raises(PolicyError, match="not free"):
        run(Scripted(answers), [TICK, UP, NEW, RequestCancelled(0.0, 5), other])


WRONG_EVENTS: dict[str, list[Event]] = {
    "request 5 twice": [NEW, NEW],
    "which awaits none": [NEW, InputsReady(0.0, 5)],
    "unknown request 9": [RequestCancelled(0.0, 9)],
    "end of request 5, which does not run": [NEW, RequestDone(0.0, 5, 0, 0, Outcome.SUCCEEDED, 0.0)],
    "which was not starting": [WorkerReady(0.0, 1, EXECUTOR, 0, 1, 1)],
    "worker 0 without a slot": [TICK, WorkerReady(0.0, 0, EXECUTOR, 0, 0, 1)],
    "end of unknown worker 4": [WorkerGone(0.0, 4, "?")],
    "a time that had passed": [Tick(2.0), Tick(1.0)],
}


@pytest.mark.parametrize("broken", WRONG_EVENTS)
def test_wrong_events_are_noticed(broken: str) -> None:
    with pytest.raises(PolicyError, match=broken):
        run(Scripted([START]), WRONG_EVENTS[broken])


ETASK = WorkerKind.ETASK
TASK = RequestArrived(0.0, 5, "c", "f", kind=ETASK)
FOR_C: list[Decision] = [StartWorker(0, ETASK, 0, "c", "f")]
UP_TASK = WorkerReady(0.0, 0, ETASK, 0, 1, 1)
OTHER = RequestArrived(0.0, 6, "c", "f")
ALONE = RequestArrived(0.0, 6, "c", "f", alone=True)
WIDE = WorkerReady(0.0, 0, EXECUTOR, 0, 2, 1)

BETWEEN_WORKERS: dict[str, tuple[list[Event], list[list[Decision]]]] = {
    "serves others, request 5 of 'c' for 'f', etask": ([TICK, UP, TASK], [START, [], [Dispatch(5, 0, 0)]]),
    "serves others, request 5 of 'c' for 'f', executor": ([TICK, UP_TASK, NEW], [FOR_C, [], [Dispatch(5, 0, 0)]]),
    "serves others, request 6": (
        [TICK, UP_TASK, RequestArrived(0.0, 6, "c", "g", kind=ETASK)],
        [FOR_C, [], [Dispatch(6, 0, 0)]],
    ),
    "with others": ([TICK, WIDE, NEW, ALONE], [START, [], [Dispatch(5, 0, 0)], [Dispatch(6, 0, 1)]]),
    "whose worker runs a request that must run alone": (
        [TICK, WIDE, ALONE, NEW],
        [START, [], [Dispatch(6, 0, 0)], [Dispatch(5, 0, 1)]],
    ),
    "on device 0 beside others": ([TICK], [[*START, StartWorker(1, ETASK, 0, "c", "f")]]),
    "more than 1 etask workers on device 0": ([TICK], [[*FOR_C, StartWorker(1, ETASK, 0, "c", "g")]]),
    "for no client and function": ([TICK], [[StartWorker(1, ETASK, 0, "c")]]),
    "its client runs 1 already": (
        [ClientKnown(0.0, "c", max_running=1), TICK, WIDE, NEW, OTHER],
        [[], START, [], [Dispatch(5, 0, 0)], [Dispatch(6, 0, 1)]],
    ),
}


@pytest.mark.parametrize("broken", BETWEEN_WORKERS)
def test_a_dispatch_that_a_worker_may_not_run_is_refused(broken: str) -> None:
    events, answers = BETWEEN_WORKERS[broken]
    with pytest.raises(PolicyError, match=re.escape(broken)):
        run(Scripted(answers), events)


def test_workers_that_share_a_device_take_turns() -> None:
    devices = [PhysicalDevice(0, "software", None, etask_workers=2)]
    second = RequestArrived(0.0, 6, "c", "g", kind=ETASK)
    start: list[Decision] = [*FOR_C, StartWorker(1, ETASK, 0, "c", "g")]
    policy = Scripted([start, [], [], [Dispatch(5, 0, 0)], [Dispatch(6, 1, 0)]])
    checked = CheckedPolicy(policy, devices)
    for event in (TICK, UP_TASK, WorkerReady(0.0, 1, ETASK, 0, 1, 1), TASK):
        checked.handle(event)
    with pytest.raises(PolicyError, match="while another worker of device 0 runs"):
        checked.handle(second)


def test_slots_may_be_kept_for_requests_that_run_alone_and_for_limits() -> None:
    class Holding(Scripted):
        def holds(self, request: int) -> bool:
            return request == 5

    answers: list[list[Decision]] = [START, [], [Dispatch(4, 0, 0)]]
    first = RequestArrived(0.0, 4, "c", "f")
    run(Scripted(answers, work_conserving=True), [TICK, WIDE, first, ALONE, NEW])
    run(Holding(answers, work_conserving=True), [TICK, WIDE, first, NEW])
    with pytest.raises(PolicyError, match="free while requests"):
        run(Scripted(answers, work_conserving=True), [TICK, WIDE, first, NEW])


def test_an_idle_slot_while_a_request_is_ready_is_refused_if_work_conserving() -> None:
    with pytest.raises(PolicyError, match="free while requests"):
        run(Scripted([START], work_conserving=True), [TICK, UP, NEW])
    run(Scripted([START]), [TICK, UP, NEW])


def test_decisions_may_come_from_a_generator() -> None:
    class Yielding:
        def handle(self, event: Event) -> Iterator[Decision]:
            if isinstance(event, Tick):
                yield StartWorker(0, EXECUTOR, 0)

    assert CheckedPolicy(Yielding(), DEVICES).handle(TICK) == START  # type: ignore[arg-type]


def test_an_error_of_the_policy_has_the_last_events() -> None:
    class Failing:
        def handle(self, event: Event) -> list[Decision]:
            if event.time_s < 99:
                return []
            raise ZeroDivisionError("boom")

    checked = CheckedPolicy(Failing(), DEVICES)
    for time_s in range(99):
        checked.handle(Tick(time_s))
    line = Failing.handle.__code__.co_firstlineno + 3
    with pytest.raises(PolicyError, match=rf"boom \(test_checks\.py:{line}, in handle\)") as caught:
        checked.handle(Tick(99))
    assert len(caught.value.story) == STORY_LENGTH
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_wrong_order_in_a_scheduler_of_ones_own_is_named_by_its_line() -> None:
    """The frames of KaaS that called the order, and those that the order called, are not the user's."""

    class Wrong(PriorityOrder):
        compares = ("x",)

        def place(self, queue: Any) -> tuple[float, ...]:
            return (queue.shares.foo,)

    class Mine(Scheduler):
        def order(self, serves: Any) -> Any:  # noqa: ARG002 - one order for all workers
            return Wrong(self.suited)

    line = Wrong.place.__code__.co_firstlineno + 1
    with pytest.raises(PolicyError, match=rf"raised AttributeError: .* \(test_checks\.py:{line}, in place\)"):
        CheckedPolicy(Mine(DEVICES), DEVICES).handle(RequestArrived(0.0, 0, "a", "f"))


class Machine:
    """Workers and callers that do all that the contract allows, in an order that Hypothesis draws."""

    def __init__(self, draw: Callable[[int], int], devices: int) -> None:
        self.draw = draw
        places = [PhysicalDevice(i, "software", None) for i in range(devices)]
        self.policy = CheckedPolicy(FirstComeFirstServed(places), places, name="fcfs")
        self.next_request = 0
        self.waiting: set[int] = set()
        self.queued: set[int] = set()
        self.running: dict[int, tuple[int, int]] = {}
        self.starting: dict[int, int] = {}
        self.workers: set[int] = set()
        self.time_s = 0.0
        self.feed(Tick(0.0))

    def feed(self, event: Event) -> None:
        for decision in self.policy.handle(event):
            match decision:
                case StartWorker():
                    self.starting[decision.worker] = decision.device
                case Dispatch():
                    self.queued.remove(decision.request)
                    self.running[decision.request] = (decision.worker, decision.slot)
                case Reject():
                    self.queued.discard(decision.request)
                    self.waiting.discard(decision.request)

    def pick(self, among: set[int] | dict[int, tuple[int, int]] | dict[int, int]) -> int:
        return sorted(among)[self.draw(len(among))]

    def arrive(self) -> None:
        ready = self.draw(3) > 0
        (self.queued if ready else self.waiting).add(self.next_request)
        self.next_request += 1
        self.feed(RequestArrived(self.time_s, self.next_request - 1, "c", "f", ready=ready))

    def inputs(self) -> None:
        if self.waiting:
            request = self.pick(self.waiting)
            self.waiting.remove(request)
            self.queued.add(request)
            self.feed(InputsReady(self.time_s, request))

    def cancel(self) -> None:
        alive = self.waiting | self.queued | set(self.running)
        if alive:
            request = self.pick(alive)
            self.waiting.discard(request)
            self.queued.discard(request)
            self.feed(RequestCancelled(self.time_s, request))

    def finish(self) -> None:
        if self.running:
            request = self.pick(self.running)
            worker, slot = self.running.pop(request)
            self.feed(RequestDone(self.time_s, request, worker, slot, Outcome.SUCCEEDED, 0.0))

    def ready(self) -> None:
        if self.starting:
            worker = self.pick(self.starting)
            device = self.starting.pop(worker)
            self.workers.add(worker)
            self.feed(WorkerReady(self.time_s, worker, EXECUTOR, device, 1 + self.draw(3), 1))

    def die(self) -> None:
        alive = self.workers | set(self.starting)
        if alive:
            worker = self.pick(alive)
            self.workers.discard(worker)
            self.starting.pop(worker, None)
            lost = sorted(request for request, place in self.running.items() if place[0] == worker)
            for request in lost:
                del self.running[request]
            self.feed(WorkerGone(self.time_s, worker, "killed"))
            for request in lost[: self.draw(len(lost) + 1)]:
                self.queued.add(request)
                self.feed(RequestArrived(self.time_s, request, "c", "f", attempt=2))


@given(st.data(), st.integers(1, 3))
def test_fcfs_keeps_every_invariant_and_serves_every_request(data: st.DataObject, devices: int) -> None:
    machine = Machine(lambda n: data.draw(st.integers(0, n - 1)), devices)
    actions = [
        machine.arrive,
        machine.arrive,
        machine.inputs,
        machine.cancel,
        machine.finish,
        machine.ready,
        machine.die,
    ]
    for action in data.draw(st.lists(st.sampled_from(actions), max_size=40)):
        machine.time_s += 1.0
        action()
    for _ in range(STEP_LIMIT):  # no failures from here on: all requests must run
        if not (machine.waiting or machine.queued or machine.running or machine.starting):
            return
        machine.inputs()
        machine.ready()
        machine.finish()
    raise AssertionError(f"requests are stuck: {machine.queued}")


def test_a_policy_that_exits_tells_its_story() -> None:
    class Exits:
        def handle(self, event: Event) -> list[Decision]:
            raise SystemExit(f"at {event.time_s}")

    policy = CheckedPolicy(Exits(), [])
    with pytest.raises(PolicyError, match="raised SystemExit: at") as caught:
        policy.handle(Tick(1.0))
    assert caught.value.story


@pytest.mark.parametrize("raised", [GeneratorExit, asyncio.CancelledError])
def test_an_exception_by_which_python_ends_code_is_an_error_of_the_policy(raised: type[BaseException]) -> None:
    class Raises:
        def handle(self, event: Event) -> list[Decision]:  # noqa: ARG002
            raise raised

    with pytest.raises(PolicyError, match=rf"raised {raised.__name__}: .*in handle"):
        CheckedPolicy(Raises(), []).handle(Tick(1.0))


def test_ctrl_c_in_a_policy_stays_ctrl_c() -> None:
    class Interrupted:
        def handle(self, event: Event) -> list[Decision]:  # noqa: ARG002
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CheckedPolicy(Interrupted(), []).handle(Tick(1.0))


class Mute(Exception):
    """Neither an error nor a decision of this class can be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def test_errors_and_decisions_that_cannot_be_printed_are_errors_of_the_policy() -> None:
    class Raises:
        def handle(self, event: Event) -> list[Decision]:  # noqa: ARG002
            raise Mute

    with pytest.raises(PolicyError, match="raised Mute: <Mute, whose text raised RuntimeError>"):
        CheckedPolicy(Raises(), []).handle(Tick(1.0))
    with pytest.raises(PolicyError, match="decided <Mute, whose text raised RuntimeError>") as caught:
        CheckedPolicy(Scripted([[Mute()]]), []).handle(Tick(1.0))  # type: ignore[list-item]
    assert caught.value.story == (str(Tick(1.0)), "<Mute, whose text raised RuntimeError>")

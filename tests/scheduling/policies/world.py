"""Workers and callers that do all that the contract allows, event by event, with a checked policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from kaas.scheduling.checks import CheckedPolicy
from kaas.scheduling.decisions import (
    Decision,
    Dispatch,
    PolicyFactory,
    Reject,
    StartWorker,
    StopWorker,
    WakeAt,
)
from kaas.scheduling.events import (
    ClientKnown,
    DeviceAdded,
    DeviceRemoved,
    Event,
    InputsReady,
    ObjectUse,
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

EXECUTOR, ETASK = WorkerKind.EXECUTOR, WorkerKind.ETASK
STEP_LIMIT = 5000


@dataclass
class World:
    """Fields: running: request -> (worker, slot). dispatched: requests in order. answered: replies of each request.
    served: the flows that each worker ran. wakes: the times at which the policy wants a Tick. away: removed devices."""

    factory: PolicyFactory
    devices: int = 1
    slots: int = 1
    etask_workers: int = 1
    draw: Callable[[int], int] = lambda _: 0
    speeds: tuple[float, ...] = ()
    memory_bytes: int = 1
    client_executors: int | None = None
    time_s: float = 0.0
    next_request: int = 0
    arrivals: dict[int, RequestArrived] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    queued: set[int] = field(default_factory=set)
    running: dict[int, tuple[int, int]] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    starting: dict[int, StartWorker] = field(default_factory=dict)
    workers: dict[int, StartWorker] = field(default_factory=dict)
    stopping: set[int] = field(default_factory=set)
    dispatched: list[Dispatch] = field(default_factory=list)
    rejected: list[int] = field(default_factory=list)
    answered: Counter[int] = field(default_factory=Counter)
    served: dict[int, set[tuple[str, str]]] = field(default_factory=dict)
    wakes: list[float] = field(default_factory=list)
    decided: list[Decision] = field(default_factory=list)
    away: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        speeds = self.speeds or (1.0,) * self.devices
        self.places = [
            PhysicalDevice(i, "software", None, speeds[i], self.etask_workers, client_executors=self.client_executors)
            for i in range(self.devices)
        ]
        self.raw = self.factory(self.places)
        self.policy = CheckedPolicy(self.raw, self.places)

    def feed(self, event: Event) -> list[Decision]:
        decisions = self.policy.handle(event)
        self.decided += decisions
        for decision in decisions:
            match decision:
                case StartWorker():
                    self.starting[decision.worker] = decision
                case StopWorker():
                    self.stopping.add(decision.worker)
                case Dispatch():
                    self.queued.remove(decision.request)
                    self.running[decision.request] = (decision.worker, decision.slot)
                    self.dispatched.append(decision)
                    request = self.arrivals[decision.request]
                    self.served.setdefault(decision.worker, set()).add((request.client, request.function))
                case Reject():
                    self.queued.discard(decision.request)
                    self.waiting.discard(decision.request)
                    self.rejected.append(decision.request)
                    self.answered[decision.request] += 1
                case WakeAt():
                    self.wakes.append(decision.time_s)
        return decisions

    def known(self, client: str, **facts: float | int | bool | tuple[int, ...] | None) -> None:
        self.feed(ClientKnown(self.time_s, client, **facts))  # type: ignore[arg-type]

    def arrive(
        self,
        client: str = "c",
        function: str = "f",
        kind: WorkerKind = EXECUTOR,
        *,
        ready: bool = True,
        alone: bool = False,
        inputs: tuple[ObjectUse, ...] = (),
        deadline_s: float | None = None,
        share: str = "",
    ) -> int:
        request = self.next_request
        self.next_request += 1
        event = RequestArrived(
            self.time_s, request, client, function, inputs, ready, deadline_s, kind=kind, alone=alone, share=share
        )
        self.arrivals[request] = event
        (self.queued if ready else self.waiting).add(request)
        self.feed(event)
        return request

    def inputs(self, request: int) -> None:
        self.waiting.remove(request)
        self.queued.add(request)
        self.feed(InputsReady(self.time_s, request))

    def cancel(self, request: int) -> None:
        if request not in self.left:
            self.answered[request] += 1
        self.left.add(request)
        self.waiting.discard(request)
        self.queued.discard(request)
        self.feed(RequestCancelled(self.time_s, request))

    def finish(self, request: int, device_s: float = 0.0, outcome: Outcome = Outcome.SUCCEEDED) -> list[Decision]:
        worker, slot = self.running.pop(request)
        if request not in self.left:
            self.answered[request] += 1
        return self.feed(RequestDone(self.time_s, request, worker, slot, outcome, device_s))

    def up(self, worker: int) -> None:
        started = self.starting.pop(worker)
        self.workers[worker] = started
        slots = self.slots if started.kind is EXECUTOR else 1
        self.feed(WorkerReady(self.time_s, worker, started.kind, started.device, slots, self.memory_bytes))

    def gone(
        self, worker: int, reason: str = "killed", *, again: int = 0, alone: bool = False, device_s: float = 0.0
    ) -> None:
        """again: how many of its requests arrive once more, alone or not. device_s: the charge of each request."""
        self.starting.pop(worker, None)
        self.workers.pop(worker, None)
        self.stopping.discard(worker)
        lost = sorted(request for request, (at, _) in self.running.items() if at == worker)
        for request in lost:
            del self.running[request]
        charged = tuple((request, device_s) for request in lost if device_s)
        self.feed(WorkerGone(self.time_s, worker, reason, charged))
        for request in lost:
            if request in self.left or again <= 0:
                self.answered[request] += request not in self.left
                continue
            again -= 1
            old = self.arrivals[request]
            self.queued.add(request)
            self.feed(
                RequestArrived(
                    self.time_s,
                    request,
                    old.client,
                    old.function,
                    old.inputs,
                    attempt=2,
                    kind=old.kind,
                    alone=alone,
                )
            )

    def add_device(self, device: int) -> None:
        self.away.remove(device)
        self.feed(DeviceAdded(self.time_s, device))

    def remove_device(self, device: int) -> None:
        self.away.add(device)
        self.feed(DeviceRemoved(self.time_s, device))

    def resident(self, worker: int, loaded: tuple[bytes, ...], evicted: tuple[bytes, ...] = ()) -> None:
        self.feed(Residency(self.time_s, worker, loaded, evicted))

    def tick(self, by_s: float = 0.0) -> None:
        self.time_s += by_s
        self.feed(Tick(self.time_s))

    def stopped(self) -> list[int]:
        """Return the stopping workers without requests."""
        busy = {worker for worker, _ in self.running.values()}
        return sorted(self.stopping - busy)

    # --- steps, as Hypothesis draws them

    def step(self, pick: Callable[[int], int], device_s: float = 1.0) -> bool:
        """Take a step that needs no caller; return False if there is none."""
        going: list[Callable[[], object]] = [lambda r=r: self.finish(r, device_s) for r in sorted(self.running)]  # type: ignore[misc]
        going += [lambda w=w: self.up(w) for w in sorted(self.starting) if w not in self.stopping]  # type: ignore[misc]
        going += [lambda w=w: self.gone(w, "stopped") for w in self.stopped()]  # type: ignore[misc]
        going += [lambda r=r: self.inputs(r) for r in sorted(self.waiting)]  # type: ignore[misc]
        if self.wakes and (not going or min(self.wakes) <= self.time_s):
            going.append(self.wake)
        if not going and self.queued:
            going = [lambda d=d: self.add_device(d) for d in sorted(self.away)]  # type: ignore[misc]
        if going:
            going[pick(len(going))]()
        return bool(going)

    def wake(self) -> None:
        """Let the first time pass at which the policy wants a Tick."""
        self.time_s = max(self.time_s, min(self.wakes))
        self.wakes.remove(min(self.wakes))
        self.feed(Tick(self.time_s))

    def settle(self, pick: Callable[[int], int], device_s: float = 1.0) -> int:
        """Take steps without failures until each request has ended, once; return their number."""
        steps = 0
        while self.waiting or self.queued or self.running:
            assert steps < STEP_LIMIT, f"requests are still there after {steps} steps: {sorted(self.queued)}"
            assert self.step(pick, device_s), f"requests are stuck: {sorted(self.queued)}"
            steps += 1
        assert self.answered == Counter(dict.fromkeys(self.arrivals, 1))
        return steps

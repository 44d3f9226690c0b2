"""A policy under guard: every event and decision is checked against what any policy must respect."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NoReturn

from kaas.errors import PolicyError
from kaas.pool.events import (
    ClientGone,
    ClientKnown,
    Decision,
    Dispatch,
    Event,
    Evict,
    InputsReady,
    PhysicalDevice,
    Policy,
    Prefetch,
    Reject,
    RequestArrived,
    RequestCancelled,
    RequestDone,
    Residency,
    StartWorker,
    StopWorker,
    Tick,
    Utilisation,
    WakeAt,
    WorkerAdopted,
    WorkerGone,
    WorkerReady,
)

STORY_LENGTH = 30


class Checked:
    """Wraps a policy and keeps its own books.

    Asserted: ids are known and new ones new; a request is dispatched once, only with its inputs ready, into a free
    slot of a worker that is ready and not stopping; a slot is freed only by RequestDone or WorkerGone; devices exist
    and have one worker of a kind at most; rejected requests were queued. For a policy that says
    `work_conserving = True` also: no slot stays free while a ready request waits.

    Raises:
        PolicyError: with the last events and decisions in `story`, from `handle`.
    """

    def __init__(self, policy: Policy, devices: Sequence[PhysicalDevice], *, name: str = "") -> None:
        self._policy = policy
        self._name = name or type(policy).__name__
        self._work_conserving = bool(getattr(policy, "work_conserving", False))
        self._devices = {device.index for device in devices}
        self._time_s = float("-inf")
        self._waiting: set[int] = set()
        self._ready: set[int] = set()
        self._running: dict[int, tuple[int, int]] = {}
        self._starting: dict[int, tuple[object, int]] = {}
        self._workers: dict[int, tuple[object, int]] = {}
        self._stopping: set[int] = set()
        self._started: set[int] = set()
        self._free: set[tuple[int, int]] = set()
        self._story: deque[Event | Decision] = deque(maxlen=STORY_LENGTH)

    def handle(self, event: Event) -> list[Decision]:
        self._story.append(event)
        self._hear(event)
        try:
            decisions = self._policy.handle(event)
        except Exception as error:
            raise self._error(f"raised {type(error).__name__}: {error}") from error
        for decision in decisions:
            self._story.append(decision)
            self._follow(decision)
        if self._work_conserving and self._ready and self._usable():
            self._fail(f"left slots {self._usable()} free while requests {sorted(self._ready)} wait")
        return decisions

    # --- events: what the pool may tell

    def _hear(self, event: Event) -> None:
        self._require(event.time_s >= self._time_s, "heard of a time that had passed")
        self._time_s = event.time_s
        match event:
            case ClientKnown() | ClientGone():
                pass
            case RequestArrived(request=request):
                known = request in self._waiting or request in self._ready or request in self._running
                self._require(not known, f"heard of request {request} twice")
                (self._ready if event.ready else self._waiting).add(request)
            case InputsReady(request=request):
                self._require(request in self._waiting, f"heard of inputs for request {request}, which awaits none")
                self._waiting.remove(request)
                self._ready.add(request)
            case RequestCancelled(request=request):
                queued = request in self._waiting or request in self._ready
                self._require(queued or request in self._running, f"heard of unknown request {request}")
                self._waiting.discard(request)
                self._ready.discard(request)
            case RequestDone():
                place = (event.worker, event.slot)
                self._require(self._running.get(event.request) == place, f"heard that {event.request} left {place}")
                del self._running[event.request]
                self._free.add(place)
            case WorkerReady(worker=worker):
                self._require(worker in self._starting, f"heard of worker {worker}, which was not starting")
                self._require(event.slots > 0, f"heard of worker {worker} without a slot")
                self._workers[worker] = self._starting.pop(worker)
                self._free |= {(worker, slot) for slot in range(event.slots)}
            case WorkerAdopted(worker=worker):
                self._adopt(event)
            case WorkerGone(worker=worker):
                self._lose(worker)
            case Residency(worker=worker):
                self._require(worker in self._workers, f"heard of the caches of unknown worker {worker}")
            case Utilisation(device=device):
                self._require(device in self._devices, f"heard of unknown device {device}")
            case Tick():
                pass

    def _adopt(self, event: WorkerAdopted) -> None:
        self._require(event.worker not in self._started, f"heard of worker {event.worker} twice")
        self._require(event.device in self._devices, f"heard of unknown device {event.device}")
        self._require(event.slots > 0, f"heard of worker {event.worker} without a slot")
        self._started.add(event.worker)
        self._workers[event.worker] = event.kind, event.device
        taken = {running.slot for running in event.running}
        self._free |= {(event.worker, slot) for slot in range(event.slots) if slot not in taken}
        self._running |= {running.request: (event.worker, running.slot) for running in event.running}

    def _lose(self, worker: int) -> None:
        self._require(worker in self._starting or worker in self._workers, f"heard that unknown worker {worker} ended")
        self._starting.pop(worker, None)
        self._workers.pop(worker, None)
        self._stopping.discard(worker)
        self._free = {place for place in self._free if place[0] != worker}
        self._running = {request: place for request, place in self._running.items() if place[0] != worker}

    # --- decisions: what the policy may do

    def _follow(self, decision: Decision) -> None:
        match decision:
            case Dispatch(request=request):
                place = (decision.worker, decision.slot)
                self._require(request in self._ready, f"dispatched request {request}, which is not queued and ready")
                self._require(place in self._free, f"dispatched to {place}, which is not free")
                self._require(decision.worker not in self._stopping, f"dispatched to stopping worker {place[0]}")
                self._ready.remove(request)
                self._free.remove(place)
                self._running[request] = place
            case Reject(request=request):
                queued = request in self._ready or request in self._waiting
                self._require(queued, f"rejected request {request}, which is not queued")
                self._ready.discard(request)
                self._waiting.discard(request)
            case StartWorker(worker=worker):
                self._start(worker, decision)
            case StopWorker(worker=worker):
                known = worker in self._workers or worker in self._starting
                self._require(known and worker not in self._stopping, f"stopped worker {worker}, which is not up")
                self._stopping.add(worker)
            case Prefetch(worker=worker) | Evict(worker=worker):
                self._require(worker in self._workers, f"changed the cache of unknown worker {worker}")
            case WakeAt():
                self._require(decision.time_s > self._time_s, "asked to be woken in the past")

    def _start(self, worker: int, decision: StartWorker) -> None:
        self._require(worker not in self._started, f"started worker {worker} twice")
        self._require(decision.device in self._devices, f"started a worker on unknown device {decision.device}")
        place = (decision.kind, decision.device)
        taken = place in self._starting.values() or place in self._workers.values()
        self._require(not taken, f"started a second {decision.kind.value} worker on device {decision.device}")
        self._started.add(worker)
        self._starting[worker] = place

    def _usable(self) -> list[tuple[int, int]]:
        return sorted(place for place in self._free if place[0] not in self._stopping)

    # --- failing

    def _require(self, holds: bool, broken: str) -> None:
        if not holds:
            self._fail(broken)

    def _fail(self, broken: str) -> NoReturn:
        raise self._error(broken)

    def _error(self, broken: str) -> PolicyError:
        story = tuple(str(entry) for entry in self._story)
        return PolicyError(f"policy {self._name!r} {broken}", policy=self._name, story=story)

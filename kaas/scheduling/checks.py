"""A checked policy: every event and decision is checked against the rules that hold for all policies."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from kaas.errors import PolicyError
from kaas.scheduling.candidates import Why
from kaas.scheduling.checked_worker import CheckedWorker
from kaas.scheduling.decisions import (
    Decision,
    Dispatch,
    Evict,
    Granted,
    Policy,
    Prefetch,
    Reject,
    StartWorker,
    StopWorker,
    WakeAt,
)
from kaas.scheduling.events import (
    ClientGone,
    ClientKnown,
    DeviceAdded,
    DeviceRemoved,
    Event,
    InputsReady,
    Ordered,
    PhysicalDevice,
    PromiseKnown,
    RequestArrived,
    RequestCancelled,
    RequestDone,
    Residency,
    ShareGone,
    ShareKnown,
    Utilisation,
    WorkerAdopted,
    WorkerGone,
    WorkerKind,
    WorkerReady,
)
from kaas.scheduling.raised_at import error_text, raised_at, text_of

STORY_LENGTH = 30
NO_VICTIMS = ()  # of which Python has one: any other object is checked


FlowName = tuple[WorkerKind, str, str]


class CheckedPolicy:
    """A policy with a second state, by which all its events and decisions are checked.

    Asserted: ids are known, and new ids are new. A request is dispatched once, only with its inputs ready, into a free
    slot of a worker that is ready, not stopping, of its kind, and serves its client and function. A request that must
    run alone does. A client runs no more than max_running. Nothing begins on a device that was removed. Only
    RequestDone and WorkerGone free a slot. Devices exist, and have one executor or at most their number of eTask
    workers, of which one runs; or as many executors as their clients may have, and one more, each for the client of
    its first request. Rejected requests were queued.
    For a policy with `work_conserving = True`, and without shares: no slot stays free while a ready request waits that
    it could run, but for requests that limits hold back or that fit no free device, as the policy's `holds` says, and
    for slots that are being cleared for requests that must run alone. Each Prefetch and Evict has one answer, or its
    worker ends.

    Raises:
        PolicyError: with the last events and decisions in `story`, from `handle`.
    """

    def __init__(self, policy: Policy, devices: Sequence[PhysicalDevice], *, name: str = "") -> None:
        self.policy = policy
        self.name = name or type(policy).__name__
        self._work_conserving = bool(getattr(policy, "work_conserving", False))
        self.utilisation_every_s = _period(getattr(policy, "utilisation_every_s", None), self.name)
        self.holds: Callable[[int], bool] = getattr(policy, "holds", lambda _: False)
        self.why: Callable[[int], Why | None] = getattr(policy, "why", lambda _: None)
        self._devices = {device.index: device for device in devices}
        self._on_device: dict[int, set[int]] = {device.index: set() for device in devices}
        self._away: set[int] = set()
        self._time_s = -math.inf
        self._waiting: dict[int, RequestArrived] = {}  # requests without their inputs
        self._ready: dict[int, RequestArrived] = {}
        self._flows: dict[FlowName, dict[int, RequestArrived]] = {}  # the ready requests, but for the last ones of them
        self._running: dict[int, tuple[int, int, str]] = {}
        self._workers: dict[int, CheckedWorker] = {}
        self._started: set[int] = set()
        self._usable: dict[int, CheckedWorker] = {}  # those with a free slot that may be used
        self._max_running: dict[str, int] = {}
        self._shares: set[str] = set()
        self._story: deque[Event | Decision] = deque(maxlen=STORY_LENGTH)

    def handle(self, event: Event) -> list[Decision]:
        """Pass an event to the policy, and return its decisions if all are allowed.

        Raises:
            PolicyError: the policy raised, or broke a rule; with the story of the last events.
        """
        self._story.append(event)
        self._observe(event)
        decided: Iterable[Decision] = ()
        try:
            decided = self.policy.handle(event)
            decisions = list(decided)  # it may be a generator
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # GeneratorExit and CancelledError too: of a policy they are errors like others
            if isinstance(error, TypeError) and not isinstance(decided, Iterable):
                raise self._error(f"returned {text_of(repr, decided)} from handle, in place of decisions") from error
            raise self._error(f"raised {error_text(error)} ({raised_at(error)})") from error
        try:
            for decision in decisions:
                self._story.append(decision)
                if type(decision) is Dispatch:
                    self._dispatch(decision)
                else:
                    self._check_decision(decision)
            if self._work_conserving and self._ready and self._usable and not self._shares:
                self._check_conserving()
        except (PolicyError, KeyboardInterrupt):
            raise
        except BaseException as error:  # a decision with a field of another type, or holds() raised
            raise self._error(f"made a decision that cannot be checked: {error_text(error)}") from error
        return decisions

    # --- events: those that a pool may send

    def _observe(self, event: Event) -> None:
        if not event.time_s >= self._time_s:
            self._fail("got an event of a time that had passed")
        self._time_s = event.time_s
        match event:
            case RequestArrived(request=request):
                if request in self._ready or request in self._waiting or request in self._running:
                    self._fail(f"got request {request} twice")
                if event.ready:
                    self._ready[request] = event
                else:
                    self._waiting[request] = event
            case RequestDone():
                place = self._running.get(event.request)
                if place is None or place[0] != event.worker or place[1] != event.slot:
                    named = (event.worker, event.slot)
                    self._fail(f"got the end of request {event.request}, which does not run at {named}")
                del self._running[event.request]
                done = self._workers[event.worker]
                done.free.add(event.slot)
                done.alone = False
                if not done.stopping and done.device not in self._away:
                    self._usable[event.worker] = done
            case InputsReady(request=request):
                self._require(request in self._waiting, f"got the inputs of request {request}, which awaits none")
                self._ready[request] = self._waiting.pop(request)
            case RequestCancelled(request=request):
                known = self._drop(request) or request in self._running
                self._require(known, f"got the cancellation of unknown request {request}")
            case WorkerReady(worker=worker):
                if (ready := self._workers.get(worker)) is None or ready.slots:
                    self._fail(f"got a ready worker {worker}, which was not starting")
                self._require(event.slots > 0, f"got worker {worker} without a slot")
                ready.slots, ready.free = event.slots, set(range(event.slots))
                if not ready.stopping and event.device not in self._away:
                    self._usable[worker] = ready
            case WorkerAdopted():
                self._adopt(event)
            case WorkerGone(worker=worker):
                self._lose(worker)
            case DeviceRemoved(device=device):
                self._require(device in self._devices.keys() - self._away, f"got the removal of device {device} twice")
                self._away.add(device)
                for worker in self._on_device[device]:
                    self._usable.pop(worker, None)
            case DeviceAdded(device=device):
                self._require(device in self._away, f"got device {device}, which was there")
                self._away.discard(device)
                up = {number: self._workers[number] for number in self._on_device[device]}
                self._usable |= {number: worker for number, worker in up.items() if worker.free and not worker.stopping}
            case Residency(worker=number):
                if (there := self._workers.get(number)) is None or not there.slots:
                    self._fail(f"got the objects of unknown worker {number}")
            case Ordered(worker=worker, order=order):
                open_ = self._workers[worker].orders if worker in self._workers else []
                self._require(order in open_, f"got the answer of worker {worker} to unknown order {order}")
                open_.remove(order)
            case Utilisation(device=device):
                self._require(device in self._on_device, f"got the utilisation of unknown device {device}")
            case ClientKnown(client=client, max_running=int(limit)):
                self._max_running[client] = limit
            case ClientKnown(client=client) | ClientGone(client=client):
                self._max_running.pop(client, None)
            case ShareKnown(share=share) | PromiseKnown(share=share):
                self._shares.add(share)
            case ShareGone(share=share):
                self._shares.discard(share)

    def _drop(self, request: int) -> bool:
        """Remove a request, ready or not. Return True if it was there."""
        queued = self._ready.pop(request, None)
        if queued is not None and self._flows:
            self._leave_flow(queued)
        return (queued or self._waiting.pop(request, None)) is not None

    def _leave_flow(self, queued: RequestArrived) -> None:
        requests = self._flows.get(flow := _flow(queued), {})
        requests.pop(queued.request, None)
        if not requests:
            self._flows.pop(flow, None)

    def _adopt(self, event: WorkerAdopted) -> None:
        self._require(event.worker not in self._started, f"got worker {event.worker} twice")
        self._require(event.device in self._on_device, f"got a worker on unknown device {event.device}")
        self._require(event.slots > 0, f"got worker {event.worker} without a slot")
        self._started.add(event.worker)
        worker = CheckedWorker(event.kind, event.device, event.client, event.function, slots=event.slots)
        self._workers[event.worker] = worker
        self._on_device[event.device].add(event.worker)
        worker.free = set(range(event.slots)) - {running.slot for running in event.running}
        for running in event.running:
            self._running[running.request] = (event.worker, running.slot, running.client)
        if worker.free and event.device not in self._away:
            self._usable[event.worker] = worker

    def _lose(self, number: int) -> None:
        self._require(number in self._workers, f"got the end of unknown worker {number}")
        self._running = {request: place for request, place in self._running.items() if place[0] != number}
        self._on_device[self._workers.pop(number).device].remove(number)
        self._usable.pop(number, None)

    # --- decisions: those that a policy may make

    def _check_decision(self, decision: Decision) -> None:
        match decision:
            case Dispatch():
                self._dispatch(decision)
            case Reject(request=request):
                self._check_numbers(decision, "request")
                self._require(self._drop(request), f"rejected request {request}, which is not queued")
            case StartWorker():
                self._start(decision)
            case StopWorker(worker=worker):
                self._check_numbers(decision, "worker")
                up = worker in self._workers and not self._workers[worker].stopping
                self._require(up, f"stopped worker {worker}, which is not up")
                self._workers[worker].stopping = True
                self._usable.pop(worker, None)
            case Prefetch(worker=worker) | Evict(worker=worker):
                self._check_numbers(decision, "worker", "order")
                up = worker in self._workers and self._workers[worker].slots > 0
                self._require(up, f"changed the cache of unknown worker {worker}")
                self._check_keys(decision.keys, "keys that are no bytes")
                if isinstance(decision, Prefetch):
                    self._check_keys(decision.victims, "victims that are no keys")
                self._workers[worker].orders.append(decision.order)
            case Granted(share=share):
                self._require(share in self._shares, f"granted {share!r} a share, which has no promise")
            case WakeAt():
                self._require(decision.time_s > self._time_s, "asked to be woken in the past")
                self._require(decision.time_s < math.inf, "asked to be woken never")
            case _:
                self._fail(f"decided {text_of(repr, decision)}, which is no decision")

    def _dispatch(self, decision: Dispatch) -> None:
        request, number, slot = decision.request, decision.worker, decision.slot
        if type(request) is not int or type(number) is not int or type(slot) is not int:
            self._check_numbers(decision, "request", "worker", "slot")
        queued = self._ready.pop(request, None)
        if queued is None:
            self._fail(f"dispatched request {request}, which is not queued and ready")
        if self._flows:
            self._leave_flow(queued)
        worker = self._usable.get(number)
        if worker is None or slot not in worker.free:
            self._fail(f"dispatched to {(number, slot)}, {self._obstacle(number)}")
        one = worker.client or worker.function  # else it serves all of its kind, which needs no call
        if worker.kind is not queued.kind or (one and not worker.serves(queued.kind, queued.client, queued.function)):
            self._fail(f"dispatched to worker {number}, which serves others, {_named(queued)}")
        if queued.alone and worker.busy:
            self._fail(f"ran {_named(queued)}, on worker {number} with others, though it must run alone")
        if worker.kind is WorkerKind.ETASK:
            others = any(self._workers[other].busy for other in self._on_device[worker.device] - {number})
            if others:
                self._fail(f"ran {_named(queued)}, while another worker of device {worker.device} runs something")
        limit = self._max_running.get(queued.client)
        if limit is not None and self._runs(queued.client) >= limit:
            self._fail(f"ran {_named(queued)}, though its client runs {limit} already")
        if decision.victims is not NO_VICTIMS:
            self._check_keys(decision.victims, "victims that are no keys")
        worker.free.remove(slot)
        worker.alone = queued.alone
        if worker.walls:
            worker.client = queued.client
        self._running[request] = (number, slot, queued.client)
        if queued.alone or not worker.free:
            del self._usable[number]

    def _obstacle(self, number: int) -> str:
        """Return why a slot of a worker cannot be used."""
        worker = self._workers.get(number)
        if worker is not None and worker.stopping:
            return "whose worker stops"
        if worker is not None and worker.alone:
            return "whose worker runs a request that must run alone"
        if worker is not None and worker.device in self._away:
            return f"on device {worker.device}, which is removed"
        return "which is not free"

    def _check_keys(self, keys: object, wrong: str) -> None:
        if not isinstance(keys, tuple | list) or not all(isinstance(key, bytes) for key in keys):
            self._fail(f"named {wrong}: {text_of(repr, keys)}")

    def _check_numbers(self, decision: Decision, *names: str) -> None:
        """Check that fields are plain ints: others equal to them, as 0.0 or NumPy's, cannot be sent to a worker."""
        for name in names:
            if type(value := getattr(decision, name)) is not int:
                self._fail(f"decided {type(decision).__name__}.{name} = {text_of(repr, value)}, which is no int")

    def _runs(self, client: str) -> int:
        """Return the number of running requests of a client."""
        return sum(whose == client for _, _, whose in self._running.values())

    def _start(self, decision: StartWorker) -> None:
        self._check_numbers(decision, "worker", "device")
        number, kind, device, etask = decision.worker, decision.kind, decision.device, decision.kind is WorkerKind.ETASK
        self._require(number not in self._started, f"started worker {number} twice")
        self._require(device in self._devices, f"started a worker on unknown device {device}")
        self._require(device not in self._away, f"started a worker on device {device}, which is removed")
        others = [self._workers[other].kind for other in self._on_device[device]]
        self._require({*others} <= {kind}, f"started an {kind.value} worker on device {device} beside others")
        walls = None if etask else self._devices[device].client_executors
        most = self._devices[device].etask_workers if etask else 1 + (walls or 0)
        self._require(len(others) < most, f"started more than {most} {kind.value} workers on device {device}")
        if etask and not (decision.client and decision.function):
            self._fail("started an etask worker for no client and function")
        self._started.add(number)
        self._workers[number] = CheckedWorker(kind, device, decision.client, decision.function, walls)
        self._on_device[device].add(number)

    def _check_conserving(self) -> None:
        """Check that no slot is free for a waiting request. An eTask worker that shares its device may have to wait."""
        for arrived in reversed(self._ready.values()):  # those that came since; most others ran at once
            own = self._flows.setdefault(_flow(arrived), {})
            if arrived.request in own:
                break
            own[arrived.request] = arrived
        for flow, requests in self._flows.items():
            able = [
                number
                for number, worker in self._usable.items()
                if worker.serves(*flow)
                and (worker.kind is WorkerKind.EXECUTOR or len(self._on_device[worker.device]) == 1)
            ]
            if not able:
                continue
            clearing = sum(request.alone for request in self._ready.values())
            empty = [number for number in able if not self._workers[number].busy]
            for request in requests.values():
                free = bool(empty) if request.alone else len(able) > clearing
                late = request.deadline_s is not None and request.deadline_s <= self._time_s
                if free and not late and not self.holds(request.request):
                    slots = [(number, slot) for number in able for slot in sorted(self._workers[number].free)]
                    self._fail(f"left slots {slots} free while requests {sorted(requests)} wait")

    # --- errors

    def _require(self, holds: bool, broken: str) -> None:
        if not holds:
            self._fail(broken)

    def _fail(self, broken: str) -> NoReturn:
        raise self._error(broken)

    def _error(self, broken: str) -> PolicyError:
        story = tuple(text_of(str, entry) for entry in self._story)
        return PolicyError(f"policy {self.name!r} {broken}", policy=self.name, story=story)


def _period(given: object, name: str) -> float | None:
    """Return the seconds between a policy's Utilisation events; None if it wants none.

    Raises:
        PolicyError: it is neither.
    """
    if given is None:
        return None
    if isinstance(given, int | float) and not isinstance(given, bool) and 0.001 <= given < math.inf:
        return given
    raise PolicyError(f"policy {name!r}: utilisation_every_s is seconds, at least 0.001, not {given!r}", policy=name)


def _flow(request: RequestArrived) -> FlowName:
    return request.kind, request.client, request.function


def _named(request: RequestArrived) -> str:
    """Return a request in words, for errors only: the checks of a request must stay fast."""
    return f"request {request.request} of {request.client!r} for {request.function!r}, {request.kind.value}"
